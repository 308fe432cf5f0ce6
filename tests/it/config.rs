//! `check-config` and the command line as a person meets them, and the file that is shipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hangar_medic::config::{self, Overrides};
use hangar_medic::policy::Policy;
use serde_json::Value;

fn medic(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hangar-medic")).args(args).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/hangar-medic.yaml")
}

fn written(yaml: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    std::fs::write(&file, yaml).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (dir, file)
}

#[test]
fn the_shipped_file_is_the_defaults() {
    let url = Overrides { hangar_url: Some("http://127.0.0.1:8000".to_owned()), ..Overrides::default() };
    let defaults = config::load(None, &url).unwrap();
    assert_eq!(config::load(Some(&shipped()), &Overrides::default()).unwrap(), defaults);
    assert_eq!(defaults.policy, Policy::default());
    assert!(defaults.warnings.is_empty());
}

#[test]
fn the_shipped_file_is_what_the_program_prints_as_its_example() {
    assert_eq!(std::fs::read_to_string(shipped()).unwrap(), out(&medic(&["check-config", "--example"])));
}

#[test]
fn the_page_of_settings_is_what_the_program_prints() {
    let page = std::fs::read_to_string(shipped().with_file_name("README.md")).unwrap();
    let (_, settings) = page.split_once("<!-- From here on: hangar-medic check-config --reference -->\n").unwrap();
    assert_eq!(settings, out(&medic(&["check-config", "--reference"])));
}

#[test]
fn a_valid_file_prints_the_effective_configuration_that_loads_again() {
    let (_dir, file) = written("hangar: {url: 'https://h.example/base', request_timeout: 30s}");
    let output = medic(&["check-config", &file]);
    assert_eq!(output.status.code(), Some(0));
    let slow = "longer than 15s (poll_interval x stale_after_polls): one slow answer makes everything unknown";
    assert_eq!(err(&output), format!("warning: hangar.request_timeout: {slow}\n"));
    let again = config::parse(out(&output).as_bytes(), &Overrides::default()).unwrap();
    assert_eq!(again, config::load(Some(Path::new(&file)), &Overrides::default()).unwrap());
    assert_eq!(again.hangar.url.as_str(), "https://h.example/base/");
}

#[test]
fn an_invalid_file_names_every_fault_and_exits_1() {
    let yaml = "hangar: {url: 'http://h', api_key_file: /nowhere/key, pol_interval: 5s}
policy:
  settle: -5s
  settle: 5s
  rungs: [{action: session_reconnect}, {action: session_reconnect}]
";
    let (_dir, file) = written(yaml);
    let output = medic(&["check-config", &file]);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(1), ""));
    let expected = [
        "policy.settle: duplicate key; the same mapping gives it more than once",
        "hangar.pol_interval: unknown key; did you mean poll_interval?",
        "policy.settle: must not be negative",
        "policy.rungs[1].action: session_reconnect is named twice, first in policy.rungs[0]",
        "hangar.api_key_file: cannot read the secret file: No such file or directory (os error 2)",
    ];
    let expected = expected.map(|fault| format!("{file}: {fault}"));
    assert_eq!(err(&output).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_missing_file_exits_1_and_says_so() {
    let output = medic(&["check-config", "/nowhere/f.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(err(&output), "/nowhere/f.yaml: cannot read the file: No such file or directory (os error 2)\n");
    let output = medic(&["check-config", "/"]);
    assert_eq!((output.status.code(), err(&output).contains("/: cannot read the file: ")), (Some(1), true));
}

#[test]
fn json_holds_the_same_answer() {
    let (_dir, file) = written("hangar: {url: 'http://h', start_timeout: 5s}");
    let output = medic(&["check-config", "--format", "json", &file]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["valid"], &report["errors"]), (Some(0), &true.into(), &Value::Array(Vec::new())));
    assert!(report["warnings"][0].as_str().unwrap().starts_with("hangar.start_timeout: below 30s"));
    assert_eq!(report["effective"]["hangar"]["start_timeout"], "5s");

    let (_dir, file) = written("hangar: {url: 'http://h'}\nx: 1");
    let output = medic(&["check-config", "--format", "json", &file]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["valid"]), (Some(1), &false.into()));
    assert_eq!(report["errors"], serde_json::json!([{"path": "x", "message": "unknown key"}]));
    assert!(report.get("effective").is_none());
}

#[test]
fn a_file_without_a_url_is_judged_with_the_flag_that_run_would_get() {
    let (_dir, file) = written("policy: {mode: observe}");
    let output = medic(&["check-config", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).starts_with(&format!("{file}: hangar.url: missing; give it in a file")), "{}", err(&output));
    assert_eq!(medic(&["check-config", &file, "--hangar.url", "http://h"]).status.code(), Some(0));
    let output = medic(&["check-config", &file, "--hangar.url", "h"]);
    assert_eq!(err(&output), "--hangar.url: must begin with http:// or https://\n");
}

#[test]
fn wrong_usage_exits_2_with_nothing_on_stdout() {
    for args in [
        &["check-config"][..],
        &["nonsense"],
        &[],
        &["run", "--mode", "hope"],
        &["run", "--hangar.url"],
        &["ladder", "--format", "xml"],
        &["incidents"],
        &["attempts", "list", "--state", "open"],
    ] {
        let output = medic(args);
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""), "{args:?}");
        assert!(!err(&output).is_empty(), "{args:?}");
    }
    assert!(err(&medic(&["run", "--mode", "hope"])).contains("[possible values: observe, act]"));
}

#[test]
fn help_and_version_exit_0() {
    let version = medic(&["--version"]);
    assert_eq!((version.status.code(), out(&version)), (Some(0), format!("hangar-medic {}\n", env!("CARGO_PKG_VERSION"))));
    let help = out(&medic(&["run", "--help"]));
    for flag in [
        "--config.file",
        "--hangar.url",
        "--hangar.instance",
        "--hangar.api-key-file",
        "--hangar.log-file",
        "--prometheus.url",
        "--web.listen-address",
        "--storage.path",
        "--mode",
        "--log.level",
        "--log.format",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn the_ladder_tells_what_the_configuration_has_on() {
    let (_dir, file) = written("hangar: {url: 'http://h'}\npolicy: {rungs: [{action: session_reconnect}]}");
    let output = medic(&["ladder", "--format", "json", "--config.file", &file]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let on: Vec<bool> = document["rungs"].as_array().unwrap().iter().map(|r| r["configured"].as_bool().unwrap()).collect();
    assert_eq!(on, [false, false, true, false, false, false, false, false, false, false, false]);
    assert_eq!(document["rungs"][0]["why_not"], "not listed in policy.rungs");
    let table = out(&medic(&["ladder"]));
    assert_eq!(table.lines().count(), 12);
    let starts = table.lines().nth(3).unwrap().split_whitespace().take(5).collect::<Vec<_>>();
    assert_eq!(starts, ["2", "session_reconnect", "yes", "-", "yes"]);
}

#[test]
fn a_secret_pasted_in_place_of_its_path_is_not_printed() {
    let (_dir, file) = written("hangar: {url: 'http://me:sk-hush@h', api_key_file: sk-hush, sk: {a: sk-hush}}");
    let output = medic(&["check-config", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!err(&output).contains("hush"), "{}", err(&output));
}

#[test]
fn the_schema_is_json() {
    let schema: Value = serde_json::from_slice(&medic(&["check-config", "--schema"]).stdout).unwrap();
    assert_eq!(schema["properties"]["policy"]["properties"]["storm"]["properties"]["share"]["maximum"], 1);
}
