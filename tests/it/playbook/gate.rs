//! The gate against a model of it that was written from the playbook and shares no code with it.

use hangar_medic::policy::{Ask, AttemptRecord, Matrix, assess};

use super::{Dice, scale};

/// The model's own ladder, narrow to broad.
pub const LADDER: [&str; 11] = [
    "client_reconnect",
    "capability_refresh",
    "session_reconnect",
    "configuration_reload",
    "lease_recovery",
    "worker_restart",
    "role_runtime_restart",
    "connector_restart",
    "rolling_mcp_restart",
    "full_mcp_restart",
    "host_restart",
];
pub const ROLES: [&str; 6] = ["viewer", "sidecar", "operator", "admin", "root", ""];
const OUTCOMES: [&str; 9] =
    ["recovered", "failed", "insufficient", "denied", "unresolved", "timeout", "error", "cancelled", "not_applicable"];
const COUNTING: [&str; 6] = ["failed", "insufficient", "denied", "unresolved", "timeout", "error"];

pub fn rank(action: &str) -> usize {
    LADDER.iter().position(|a| *a == action).unwrap()
}

/// The playbook's matrix, as text.
pub fn may(role: &str, action: &str) -> bool {
    let ranks = match role {
        "sidecar" => "0 1 2 4 5",
        "operator" => "0 1 2 3 4 5 6 7",
        "admin" => "0 1 2 3 4 5 6 7 8 9 10",
        _ => "",
    };
    ranks.split(' ').any(|r| r == rank(action).to_string())
}

/// The whole gate.
pub fn model(action: &str, role: &str, tried: &[(&str, &str)], break_glass: bool) -> bool {
    let broad = ["rolling_mcp_restart", "full_mcp_restart", "host_restart"].contains(&action);
    let log = tried.iter().any(|(a, outcome)| rank(a) < rank(action) && COUNTING.contains(outcome));
    may(role, action) && (!broad || log || break_glass)
}

pub fn record(action: &str, outcome: &str) -> AttemptRecord {
    let at = "2026-07-25T21:00:00Z".parse().unwrap();
    AttemptRecord::new(action.parse().unwrap(), outcome.parse().unwrap(), "r", "a", at)
}

#[test]
fn the_gate_and_its_model_agree_on_every_history() {
    let matrix = Matrix::default();
    let mut dice = Dice::new(1);
    let (mut allowed, mut by_glass, mut broad) = (0, 0, 0);
    let histories = 100_000 * scale();
    for _ in 0..histories {
        let tried: Vec<(&str, &str)> = (0..dice.roll(6)).map(|_| (dice.of(&LADDER), dice.of(&OUTCOMES))).collect();
        let (action, role, requested, authorised) = (dice.of(&LADDER), dice.of(&ROLES), dice.coin(), dice.coin());
        let attempts: Vec<AttemptRecord> = tried.iter().map(|(a, o)| record(a, o)).collect();
        let ask = Ask {
            restart_class: action.parse().unwrap(),
            role,
            attempts: &attempts,
            break_glass_requested: requested,
            break_glass_authorised: authorised,
        };
        let report = assess(&matrix, &ask);
        let expected = model(action, role, &tried, requested && authorised);
        assert_eq!(report.allowed, expected, "{ask:?}\n{report:?}");
        assert_eq!(report.allowed, report.refusals.is_empty());
        assert!(may(role, action) || !report.allowed, "the matrix is final: {report:?}");
        let unlocked = report.attempt_log_satisfied || (requested && authorised);
        assert!(rank(action) < 8 || !report.allowed || unlocked, "a broad action out of nothing: {report:?}");
        assert_eq!(report.attempt_log_satisfied, tried.iter().any(|(a, o)| rank(a) < rank(action) && COUNTING.contains(o)));
        allowed += usize::from(report.allowed);
        by_glass += usize::from(report.break_glass.used);
        broad += usize::from(report.allowed && rank(action) >= 8);
    }
    // The histories reach every side of the gate.
    assert!(allowed > histories / 10 && broad > histories / 50 && by_glass > histories / 500, "{allowed} {broad} {by_glass}");
}
