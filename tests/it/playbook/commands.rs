//! Every command's help, table and JSON, and its exit codes.

use serde_json::{Value, json};

use super::{command, finish, medic};

const HELP: &[&[&str]] = &[
    &[],
    &["run"],
    &["check-config"],
    &["doctor"],
    &["completions"],
    &["classify"],
    &["ladder"],
    &["recommend"],
    &["assess"],
    &["recovery-metrics"],
    &["break-glass"],
    &["approve"],
    &["hold"],
    &["pause"],
    &["resume"],
    &["mcp"],
    &["incidents"],
    &["incidents", "list"],
    &["incidents", "show"],
    &["attempts"],
    &["attempts", "list"],
    &["attempts", "export"],
    &["attempts", "verify"],
];

#[test]
fn every_help_is_this() {
    for command in HELP {
        let mut args = command.to_vec();
        args.push("--help");
        let (code, out, err) = medic(&args);
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
        insta::assert_snapshot!(format!("help_{}", command.join("_")), out);
    }
}

fn attempts(entries: &Value) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), entries.to_string()).unwrap();
    file
}

fn tried(action: &str, outcome: &str) -> Value {
    json!({"action": action, "outcome": outcome, "reason": "still down\nafter it", "actor": "agent-7", "recorded_at": "2026-07-25T21:00:00+00:00"})
}

/// Both forms of a command's output, and its exit code.
fn both(args: &[&str]) -> (i32, String) {
    let (code, table, err) = medic(args);
    assert_eq!(err, "", "{args:?}");
    let json: Vec<&str> = args.iter().copied().chain(["--format", "json"]).collect();
    let (again, document, _) = medic(&json);
    assert_eq!(again, code);
    serde_json::from_str::<Value>(&document).unwrap();
    (code, format!("exit {code}\n{table}\n{document}"))
}

#[test]
fn every_table_and_document_is_this() {
    let log = attempts(&json!([
        tried("client_reconnect", "insufficient"),
        tried("session_reconnect", "success"),
        tried("worker_restart", "timeout")
    ]));
    let file = log.path().to_str().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "hangar: {url: 'http://127.0.0.1:8000'}\npolicy: {rungs: [{action: session_reconnect}]}\n").unwrap();
    let config = config.path().to_str().unwrap();
    let check = |name: &str, args: &[&str], code: i32| {
        let (found, text) = both(args);
        assert_eq!(found, code, "{args:?}");
        insta::assert_snapshot!(name, text);
    };
    check("ladder", &["ladder"], 0);
    check("ladder_configured", &["ladder", "--config.file", config], 0);
    check("recommend", &["recommend", "--symptom", "transport_eof", "--symptom", "worker_corrupt", "--attempts", file], 0);
    check("recommend_nothing_left", &["recommend", "--symptom", "daemon_corrupt"], 0);
    check("assess_allowed", &["assess", "--restart-class", "full_mcp_restart", "--role", "admin", "--attempts", file], 0);
    check("assess_refused", &["assess", "--restart-class", "host_restart", "--role", "operator", "--break-glass"], 3);
    check("assess_narrow", &["assess", "--restart-class", "worker_restart", "--role", "sidecar"], 0);
    check("recovery_metrics", &["recovery-metrics", "--attempts", file], 0);
    check("check_config", &["check-config", config], 0);
}

#[test]
fn assess_exits_0_allowed_3_refused_2_not_understood() {
    let log = attempts(&json!([tried("session_reconnect", "failed")]));
    let bad = attempts(&json!([tried("session_reconnect", "meh"), {}, tried("kill", "failed")]));
    let (log, bad) = (log.path().to_str().unwrap(), bad.path().to_str().unwrap());
    let assess = |class: &str, role: &str, more: &[&str], env: Option<&str>| {
        let mut args = vec!["assess", "--restart-class", class, "--role", role];
        args.extend(more);
        let mut command = command(&args);
        if let Some(value) = env {
            command.env("HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION", value);
        }
        finish(&mut command)
    };
    for (class, role, more, env, code) in [
        ("worker_restart", "operator", &[][..], None, 0),
        ("worker_restart", "viewer", &[], None, 3),
        ("worker_restart", "nobody-listed", &[], None, 3),
        ("worker_restart", "", &[], None, 3),
        ("rolling_mcp_restart", "admin", &[], None, 3),
        ("rolling_mcp_restart", "admin", &["--attempts", log], None, 0),
        ("rolling_mcp_restart", "operator", &["--attempts", log], None, 3),
        ("rolling_mcp_restart", "admin", &["--break-glass"], None, 3),
        ("rolling_mcp_restart", "admin", &["--break-glass"], Some(""), 3),
        ("rolling_mcp_restart", "admin", &[], Some("yes"), 3),
        ("rolling_mcp_restart", "admin", &["--break-glass"], Some("yes"), 0),
        ("rolling_mcp_restart", "operator", &["--break-glass"], Some("yes"), 3),
        ("client_reconnect", "viewer", &["--break-glass"], Some("yes"), 3),
    ] {
        let (found, out, err) = assess(class, role, more, env);
        assert_eq!((found, err.as_str()), (code, ""), "{class} {role} {more:?} {env:?}");
        assert!(!out.is_empty(), "the report is printed either way");
    }
    for (class, more, fault) in [
        ("kill", &[][..], "invalid value 'kill'"),
        ("host_restart", &["--attempts", bad], "attempts[0].outcome: unknown outcome \"meh\""),
        ("host_restart", &["--attempts", "/nonexistent"], "/nonexistent: cannot be read"),
        ("host_restart", &["--config.file", "/nonexistent"], "/nonexistent"),
    ] {
        let (code, out, err) = assess(class, "admin", more, None);
        assert_eq!((code, out.as_str()), (2, ""), "{class} {more:?}");
        assert!(err.contains(fault), "{err}");
    }
}

#[test]
fn bad_input_is_refused_whole_with_every_fault() {
    let bad = attempts(&json!([tried("session_reconnect", "meh"), {"action": "x"}, tried("worker_restart", "failed"), 7]));
    let file = bad.path().to_str().unwrap();
    for args in [["recovery-metrics", "--attempts", file].as_slice(), &["recommend", "--symptom", "stale_lease", "--attempts", file]] {
        let (code, out, err) = medic(args);
        assert_eq!((code, out.as_str()), (2, ""));
        let paths: Vec<&str> = err.lines().map(|l| l.split(": ").next().unwrap()).collect();
        let expected = [
            "attempts[0].outcome",
            "attempts[1].action",
            "attempts[1].outcome",
            "attempts[1].reason",
            "attempts[1].actor",
            "attempts[1].recorded_at",
            "attempts[3]",
        ];
        assert_eq!(paths, expected, "{err}");
    }
    let (code, out, err) = medic(&["recommend", "--symptom", "nope"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("transport_eof, stale_capability, stale_session, config_drift"), "{err}");
    assert_eq!(medic(&["recommend"]).0, 2);
    assert_eq!(medic(&["recovery-metrics"]).0, 2);
}

#[test]
fn attempts_are_taken_from_stdin_too() {
    use std::io::Write;
    let mut child = command(&["recovery-metrics", "--attempts", "-", "--format", "json"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = format!("{}\n{}\n", tried("worker_restart", "recovered"), tried("host_restart", "recovered"));
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let metrics: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(metrics["fraction_avoided_full_restart"], 0.5);
}

#[test]
fn a_rung_that_is_enabled_and_not_permitted_to_the_daemon_is_warned_of() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = "hangar: {url: 'http://127.0.0.1:8000'}\nmatrix: {roles: [{role: sidecar, permitted: [client_reconnect]}]}\n\
                  policy: {rungs: [{action: client_reconnect}, {action: session_reconnect}]}\n";
    std::fs::write(file.path(), config).unwrap();
    let path = file.path().to_str().unwrap();
    let (code, _, err) = medic(&["check-config", path]);
    let warning =
        "warning: policy.rungs: session_reconnect is enabled, but matrix.roles does not permit it to the daemon's own role (sidecar)";
    assert!(code == 0 && err.contains(warning) && !err.contains("client_reconnect is enabled"), "{err}");
    let (code, out, _) =
        medic(&["assess", "--restart-class", "worker_restart", "--role", "operator", "--config.file", path, "--format", "json"]);
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()["permitted"] == false), (3, true), "the file's matrix counts");
}

#[test]
fn faults_of_the_matrix_name_their_place() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (matrix, fault) in [
        ("{roles: []}", "matrix.roles: lists no role"),
        ("{roles: [{role: a, permitted: [kill]}]}", "matrix.roles[0].permitted: \"kill\" is not known"),
        ("{roles: [{role: a, permitted: [host_restart, host_restart]}]}", "matrix.roles[0].permitted: names host_restart twice"),
        (
            "{roles: [{role: a, permitted: []}, {role: a, permitted: []}]}",
            "matrix.roles[1].role: a is named twice, first in matrix.roles[0]",
        ),
        ("{roles: [{role: a}]}", "matrix.roles[0].permitted: missing"),
        ("{roles: [{role: a, permitted: host_restart}]}", "matrix.roles[0].permitted: must be a list"),
        ("{rolls: []}", "matrix.rolls: unknown key; did you mean roles?"),
    ] {
        std::fs::write(file.path(), format!("hangar: {{url: 'http://127.0.0.1:8000'}}\nmatrix: {matrix}\n")).unwrap();
        let (code, _, err) = medic(&["check-config", file.path().to_str().unwrap()]);
        assert!(code == 1 && err.contains(fault), "{matrix}: {err}");
    }
}

#[test]
fn the_readme_shows_the_ladder_as_the_program_prints_it() {
    let readme = include_str!("../../../README.md");
    let document: Value = serde_json::from_str(&medic(&["ladder", "--format", "json"]).1).unwrap();
    for rung in document["rungs"].as_array().unwrap() {
        let text = |key: &str| rung[key].as_str().unwrap_or_default().to_owned();
        let yes = |key: &str| if rung[key] == true { "yes" } else { "" };
        let on = if rung["configured"] == true { "on" } else { "" };
        let row =
            format!("| {} | `{}` | {} | {} | {on} | {} |", rung["rank"], text("action"), yes("self_service"), yes("broad"), text("what"));
        assert!(readme.contains(&row), "README.md lacks this row, as it is now:\n{row}");
    }
}
