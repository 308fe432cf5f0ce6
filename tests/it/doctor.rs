//! `hangar-medic doctor` against real Hangar, Prometheus and Alertmanager: what a new user gets wrong is named, with what to do.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::playbook::{command, finish};
use crate::support::hangar::V2_19;
use crate::support::monitoring::{Alertmanager, Prometheus};
use crate::support::process::free_port;
use crate::support::world::Unwatched;
use crate::support::{Fault, Hangar, Medic, Proxy, V2_34, poll};

/// What doctor said: exit code, and each check's status with its text.
struct Said {
    code: i32,
    checks: BTreeMap<String, (String, String)>,
}

impl Said {
    fn status(&self, check: &str) -> &str {
        self.checks.get(check).map_or("absent", |c| &c.0)
    }

    #[track_caller]
    fn must(&self, check: &str, status: &str, words: &[&str]) {
        let (found, text) = self.checks.get(check).unwrap_or_else(|| panic!("no {check}: {:?}", self.checks));
        assert!(found == status && words.iter().all(|w| text.contains(w)), "{check} is {found}, not {status} {words:?}: {text}");
    }

    fn failed(&self) -> Vec<&str> {
        self.checks.iter().filter(|(_, c)| c.0 == "fail").map(|(name, _)| name.as_str()).collect()
    }
}

fn doctor(dir: &Path, hangar: &str, more: &[&str]) -> Said {
    let (storage, listen) = (dir.join("medic-data"), format!("127.0.0.1:{}", free_port()));
    let mut args = vec!["doctor", "--format", "json", "--hangar.url", hangar];
    if !more.contains(&"--config.file") {
        args.extend(["--storage.path", storage.to_str().unwrap(), "--web.listen-address", &listen]);
    }
    args.extend(more);
    let (code, out, err) = finish(&mut command(&args));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    assert_eq!(report["ok"], code == 0, "{out}");
    let of = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let checks = checks.map(|c| (of(&c["check"]), (of(&c["status"]), format!("{} -> {}", of(&c["found"]), of(&c["do"]))))).collect();
    Said { code, checks }
}

fn url(hangar: &Hangar) -> String {
    format!("http://127.0.0.1:{}", hangar.port)
}

/// A key whose role holds these permissions, in a file.
fn key_with(hangar: &Hangar, dir: &Path, name: &str, permissions: &[&str]) -> String {
    let made = hangar.post("/api/auth/roles", Some(&json!({"role_name": name, "permissions": permissions})));
    assert!(made.status < 300, "{made:?}");
    let key = hangar.post("/api/auth/keys", Some(&json!({"principal_id": format!("service:{name}"), "name": name})));
    let assign = json!({"principal_id": format!("service:{name}"), "role_name": name});
    assert!(hangar.post("/api/auth/roles/assign", Some(&assign)).ok());
    key_file(dir, name, key.json()["raw_key"].as_str().expect("a key"))
}

fn key_file(dir: &Path, name: &str, key: &str) -> String {
    let file = dir.join(format!("{name}.key"));
    std::fs::write(&file, format!("{key}\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_hangar_without_authentication_is_well_and_nothing_is_touched() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let proxy = Proxy::start(w.hangar.port);
    let log = w.hangar.log_file();
    let said = doctor(w.dir(), &proxy.url(), &["--hangar.log-file", log.to_str().unwrap()]);
    assert_eq!((said.code, said.failed()), (0, vec![]), "{:?}", said.checks);
    said.must("hangar_version", "ok", &[V2_34]);
    said.must("hangar_clock", "ok", &["agree"]);
    said.must("gauges", "ok", &["1 servers have a state, 1 a last-healthy time"]);
    said.must("api_key", "ok", &["no key is needed"]);
    said.must("log_file", "ok", &["open for writing"]);
    said.must("websocket", "skip", &["not needed"]);
    said.must("store", "ok", &["made by the first run"]);
    for check in ["permission_read", "permission_start", "permission_groups", "permission_rebalance", "listen_address", "executors"] {
        said.must(check, "ok", &[]);
    }
    assert!(!w.dir().join("medic-data").exists(), "it made the store's directory");
    assert_eq!((w.hangar.starts("api"), w.hangar.state("api").as_str()), (1, "ready"));
    let touched: Vec<String> = proxy.acted_since(0).into_iter().map(|s| s.path).filter(|p| p.contains("/api/mcp_servers/api")).collect();
    assert_eq!(touched, [""; 0]);
    // Without a log the event stream is needed, and closed again.
    doctor(w.dir(), &proxy.url(), &[]).must("websocket", "ok", &["opens"]);
}

#[test]
fn each_missing_permission_is_named_with_what_it_costs() {
    let mut w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    let all = ["mcp_servers:read", "mcp_servers:lifecycle", "group:read", "group:update", "audit:read"];
    let (full, read) = (key_with(&w.hangar, w.dir(), "full", &all), key_with(&w.hangar, w.dir(), "reader", &all[..1]));
    let (base, log) = (url(&w.hangar), w.hangar.log_file());
    let log = log.to_str().unwrap();

    let said = doctor(w.dir(), &base, &["--hangar.api-key-file", &full]);
    assert_eq!((said.code, said.failed()), (0, vec![]), "{:?}", said.checks);
    said.must("api_key", "ok", &["service:full"]);
    said.must("websocket", "ok", &["audit:read"]);
    doctor(w.dir(), &base, &["--hangar.api-key-file", &full, "--hangar.log-file", log]).must("log_file", "ok", &["grew while"]);

    let said = doctor(w.dir(), &base, &["--hangar.api-key-file", &read]);
    assert_eq!((said.code, said.failed()), (1, vec!["permission_start"]), "{:?}", said.checks);
    said.must("permission_start", "fail", &["mcp_servers:lifecycle is missing: no server can be started", "give the key a role"]);
    said.must("permission_groups", "warn", &["group:read"]);
    said.must("permission_rebalance", "warn", &["group:update"]);
    said.must("websocket", "warn", &["audit:read", "hangar.log_file"]);
    assert_eq!(w.hangar.starts("api"), 0);

    // A log that was rotated by renaming is Hangar's no more.
    std::fs::rename(w.hangar.log_file(), w.dir().join("hangar.json.log.1")).unwrap();
    std::fs::copy(w.dir().join("hangar.json.log.1"), w.hangar.log_file()).unwrap();
    let said = doctor(w.dir(), &base, &["--hangar.api-key-file", &full, "--hangar.log-file", log]);
    said.must("log_file", "fail", &["hangar.json.log.1 is", "copytruncate"]);
    w.hangar.stop();
}

#[test]
fn a_wrong_key_is_tried_once_and_not_at_all_when_the_daemon_was_refused_twice() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    let proxy = Proxy::start(w.hangar.port);
    let wrong = key_file(w.dir(), "wrong", "mcp_this_is_no_key_of_anybody_at_all_0123456789");
    let refused = || proxy.seen().iter().filter(|s| s.status == 401).count();
    let said = doctor(w.dir(), &proxy.url(), &["--hangar.api-key-file", &wrong]);
    assert_eq!((said.code, said.failed(), refused()), (1, vec!["api_key"], 1), "{:?}", said.checks);
    said.must("api_key", "fail", &["wrong.key", "refused", "put a valid key"]);
    for check in ["permission_read", "permission_start", "permission_groups", "permission_rebalance", "websocket"] {
        said.must(check, "skip", &["does not let us in"]);
    }
    let said = doctor(w.dir(), &proxy.url(), &[]);
    said.must("api_key", "fail", &["no key is configured", "--hangar.api-key-file"]);

    let before = refused();
    let medic = Medic::start(&w.dir().join("medic"), &proxy.url(), &json!({"hangar": {"api_key_file": wrong}}));
    assert!(poll(std::time::Duration::from_secs(20), || (refused() == before + 2).then_some(())).is_some(), "{}", medic.log());
    let held = poll(std::time::Duration::from_secs(20), || (medic.status()["hangar"]["auth"] == "refused").then_some(()));
    assert!(held.is_some(), "{}", medic.log());
    let (mark, config) = (refused(), w.dir().join("medic/hangar-medic.yaml"));
    let said = doctor(w.dir(), &proxy.url(), &["--config.file", config.to_str().unwrap(), "--hangar.api-key-file", &wrong]);
    said.must("api_key", "fail", &["not sent", "2 times in a row", "put a valid key"]);
    assert_eq!(refused(), mark);
}

#[test]
fn what_does_not_answer_or_is_no_hangar_is_said_first() {
    let dir = tempfile::tempdir().unwrap();
    let said = doctor(dir.path(), &format!("http://127.0.0.1:{}", free_port()), &[]);
    assert_eq!((said.code, said.failed()), (1, vec!["hangar_reachable"]), "{:?}", said.checks);
    said.must("hangar_reachable", "fail", &["never reached Hangar", "start Hangar with --http"]);

    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    let proxy = Proxy::start(w.hangar.port);
    proxy.fault(|s| s.path == "/health/live", Fault::Answer { status: 200, content_type: "text/html", body: "<html>".into() });
    let said = doctor(dir.path(), &proxy.url(), &[]);
    said.must("hangar_reachable", "fail", &["bad answer", "what answers there is not Hangar"]);

    let file = dir.path().join("broken.yaml");
    std::fs::write(&file, "hangar: {url: 'http://127.0.0.1:1'}\npolicy: {setle: 1s}\n").unwrap();
    let said = doctor(dir.path(), "http://127.0.0.1:1", &["--config.file", file.to_str().unwrap()]);
    said.must("config", "fail", &["policy.setle", "settle", "check-config --example"]);
}

#[test]
fn an_old_hangar_is_refused_with_the_version_that_would_do() {
    let w = Unwatched::start(V2_19, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let said = doctor(w.dir(), &url(&w.hangar), &[]);
    assert_eq!((said.code, said.failed()), (1, vec!["hangar_version"]), "{:?}", said.checks);
    said.must("hangar_version", "fail", &["2.19.1 is too old", "upgrade Hangar to 2.20.0 or later"]);
    said.must("gauges", "warn", &["none has a last-healthy time"]);
}

#[test]
fn prometheus_must_scrape_exactly_this_hangar_and_alertmanager_lead_to_us() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let other = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    other.hangar.bring_up(&["api"]);
    let listen = free_port();
    let alertmanager = Alertmanager::start(w.dir(), "am", listen);
    let prometheus = Prometheus::start(w.dir(), &[w.hangar.port, other.hangar.port], &[alertmanager.port]);
    let scraped =
        poll(std::time::Duration::from_secs(20), || (prometheus.servers("mcp_hangar_mcp_server_state") == ["api"; 2]).then_some(()));
    assert!(scraped.is_some());
    let file = w.dir().join("medic.yaml");
    let ask = |instance: &str, port: u16| {
        let config = json!({
            "hangar": {"instance": instance}, "web": {"listen_address": format!("127.0.0.1:{port}")},
            "prometheus": {"url": prometheus.url()}, "alertmanager": {"url": alertmanager.url()}, "storage": {"path": w.dir().join("data")},
        });
        std::fs::write(&file, config.to_string()).unwrap();
        doctor(w.dir(), &url(&w.hangar), &["--config.file", file.to_str().unwrap()])
    };
    let said = ask(&format!("127.0.0.1:{}", w.hangar.port), listen);
    assert_eq!((said.code, said.failed()), (0, vec![]), "{:?}", said.checks);
    said.must("prometheus_instance", "ok", &["exactly this Hangar: 1 servers have a state, 1 a last-healthy time"]);
    said.must("prometheus_clock", "ok", &[]);
    said.must("alerts", "warn", &["no rule MCPHangarProviderNotSeenHealthy", "rule_files"]);
    assert!(["ok", "skip"].contains(&said.status("alertmanager_route")), "{:?}", said.checks);

    let said = ask("hangar.example:8000", listen + 1);
    said.must("prometheus_instance", "fail", &["no series with instance=\"hangar.example:8000\"", "make hangar.instance equal"]);
    assert!(["warn", "skip"].contains(&said.status("alertmanager_route")), "{:?}", said.checks);
    let said = ask(&format!("127.0.0.1:{}", other.hangar.port), listen);
    said.must("prometheus_instance", "fail", &["is another Hangar"]);
}
