//! The checks between a decision and an action. The first that says no names the hold.

use jiff::{SignedDuration, Timestamp};

use super::assess::{Ask, assess, own_log};
use super::brake::{self, Braked, Storm};
use super::decide::{Decision, decide, only_to_look, unspent_below};
use super::fleet;
use super::history::{History, Incident};
use super::hold::Hold;
use super::ladder::Rung;
use super::limits::Policy;
use super::matrix::OWN_ROLE;
use super::reason::Reason;
use super::record::{HoldCause, Outcome};
use super::seen::{Seen, seen_closely};
use super::snapshot::{ServerReading, Snapshot, Unasked};
use super::when::after;

/// Hangar's group recovery worker exists since this version.
const GROUP_RECOVERY_SINCE: (u32, u32, u32) = (2, 23, 0);

/// How long a start that Hangar did not permit is left alone.
const PERMISSION_RETRY: SignedDuration = SignedDuration::from_mins(15);

/// All that the checks look at.
pub struct Gate<'a> {
    pub policy: &'a Policy,
    pub snapshot: &'a Snapshot,
    pub history: &'a History,
    pub now: Timestamp,
}

/// Who wants to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who<'a> {
    pub role: &'a str,
    /// A grant for exactly this was used for it and is not over.
    pub break_glass: bool,
}

/// The daemon by itself.
pub const OURSELVES: Who<'static> = Who { role: OWN_ROLE, break_glass: false };

impl Gate<'_> {
    /// The playbook's gate, with the daemon's own log. Of a broad rung DESIGN asks more than the playbook: starts that ran in
    /// this incident, and every enabled, applicable lower rung spent (asked where `seen` is known).
    #[must_use]
    pub fn permitted(&self, incident: Option<&Incident>, seen: Option<&Seen>, rung: Rung, who: Who<'_>) -> Option<Braked> {
        let own = if rung.broad() { incident.map(own_log).unwrap_or_default() } else { Vec::new() };
        let report = assess(
            &self.policy.matrix,
            &Ask {
                restart_class: rung,
                role: who.role,
                attempts: &own,
                break_glass_requested: who.break_glass,
                break_glass_authorised: who.break_glass && self.policy.break_glass_authorised,
            },
        );
        if let Some(refusal) = report.refusals.first() {
            let hold = if report.permitted { Hold::AttemptLogMissing } else { Hold::NotPermitted };
            return Some(Braked::new(hold, None, refusal.message.clone()));
        }
        let (incident, seen) = (incident?, seen?);
        let left = unspent_below(self.policy, incident, seen, rung).filter(|_| rung.broad() && !report.break_glass.used)?;
        Some(Braked::new(Hold::AttemptLogMissing, None, format!("{left} is narrower and not spent yet")))
    }

    /// What stops an incident whatever the next rung is.
    #[must_use]
    pub fn before_deciding(&self, incident: &Incident, seen: &Seen) -> Option<Braked> {
        self.draining()
            .or_else(|| self.hands_off(incident))
            .or_else(|| self.order(incident))
            .or_else(|| self.silenced(incident))
            .or_else(|| self.maintenance(incident))
            .or_else(|| self.blind())
            .or_else(|| fleet::under_way(self.history, incident))
            .or_else(|| self.hangar_at_work(seen))
    }

    /// What stops this rung at this server, before the storm is asked.
    #[must_use]
    pub fn before_rung(&self, incident: &Incident, server: &ServerReading, seen: &Seen, rung: Rung) -> Option<Braked> {
        if rung.only_looks() {
            return None;
        }
        let held = self.silences_unknown(rung).or_else(|| self.backoff(server, seen)).or_else(|| self.group_recovery(incident, server));
        let held = held.or_else(|| self.permission(incident));
        held.or_else(|| fleet::before(self.policy, self.snapshot, self.history, incident, rung, self.now))
    }

    /// A key that may read and not start is tried again only now and then: somebody must grant it first.
    fn permission(&self, incident: &Incident) -> Option<Braked> {
        let last = incident.attempts.iter().rev().find(|a| !a.action.only_looks() && a.outcome != Some(Outcome::NotApplicable))?;
        let until = after(last.settled_at.filter(|_| last.not_permitted())?, PERMISSION_RETRY);
        let why = "Hangar does not permit our key to start servers (mcp_servers:lifecycle)";
        (self.now < until).then(|| Braked::new(Hold::NotPermitted, Some(until), why))
    }

    /// What stops after the storm.
    #[must_use]
    pub fn after_storm(&self, incident: &Incident, rung: Rung) -> Option<Braked> {
        let neighbour = brake::neighbour(self.policy, self.history, incident, self.now);
        neighbour.or_else(|| if rung.only_looks() { None } else { brake::cooldown(self.policy, incident, self.now) })
    }

    /// What is asked last, since it says nothing about the incident itself.
    #[must_use]
    pub fn last(&self, _incident: &Incident) -> Option<Braked> {
        if self.snapshot.hangar.auth_refused {
            let until = self.snapshot.hangar.auth_refused_until;
            return Some(Braked::new(
                Hold::AuthRefused,
                until,
                "Hangar refuses our key: no further try until the key file changes, else one per 15 min",
            ));
        }
        if self.snapshot.hangar.read_forbidden {
            return Some(Braked::new(Hold::NotPermitted, None, "Hangar does not permit our key to read servers (mcp_servers:read)"));
        }
        self.snapshot.log_unwritable.then(|| Braked::new(Hold::LogUnwritable, None, "the attempt log cannot be written"))
    }

    /// The hold of a reason that forbids acting.
    #[must_use]
    pub fn forbidden(reason: Reason) -> Braked {
        if reason == Reason::CapabilityBlocked {
            return Braked::new(
                Hold::ApprovalNeeded,
                None,
                "it exposes tools that it did not declare: a person must compare them before it is started",
            );
        }
        Braked::new(Hold::Undeterminable, None, "no source tells why it is dead; it may be a capability block")
    }

    /// Whether nothing but the storm could stop this incident: it can serve as a canary.
    #[must_use]
    pub fn able(&self, incident: &Incident, seen: &Seen) -> bool {
        // One that is only watched while the others are acted on would be waited for in vain.
        let only_watched = self.policy.mode_of(&incident.mcp_server) != self.policy.mode;
        let free = self.before_deciding(incident, seen).is_none() && !only_watched;
        free && !only_to_look(incident, seen) && !self.barred(incident, seen)
    }

    /// The gate forbids the next rung, so that nothing would come of waiting for this one.
    fn barred(&self, incident: &Incident, seen: &Seen) -> bool {
        match decide(self.policy, incident, seen) {
            Decision::Climb(rung) => self.permitted(Some(incident), Some(seen), rung, OURSELVES).is_some(),
            Decision::Pass(..) | Decision::Forbidden(_) | Decision::Exhausted => false,
        }
    }

    /// What keeps the ladder's next rung from being climbed for good, as far as this incident tells: a person is needed, and
    /// meanwhile the slow retries go on. One that runs may open the rung.
    #[must_use]
    pub fn closed(&self, incident: &Incident, seen: &Seen, rung: Rung, in_storm: impl Fn() -> Option<Braked>) -> Option<Braked> {
        if rung.self_service() {
            return None;
        }
        let unlocked = || {
            let before = fleet::before(self.policy, self.snapshot, self.history, incident, rung, self.now);
            before.filter(|braked| braked.until.is_none() && braked.hold != Hold::Cooldown)
        };
        let permitted = self.permitted(Some(incident), Some(seen), rung, OURSELVES);
        permitted.or_else(unlocked).or_else(|| if rung.restores_fleet() { in_storm() } else { None })
    }

    /// The storm as it stands.
    #[must_use]
    pub fn storm(&self) -> Storm {
        let able = |incident: &Incident| {
            let server = self.snapshot.servers.get(&incident.mcp_server);
            server.is_some_and(|server| self.able(incident, &seen_closely(self.policy, &self.snapshot.hangar, incident, server, self.now)))
        };
        Storm::judge(self.policy, self.history, self.snapshot.known, &able)
    }

    /// No new action once we are to end.
    #[must_use]
    pub fn draining(&self) -> Option<Braked> {
        self.snapshot.draining.then(|| Braked::new(Hold::Paused, None, "the medic is shutting down"))
    }

    /// The operator's or a person's word that this server, or everything, is left alone. What is under way is finished
    /// only where it undoes our own stop.
    #[must_use]
    pub fn hands_off(&self, incident: &Incident) -> Option<Braked> {
        let id = &incident.mcp_server;
        super::pause::paused(self.history, id, incident.group.as_deref(), self.now).or_else(|| self.policy.opted_out(id))
    }

    /// A window in which others work on the server.
    #[must_use]
    pub fn maintenance(&self, incident: &Incident) -> Option<Braked> {
        let open = self.snapshot.maintenance.iter().filter(|m| self.now < m.until && m.servers.matches(&incident.mcp_server));
        let window = open.max_by_key(|m| m.until)?;
        Some(Braked::new(Hold::Maintenance, Some(window.until), format!("the maintenance window \"{}\" is open", window.name)))
    }

    fn order(&self, incident: &Incident) -> Option<Braked> {
        let order = self.history.orders.get(&incident.mcp_server)?;
        let hold = if order.cause == HoldCause::TookHangarDown { Hold::ApprovalNeeded } else { Hold::StoppedDeliberately };
        Some(Braked::new(hold, None, order.why.clone()))
    }

    /// A silence on one of our alerts for this server says that a person is at work on it. What is under way is finished.
    fn silenced(&self, incident: &Incident) -> Option<Braked> {
        let silenced = self.snapshot.servers.get(&incident.mcp_server)?.silenced.as_ref().filter(|s| self.now < s.until)?;
        Some(Braked::new(Hold::Silenced, Some(silenced.until), format!("a person is at work: {}", silenced.what)))
    }

    fn silences_unknown(&self, rung: Rung) -> Option<Braked> {
        let (holds, which) = match self.snapshot.hangar.silences_unknown? {
            Unasked::Act => return None,
            Unasked::Narrow => (!rung.self_service(), "only rungs 0 to 2 are done"),
            Unasked::Hold => (true, "nothing is done but looking"),
        };
        let why = format!("Alertmanager cannot be asked whether a person is at work: {which}");
        holds.then(|| Braked::new(Hold::Silenced, None, why))
    }

    /// Nothing is done on what cannot be read, not even the rest of what was begun.
    pub(super) fn blind(&self) -> Option<Braked> {
        (!self.snapshot.hangar.fresh)
            .then(|| Braked::new(Hold::Undeterminable, None, "Hangar's metrics cannot be read: nothing is known now"))
    }

    fn hangar_at_work(&self, seen: &Seen) -> Option<Braked> {
        let (until, what) = match seen {
            Seen::Degraded(since) => (after(*since, self.policy.degraded_too_long_after), "degraded: Hangar's recovery saga is at work"),
            Seen::Initializing(since) => (after(*since, self.policy.stuck_starting_after), "a start is under way"),
            Seen::Unknown | Seen::Healthy | Seen::NotSeenHealthy | Seen::Down | Seen::Dead | Seen::Cold | Seen::Gone => return None,
        };
        (self.now < until).then(|| Braked::new(Hold::HangarRetrying, Some(until), what))
    }

    fn backoff(&self, server: &ServerReading, seen: &Seen) -> Option<Braked> {
        let until = server.rest.as_ref()?.backoff_until.filter(|until| self.now < *until)?;
        // A server that is up has no backoff to wait out.
        (*seen == Seen::Dead).then(|| Braked::new(Hold::Backoff, Some(until), "Hangar's own backoff is not over"))
    }

    fn group_recovery(&self, incident: &Incident, server: &ServerReading) -> Option<Braked> {
        let group = server.group.as_ref().filter(|g| g.in_rotation_count == 0)?;
        let until = after(incident.opened_at, self.policy.group_recovery_pass);
        let applies = incident.reason == Reason::GivenUp && self.snapshot.hangar.version.is_none_or(|v| v >= GROUP_RECOVERY_SINCE);
        (applies && self.now < until).then(|| {
            Braked::new(
                Hold::GroupRecovery,
                Some(until),
                format!("group {} has nothing left to select: Hangar's group recovery goes first", group.group),
            )
        })
    }
}
