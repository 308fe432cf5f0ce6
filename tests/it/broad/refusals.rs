//! The gate before ranks 3 and 6 to 10: every "no" has its name, and nothing is sent.

use std::collections::BTreeSet;

use hangar_medic::policy::{
    Body, HangarReading, History, Hold, Matrix, OWN_ROLE, Outcome, Phase, Plan, Policy, Reason, Receipt, Record, RestReading, Rung,
    RungLimits, ServerReading, Snapshot, State, Step, Symptom, attempt_id, incident_id, plan,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::automation::Automation;
use crate::support::world::Unwatched;
use crate::support::{Medic, Proxy, V2_34, poll};

const BROAD: [Rung; 6] = [
    Rung::ConfigurationReload,
    Rung::RoleRuntimeRestart,
    Rung::ConnectorRestart,
    Rung::RollingMcpRestart,
    Rung::FullMcpRestart,
    Rung::HostRestart,
];

pub fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

pub fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// A crashed server that was looked at and started in vain, with everything that `rung` needs.
pub struct World {
    pub policy: Policy,
    pub snapshot: Snapshot,
    pub history: History,
}

impl World {
    pub fn new(rung: Rung) -> Self {
        let mut policy = Policy::default();
        let pause = SignedDuration::ZERO;
        let limits = |action| RungLimits { action, attempts_max: std::num::NonZeroU8::MIN, pause };
        policy.rungs = [Rung::ClientReconnect, Rung::CapabilityRefresh, Rung::SessionReconnect, rung].map(limits).to_vec();
        policy.matrix = Matrix::new([(OWN_ROLE.to_owned(), Rung::ALL.iter().copied().collect())]);
        policy.platform.restarts = [Rung::RollingMcpRestart, Rung::FullMcpRestart, Rung::HostRestart].into();
        policy.platform.upstreams = ["api".to_owned()].into();
        policy.platform.definitions = ["api".to_owned()].into();
        policy.platform.config_file = true;
        let mut world = Self { policy, snapshot: Snapshot::default(), history: History::default() };
        world.record(70, Body::HangarRestarted { process_start: ago(9000) });
        world.dies("api", 60);
        for (n, action) in [Rung::ClientReconnect, Rung::CapabilityRefresh, Rung::SessionReconnect].into_iter().enumerate() {
            world.tried(50 - i64::try_from(n).unwrap(), n + 1, action);
        }
        world.snapshot.hangar =
            HangarReading { read_at: Some(now()), fresh: true, process_start: Some(ago(9000)), ..HangarReading::default() };
        world
    }

    pub fn dies(&mut self, id: &str, seconds: i64) {
        let opened = json!({
            "kind": "incident_opened", "incident_id": incident_id(id, ago(seconds)), "mcp_server": id,
            "symptom": Symptom::of_dead(Reason::Crashed), "reason": Reason::Crashed, "since": ago(90), "stops": {}, "process_start": ago(9000),
        });
        self.record(seconds, serde_json::from_value(opened).unwrap());
        let rest = RestReading {
            took: SignedDuration::ZERO,
            at: now(),
            state: State::Dead,
            alive: false,
            mode: "subprocess".to_owned(),
            dead: None,
            consecutive_failures: Some(1),
            started_at: None,
            backoff_until: None,
        };
        let server = ServerReading { gauge: Some(State::Dead), gauge_since: Some(ago(90)), rest: Some(rest), ..ServerReading::default() };
        self.snapshot.servers.insert(id.to_owned(), server);
        self.snapshot.known = self.snapshot.servers.len();
    }

    pub fn record(&mut self, seconds: i64, body: Body) {
        let (prev_hash, hash) = (String::new(), String::new());
        self.history.apply(&Record { instance: "h".into(), seq: 1, at: ago(seconds), actor: "hangar-medic".into(), body, prev_hash, hash });
    }

    fn tried(&mut self, seconds: i64, n: usize, action: Rung) {
        let (id, attempt_id) = (incident_id("api", ago(60)), attempt_id(&incident_id("api", ago(60)), n));
        let opened = json!({
            "kind": "attempt_opened", "attempt_id": attempt_id, "incident_id": id, "mcp_server": "api", "action": action, "why": "w",
            "slow_retry": false, "process_start": ago(9000),
        });
        self.record(seconds, serde_json::from_value(opened).unwrap());
        let (detail, evidence) = (String::new(), [].into());
        self.record(
            seconds,
            Body::AttemptReceipt { attempt_id: attempt_id.clone(), receipt: Receipt::Accepted, outcome: None, detail, evidence },
        );
        self.record(seconds, Body::AttemptSettled { attempt_id, outcome: Outcome::Insufficient, why: "w".to_owned() });
    }

    pub fn plan(&self) -> Plan {
        plan(&self.policy, &self.snapshot, &self.history, now())
    }

    /// The plan once everything is written down.
    pub fn settled_plan(&mut self) -> Plan {
        for _ in 0..9 {
            let bodies: Vec<Body> =
                self.plan().steps.into_iter().filter_map(|s| if let Step::Record(body) = s { Some(body) } else { None }).collect();
            if bodies.is_empty() {
                break;
            }
            for body in bodies {
                self.record(0, body);
            }
        }
        self.plan()
    }
}

pub fn acts(plan: &Plan) -> Vec<Rung> {
    plan.steps.iter().filter_map(|s| if let Step::Act(a) = s { Some(a.rung) } else { None }).collect()
}

#[test]
fn with_everything_in_place_each_of_them_is_done() {
    for rung in BROAD {
        assert_eq!(acts(&World::new(rung).plan()), [rung]);
    }
}

/// What holds each rung once `change` is made; `None`: it is done all the same.
fn held(change: impl Fn(&mut World)) -> Vec<Option<Hold>> {
    let hold = |rung: &Rung| {
        let mut world = World::new(*rung);
        change(&mut world);
        let plan = world.settled_plan();
        let standing = &plan.standings["api"];
        assert_eq!(acts(&plan).is_empty(), standing.phase != Phase::Acting);
        if acts(&plan).is_empty() { Some(standing.hold.unwrap_or_else(|| panic!("{rung}: {standing:?}"))) } else { None }
    };
    BROAD.iter().map(hold).collect()
}

#[test]
fn each_brake_holds_each_rank_by_its_name() {
    let all = |hold| vec![Some(hold); 6];
    let looks: BTreeSet<Rung> = [Rung::ClientReconnect, Rung::CapabilityRefresh, Rung::SessionReconnect].into();
    assert_eq!(held(|w| w.policy.matrix = Matrix::new([(OWN_ROLE.to_owned(), looks.clone())])), all(Hold::NotPermitted));
    assert_eq!(held(|w| w.policy.matrix = Matrix::default()), all(Hold::NotPermitted), "the default permits none of them to the daemon");
    assert_eq!(held(|w| w.snapshot.log_unwritable = true), all(Hold::LogUnwritable));
    assert_eq!(held(|w| w.snapshot.hangar.fresh = false), all(Hold::Undeterminable));
    assert_eq!(held(|w| w.snapshot.draining = true), all(Hold::Paused));
    assert_eq!(held(|w| w.policy.mode = hangar_medic::policy::Mode::Observe), all(Hold::ObserveOnly));
    assert_eq!(held(|w| w.policy.budgets.actions = std::num::NonZeroU32::MIN), all(Hold::BudgetSpent));
    let pause = |w: &mut World, id: Option<&str>| {
        let (principal, role, reason) = ("otto".to_owned(), "operator".to_owned(), "at work".to_owned());
        w.record(
            5,
            Body::Paused { mcp_server: id.map(str::to_owned), until: now() + SignedDuration::from_mins(9), principal, role, reason },
        );
    };
    assert_eq!(held(|w| pause(w, None)), all(Hold::Paused));
    assert_eq!(held(|w| pause(w, Some("api"))), all(Hold::Paused));
    // Whoever works on another server would lose it by what touches every one.
    let paused = Some(Hold::Paused);
    assert_eq!(held(|w| pause(w, Some("other"))), [paused, None, None, paused, paused, paused]);
    let in_group = |w: &mut World| {
        w.history.open.get_mut("api").unwrap().group = Some("grp".to_owned());
        pause(w, Some("grp"));
    };
    assert_eq!(held(in_group), all(Hold::Paused));
    // Only what touches a whole replica takes the fleet's lock.
    let lease = Some(Hold::LeaseHeld);
    let replicas = |w: &mut World| w.policy.platform.instances = std::num::NonZeroU32::new(2).unwrap();
    assert_eq!(held(replicas), [lease, None, None, lease, lease, lease]);
    let shared = |w: &mut World| {
        replicas(w);
        w.policy.platform.fleet_lock = true;
    };
    assert_eq!(held(shared), [None; 6]);
    // Without an attempt whose start ran there is nothing that unlocks a broad one.
    let missing = Some(Hold::AttemptLogMissing);
    let untried = |w: &mut World| {
        w.policy.rungs.retain(|r| r.action != Rung::SessionReconnect);
        w.history.open.get_mut("api").unwrap().attempts.pop();
    };
    assert_eq!(held(untried), [None, None, None, missing, missing, missing]);
}

#[test]
fn a_blocked_member_holds_its_group_until_a_person_has_looked() {
    let mut world = World::new(Rung::RoleRuntimeRestart);
    world.dies("m2", 59);
    for id in ["api", "m2"] {
        world.history.open.get_mut(id).unwrap().group = Some("grp".to_owned());
    }
    assert!(acts(&world.plan()).contains(&Rung::RoleRuntimeRestart));
    world.history.open.get_mut("m2").unwrap().reason = Reason::CapabilityBlocked;
    let plan = world.settled_plan();
    assert_eq!((acts(&plan).contains(&Rung::RoleRuntimeRestart), plan.standings["api"].hold), (false, Some(Hold::ApprovalNeeded)));
}

#[test]
fn in_a_storm_nothing_that_touches_every_server_is_done() {
    let storm = |w: &mut World| {
        for n in 0..5 {
            w.dies(&format!("s{n}"), 59);
        }
    };
    let holds = held(storm);
    let whole = Some(Hold::Storm);
    assert_eq!([holds[0], holds[3], holds[4], holds[5]], [whole; 4]);
}

#[test]
fn without_an_executor_a_rung_is_passed_and_the_ladder_ends() {
    for rung in BROAD {
        let mut world = World::new(rung);
        world.policy.platform = hangar_medic::policy::Platform::default();
        let plan = world.plan();
        let outcomes: Vec<String> = plan
            .steps
            .iter()
            .filter_map(|s| match s {
                Step::Record(Body::AttemptOpened { action, .. }) => Some(action.to_string()),
                Step::Record(Body::AttemptSettled { outcome, .. }) => Some(outcome.to_string()),
                Step::Record(_) | Step::Act(_) | Step::Read(_) => None,
            })
            .collect();
        assert_eq!(outcomes, [rung.as_str(), "not_applicable"]);
        assert!(acts(&plan).is_empty());
    }
}

#[test]
fn while_a_restart_is_under_way_nothing_else_is_done() {
    let mut world = World::new(Rung::FullMcpRestart);
    world.dies("db", 58);
    let plan = world.plan();
    assert!(acts(&plan).contains(&Rung::FullMcpRestart), "{plan:?}");
    let id = attempt_id(&incident_id("api", ago(60)), 4);
    let opened = json!({
        "kind": "attempt_opened", "attempt_id": id, "incident_id": incident_id("api", ago(60)), "mcp_server": "api",
        "action": "full_mcp_restart", "why": "w", "slow_retry": false, "process_start": ago(9000),
    });
    world.record(3, serde_json::from_value(opened).unwrap());
    world.snapshot.running.insert(id);
    let plan = world.plan();
    assert_eq!((acts(&plan), plan.standings["db"].hold), (vec![], Some(Hold::LeaseHeld)));
}

#[test]
fn beside_a_real_hangar_a_broad_rung_is_held_by_its_name_and_nothing_is_sent() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})));
    w.hangar.user_start("api");
    let automation = Automation::start(w.dir(), |_| json!({"result": "done"}));
    let definition = w.dir().join("api.json");
    std::fs::write(&definition, r#"{"mode": "subprocess", "command": ["python3"]}"#).unwrap();
    let restarts = ["rolling_mcp_restart", "full_mcp_restart", "host_restart"].map(|action| automation.entry(&json!({"action": action})));
    let everything = json!({
        "restarts": restarts,
        "upstreams": [automation.entry(&json!({"mcp_server": "api"}))],
        "definitions": [{"mcp_server": "api", "file": definition}],
    });
    let permitted = json!([{"role": "sidecar", "permitted": Rung::ALL}]);
    let cases = [
        ("full_mcp_restart", json!({}), "not_permitted"),
        ("full_mcp_restart", json!({"matrix": {"roles": permitted}}), "attempt_log_missing"),
        ("configuration_reload", json!({"matrix": {"roles": permitted}, "hangar": {"instances": 2}}), "lease_held"),
        ("host_restart", json!({"matrix": {"roles": permitted}, "platform": {"restarts": []}}), "exhausted"),
    ];
    for (n, (rung, over, expected)) in cases.into_iter().enumerate() {
        let rungs = ["client_reconnect", "capability_refresh", rung].map(|action| json!({"action": action}));
        let mut settings = json!({
            "hangar": {"log_file": w.hangar.log_file(), "config_file": w.dir().join("config.yaml")},
            "policy": {"rungs": rungs},
            "platform": everything,
        });
        crate::support::medic::merge(&mut settings, &over);
        let proxy = Proxy::start(w.hangar.port);
        let medic = Medic::start(&w.dir().join(format!("medic{n}")), &proxy.url(), &settings);
        let stands = |incident: &Value| incident["hold"] == expected || incident["phase"] == expected;
        let reached = poll(std::time::Duration::from_secs(30), || stands(&medic.incident("api")).then_some(()));
        assert!(reached.is_some(), "{rung}: not {expected}\n{}", medic.report());
        assert!(proxy.acted_since(0).is_empty() && automation.requests() == 0, "{rung}: something was sent\n{}", medic.report());
    }
}
