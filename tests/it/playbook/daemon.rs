//! The daemon itself before the gate: its own role, its own log, and requests when their turn comes.

use std::collections::BTreeSet;

use hangar_medic::policy::{
    Body, HangarReading, History, Hold, Matrix, OWN_ROLE, Outcome, Part, Phase, Plan, Policy, Reason, Receipt, Record, RestReading, Rung,
    ServerReading, Snapshot, State, Step, Symptom, attempt_id, incident_id, plan,
};
use jiff::{SignedDuration, Timestamp};

fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn id() -> String {
    incident_id("api", ago(60))
}

/// One dead server, read a moment ago, and its incident.
struct World {
    policy: Policy,
    snapshot: Snapshot,
    history: History,
    attempts: usize,
}

impl World {
    fn new(reason: Reason) -> Self {
        let rest = RestReading {
            took: SignedDuration::ZERO,
            at: ago(1),
            state: State::Dead,
            alive: false,
            mode: "subprocess".to_owned(),
            dead: None,
            consecutive_failures: Some(1),
            started_at: None,
            backoff_until: None,
        };
        let server = ServerReading { gauge: Some(State::Dead), gauge_since: Some(ago(90)), rest: Some(rest), ..ServerReading::default() };
        let hangar = HangarReading { read_at: Some(ago(1)), fresh: true, process_start: Some(ago(9000)), ..HangarReading::default() };
        let servers = [("api".to_owned(), server)].into();
        let snapshot = Snapshot { known: 1, hangar, servers, ..Snapshot::default() };
        let mut world = Self { policy: Policy::default(), snapshot, history: History::default(), attempts: 0 };
        world.record(70, Body::HangarRestarted { process_start: ago(9000) });
        let opened = serde_json::json!({
            "kind": "incident_opened", "incident_id": id(), "mcp_server": "api", "symptom": Symptom::of_dead(reason), "reason": reason,
            "since": ago(90), "stops": {}, "process_start": ago(9000),
        });
        world.record(60, serde_json::from_value(opened).unwrap());
        world
    }

    fn record(&mut self, seconds: i64, body: Body) {
        let (prev_hash, hash) = (String::new(), String::new());
        let at = ago(seconds);
        self.history.apply(&Record { instance: "h".into(), seq: 1, at, actor: "hangar-medic".into(), body, prev_hash, hash });
    }

    /// One settled attempt, `seconds` ago.
    fn tried(&mut self, seconds: i64, action: Rung, receipt: Receipt, outcome: Outcome) {
        self.attempts += 1;
        let attempt_id = attempt_id(&id(), self.attempts);
        let opened = serde_json::json!({
            "kind": "attempt_opened", "attempt_id": attempt_id, "incident_id": id(), "mcp_server": "api", "action": action, "why": "w",
            "slow_retry": false,
        });
        self.record(seconds, serde_json::from_value(opened).unwrap());
        let detail = String::new();
        let evidence = [].into();
        self.record(seconds, Body::AttemptReceipt { attempt_id: attempt_id.clone(), receipt, outcome: None, detail, evidence });
        self.record(seconds, Body::AttemptSettled { attempt_id, outcome, why: "w".to_owned() });
    }

    fn looked(mut self) -> Self {
        self.tried(50, Rung::ClientReconnect, Receipt::Accepted, Outcome::Insufficient);
        self.tried(40, Rung::CapabilityRefresh, Receipt::Accepted, Outcome::Insufficient);
        self
    }

    fn request(mut self, class: Rung, role: &str, seconds: i64) -> Self {
        let report = hangar_medic::policy::assess(
            &self.policy.matrix,
            &hangar_medic::policy::Ask {
                restart_class: class,
                role,
                attempts: &[],
                break_glass_requested: false,
                break_glass_authorised: false,
            },
        );
        let request = Body::Request {
            request_id: "request-1".to_owned(),
            restart_class: class,
            target: "api".to_owned(),
            symptoms: Vec::new(),
            principal: "alice".to_owned(),
            role: role.to_owned(),
            reason: "r".to_owned(),
            request_break_glass: false,
            claimed: 0,
            report: Box::new(report),
            acts: true,
            break_glass_until: None,
        };
        self.record(seconds, request);
        self
    }

    fn plan(&self) -> Plan {
        plan(&self.policy, &self.snapshot, &self.history, now())
    }
}

fn acts(plan: &Plan) -> Vec<(Rung, Option<String>)> {
    let act = |s: &Step| match s {
        Step::Act(a) if a.part == Part::First => Some((a.rung, a.asked_by.as_ref().map(|by| by.principal.clone()))),
        Step::Act(_) | Step::Record(_) | Step::Read(_) => None,
    };
    plan.steps.iter().filter_map(act).collect()
}

/// How the request ended: the records of the plan that say so.
fn ended(plan: &Plan) -> Option<String> {
    plan.steps.iter().find_map(|s| match s {
        Step::Record(Body::RequestEnded { how, why, .. }) => Some(format!("{how}: {why}")),
        Step::Record(_) | Step::Act(_) | Step::Read(_) => None,
    })
}

#[test]
fn what_the_matrix_does_not_permit_the_daemon_is_held_and_not_done() {
    let mut world = World::new(Reason::Crashed).looked();
    assert_eq!(acts(&world.plan()), [(Rung::SessionReconnect, None)]);
    let looks: BTreeSet<Rung> = [Rung::ClientReconnect, Rung::CapabilityRefresh].into();
    let all: BTreeSet<Rung> = Rung::ALL.iter().copied().collect();
    for matrix in [
        Matrix::new([(OWN_ROLE.to_owned(), looks), ("admin".to_owned(), all.clone())]),
        Matrix::new([("admin".to_owned(), all)]),
        Matrix::new([]),
    ] {
        world.policy.matrix = matrix;
        let plan = world.plan();
        let standing = &plan.standings["api"];
        assert_eq!((acts(&plan), standing.phase, standing.hold), (vec![], Phase::Held, Some(Hold::NotPermitted)));
    }
    let mut fresh = World::new(Reason::Crashed);
    fresh.policy.matrix = Matrix::new([]);
    assert_eq!(fresh.plan().standings["api"].hold, Some(Hold::NotPermitted), "even looking");
}

#[test]
fn a_request_acts_in_the_requesters_role_and_is_judged_again() {
    let ask = |role: &str, class| World::new(Reason::Crashed).looked().request(class, role, 5).plan();
    assert_eq!(acts(&ask("operator", Rung::SessionReconnect)), [(Rung::SessionReconnect, Some("alice".to_owned()))]);
    let refused = "refused: not_permitted: the class matrix does not permit session_reconnect to the role \"viewer\"";
    assert_eq!(ended(&ask("viewer", Rung::SessionReconnect)).unwrap(), refused);
    assert!(ended(&ask("root", Rung::SessionReconnect)).unwrap().starts_with("refused: not_permitted: the class matrix does not list"));
    let nothing = |class: Rung, why: &str| {
        assert_eq!(ended(&ask("admin", class)).unwrap(), format!("not_applicable: {class}: {why}"));
    };
    nothing(Rung::RoleRuntimeRestart, "not listed in policy.rungs");
    nothing(Rung::ConnectorRestart, "not listed in policy.rungs");
    nothing(Rung::LeaseRecovery, "not a member of a group");
    // Claims that satisfied the report count for nothing here: rungs that only look unlock no broad rung.
    let missing = "refused: attempt_log_missing: full_mcp_restart is broad";
    assert!(ended(&ask("admin", Rung::FullMcpRestart)).unwrap().starts_with(missing));
    assert_eq!(acts(&ask("admin", Rung::FullMcpRestart)), []);
}

#[test]
fn a_broad_request_needs_a_start_that_ran_and_every_narrower_rung_spent() {
    let judged = |receipt, times| {
        let mut world = World::new(Reason::Crashed).looked();
        for n in 0..times {
            world.tried(30 - n, Rung::SessionReconnect, receipt, Outcome::Insufficient);
        }
        ended(&world.request(Rung::RollingMcpRestart, "admin", 5).plan()).unwrap()
    };
    for (receipt, times) in [(Receipt::Accepted, 0), (Receipt::Refused, 2), (Receipt::Unknown, 2)] {
        assert!(judged(receipt, times).starts_with("refused: attempt_log_missing"), "{receipt} {times}");
    }
    assert_eq!(judged(Receipt::Accepted, 1), "refused: attempt_log_missing: session_reconnect is narrower and not spent yet");
    assert_eq!(judged(Receipt::Accepted, 2), "not_applicable: rolling_mcp_restart: not listed in policy.rungs");
}

#[test]
fn a_request_meets_every_brake_waits_and_ends() {
    let wait = |change: &dyn Fn(&mut World)| {
        let mut world = World::new(Reason::Crashed).looked().request(Rung::SessionReconnect, "operator", 5);
        change(&mut world);
        let mut plan = world.plan();
        // What else is to be written down comes first.
        while ended(&plan).is_none() && matches!(plan.steps.first(), Some(Step::Record(_))) {
            for step in plan.steps {
                if let Step::Record(body) = step {
                    world.record(0, body);
                }
            }
            plan = world.plan();
        }
        (acts(&plan).len(), plan.standings.get("api").and_then(|s| s.hold), ended(&plan))
    };
    assert_eq!(wait(&|w| w.policy.mode = hangar_medic::policy::Mode::Observe), (0, Some(Hold::ObserveOnly), None));
    assert_eq!(wait(&|w| w.snapshot.log_unwritable = true), (0, Some(Hold::LogUnwritable), None));
    assert_eq!(wait(&|w| w.snapshot.draining = true), (0, Some(Hold::Paused), None));
    let spent = |w: &mut World| {
        for n in 0..4 {
            w.tried(30 - n, Rung::SessionReconnect, Receipt::Accepted, Outcome::Insufficient);
        }
    };
    assert_eq!(wait(&spent), (0, Some(Hold::BudgetSpent), None));
    let backoff = |w: &mut World| {
        let rest = w.snapshot.servers.get_mut("api").unwrap().rest.as_mut().unwrap();
        rest.backoff_until = Some(now() + SignedDuration::from_secs(9));
    };
    assert_eq!(wait(&backoff), (0, Some(Hold::Backoff), None));
    assert_eq!(wait(&|w| w.snapshot.hangar.fresh = false), (0, Some(Hold::Undeterminable), None));
    // A capability block is not lifted by asking.
    let plan = World::new(Reason::CapabilityBlocked).looked().request(Rung::SessionReconnect, "admin", 5).plan();
    assert_eq!((acts(&plan), plan.standings["api"].hold), (vec![], Some(Hold::ApprovalNeeded)));
    let old = World::new(Reason::Crashed).looked().request(Rung::SessionReconnect, "operator", 15 * 60).plan();
    assert_eq!(ended(&old).unwrap(), "expired: its turn did not come within 15m");
    let mut elsewhere = World::new(Reason::Crashed).looked().request(Rung::SessionReconnect, "operator", 5);
    elsewhere.history.requests.get_mut("request-1").unwrap().target = "db".to_owned();
    let nothing = "not_applicable: session_reconnect: the target has no open incident: there is nothing to recover";
    assert_eq!(ended(&elsewhere.plan()).unwrap(), nothing);
}
