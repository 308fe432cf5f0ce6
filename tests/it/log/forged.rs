//! What an upstream, or anybody who can get a text into Hangar's log, may write there: it changes nothing.

use hangar_medic::observe::log::{InputFormat, Reader, Splitter};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::corpus::{Dead, dead, scenario};

const MODEL: &str = "mcp_hangar.domain.model.mcp_server";

fn end(log: &[u8]) -> Dead {
    let (mut reader, mut splitter) = (Reader::new(InputFormat::Auto), Splitter::default());
    let mut line = |offset: u64, line: &[u8]| reader.line(line, offset, &mut |_| {});
    splitter.feed(log, &mut line);
    splitter.finish(&mut line);
    dead(&reader)
}

fn record(event: &str, level: &str, logger: &str, more: &[(&str, Value)]) -> String {
    let mut record =
        json!({"event": event, "level": level, "logger": logger, "timestamp": "2026-11-30T15:25:00.798146Z", "service": "mcp-hangar"});
    for (key, value) in more {
        record[*key] = value.clone();
    }
    record.to_string()
}

/// A console line of Hangar's.
fn console(at: &str, level: &str, event: &str, logger: &str, keys: &[(&str, &str)]) -> String {
    let keys: Vec<String> = keys.iter().map(|(key, value)| format!(" \x1b[36m{key}\x1b[0m=\x1b[35m{value}\x1b[0m")).collect();
    let keys = keys.concat();
    format!(
        "\x1b[2m{at}\x1b[0m [\x1b[33m\x1b[1m{level:<9}\x1b[0m] \x1b[1m{event:<30}\x1b[0m [\x1b[0m\x1b[1m\x1b[34m{logger}\x1b[0m]\x1b[0m{keys}"
    )
}

const SERVICE: (&str, &str) = ("service", "mcp-hangar");
const AT: &str = "2026-11-30T15:25:00.798146Z";

#[test]
fn a_json_line_counts_only_if_event_logger_and_level_belong_together() {
    let dead_now = |line: &str| end(line.as_bytes()).len();
    let given_up = [("mcp_server_id", json!("api")), ("reason", json!("max_retries_exceeded"))];
    assert_eq!(dead_now(&record("mcp_server_given_up", "warning", MODEL, &given_up)), 1);
    assert_eq!(dead_now(&record("mcp_server_dead: api", "warning", MODEL, &[])), 1);
    for line in [
        record("mcp_server_given_up", "info", MODEL, &given_up),
        record("mcp_server_given_up", "warning", "mcp_hangar.application.event_handlers.alert_handler", &given_up),
        record("mcp_server_given_up", "warning", "mcp_hangar.domain.model.mcp_server_group", &given_up),
        record("mcp_server_given_up ", "warning", MODEL, &given_up),
        record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!("api\n\n"))]),
        record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!("1api"))]),
        record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!("a".repeat(65)))]),
        record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!(["api"]))]),
        record("mcp_server_given_up", "warning", MODEL, &[]),
        record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!("api")), ("service", json!("api"))]),
        record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!("api")), ("timestamp", json!("today"))]),
        record("mcp_server_dead: api dead", "warning", MODEL, &[]),
        record("x mcp_server_dead: api", "warning", MODEL, &[]),
        record("mcp_server_dead: api\nmcp_server_dead: web", "warning", MODEL, &[]),
        record("mcp_server_degraded: api, failures=3\n", "warning", MODEL, &[]),
        record("capability_drift_detected", "warning", MODEL, &[("mcp_server_id", json!("api")), ("enforcement_mode", json!("alert"))]),
        record("mcp_server_start_failed_after_stop: api, state=cold", "info", MODEL, &[]),
        record("boom", "error", MODEL, &[("stderr", json!(record("mcp_server_given_up", "warning", MODEL, &given_up)))]),
        json!([record("mcp_server_dead: api", "warning", MODEL, &[])]).to_string(),
        format!(" {}", record("mcp_server_dead: api", "warning", MODEL, &[])),
        format!("{}}}", record("mcp_server_dead: api", "warning", MODEL, &[])),
        record("mcp_server_dead: api", "warning", MODEL, &[]).replace("\"level\"", "\"event\":\"y\",\"level\""),
    ] {
        assert_eq!(dead_now(&line), 0, "{line}");
    }
}

#[test]
fn an_id_that_ends_with_a_newline_is_a_server_of_its_own() {
    let json = record("mcp_server_dead: api\n", "warning", MODEL, &[]);
    let console = console(AT, "warning", "mcp_server_dead: api\n", MODEL, &[SERVICE]);
    for log in [json, console] {
        assert_eq!(end(log.as_bytes()).into_keys().collect::<Vec<_>>(), ["api\n"], "{log}");
    }
}

#[test]
fn json_lines_in_a_console_log_are_an_upstreams_words() {
    let forged = record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!("api"))]);
    let real = console(AT, "info", "domain_event", "mcp_hangar.x", &[SERVICE]);
    for log in [format!("{real}\n{forged}\n"), format!("{forged}\n{real}\n"), format!("{real}\n{forged}\n{real}\n{forged}")] {
        assert_eq!(end(log.as_bytes()), Dead::new(), "{log}");
    }
}

#[test]
fn wrapped_lines_in_a_console_log_are_an_upstreams_words() {
    let forged = record("mcp_server_given_up", "warning", MODEL, &[("mcp_server_id", json!("api"))]);
    let real = console(AT, "info", "domain_event", "mcp_hangar.x", &[SERVICE]);
    for forged in [
        format!("2026-11-30T15:20:53.435902123Z stderr F {forged}"),
        json!({"log": format!("{forged}\n"), "stream": "stderr", "time": AT}).to_string(),
        json!({"MESSAGE": forged, "__REALTIME_TIMESTAMP": "1"}).to_string(),
    ] {
        assert_eq!(end(format!("{forged}\n").as_bytes()).len(), 1, "it would count alone");
        assert_eq!(end(format!("{forged}\n{real}\n{forged}\n").as_bytes()), Dead::new(), "{forged}");
    }
}

/// A failed start of 2.20.0, whose event ends with the upstream's text.
fn failed_with(text: &str) -> String {
    console("2026-11-30T15:25:01.000000Z", "error", &format!("mcp_server_start_failed: liar, error={text}"), MODEL, &[SERVICE])
}

#[test]
fn a_text_in_the_console_kills_nobody_else() {
    let dies = console(AT, "warning", "mcp_server_dead: api", MODEL, &[SERVICE]);
    let closes = console(AT, "error", "mcp_server_start_failed: liar, error=boom", MODEL, &[SERVICE]);
    let keys = [("mcp_server_id", "api"), SERVICE];
    let gives_up = console(AT, "warning", "mcp_server_given_up", MODEL, &[keys[0], ("reason", "max_retries_exceeded"), keys[1]]);
    let changed = console(
        AT,
        "info",
        "domain_event",
        "mcp_hangar.application.event_handlers.logging_handler",
        &[("event_id", "x"), ("event_type", "McpServerStateChanged"), keys[0], keys[1]],
    );
    let drifts = console(AT, "warning", "capability_drift_detected", MODEL, &[("enforcement_mode", "block"), keys[0], keys[1]]);
    let (tail, head) = closes.split_once("boom").map(|(head, tail)| (tail, head)).unwrap();
    for forged in [
        format!("boom\n{dies}\nboom"),
        format!("boom{tail}\n{dies}\nboom"),
        format!("boom{tail}\n{dies}\n{head}boom"),
        format!("boom{tail}\n{gives_up}\n{changed}\n{head}boom"),
        format!("boom{tail}\n{drifts}\n{changed}\n{dies}\n{changed}\n{head}boom"),
        format!("boom{tail}\n{}\n{dies}\n{head}boom", console(AT, "info", "bootstrap_start", "mcp_hangar.server.bootstrap", &[SERVICE])),
        format!("boom{tail}\nTraceback (most recent call last):\n{dies}\n{dies}\n{dies}\n{dies}\n{dies}\n{dies}\n{dies}\n{head}boom"),
        format!("{}\n{dies}", "\u{1F600}".repeat(1_500)),
    ] {
        let calm = console("2026-11-30T15:25:02.000000Z", "info", "domain_event", "mcp_hangar.x", &[SERVICE]);
        let log = format!("{calm}\n{}\n{}", failed_with(&forged), format!("{calm}\n").repeat(40));
        let said = end(log.as_bytes());
        assert!(!said.contains_key("api"), "{said:?} from {forged:?}");
    }
}

#[test]
fn a_death_in_doubt_counts_once_hangar_publishes_it() {
    let handler = "mcp_hangar.application.event_handlers.logging_handler";
    let keys = [("mcp_server_id", "api"), SERVICE];
    let calm = format!("{}\n", console(AT, "info", "domain_event", "mcp_hangar.x", &[SERVICE])).repeat(20);
    let gives_up = console(AT, "warning", "mcp_server_given_up", MODEL, &[keys[0], ("reason", "max_retries_exceeded"), keys[1]]);
    let changed = console(AT, "info", "domain_event", handler, &[("event_type", "McpServerStateChanged"), keys[0], keys[1]]);
    let started = console(AT, "info", "mcp_server_started: api, mode=subprocess, tools=1", MODEL, &[SERVICE]);
    let log = format!("{}\n{gives_up}\n{calm}{changed}\n", failed_with("boom"));
    assert_eq!(end(log.as_bytes()).get("api"), Some(&Some("given_up".to_owned())));
    let log = format!("{}\n{gives_up}\n{calm}{started}\n{changed}\n", failed_with("boom"));
    assert_eq!(end(log.as_bytes()).get("api"), None);
}

fn junk() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        "[ -~]{0,200}".prop_map(String::into_bytes),
        proptest::sample::select(vec![
            &b"{\"event\": \"mcp_server_dead: api\", \"level\": \"warning\", \"logger\": "[..],
            b"\x1b[2m2026-11-30T15:25:00Z\x1b[0m [\x1b[33m\x1b[1mwarning\x1b[0m] \x1b[1m",
            b"2026-11-30T15:20:53.4Z stderr P ",
            b"{\"log\":\"",
            b"{\"MESSAGE\":[27,91],\"__REALTIME_TIMESTAMP\":\"1\",\"_LINE_BREAK\":\"line-max\"}",
            b"\x1b[0m [\x1b[0m\x1b[1m\x1b[34m",
            b"undeclared_tools\x1b[0m=\x1b[35m['\\x",
            b"\n",
            b"\0\0\r\n",
        ])
        .prop_map(<[u8]>::to_vec),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_reader_stop(parts in proptest::collection::vec(junk(), 0..20)) {
        hangar_medic::observe::log::fuzz_log(&parts.concat());
        hangar_medic::observe::log::fuzz_classify(&parts.concat());
    }

    #[test]
    fn lines_that_are_no_records_change_no_answer(at in 0_usize..10_000, junk in junk()) {
        let scenario = scenario("2.34.4/flap");
        let lines: Vec<&[u8]> = scenario.json.split_inclusive(|b| *b == b'\n').collect();
        let (before, after) = lines.split_at(at % lines.len());
        let log = [before.concat(), junk, b"\n".to_vec(), after.concat()].concat();
        prop_assert_eq!(end(&log), end(&scenario.json));
    }

    #[test]
    fn chunks_of_any_size_give_the_same_lines(parts in proptest::collection::vec(junk(), 0..20), size in 1_usize..64) {
        let log = parts.concat();
        let collect = |size: usize| {
            let (mut splitter, mut lines) = (Splitter::default(), Vec::new());
            for chunk in log.chunks(size) {
                splitter.feed(chunk, &mut |offset, line| lines.push((offset, line.to_vec())));
            }
            (lines, splitter.told_to())
        };
        prop_assert_eq!(collect(size), collect(usize::MAX));
    }
}

#[test]
fn a_line_beyond_a_mebibyte_is_skipped_to_its_end_and_counted() {
    let (mut splitter, mut lines) = (Splitter::default(), Vec::new());
    for part in [&b"a\n"[..], &vec![b'x'; 3 << 20], &vec![b'x'; 1 << 20], b"\nb\n", &vec![b'y'; (1 << 20) + 1], b"\nc\n"] {
        splitter.feed(part, &mut |offset, line| lines.push((offset, line.to_vec())));
    }
    assert_eq!(lines, [(0, b"a".to_vec()), ((4 << 20) + 3, b"b".to_vec()), ((5 << 20) + 7, b"c".to_vec())]);
    assert_eq!(splitter.too_long(), 2);
}

#[test]
fn more_servers_than_are_followed_are_counted_not_kept() {
    use hangar_medic::observe::log::{Classifier, Form, classify::SERVERS_MAX};
    let mut classifier = Classifier::new();
    for n in 0..SERVERS_MAX + 50 {
        let line = record(&format!("mcp_server_dead: s{n}"), "warning", MODEL, &[]);
        classifier.line(Form::Json, line.as_bytes(), 0).for_each(drop);
    }
    assert_eq!((classifier.followed(), classifier.not_followed()), (SERVERS_MAX, 50));
}
