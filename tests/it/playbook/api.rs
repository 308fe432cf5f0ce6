//! Principals, break-glass and restart requests at a running daemon. It watches a Hangar that is not there: none is needed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{command, finish};
use crate::support::http::{self, Answer};
use crate::support::process::free_port;
use crate::support::{Medic, poll};

const VIEWER: &str = "token-of-vera-the-viewer";
const OPERATOR: &str = "token-of-otto-the-operator";
const ADMIN: &str = "token-of-ada-the-admin";

/// The three principals, and the directory with their tokens.
pub fn principals(dir: &Path) -> Value {
    let principal = |(name, role, token): (&str, &str, &str)| {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(name), format!("{token}\n")).unwrap();
        json!({"name": name, "role": role, "token_file": dir.join(name)})
    };
    [("vera", "viewer", VIEWER), ("otto", "operator", OPERATOR), ("ada", "admin", ADMIN)].map(principal).into()
}

struct World {
    medic: Medic,
    dir: tempfile::TempDir,
}

impl World {
    fn start(authorised: bool, settings: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut all = json!({"web": {"principals": principals(&dir.path().join("tokens"))}});
        crate::support::medic::merge(&mut all, settings);
        let mut medic = Medic::start(&dir.path().join("medic"), &format!("http://127.0.0.1:{}", free_port()), &all);
        if authorised {
            medic.sigkill();
            medic.break_glass = true;
            medic.start_again();
        }
        let world = Self { medic, dir };
        let open = poll(Duration::from_secs(20), || (world.medic.status()["instance"] == "test").then_some(()));
        assert!(open.is_some(), "the store does not open\n{}", world.medic.log());
        world
    }

    fn token_file(&self, name: &str) -> PathBuf {
        self.dir.path().join("tokens").join(name)
    }

    fn glass(&self, token: &str, body: &Value) -> Answer {
        self.medic.post_as(token, "/api/v1/break-glass", body)
    }

    fn request(&self, token: &str, body: &Value) -> Answer {
        self.medic.post_as(token, "/api/v1/restart-requests", body)
    }

    /// The kinds of the records in the log, from the first that is not a start of a daemon.
    fn kinds(&self) -> Vec<String> {
        let (code, out, err) = finish(&mut command(&["attempts", "export", "--storage.path", self.medic.data().to_str().unwrap()]));
        assert_eq!((code, err.as_str()), (0, ""));
        let kind = |l: &str| serde_json::from_str::<Value>(l).unwrap()["body"]["kind"].as_str().unwrap().to_owned();
        out.lines().map(kind).collect()
    }

    fn counted(&self, series: &str) -> usize {
        let count = http::sample(&self.medic.metrics(), series).unwrap_or_else(|| panic!("no {series}"));
        format!("{count}").parse().expect("a whole number")
    }
}

fn grant_of(action: &str, target: &str, duration: &str) -> Value {
    json!({"action": action, "target": target, "reason": "it is all down", "duration": duration})
}

fn restart_of(class: &str, target: &str, flag: bool) -> Value {
    json!({"restart_class": class, "target": target, "reason": "it is all down", "symptoms": ["daemon_corrupt"], "request_break_glass": flag})
}

#[test]
fn without_principals_nothing_can_be_changed() {
    let w = World::start(true, &json!({"web": {"principals": []}}));
    for path in ["/api/v1/break-glass", "/api/v1/restart-requests", "/api/v1/incidents/api.1/resume", "/api/v1/servers/api/resume"] {
        let answer = w.medic.post_as(ADMIN, path, &json!({}));
        assert_eq!((answer.status, answer.code().as_str()), (403, "no_credentials_configured"), "{path}");
    }
    assert_eq!(w.kinds(), [""; 0]);
}

#[test]
fn only_the_token_that_is_in_the_file_now_is_somebody() {
    let w = World::start(false, &json!({}));
    let bodyless = |headers: &str| http::with_headers(w.medic.port(), "POST", "/api/v1/restart-requests", headers, "").status;
    let known = 400;
    for (headers, status) in [
        (String::new(), 401),
        ("Authorization: Bearer nobody-knows-this\r\n".to_owned(), 401),
        (format!("Authorization: Basic {ADMIN}\r\n"), 401),
        (format!("X-API-Key: {ADMIN}\r\n"), 401),
        (format!("Authorization: Bearer {ADMIN}\r\nAuthorization: Bearer {ADMIN}\r\n"), 401),
        (format!("Authorization: Bearer {ADMIN}\r\n"), known),
        (format!("Authorization: Bearer {VIEWER}\r\n"), known),
    ] {
        assert_eq!(bodyless(&headers), status, "{headers}");
    }
    std::fs::write(w.token_file("ada"), "another-token-of-ada").unwrap();
    assert_eq!(bodyless(&format!("Authorization: Bearer {ADMIN}\r\n")), 401);
    assert_eq!(bodyless("Authorization: Bearer another-token-of-ada\r\n"), known);
    std::fs::remove_file(w.token_file("ada")).unwrap();
    assert_eq!(bodyless("Authorization: Bearer another-token-of-ada\r\n"), 401);
    for token in [VIEWER, OPERATOR, ADMIN, "another-token", "nobody-knows"] {
        assert!(!w.medic.log().contains(token), "a token is in the log");
    }
    // Reading goes on without any.
    assert_eq!(http::get(w.medic.port(), "/api/v1/incidents", None).status, 200);
}

#[test]
fn break_glass_is_granted_used_once_refused_and_expires_and_all_of_it_is_on_record() {
    let w = World::start(true, &json!({}));
    let lacking = w.glass(OPERATOR, &grant_of("full_mcp_restart", "hangar", "10m"));
    assert_eq!((lacking.status, lacking.code().as_str()), (403, "not_permitted"));
    assert_eq!(lacking.json()["report"]["permitted"], false);

    let granted = w.glass(ADMIN, &grant_of("full_mcp_restart", "hangar", "10m"));
    assert_eq!((granted.status, &granted.json()["granted"]), (200, &json!(true)), "{granted:?}");
    let grant = granted.json()["grant"].clone();
    assert_eq!((&grant["principal"], &grant["role"], &grant["target"]), (&json!("ada"), &json!("admin"), &json!("hangar")));

    let judged = |token: &str, body: &Value| {
        let answer = w.request(token, body);
        let said = answer.json();
        let codes: Vec<String> =
            said["refusals"].as_array().into_iter().flatten().map(|r| r["code"].as_str().unwrap().to_owned()).collect();
        (answer.status, said["allowed"] == true, said["break_glass"]["used"] == true, codes.join(" "))
    };
    let missing = || (200, false, false, "attempt_log_missing".to_owned());
    let not_authorised = || (200, false, false, "attempt_log_missing break_glass_not_authorised".to_owned());
    assert_eq!(judged(ADMIN, &restart_of("full_mcp_restart", "hangar", false)), missing(), "nobody asked for it");
    assert_eq!(judged(ADMIN, &restart_of("full_mcp_restart", "host", true)), not_authorised(), "another target");
    assert_eq!(judged(ADMIN, &restart_of("host_restart", "hangar", true)), not_authorised(), "another action");
    let barred = (403, false, false, "not_permitted".to_owned());
    assert_eq!(judged(OPERATOR, &restart_of("full_mcp_restart", "hangar", true)), barred, "the matrix is final");
    assert_eq!(judged(ADMIN, &restart_of("full_mcp_restart", "hangar", true)), (200, true, true, String::new()));
    assert_eq!(judged(ADMIN, &restart_of("full_mcp_restart", "hangar", true)), not_authorised(), "it was used");

    assert_eq!(w.glass(ADMIN, &grant_of("host_restart", "host", "1s")).status, 200);
    let over = poll(Duration::from_secs(10), || (w.counted("hangar_medic_break_glass_total{event=\"expired\"}") == 1).then_some(()));
    assert!(over.is_some(), "the grant does not expire\n{}", w.medic.log());
    assert_eq!(judged(ADMIN, &restart_of("host_restart", "host", true)), not_authorised(), "it is over");

    for (event, n) in [("granted", 2), ("used", 1), ("refused", 1), ("expired", 1)] {
        assert_eq!(w.counted(&format!("hangar_medic_break_glass_total{{event=\"{event}\"}}")), n, "{event}");
    }
    assert_eq!(w.counted("hangar_medic_restart_requests_total{verdict=\"allowed\"}"), 1);
    assert_eq!(w.counted("hangar_medic_restart_requests_total{verdict=\"refused\"}"), 6);
    let kinds = w.kinds();
    let expected = "grant_refused granted request request request request request grant_used request granted grant_expired request";
    assert_eq!(kinds.join(" "), expected);
}

#[test]
fn a_grant_outlives_a_restart_and_needs_the_authorisation_then_too() {
    let mut w = World::start(true, &json!({}));
    assert_eq!(w.glass(ADMIN, &grant_of("full_mcp_restart", "hangar", "10m")).status, 200);
    w.medic.break_glass = false;
    w.medic.restart();
    let ask = || {
        poll(Duration::from_secs(10), || {
            Some(w.request(ADMIN, &restart_of("full_mcp_restart", "hangar", true))).filter(|a| a.status == 200)
        })
    };
    assert_eq!(ask().unwrap().json()["allowed"], false, "no authorisation");
    let refused = w.glass(ADMIN, &grant_of("full_mcp_restart", "hangar", "10m"));
    assert_eq!((refused.status, refused.code().as_str()), (403, "break_glass_not_authorised"));
    w.medic.break_glass = true;
    w.medic.restart();
    let ask = || {
        poll(Duration::from_secs(10), || {
            Some(w.request(ADMIN, &restart_of("full_mcp_restart", "hangar", true))).filter(|a| a.status == 200)
        })
    };
    assert_eq!(ask().unwrap().json()["allowed"], true);
}

#[test]
fn a_request_is_judged_by_its_claims_recorded_and_by_default_nothing_more() {
    let w = World::start(false, &json!({}));
    let mut body = restart_of("rolling_mcp_restart", "hangar", false);
    body["prior_recovery_attempts"] = json!([{"action": "session_reconnect", "outcome": "insufficient", "reason": "still dead",
        "actor": "agent-7", "recorded_at": "2026-07-25T21:00:00Z"}]);
    let answer = w.request(ADMIN, &body);
    let said = answer.json();
    assert_eq!((answer.status, &said["allowed"], &said["attempt_log_satisfied"]), (200, &json!(true), &json!(true)), "{answer:?}");
    assert_eq!(said["playbook_escalation"]["counted"], body["prior_recovery_attempts"]);
    assert_eq!((&said["acts"], &said["acts_why_not"]), (&json!(false), &json!("requests.act is false: recorded and reported only")));
    let viewer = w.request(VIEWER, &restart_of("client_reconnect", "api", false));
    assert_eq!((viewer.status, viewer.code().as_str(), &viewer.json()["permitted"]), (403, "not_permitted", &json!(false)));
    assert_eq!(w.kinds(), ["request", "request"]);
}

#[test]
fn an_allowed_request_that_is_to_act_is_judged_again_with_the_daemons_own_log() {
    let w = World::start(false, &json!({"requests": {"act": true}}));
    let mut body = restart_of("rolling_mcp_restart", "hangar", false);
    body["prior_recovery_attempts"] = json!([{"action": "session_reconnect", "outcome": "insufficient", "reason": "r", "actor": "a",
        "recorded_at": "2026-07-25T21:00:00Z"}]);
    let said = w.request(ADMIN, &body).json();
    assert_eq!((&said["allowed"], &said["acts"]), (&json!(true), &json!(true)));
    let other = w.request(OPERATOR, &restart_of("role_runtime_restart", "api", false)).json();
    assert_eq!((&other["allowed"], &other["acts"]), (&json!(true), &json!(true)));
    let ended = |text: &str| {
        let found = poll(Duration::from_secs(10), || w.medic.log().contains(text).then_some(()));
        assert!(found.is_some(), "not in the log: {text}\n{}", w.medic.log());
    };
    ended("attempt_log_missing: rolling_mcp_restart is broad");
    ended("role_runtime_restart: not listed in policy.rungs");
    assert_eq!(w.kinds().iter().filter(|k| *k == "request_ended").count(), 2);
}

#[test]
fn a_body_that_is_not_understood_or_too_large_is_refused_whole() {
    let w = World::start(true, &json!({}));
    let bad = w.request(ADMIN, &json!({"restart_class": "kill", "target": "api", "reason": "r", "prior_recovery_attempts": [{}]}));
    let faults = bad.json()["error"]["faults"].as_array().unwrap().len();
    assert_eq!((bad.status, faults), (400, 6), "{bad:?}");
    assert_eq!(w.glass(ADMIN, &grant_of("host_restart", "host", "16m")).status, 400);
    let large = restart_of("host_restart", &"x".repeat(600 * 1024), false);
    assert_eq!(w.request(ADMIN, &large).status, 413);
    let nothing = w.medic.post_as(OPERATOR, "/api/v1/servers/api/resume", &json!({"reason": "r"}));
    assert_eq!((nothing.status, nothing.code().as_str()), (409, "nothing_to_do"));
    let unknown = w.medic.post_as(OPERATOR, "/api/v1/incidents/api.1/resume", &json!({"reason": "r"}));
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "not_found"));
    let viewer = w.medic.post_as(VIEWER, "/api/v1/servers/api/resume", &json!({"reason": "r"}));
    assert_eq!((viewer.status, viewer.code().as_str()), (403, "not_permitted"));
    assert_eq!(w.kinds(), [""; 0]);
}

#[test]
fn the_command_asks_for_break_glass_with_a_token_file() {
    let w = World::start(true, &json!({}));
    let ask = |who: &str, duration: &str| {
        let (file, url) = (w.token_file(who), w.medic.url());
        let args = ["break-glass", "--action", "host_restart", "--target", "host", "--reason", "fire", "--duration", duration];
        let mut all = args.to_vec();
        all.extend(["--medic.url", &url, "--token-file", file.to_str().unwrap()]);
        finish(&mut command(&all))
    };
    let (code, out, err) = ask("ada", "5m");
    assert!(
        code == 0 && err.is_empty() && out.starts_with("granted  grant-") && out.contains("\naction      host_restart\n"),
        "{code} {out}{err}"
    );
    let (code, out, _) = ask("otto", "5m");
    assert!(code == 3 && out.starts_with("refused  not_permitted: the class matrix does not permit host_restart"), "{code} {out}");
    let (code, out, err) = ask("ada", "1h");
    assert!(code == 1 && out.is_empty() && err.contains("at most 15m"), "{code} {out}{err}");
    let (code, _, err) = ask("nobody", "5m");
    assert!(code == 1 && err.contains("--token-file"), "{code} {err}");
}

#[test]
fn a_principal_that_cannot_be_told_from_others_is_a_fault_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    principals(dir.path());
    std::fs::write(dir.path().join("same"), ADMIN).unwrap();
    let check = |entries: Value| {
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, json!({"hangar": {"url": "http://127.0.0.1:1"}, "web": {"principals": entries}}).to_string()).unwrap();
        let (code, _, err) = finish(&mut command(&["check-config", file.to_str().unwrap()]));
        (code, err)
    };
    let entry = |name: &str, role: &str, file: &str| json!({"name": name, "role": role, "token_file": dir.path().join(file)});
    for (entries, fault) in [
        (json!([entry("a", "admin", "ada"), entry("a", "admin", "otto")]), "web.principals[1].name: a is named twice"),
        (
            json!([entry("a", "admin", "ada"), entry("b", "admin", "same")]),
            "web.principals[1].token_file: holds the same token as web.principals[0]",
        ),
        (json!([entry("hangar-medic", "admin", "ada")]), "web.principals[0].name: is what the daemon itself is called in records"),
        (json!([entry("a", "sidecar", "ada")]), "web.principals[0].role: sidecar is the daemon's own role"),
        (json!([entry("a", "admin", "none")]), "web.principals[0].token_file: cannot read the secret file"),
        (json!([{"name": "a"}]), "web.principals[0].role: missing"),
    ] {
        let (code, err) = check(entries);
        assert!(code == 1 && err.contains(fault) && !err.contains(ADMIN), "{fault}: {err}");
    }
    let (code, err) = check(json!([entry("a", "root", "ada")]));
    assert!(code == 0 && err.contains("warning: web.principals: a has the role root, which matrix.roles does not list"), "{err}");
}
