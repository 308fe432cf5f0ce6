//! Restart requests: judged and recorded when they come, judged again before anything acts on them.

use jiff::{SignedDuration, Timestamp};

use super::assess::{Ask, assess};
use super::attempt::AttemptRecord;
use super::break_glass::Grant;
use super::decide::not_applicable;
use super::gate::{Gate, Who};
use super::history::{History, Incident};
use super::hold::Hold;
use super::ladder::Rung;
use super::limits::Policy;
use super::record::Body;
use super::report::Report;
use super::seen::{Seen, seen_closely};
use super::snapshot::Snapshot;
use super::symptom::Symptom;
use super::when::after;
use super::words::words;

/// A request whose turn has not come after this long ends: what was asked for then may not be wanted any more.
pub const REQUEST_WAITS_MAX: SignedDuration = SignedDuration::from_mins(15);
/// Requests that may wait for their turn at once.
pub const REQUESTS_MAX: usize = 100;
/// Counted attempts that a record keeps of a report; the answer has them all.
const COUNTED_KEPT: usize = 20;

words! {
    /// How a request that was to act ended.
    pub enum RequestEnd as "request end" {
        /// An attempt was made for it.
        Acted = "acted",
        /// Judged again, by the daemon's own log, the gate said no.
        Refused = "refused",
        NotApplicable = "not_applicable",
        /// Its turn did not come in time.
        Expired = "expired",
    }
}

/// A request that waits for its turn, folded from its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub request_id: String,
    pub restart_class: Rung,
    pub target: String,
    pub principal: String,
    pub role: String,
    pub at: Timestamp,
    /// The grant that it used up lasts until then.
    pub break_glass_until: Option<Timestamp>,
}

/// Somebody asks for a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestAsk {
    pub request_id: String,
    pub restart_class: Rung,
    pub target: String,
    pub symptoms: Vec<Symptom>,
    pub reason: String,
    pub principal: String,
    pub role: String,
    /// What the caller says was tried: it satisfies the report, never the act.
    pub claimed: Vec<AttemptRecord>,
    pub request_break_glass: bool,
}

/// The verdict, and what must be written down together.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestVerdict {
    pub report: Report,
    /// It waits for its turn now; else why it does not.
    pub waits: Result<(), &'static str>,
    pub records: Vec<Body>,
}

/// Judges a request by what its caller claims.
#[must_use]
pub fn judge(policy: &Policy, history: &History, ask: &RequestAsk, now: Timestamp) -> RequestVerdict {
    let live = |g: &&Grant| g.opens(ask.restart_class, &ask.target, now);
    // Of several the one that ends first.
    let grant = history.grants.values().filter(live).min_by_key(|g| g.expires_at).filter(|_| policy.break_glass_authorised);
    let report = assess(
        &policy.matrix,
        &Ask {
            restart_class: ask.restart_class,
            role: &ask.role,
            attempts: &ask.claimed,
            break_glass_requested: ask.request_break_glass,
            break_glass_authorised: grant.is_some(),
        },
    );
    let used = grant.filter(|_| report.break_glass.used);
    let waits = may_wait(policy, history, ask, &report);
    let mut records = vec![recorded(ask, &report, used, waits.is_ok())];
    records.extend(used.map(|g| Body::GrantUsed { grant_id: g.grant_id.clone(), request_id: ask.request_id.clone() }));
    RequestVerdict { report, waits, records }
}

fn may_wait(policy: &Policy, history: &History, ask: &RequestAsk, report: &Report) -> Result<(), &'static str> {
    if !report.allowed {
        return Err("refused");
    }
    if !policy.requests_act {
        return Err("requests.act is false: recorded and reported only");
    }
    if history.requests.values().any(|r| r.target == ask.target) {
        return Err("another request for this target waits for its turn");
    }
    if history.requests.len() >= REQUESTS_MAX {
        return Err("too many requests wait for their turn");
    }
    Ok(())
}

fn recorded(ask: &RequestAsk, report: &Report, used: Option<&Grant>, acts: bool) -> Body {
    let mut report = report.clone();
    report.playbook_escalation.counted.truncate(COUNTED_KEPT);
    Body::Request {
        request_id: ask.request_id.clone(),
        restart_class: ask.restart_class,
        target: ask.target.clone(),
        symptoms: ask.symptoms.clone(),
        principal: ask.principal.clone(),
        role: ask.role.clone(),
        reason: ask.reason.clone(),
        request_break_glass: ask.request_break_glass,
        claimed: ask.claimed.len() as u64,
        report: Box::new(report),
        acts,
        break_glass_until: used.map(|g| g.expires_at),
    }
}

impl Request {
    /// Who acts when its turn comes. A grant that is over by then opens nothing any more.
    #[must_use]
    pub fn who(&self, now: Timestamp) -> Who<'_> {
        Who { role: &self.role, break_glass: self.break_glass_until.is_some_and(|until| now < until) }
    }
}

/// The request that a server's incident has to do with next, if any: the oldest.
#[must_use]
pub fn waiting<'a>(history: &'a History, incident: &Incident) -> Option<&'a Request> {
    history.requests.values().filter(|r| r.target == incident.mcp_server).min_by_key(|r| r.at)
}

/// Requests that end without an act, to be recorded as such.
#[must_use]
pub fn ended(policy: &Policy, snapshot: &Snapshot, history: &History, now: Timestamp) -> Vec<Body> {
    let end = |r: &Request| {
        let (how, why) = judge_again(policy, snapshot, history, r, now)?;
        Some(Body::RequestEnded { request_id: r.request_id.clone(), how, why })
    };
    history.requests.values().filter_map(end).collect()
}

/// The second judgement: with the daemon's own log only. `None`: it waits for its turn.
fn judge_again(policy: &Policy, snapshot: &Snapshot, history: &History, request: &Request, now: Timestamp) -> Option<(RequestEnd, String)> {
    let class = request.restart_class;
    let of_class = |text: &str| Some((RequestEnd::NotApplicable, format!("{class}: {text}")));
    if now >= after(request.at, REQUEST_WAITS_MAX) {
        return Some((RequestEnd::Expired, format!("its turn did not come within {REQUEST_WAITS_MAX:#}")));
    }
    let gate = Gate { policy, snapshot, history, now };
    let incident = history.open.get(&request.target);
    let server = snapshot.servers.get(&request.target).filter(|_| snapshot.hangar.fresh);
    let seen = incident.zip(server).map(|(incident, server)| seen_closely(policy, &snapshot.hangar, incident, server, now));
    if let Some(braked) = gate.permitted(incident, seen.as_ref(), class, request.who(now)) {
        debug_assert!(matches!(braked.hold, Hold::NotPermitted | Hold::AttemptLogMissing));
        return Some((RequestEnd::Refused, format!("{}: {}", braked.hold, braked.why)));
    }
    if let Some(why) = policy.why_not(class) {
        return of_class(why);
    }
    let Some(incident) = incident else {
        return of_class("the target has no open incident: there is nothing to recover");
    };
    let seen = seen.filter(|seen| *seen != Seen::Unknown)?;
    not_applicable(policy, incident, class, &seen).and_then(of_class)
}
