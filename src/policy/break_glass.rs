//! Break-glass: a grant for one action on one target, for a short time, to be used once. It never lifts the class matrix.

use jiff::{SignedDuration, Timestamp};

use super::assess::{Ask, assess};
use super::history::History;
use super::ladder::Rung;
use super::limits::Policy;
use super::record::Body;
use super::report::{RefusalCode, Report};
use super::when::after;
use super::words::words;

/// The longest a grant may live.
pub const GRANT_MAX: SignedDuration = SignedDuration::from_mins(15);
/// Grants that may be live at once; more is no emergency but a mistake.
pub const GRANTS_MAX: usize = 100;

words! {
    /// What happened around break-glass; the metric's label.
    pub enum GlassEvent as "break-glass event" {
        Granted = "granted",
        Used = "used",
        Refused = "refused",
        Expired = "expired",
    }
}

words! {
    /// Why no grant was given.
    pub enum GlassRefusal as "break-glass refusal" {
        NotPermitted = "not_permitted",
        /// `HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION` is not set, or empty.
        NotAuthorised = "break_glass_not_authorised",
        TooMany = "too_many_grants",
    }
}

/// A live grant, folded from its record: neither used nor recorded as expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub grant_id: String,
    pub action: Rung,
    pub target: String,
    pub principal: String,
    pub granted_at: Timestamp,
    pub expires_at: Timestamp,
}

impl Grant {
    /// Whether it opens exactly this, now. One from the future (the clock stepped back) opens nothing.
    #[must_use]
    pub fn opens(&self, action: Rung, target: &str, now: Timestamp) -> bool {
        self.action == action && self.target == target && self.granted_at <= now && now < self.expires_at
    }
}

/// Somebody asks for a grant. `duration` is positive and at most [`GRANT_MAX`]: the caller has judged it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantAsk {
    pub grant_id: String,
    pub action: Rung,
    pub target: String,
    pub principal: String,
    pub role: String,
    pub reason: String,
    pub duration: SignedDuration,
}

/// The verdict on an ask, and what must be written down either way.
#[derive(Debug, Clone, PartialEq)]
pub struct GrantVerdict {
    /// `None`: granted.
    pub refused: Option<(GlassRefusal, String)>,
    /// What the gate says of the action with this grant, and without any attempt.
    pub report: Report,
    pub record: Body,
}

/// Judges an ask.
#[must_use]
pub fn grant(policy: &Policy, history: &History, ask: &GrantAsk, now: Timestamp) -> GrantVerdict {
    let report = assess(
        &policy.matrix,
        &Ask {
            restart_class: ask.action,
            role: &ask.role,
            attempts: &[],
            break_glass_requested: true,
            break_glass_authorised: policy.break_glass_authorised,
        },
    );
    let refused = refusal(policy, history, &report);
    let ask = ask.clone();
    let (action, target, principal, role, reason) = (ask.action, ask.target, ask.principal, ask.role, ask.reason);
    let record = match &refused {
        None => {
            let expires_at = after(now, ask.duration.min(GRANT_MAX));
            Body::Granted { grant_id: ask.grant_id, action, target, principal, role, reason, expires_at }
        }
        Some((_, why)) => Body::GrantRefused { action, target, principal, role, reason, why: why.clone() },
    };
    GrantVerdict { refused, report, record }
}

fn refusal(policy: &Policy, history: &History, report: &Report) -> Option<(GlassRefusal, String)> {
    if let Some(refusal) = report.refusals.iter().find(|r| r.code == RefusalCode::NotPermitted) {
        return Some((GlassRefusal::NotPermitted, refusal.message.clone()));
    }
    if !policy.break_glass_authorised {
        let why = "HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION is not set where the daemon runs".to_owned();
        return Some((GlassRefusal::NotAuthorised, why));
    }
    (history.grants.len() >= GRANTS_MAX).then(|| (GlassRefusal::TooMany, format!("{GRANTS_MAX} grants are live already")))
}

/// Grants whose time is over, to be recorded as such.
#[must_use]
pub fn expired(history: &History, now: Timestamp) -> Vec<Body> {
    let over = history.grants.values().filter(|g| now >= g.expires_at);
    over.map(|g| Body::GrantExpired { grant_id: g.grant_id.clone() }).collect()
}
