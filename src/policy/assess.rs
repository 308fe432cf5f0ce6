//! The pure gate (playbook, *Enforcement points*): may this role do this class, given what was tried before?

use super::attempt::AttemptRecord;
use super::history::Incident;
use super::ladder::Rung;
use super::matrix::Matrix;
use super::report::{BreakGlass, Escalation, Refusal, RefusalCode, Report};

/// The question put to the gate.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub restart_class: Rung,
    pub role: &'a str,
    pub attempts: &'a [AttemptRecord],
    pub break_glass_requested: bool,
    /// Offline: the authorisation is in the environment. In the daemon: and a live grant covers class and target.
    pub break_glass_authorised: bool,
}

/// Judges. Broad classes need a counting attempt of a narrower class, or break-glass; every class needs the matrix.
#[must_use]
pub fn assess(matrix: &Matrix, ask: &Ask<'_>) -> Report {
    let class = ask.restart_class;
    let counted: Vec<AttemptRecord> =
        ask.attempts.iter().filter(|a| a.action.rank() < class.rank() && a.outcome.counts()).cloned().collect();
    let log_satisfied = !counted.is_empty();
    let opens = ask.break_glass_requested && ask.break_glass_authorised;
    let satisfied = !class.broad() || log_satisfied || opens;
    let permitted = matrix.permits(ask.role, class);
    let refusals = refusals(matrix, ask, permitted, satisfied);
    let untried = |rung: &&Rung| rung.rank() < class.rank() && counted.iter().all(|a| a.action != **rung);
    let next_narrower = Rung::ALL.iter().find(untried).copied();
    Report {
        allowed: refusals.is_empty(),
        restart_class: class,
        rank: class.rank(),
        role: ask.role.to_owned(),
        permitted,
        broad: class.broad(),
        attempt_log_satisfied: log_satisfied,
        break_glass: BreakGlass {
            requested: ask.break_glass_requested,
            authorised: ask.break_glass_authorised,
            used: class.broad() && permitted && !log_satisfied && opens,
        },
        playbook_escalation: Escalation { required: class.broad(), satisfied, counted, next_narrower },
        refusals,
    }
}

fn refusals(matrix: &Matrix, ask: &Ask<'_>, permitted: bool, satisfied: bool) -> Vec<Refusal> {
    let class = ask.restart_class;
    let mut refusals = Vec::new();
    if !permitted {
        let message = if matrix.knows(ask.role) {
            format!("the class matrix does not permit {} to the role {}", class, shown(ask.role))
        } else {
            format!("the class matrix does not list the role {}: it may do nothing", shown(ask.role))
        };
        refusals.push(Refusal { code: RefusalCode::NotPermitted, message });
    }
    if !satisfied {
        let message = format!("{class} is broad: it needs an attempt of a narrower action that was tried and did not help");
        refusals.push(Refusal { code: RefusalCode::AttemptLogMissing, message });
        if ask.break_glass_requested {
            let message = "break-glass was asked for, and it is not authorised".to_owned();
            refusals.push(Refusal { code: RefusalCode::BreakGlassNotAuthorised, message });
        }
    }
    refusals
}

/// A name from outside, on one line.
fn shown(name: &str) -> String {
    format!("\"{}\"", name.chars().take(80).collect::<String>().escape_debug())
}

/// What of the daemon's own log can unlock a broad rung: attempts of this incident whose receipt shows that a start ran.
/// Refused keys, rate limits, absence, transport errors and crashes unlock nothing (DESIGN, *The ladder*).
#[must_use]
pub fn own_log(incident: &Incident) -> Vec<AttemptRecord> {
    let settled = incident.attempts.iter().filter(|a| a.start_ran());
    settled.filter_map(|a| Some(AttemptRecord::new(a.action, a.outcome?, &a.settled_why, &a.actor, a.recorded_at))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::Outcome;
    use super::*;

    fn tried(action: Rung, outcome: Outcome) -> AttemptRecord {
        AttemptRecord::new(action, outcome, "r", "a", "2026-11-30T12:00:00Z".parse().unwrap())
    }

    /// `allowed`, `attempt_log_satisfied`, `required`, `used` and the names of the refusals.
    fn check(class: Rung, role: &str, attempts: &[AttemptRecord], glass: (bool, bool), want: &str) {
        let matrix = Matrix::default();
        let (requested, authorised) = glass;
        let ask = Ask { restart_class: class, role, attempts, break_glass_requested: requested, break_glass_authorised: authorised };
        let r = assess(&matrix, &ask);
        let flag = |is: bool, word: &str| if is { format!("{word} ") } else { String::new() };
        let names: Vec<&str> = r.refusals.iter().map(|r| r.code.as_str()).collect();
        let found = flag(r.allowed, "allowed")
            + &flag(r.attempt_log_satisfied, "log")
            + &flag(r.playbook_escalation.required, "required")
            + &flag(r.playbook_escalation.satisfied, "satisfied")
            + &flag(r.break_glass.used, "used")
            + &names.join(" ");
        assert_eq!(found.trim_end(), want, "{class} {role} {attempts:?} {glass:?}");
        assert_eq!((r.rank, r.broad, r.permitted), (class.rank(), class.broad(), matrix.permits(role, class)));
    }

    #[test]
    fn below_rank_eight_only_the_matrix_is_asked() {
        let none = (false, false);
        check(Rung::ClientReconnect, "sidecar", &[], none, "allowed satisfied");
        check(Rung::ConnectorRestart, "operator", &[], none, "allowed satisfied");
        check(Rung::ConnectorRestart, "sidecar", &[], none, "satisfied not_permitted");
        check(Rung::WorkerRestart, "operator", &[tried(Rung::SessionReconnect, Outcome::Failed)], none, "allowed log satisfied");
    }

    #[test]
    fn a_broad_class_needs_a_counting_attempt_of_a_lower_rank_than_itself() {
        let none = (false, false);
        for (action, outcome, counts) in [
            (Rung::ClientReconnect, Outcome::Insufficient, true),
            (Rung::ConnectorRestart, Outcome::Denied, true),
            (Rung::RollingMcpRestart, Outcome::Error, true),
            (Rung::FullMcpRestart, Outcome::Failed, false),
            (Rung::HostRestart, Outcome::Failed, false),
            (Rung::ClientReconnect, Outcome::Recovered, false),
            (Rung::ClientReconnect, Outcome::Cancelled, false),
            (Rung::ClientReconnect, Outcome::NotApplicable, false),
        ] {
            let want = if counts { "allowed log required satisfied" } else { "required attempt_log_missing" };
            check(Rung::FullMcpRestart, "admin", &[tried(action, outcome)], none, want);
        }
    }

    #[test]
    fn break_glass_needs_both_halves_and_never_lifts_the_matrix() {
        let missing = "required attempt_log_missing";
        check(Rung::HostRestart, "admin", &[], (false, false), missing);
        check(Rung::HostRestart, "admin", &[], (false, true), missing);
        check(Rung::HostRestart, "admin", &[], (true, false), "required attempt_log_missing break_glass_not_authorised");
        check(Rung::HostRestart, "admin", &[], (true, true), "allowed required satisfied used");
        check(Rung::HostRestart, "operator", &[], (true, true), "required satisfied not_permitted");
        check(Rung::HostRestart, "root", &[], (true, true), "required satisfied not_permitted");
        let log = [tried(Rung::SessionReconnect, Outcome::Failed)];
        check(Rung::HostRestart, "admin", &log, (true, true), "allowed log required satisfied");
        check(Rung::WorkerRestart, "admin", &[], (true, true), "allowed satisfied");
    }

    #[test]
    fn the_next_narrower_action_is_the_narrowest_that_was_not_tried() {
        let matrix = Matrix::default();
        let next = |class, attempts: &[AttemptRecord]| {
            let ask = Ask { restart_class: class, role: "admin", attempts, break_glass_requested: false, break_glass_authorised: false };
            assess(&matrix, &ask).playbook_escalation.next_narrower
        };
        assert_eq!(next(Rung::ClientReconnect, &[]), None);
        assert_eq!(next(Rung::HostRestart, &[]), Some(Rung::ClientReconnect));
        let first = [tried(Rung::ClientReconnect, Outcome::Failed), tried(Rung::SessionReconnect, Outcome::Recovered)];
        assert_eq!(next(Rung::HostRestart, &first), Some(Rung::CapabilityRefresh));
        let all: Vec<_> = Rung::ALL.iter().map(|r| tried(*r, Outcome::Failed)).collect();
        assert_eq!(next(Rung::HostRestart, &all), None);
    }
}
