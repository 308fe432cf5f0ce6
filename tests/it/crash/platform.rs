//! Deaths around what changes Hangar itself: a reload, a definition or a member that is out, a restart by each platform.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use zbus::{MessageStream, connection};

use super::{die_and_go_on, ends_well, seconds};
use crate::broad::automation::Automation;
use crate::broad::kubernetes::{Cluster, kubeconfig};
use crate::broad::systemd::{bus, manager};
use crate::hangar::stub::{Reply, Request, Stub, json as answer, text};
use crate::support::medic::merge;
use crate::support::{Medic, poll};

pub const CASES: &[(&str, u32)] = &[
    ("reload.unsent", 0),
    ("reload.answered", 0),
    ("delete.unsent", 0),
    ("delete.answered", 0),
    ("create.unsent", 0),
    ("create.answered", 0),
    ("remove_member.unsent", 0),
    ("remove_member.answered", 0),
    ("add_member.unsent", 0),
    ("add_member.answered", 0),
    ("hook.unsent", 0),
    ("hook.answered", 0),
    ("systemd.unsent", 0),
    ("systemd.answered", 0),
    ("kubernetes.unsent", 0),
    ("kubernetes.answered", 0),
];

/// A Hangar whose server `api` starts only after it was mended: by a reload, by being put back, by a restart, or by the test.
#[allow(clippy::struct_excessive_bools, reason = "independent facts of a stub")]
struct Machine {
    began: f64,
    /// 0 while it is down.
    started: f64,
    mended: bool,
    /// Dead, not cold.
    dead: bool,
    defined: bool,
    member: bool,
    in_group: bool,
    starts: usize,
    /// What changed Hangar, in order.
    changes: Vec<String>,
}

type Shared = Arc<Mutex<Machine>>;

fn machine(in_group: bool) -> Shared {
    Arc::new(Mutex::new(Machine {
        began: seconds() - 100.0,
        started: 0.0,
        mended: false,
        dead: true,
        defined: true,
        member: in_group,
        in_group,
        starts: 0,
        changes: Vec::new(),
    }))
}

fn locked(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap()
}

impl Machine {
    /// Another process: all is cold, and what was wrong is gone.
    fn restart(&mut self) {
        (self.began, self.mended, self.dead, self.started) = (seconds(), true, false, 0.0);
    }

    fn state(&self) -> &'static str {
        if self.started > 0.0 {
            "ready"
        } else if self.dead {
            "dead"
        } else {
            "cold"
        }
    }

    fn detail(&self) -> Value {
        let ready = self.started > 0.0;
        let gone = json!({"reason": "given_up", "since": null, "retry_allowed_at": null, "revived_by": "call_or_start"});
        json!({"mcp_server_id": "api", "state": self.state(), "mode": "subprocess", "alive": ready, "tools": [],
            "dead": if self.state() == "dead" { gone } else { Value::Null },
            "health": {"consecutive_failures": 0, "can_retry": true, "last_failure_ago": null}, "meta": {"started_at": ready.then_some(self.started)}})
    }

    fn metrics(&self) -> String {
        let gauge = if self.started > 0.0 { 2 } else { 4 };
        let shown = self.defined && self.state() != "cold";
        let state = format!("mcp_hangar_mcp_server_state{{mcp_server=\"api\"}} {gauge}\n");
        let healthy = format!("mcp_hangar_mcp_server_last_healthy_timestamp_seconds{{mcp_server=\"api\"}} {}\n", seconds());
        let all = format!("mcp_hangar_process_start_time_seconds {}\nmcp_hangar_build_info{{version=\"2.34.4\"}} 1\n", self.began);
        [Some(all), shown.then_some(state), (gauge == 2).then_some(healthy)].into_iter().flatten().collect()
    }

    fn group(&self) -> Value {
        let state = self.state();
        let own = json!({"id": "api", "state": state, "in_rotation": state == "ready", "weight": 3, "priority": 1});
        let other = json!({"id": "m2", "state": "ready", "in_rotation": true, "weight": 1, "priority": 1});
        let members = if self.member { vec![own, other] } else { vec![other] };
        json!({"group_id": "grp", "circuit_open": false, "members": members})
    }

    fn start(&mut self) -> Reply {
        self.starts += 1;
        if !self.mended {
            return answer(500, &json!({"error": {"code": "McpServerStartError", "message": "gone", "details": {}}}));
        }
        self.started = seconds();
        answer(200, &json!({"mcp_server": "api", "state": "ready", "tools": ["echo"]}))
    }

    fn answer(&mut self, request: &Request) -> Reply {
        let missing = || answer(404, &json!({"error": {"code": "McpServerNotFoundError", "message": "api", "details": {}}}));
        if request.line.starts_with("DELETE") || request.line == "POST /api/mcp_servers/" || request.line.ends_with("/members") {
            self.changes.push(request.line.clone());
        }
        match request.line.as_str() {
            "GET /metrics" => text(200, &self.metrics()),
            "GET /health/live" => answer(200, &json!({"status": "healthy"})),
            "GET /api/mcp_servers/" => answer(200, &json!({"mcp_servers": if self.defined { vec![self.detail()] } else { vec![] }})),
            "GET /api/mcp_servers/api" if self.defined => answer(200, &self.detail()),
            "GET /api/mcp_servers/api/l7_policy" => text(404, r#"{"error":"no_l7_policy","mcp_server_id":"api"}"#),
            "GET /api/mcp_servers/api/tools" => answer(200, &json!({"tools": [{"name": "echo"}]})),
            "GET /api/system/me" => answer(200, &json!({"authenticated": false})),
            "GET /api/groups/" => answer(200, &json!({"groups": if self.in_group { vec![self.group()] } else { vec![] }})),
            "GET /api/groups/grp" => answer(200, &self.group()),
            "POST /api/mcp_servers/api/start" if self.defined => self.start(),
            "POST /api/config/reload" => {
                (self.mended, self.dead) = (true, false);
                self.changes.push(request.line.clone());
                answer(200, &json!({"result": {"mcp_servers_updated": ["api"]}}))
            }
            "DELETE /api/mcp_servers/api" => {
                (self.defined, self.dead, self.started) = (false, false, 0.0);
                answer(200, &json!({"deleted": true}))
            }
            "POST /api/mcp_servers/" => {
                (self.defined, self.mended) = (true, true);
                answer(201, &json!({"created": true}))
            }
            "DELETE /api/groups/grp/members/api" => {
                self.member = false;
                answer(200, &json!({"removed": true}))
            }
            "POST /api/groups/grp/members" => {
                (self.member, self.mended) = (true, true);
                answer(201, &json!({"added": true}))
            }
            line if line.ends_with("/logs?lines=200") => answer(200, &json!({"logs": []})),
            _ => missing(),
        }
    }
}

/// A ladder that ends with `action`, and what it needs.
fn settings(action: &str, over: &Value) -> Value {
    let rung = |action: &str| json!({"action": action, "attempts_max": 1, "pause": "100ms"});
    let ladder = ["client_reconnect", "capability_refresh", "session_reconnect", action];
    let mut all = json!({
        "policy": {"rungs": ladder.map(rung), "settle": "500ms", "exhausted_retry": "1s"},
        "matrix": {"roles": [{"role": "sidecar", "permitted": ladder}]},
    });
    merge(&mut all, over);
    all
}

/// What a case needs beside the medic.
struct Case {
    machine: Shared,
    dir: tempfile::TempDir,
    stub: Stub,
}

impl Case {
    fn new(in_group: bool) -> Self {
        let machine = machine(in_group);
        let answering = Arc::clone(&machine);
        let stub = Stub::new(move |r| locked(&answering).answer(r));
        Self { machine, dir: tempfile::Builder::new().prefix("hangar-medic-").tempdir().unwrap(), stub }
    }

    fn file(&self, name: &str, value: &Value) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path
    }

    fn changes(&self, line: &str) -> usize {
        locked(&self.machine).changes.iter().filter(|l| *l == line).count()
    }

    fn dies(&self, settings: &Value, case: (&str, u32)) -> Medic {
        die_and_go_on(&self.dir.path().join("medic"), &self.stub.url, settings, case)
    }

    /// Whatever the death left behind is settled first; then whatever was wrong is gone, and the slow retry finds it.
    fn goes_on(&self, medic: &Medic, case: (&str, u32)) {
        let settled = poll(Duration::from_secs(40), || {
            let attempts = medic.attempts("api");
            let reached = attempts.iter().any(|a| a["rank"].as_u64() > Some(2));
            (reached && attempts.iter().all(|a| !a["outcome"].is_null())).then_some(())
        });
        assert!(settled.is_some(), "{case:?}: the attempt stays open\n{}", medic.report());
        locked(&self.machine).mended = true;
        let starts = locked(&self.machine).starts;
        ends_well(medic, "api", case, starts);
        assert_eq!(locked(&self.machine).state(), "ready", "{case:?}");
    }
}

#[test]
fn a_death_around_a_reload_reloads_at_most_once() {
    for case in &CASES[..2] {
        let c = Case::new(false);
        let file = c.file("config.yaml", &json!({"mcp_servers": {"api": {"mode": "subprocess"}}}));
        let medic = c.dies(&settings("configuration_reload", &json!({"hangar": {"config_file": file}})), *case);
        c.goes_on(&medic, *case);
        assert_eq!(c.changes("POST /api/config/reload"), usize::from(case.0 == "reload.answered"), "{case:?}");
    }
}

#[test]
fn a_death_around_a_definition_that_is_taken_out_and_put_back_leaves_it_in() {
    for case in &CASES[2..6] {
        let c = Case::new(false);
        let file = c.file("api.json", &json!({"mode": "subprocess", "command": ["x"]}));
        let over = json!({"platform": {"definitions": [{"mcp_server": "api", "file": file}]}});
        let medic = c.dies(&settings("connector_restart", &over), *case);
        c.goes_on(&medic, *case);
        assert!(locked(&c.machine).defined, "{case:?}");
        let out = usize::from(case.0 != "delete.unsent");
        assert_eq!((c.changes("DELETE /api/mcp_servers/api"), c.changes("POST /api/mcp_servers/")), (out, out), "{case:?}");
    }
}

#[test]
fn a_death_around_a_member_that_is_taken_out_and_put_back_leaves_it_in() {
    for case in &CASES[6..10] {
        let c = Case::new(true);
        let medic = c.dies(&settings("connector_restart", &json!({"policy": {"group_recovery_pass": "0s"}})), *case);
        c.goes_on(&medic, *case);
        assert!(locked(&c.machine).member, "{case:?}");
        let out = usize::from(case.0 != "remove_member.unsent");
        let sent = (c.changes("DELETE /api/groups/grp/members/api"), c.changes("POST /api/groups/grp/members"));
        assert_eq!(sent, (out, out), "{case:?}");
    }
}

/// The executor of a restart, laid over `entry`.
fn restarts(action: &str, entry: &Value) -> Value {
    let mut executor = json!({"action": action, "timeout": "5s"});
    merge(&mut executor, entry);
    settings(action, &json!({"platform": {"restarts": [executor], "restart_within": "8s"}}))
}

#[test]
fn a_death_around_an_order_to_the_hook_orders_at_most_once() {
    for case in &CASES[10..12] {
        let c = Case::new(false);
        let restarted = Arc::clone(&c.machine);
        let automation = Automation::start(c.dir.path(), move |_| {
            locked(&restarted).restart();
            json!({"result": "done"})
        });
        let medic = c.dies(&restarts("full_mcp_restart", &automation.entry(&json!({"timeout": "5s"}))), *case);
        c.goes_on(&medic, *case);
        assert_eq!(automation.requests(), usize::from(case.0 == "hook.answered"), "{case:?}");
    }
}

#[test]
fn a_death_around_a_job_of_systemd_restarts_at_most_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for case in &CASES[12..14] {
        let c = Case::new(false);
        let (_bus, address) = bus(c.dir.path());
        let (restarted, jobs) = (Arc::clone(&c.machine), Arc::<Mutex<usize>>::default());
        let counted = Arc::clone(&jobs);
        let (connection, calls) = runtime.block_on(async {
            let connection = connection::Builder::address(address.as_str()).build().await.unwrap();
            let calls = MessageStream::from(connection.clone());
            connection.request_name("org.freedesktop.systemd1").await.unwrap();
            (connection, calls)
        });
        let serving = runtime.spawn(manager(connection, calls, move || {
            *counted.lock().unwrap() += 1;
            locked(&restarted).restart();
        }));
        let medic =
            c.dies(&restarts("full_mcp_restart", &json!({"executor": "systemd", "unit": "done.service", "bus_address": address})), *case);
        c.goes_on(&medic, *case);
        serving.abort();
        assert_eq!(*jobs.lock().unwrap(), usize::from(case.0 == "systemd.answered"), "{case:?}");
    }
}

fn on_kubernetes(action: &str, case: (&str, u32), changes_of: impl Fn(&[String]) -> usize) {
    let c = Case::new(false);
    let (cluster, restarted) = (Mutex::new(Cluster::new()), Arc::clone(&c.machine));
    let api = Stub::new(move |r| {
        if !r.line.starts_with("GET ") {
            locked(&restarted).restart();
        }
        cluster.lock().unwrap().answer(r)
    });
    let entry = json!({"executor": "kubernetes", "namespace": "mcp", "deployment": "hangar", "kubeconfig": config(c.dir.path(), &api.url)});
    let medic = c.dies(&restarts(action, &entry), case);
    c.goes_on(&medic, case);
    let sent: Vec<String> = api.lines().into_iter().filter(|l| !l.starts_with("GET ")).collect();
    assert_eq!(sent.len(), changes_of(&sent), "{case:?}: {sent:?}");
}

fn config(dir: &Path, url: &str) -> PathBuf {
    kubeconfig(dir, url)
}

#[test]
fn a_death_around_a_rollout_restarts_at_most_once() {
    for case in &CASES[14..] {
        on_kubernetes("rolling_mcp_restart", *case, |_| usize::from(case.0 == "kubernetes.answered"));
    }
}

#[test]
fn a_death_between_two_pods_deletes_none_twice() {
    for case in &CASES[14..] {
        on_kubernetes("full_mcp_restart", *case, |_| usize::from(case.0 == "kubernetes.answered"));
    }
}
