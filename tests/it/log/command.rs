//! What `classify` prints.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Parser;
use hangar_medic::cli::classify::{ClassifyArgs, ClassifyError, classify, run};
use serde_json::{Value, json};

use super::corpus::scenario;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ClassifyArgs,
}

fn args(words: &[&str]) -> ClassifyArgs {
    Cli::try_parse_from([&["classify"], words].concat()).unwrap().args
}

fn printed(words: &[&str], log: &[u8]) -> String {
    let mut out = Vec::new();
    classify(&args(words), &mut &log[..], &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)
}

#[test]
fn each_dead_server_is_one_line_of_json_in_order_of_name() {
    let mut out = Vec::new();
    run(&args(&[path("2.34.4/forge/hangar.json.log").to_str().unwrap()]), &mut out).unwrap();
    let lines: Vec<Value> = out.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_slice(l).unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|l| l["mcp_server"].as_str().unwrap()).collect();
    assert_eq!(names, ["liar2", "liar3", "liar5"]);
    let log = &scenario("2.34.4/forge").json;
    for line in &lines {
        let offset = usize::try_from(line["evidence"]["offset"].as_u64().unwrap()).unwrap();
        let at = log[offset..].split(|b| *b == b'\n').next().unwrap();
        let record: Value = serde_json::from_slice(at).unwrap();
        assert_eq!((&record["mcp_server_id"], &record["timestamp"]), (&line["mcp_server"], &line["at"]));
        assert_eq!(record["event"], line["evidence"]["event"]);
    }
    assert_eq!(lines[0]["reason"], "start_failed");
    assert_eq!(lines[2]["evidence"]["event"], "capability_drift_detected");
    assert_eq!(lines[2]["evidence"]["undeclared_tools"].as_array().unwrap().len(), 1);
}

#[test]
fn all_gives_every_transition_as_it_came() {
    let out = printed(&["--all", "-"], &scenario("2.34.4/capability").json);
    let first: Vec<Value> = out.lines().take(3).map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(first[0]["change"], "hangar_started");
    let drift = out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()).find(|l| l["change"] == "capability_drift").unwrap();
    assert_eq!(
        (&drift["mcp_server"], &drift["mode"], &drift["undeclared_tools"]),
        (&json!("block1"), &json!("block"), &json!(["exfiltrate"]))
    );
}

#[test]
fn a_log_without_deaths_prints_nothing_and_a_table_its_head() {
    assert_eq!(printed(&["-"], b""), "");
    assert_eq!(printed(&["-"], b"no log of Hangar's\n\0\xff"), "");
    assert_eq!(printed(&["--format", "table", "-"], b"").lines().count(), 1);
}

#[test]
fn the_table_has_one_row_a_server() {
    let out = printed(&["--format", "table", "-"], &scenario("2.34.4/forge").console);
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["MCP_SERVER", "REASON", "AT", "OFFSET", "EVENT"]);
    assert_eq!(rows[1][..2], ["liar2", "start_failed"]);
    assert_eq!(rows.len(), 4);
}

#[test]
fn a_form_that_is_given_is_not_guessed() {
    let json = &scenario("2.34.4/forge").json;
    assert_eq!(printed(&["--format.input", "console", "-"], json), "");
    assert_eq!(printed(&["--format.input", "cri", "-"], json), "");
    assert_eq!(printed(&["--format.input", "json", "-"], json).lines().count(), 3);
    assert!(Cli::try_parse_from(["classify", "--format.input", "xml", "-"]).is_err());
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = run(&args(&["/no/such/log"]), &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /no/such/log");
    assert!(matches!(error, ClassifyError::Read { .. }));
}

#[test]
fn in_2_20_0_the_reasons_are_those_of_the_lines() {
    // That version's REST tells no reason to compare with. Each server was driven into one kind of death.
    for (name, expected) in [
        ("2.20.0/capability", "block1 capability_blocked, quarantine1 capability_blocked"),
        ("2.20.0/crashed", "crashy crashed, crashy start_failed"),
        ("2.20.0/given_up", "gu given_up, gu2 given_up, gu3 start_failed"),
        ("2.20.0/start_failed", "nocmd start_failed, sf start_failed, sf2 start_failed, sf3 start_failed"),
        ("2.20.0/forge", "liar2 start_failed, liar3 start_failed, liar5 capability_blocked"),
    ] {
        let out = printed(&["--all", "-"], &scenario(name).json);
        let told = out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
        let deaths = told
            .filter(|t| t["change"] == "dead")
            .map(|t| format!("{} {}", t["mcp_server"].as_str().unwrap(), t["reason"].as_str().unwrap()));
        let deaths: Vec<_> = deaths.collect::<BTreeSet<_>>().into_iter().collect();
        assert_eq!(deaths.join(", "), expected, "{name}");
    }
}
