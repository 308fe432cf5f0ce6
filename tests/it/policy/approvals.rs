//! Approvals: what opens, what does not, and that it is for exactly the evidence that was shown.

use std::collections::BTreeMap;

use hangar_medic::policy::{
    ApprovalAsk, Body, DeadBlock, History, LogReading, Outcome, Policy, Reason, Receipt, Record, RestReading, Rung, ServerReading,
    Snapshot, State, Step, Symptom, approvable, approve, plan,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::engine::zero;
use super::hangar::secs;

/// A blocked server with its evidence, and a Hangar that is read well.
struct Case {
    policy: Policy,
    history: History,
    snapshot: Snapshot,
    now: Timestamp,
    seq: u64,
}

impl Case {
    /// Blocked for these undeclared tools, as the log tells them (`None`: no log is read); rung 1 found these exposed.
    fn new(undeclared: Option<&[&str]>, exposed: &Value) -> Self {
        let mut case = Self { policy: Policy::default(), history: History::default(), snapshot: Snapshot::default(), now: zero(), seq: 0 };
        case.snapshot.hangar.fresh = true;
        case.snapshot.hangar.read_at = Some(case.now);
        case.snapshot.known = 1;
        case.log(undeclared);
        case.record(Body::IncidentOpened {
            incident_id: "api.1".to_owned(),
            mcp_server: "api".to_owned(),
            symptom: Symptom::ServerCapabilityBlocked,
            reason: Reason::CapabilityBlocked,
            provenance: None,
            since: case.now,
            reopens: None,
            floor_rank: 0,
            slow_retries: 0,
            stops: BTreeMap::new(),
            process_start: None,
            group: None,
        });
        // A crash in the middle of it leaves nothing at all.
        let evidence = if *exposed == json!("crash") {
            json!({})
        } else {
            json!({"exposed_tools": exposed, "undeclared_tools": null, "server_log": ["x"]})
        };
        case.attempt(Rung::CapabilityRefresh, &evidence);
        case
    }

    fn server(&mut self) -> &mut ServerReading {
        self.snapshot.servers.entry("api".to_owned()).or_default()
    }

    fn log(&mut self, undeclared: Option<&[&str]>) {
        let now = self.now;
        let server = self.server();
        server.gauge = Some(State::Dead);
        server.log = undeclared.map(|names| LogReading {
            dead: None,
            capability_blocked: true,
            undeclared_tools: names.iter().map(|s| (*s).to_owned()).collect(),
        });
        server.rest = Some(RestReading {
            at: now,
            took: SignedDuration::ZERO,
            state: State::Dead,
            alive: false,
            mode: "subprocess".to_owned(),
            dead: Some(DeadBlock {
                reason: Reason::CapabilityBlocked,
                since: Some(zero()),
                retry_allowed_at: None,
                revived_by_call: false,
            }),
            consecutive_failures: Some(0),
            started_at: None,
            backoff_until: None,
        });
    }

    fn record(&mut self, body: Body) {
        self.seq += 1;
        let (instance, actor, hash) = ("h".to_owned(), "otto".to_owned(), self.seq.to_string());
        self.history.apply(&Record { instance, seq: self.seq, at: self.now, actor, body, prev_hash: hash.clone(), hash });
    }

    fn attempt(&mut self, action: Rung, evidence: &Value) {
        let n = self.history.open["api"].attempts.len() + 1;
        let attempt_id = format!("api.1.{n}");
        let (incident_id, mcp_server, why) = ("api.1".to_owned(), "api".to_owned(), String::new());
        self.record(Body::AttemptOpened {
            attempt_id: attempt_id.clone(),
            incident_id,
            mcp_server,
            action,
            why,
            slow_retry: false,
            process_start: None,
        });
        let evidence = evidence.as_object().unwrap().clone().into_iter().collect();
        let (receipt, outcome, detail) = (Receipt::Accepted, Some(Outcome::Insufficient), String::new());
        self.record(Body::AttemptReceipt { attempt_id: attempt_id.clone(), receipt, outcome, detail, evidence });
        self.record(Body::AttemptSettled { attempt_id, outcome: Outcome::Insufficient, why: String::new() });
    }

    fn shown(&self) -> Option<(String, BTreeMap<String, Value>)> {
        let shown = approvable(&self.policy, &self.history.open["api"], self.snapshot.servers.get("api"))?;
        Some((shown.evidence_sha256, shown.evidence))
    }

    fn hash(&self) -> String {
        self.shown().unwrap().0
    }

    fn ask(&self, role: &str, action: Rung, evidence_sha256: &str) -> Result<Body, String> {
        let ask = ApprovalAsk {
            approval_id: "approval-1".to_owned(),
            incident_id: "api.1".to_owned(),
            action,
            evidence_sha256: evidence_sha256.to_owned(),
            principal: "otto".to_owned(),
            role: role.to_owned(),
            reason: "compared".to_owned(),
        };
        approve(&self.policy, &self.snapshot, &self.history, &ask, self.now).map_err(|(code, _)| code.to_string())
    }

    fn approved(mut self) -> Self {
        let record = self.ask("operator", Rung::SessionReconnect, &self.hash()).unwrap();
        self.record(record);
        self
    }

    /// What the planner does now: the acting rung, or the kind of what it writes down.
    fn does(&self) -> String {
        let word = |step: &Step| match step {
            Step::Act(action) => action.rung.to_string(),
            Step::Record(body) => serde_json::to_value(body).unwrap()["kind"].as_str().unwrap().to_owned(),
            Step::Read(_) => "read".to_owned(),
        };
        plan(&self.policy, &self.snapshot, &self.history, self.now).steps.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

fn blocked() -> Case {
    Case::new(Some(&["b", "a"]), &json!(["echo", "b", "a"]))
}

#[test]
fn the_evidence_is_the_names_and_not_their_order() {
    let hash = blocked().hash();
    assert_eq!(hash.len(), 64);
    assert_eq!(hash, Case::new(Some(&["a", "b"]), &json!(["a", "echo", "b", "b"])).hash());
    for other in [
        Case::new(Some(&["a"]), &json!(["echo", "b", "a"])),
        Case::new(Some(&["a", "b", "c"]), &json!(["echo", "b", "a"])),
        Case::new(Some(&["a,b"]), &json!(["echo", "b", "a"])),
        Case::new(Some(&["b", "a"]), &json!(["echo"])),
        Case::new(Some(&["b", "a"]), &Value::Null),
        Case::new(None, &json!(["echo", "b", "a"])),
    ] {
        assert_ne!(other.hash(), hash, "{:?}", other.shown());
    }
    let (_, evidence) = blocked().shown().unwrap();
    assert_eq!((&evidence["undeclared_tools"], &evidence["exposed_tools"]), (&json!(["a", "b"]), &json!(["a", "b", "echo"])));
    assert!(Case::new(None, &Value::Null).shown().is_none(), "nothing is known, so nothing can be judged");
}

#[test]
fn without_a_log_a_later_block_is_other_evidence() {
    let mut case = Case::new(None, &json!(["echo"]));
    let hash = case.hash();
    case.server().rest.as_mut().unwrap().dead.as_mut().unwrap().since = Some(zero() + secs(5));
    assert_ne!(case.hash(), hash);
}

#[test]
fn who_may_not_and_what_is_not_so_is_refused_by_name() {
    let case = blocked();
    let hash = case.hash();
    for (role, action, evidence, code) in [
        ("viewer", Rung::SessionReconnect, hash.as_str(), "not_permitted"),
        ("nobody", Rung::SessionReconnect, &hash, "not_permitted"),
        ("operator", Rung::SessionReconnect, "00", "evidence_changed"),
        ("operator", Rung::SessionReconnect, "", "evidence_changed"),
        ("operator", Rung::WorkerRestart, &hash, "nothing_to_approve"),
        ("admin", Rung::HostRestart, &hash, "nothing_to_approve"),
    ] {
        assert_eq!(case.ask(role, action, evidence).unwrap_err(), code, "{role} {action} {evidence}");
    }
    assert_eq!(blocked().approved().ask("admin", Rung::SessionReconnect, &hash).unwrap_err(), "already_approved");
    let mut crashed = blocked();
    crashed.history.open.get_mut("api").unwrap().reason = Reason::Crashed;
    assert_eq!(crashed.ask("admin", Rung::SessionReconnect, &hash).unwrap_err(), "nothing_to_approve");
    let mut without = blocked();
    without.policy.rungs.retain(|r| r.action != Rung::SessionReconnect);
    assert_eq!(without.ask("admin", Rung::SessionReconnect, &hash).unwrap_err(), "nothing_to_approve");
}

#[test]
fn an_approval_opens_its_own_start_once_and_nothing_else() {
    assert_eq!(blocked().does(), "");
    assert_eq!(blocked().approved().does(), "session_reconnect");
    let mut used = blocked().approved();
    used.attempt(Rung::SessionReconnect, &json!({}));
    used.now += secs(60);
    used.log(Some(&["b", "a"]));
    used.snapshot.hangar.read_at = Some(used.now);
    assert_eq!(used.does(), "", "it was used");
    assert_eq!(used.ask("operator", Rung::SessionReconnect, &used.hash()).map(drop), Ok(()), "the next one asks again");
}

#[test]
fn what_ends_an_approval() {
    let spoil = |change: &dyn Fn(&mut Case)| {
        let mut case = blocked().approved();
        change(&mut case);
        case.does()
    };
    let later = |case: &mut Case, by: SignedDuration| {
        case.now += by;
        case.log(Some(&["b", "a"]));
        case.snapshot.hangar.read_at = Some(case.now);
    };
    assert_eq!(spoil(&|c| later(c, secs(899))), "session_reconnect");
    assert_eq!(spoil(&|c| later(c, secs(900))), "approval_ended", "expired");
    assert_eq!(spoil(&|c| later(c, -secs(1))), "", "from the future");
    assert_eq!(spoil(&|c| c.log(Some(&["a", "c"]))), "approval_ended", "other names");
    assert_eq!(spoil(&|c| c.attempt(Rung::CapabilityRefresh, &json!({"exposed_tools": ["echo"]}))), "approval_ended", "other tools");
    assert_eq!(spoil(&|c| c.policy.matrix = hangar_medic::policy::Matrix::new([])), "", "the role lost its permission");
    assert_eq!(spoil(&|c| c.snapshot.hangar.fresh = false), "", "nothing is known now");
    assert_eq!(spoil(&|c| c.snapshot.draining = true), "");
    assert_eq!(spoil(&|c| c.policy.mode = hangar_medic::policy::Mode::Observe), "");
}

#[test]
fn what_no_look_told_is_looked_at_again_so_that_a_person_can_approve_it() {
    let looks_after = |case: &mut Case, seconds: i64| {
        case.now = zero() + secs(seconds);
        case.snapshot.hangar.read_at = Some(case.now);
        let planned = plan(&case.policy, &case.snapshot, &case.history, case.now);
        let looks = |s: &Step| matches!(s, Step::Act(action) if action.rung == Rung::CapabilityRefresh);
        (planned.steps.iter().any(looks), planned.wake_at)
    };
    for nothing in [json!("crash"), Value::Null] {
        let mut case = Case::new(None, &nothing);
        assert_eq!(looks_after(&mut case, 59), (false, Some(zero() + secs(60))), "{nothing}");
        assert!(looks_after(&mut case, 60).0, "{nothing}");
        case.attempt(Rung::CapabilityRefresh, &json!({}));
        assert!(!looks_after(&mut case, 60 + 119).0 && looks_after(&mut case, 60 + 120).0, "{nothing}: the pause doubles");
        case.attempt(Rung::CapabilityRefresh, &json!({"exposed_tools": ["a"]}));
        assert!(!looks_after(&mut case, 86_400).0, "{nothing}: told");
    }
    assert!(!looks_after(&mut Case::new(Some(&["x"]), &json!("crash")), 86_400).0, "the log tells it");
}
