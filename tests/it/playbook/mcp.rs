//! A real MCP client (the Python package `mcp`) lists and calls the tools over stdio.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::api::principals;
use crate::support::Medic;
use crate::support::medic::BINARY;
use crate::support::process::{free_port, package};

const TRIED: &str =
    r#"[{"action":"client_reconnect","outcome":"insufficient","reason":"r","actor":"a","recorded_at":"2026-07-25T21:00:00Z"}]"#;

/// Has the client call each tool in turn; gives the names of the tools and each answer: `{"error": bool, "value": ...}`.
fn talk(args: &[&str], calls: &Value) -> Value {
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/playbook/mcp_client.py");
    let mut command = Command::new(package("mcp").join("bin/python3"));
    command.args(["-B", client, &calls.to_string(), BINARY, "mcp"]).args(args).stdin(Stdio::null());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn a_real_client_lists_the_tools_and_asks_the_offline_questions_without_a_daemon() {
    let calls = json!([
        ["ladder", {}],
        ["recommend_actions", {"symptoms": ["transport_eof"], "prior_recovery_attempts_json": TRIED}],
        ["assess_escalation", {"restart_class": "full_mcp_restart", "role": "admin", "prior_recovery_attempts_json": TRIED}],
        ["assess_escalation", {"restart_class": "full_mcp_restart", "role": "operator"}],
        ["recovery_metrics", {"attempts_json": TRIED}],
        ["recommend_actions", {"symptoms": ["nope"]}],
        ["assess_escalation", {"restart_class": "kill", "role": "admin"}],
        ["recommend_actions", {"symptoms": ["transport_eof"], "prior_recovery_attempts_json": "[{}]"}],
        ["incidents", {}],
        ["request_mcp_restart", {"restart_class": "worker_restart", "target": "api", "reason": "r"}],
    ]);
    let said = talk(&[], &calls);
    let tools: Vec<&str> = said["tools"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(tools, ["ladder", "recommend_actions", "assess_escalation", "request_mcp_restart", "recovery_metrics", "incidents"]);
    let narrow = |t: &Value| {
        let text = t["description"].as_str().unwrap();
        text.contains("narrow") || text.contains("lowest rank")
    };
    assert!(said["tools"].as_array().unwrap().iter().all(narrow), "{}", said["tools"]);
    assert!(said["instructions"].as_str().unwrap().contains("narrowest action first"));

    let value = |n: usize| &said["answers"][n]["value"];
    let errors: Vec<bool> = said["answers"].as_array().unwrap().iter().map(|a| a["error"] == true).collect();
    assert_eq!(errors, [false, false, false, false, false, true, true, true, true, true], "{said}");
    assert_eq!(value(0)["rungs"].as_array().unwrap().len(), 11);
    assert_eq!(value(1)["next"], "capability_refresh");
    assert_eq!((&value(2)["allowed"], &value(3)["allowed"]), (&json!(true), &json!(false)));
    assert_eq!((&value(4)["attempts"], &value(4)["fraction_avoided_full_restart"]), (&json!(1), &Value::Null));
    for (n, text) in [
        (5, "unknown symptom \"nope\"; known: transport_eof"),
        (6, "restart_class: unknown action \"kill\""),
        (7, "attempts[0].action: is missing"),
        (8, "start this server with --medic.url and --token-file"),
        (9, "start this server with --medic.url and --token-file"),
    ] {
        assert!(value(n).as_str().unwrap().contains(text), "{}", value(n));
    }
}

#[test]
fn with_a_token_the_running_daemon_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let settings = json!({"web": {"principals": principals(&dir.path().join("tokens"))}});
    let medic = Medic::start(&dir.path().join("medic"), &format!("http://127.0.0.1:{}", free_port()), &settings);
    let token = dir.path().join("tokens/otto");
    let (url, token) = (medic.url(), token.to_str().unwrap().to_owned());
    let calls = json!([
        ["request_mcp_restart", {"restart_class": "worker_restart", "target": "api", "reason": "it hangs", "symptoms": ["worker_corrupt"],
                                 "prior_recovery_attempts_json": TRIED}],
        ["request_mcp_restart", {"restart_class": "full_mcp_restart", "target": "hangar", "reason": "r", "prior_recovery_attempts_json": TRIED}],
        ["incidents", {"state": "all"}],
        ["recovery_metrics", {}],
        ["ladder", {}],
    ]);
    let said = talk(&["--medic.url", &url, "--token-file", &token], &calls);
    let value = |n: usize| &said["answers"][n]["value"];
    assert!(said["answers"].as_array().unwrap().iter().all(|a| a["error"] == false), "{said}");
    assert_eq!((&value(0)["allowed"], &value(0)["role"], &value(0)["acts"]), (&json!(true), &json!("operator"), &json!(false)));
    assert_eq!((&value(1)["allowed"], &value(1)["permitted"]), (&json!(false), &json!(false)));
    assert_eq!((&value(2)["incidents"], &value(3)["attempts"]), (&json!([]), &json!(0)));
    assert_eq!(value(4)["rungs"][2]["configured"], true);
    assert!(medic.log().contains("it hangs"), "the request is on record");
}
