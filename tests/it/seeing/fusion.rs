//! One reason with its provenance, from sources that agree, disagree, or lie; and what an old Hangar cannot show.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use hangar_medic::hangar::{AuthState, ServerDetail};
use hangar_medic::observe::board::Board;
use hangar_medic::observe::events::{Told, What};
use hangar_medic::policy::{Auth, History, Provenance, Reason, RestReading, ServerReading, Source, State, disagree, told};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::world::{Unwatched, World};
use crate::support::{Fault, V2_20, V2_34, rest};

/// SHA-256 as somebody else computes it.
fn sha256_of_line(w: &World, offset: usize) -> String {
    let log = std::fs::read(w.hangar.log_file()).unwrap();
    let line = log[offset..].split(|b| *b == b'\n').next().unwrap();
    let file = w.dir().join("line");
    std::fs::write(&file, line).unwrap();
    let out = Command::new("sha256sum").arg(&file).output().unwrap();
    String::from_utf8(out.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn a_reason_of_the_log_names_the_file_the_line_and_its_hash() {
    let w = Unwatched::start(V2_20, |h| h.server("api", "exit", &json!({}))).watch(&json!({}));
    w.hangar.user_start("api");
    w.wait("the incident is open", 10, |w| w.medic.incident("api")["reason"] == "start_failed");
    let provenance = w.medic.incident("api")["provenance"].clone();
    assert_eq!(provenance["source"], "log", "{provenance}");
    let file = std::fs::metadata(w.hangar.log_file()).unwrap();
    assert_eq!(provenance["file"], format!("{}:{}", file.dev(), file.ino()));
    let offset = usize::try_from(provenance["offset"].as_u64().unwrap()).unwrap();
    assert_eq!(provenance["line_sha256"], sha256_of_line(&w, offset));
}

/// What a stdio server, which runs as Hangar's user, can write.
fn forge(w: &World, record: &Value) {
    let mut log = std::fs::File::options().append(true).open(w.hangar.log_file()).unwrap();
    writeln!(log, "{record}").unwrap();
}

#[test]
fn sources_that_disagree_are_counted_and_shown_and_the_stricter_reason_is_acted_on() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({}))).watch(&json!({"policy": {"mode": "observe"}}));
    w.hangar.user_start("api");
    w.wait("the incident is open", 10, |w| w.medic.incident("api")["reason"] == "start_failed");
    let at = hangar_medic::clock::now() + SignedDuration::from_millis(500);
    forge(
        &w,
        &json!({"mcp_server_id": "api", "reason": "max_retries_exceeded", "event": "mcp_server_given_up", "level": "warning",
                "logger": "mcp_hangar.domain.model.mcp_server", "timestamp": at.to_string(), "service": "mcp-hangar"}),
    );
    let shown = |w: &World| {
        let said = w.medic.incident("api")["sources_disagree"].as_array().cloned().unwrap_or_default();
        said.iter().map(|s| format!("{} {}", s["source"].as_str().unwrap(), s["reason"].as_str().unwrap())).collect::<Vec<_>>()
    };
    w.wait("it is shown", 10, |w| shown(w) == ["rest start_failed", "log given_up"]);
    w.must("it is counted", w.medic.metrics().contains("hangar_medic_classification_disagreements_total 1"));
    assert_eq!(w.medic.incident("api")["reason"], "given_up");
}

#[test]
fn a_block_that_only_the_log_tells_forbids_a_start_that_rest_would_allow() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({}))).watch(&json!({}));
    w.hangar.bring_up(&["api"]);
    rest(2.0);
    let at = hangar_medic::clock::now() + SignedDuration::from_secs(1);
    forge(
        &w,
        &json!({"mcp_server_id": "api", "undeclared_tools": ["exfiltrate"], "enforcement_mode": "block", "event": "capability_drift_detected",
                "level": "warning", "logger": "mcp_hangar.domain.model.mcp_server", "timestamp": at.to_string(), "service": "mcp-hangar"}),
    );
    w.hangar.kill_child("api");
    w.wait("it is held or its line was not believed", 20, |w| w.medic.incident("api")["hold"] == "approval_needed");
    w.nothing_sent_since(0);
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_796_052_000 + seconds).unwrap()
}

fn reading(board: &Board) -> ServerReading {
    let auth = AuthState { auth: Auth::Ok, until: None, consecutive_401: 0, why: None };
    board.snapshot(&auth, &History::default(), at(60)).servers["api"].clone()
}

fn dead_without_block() -> ServerDetail {
    let reading = RestReading {
        took: SignedDuration::ZERO,
        at: at(50),
        state: State::Dead,
        alive: false,
        mode: "subprocess".to_owned(),
        dead: None,
        consecutive_failures: None,
        started_at: None,
        backoff_until: None,
    };
    ServerDetail { reading, tells_dead: false, tools: Vec::new() }
}

#[test]
fn an_event_is_evidence_until_a_later_one_undoes_it_whatever_order_they_come_in() {
    let event = |seconds, what| Told { mcp_server: "api".to_owned(), at: at(seconds), what };
    let mut board = Board::new(SignedDuration::from_hours(1));
    board.event(&event(40, What::Dead(Reason::StartFailed)));
    board.server("api", dead_without_block());
    assert_eq!(told(&reading(&board), at(3600)), [(Reason::StartFailed, Provenance::of(Source::Events, at(40)))]);
    board.event(&event(30, What::NotDead));
    assert_eq!(told(&reading(&board), at(3600)).len(), 1, "an older one says nothing");
    board.event(&event(45, What::CheckFailed));
    board.server("api", dead_without_block());
    assert_eq!(told(&reading(&board), at(3600))[0].1.at, at(40), "the death keeps its time");
    board.event(&event(46, What::NotDead));
    board.server("api", dead_without_block());
    assert_eq!(told(&reading(&board), at(3600)), []);
    board.event(&event(47, What::Dead(Reason::Crashed)));
    board.events_lost();
    board.server("api", dead_without_block());
    assert_eq!(told(&reading(&board), at(3600)), []);
}

#[test]
fn evidence_from_before_the_server_worked_is_refused_and_what_is_unknown_disagrees_with_nobody() {
    let said = |reason, seconds| Some((reason, Provenance::of(Source::Events, at(seconds))));
    let old = ServerReading { events: said(Reason::GivenUp, 10), last_healthy: Some(at(12)), ..ServerReading::default() };
    assert_eq!(told(&old, at(3600)), []);
    let fresh = ServerReading { events: said(Reason::GivenUp, 20), ..old.clone() };
    assert_eq!(told(&fresh, at(3600)).len(), 1);
    let of = |reasons: &[Reason]| reasons.iter().map(|r| (*r, Provenance::of(Source::Log, at(0)))).collect::<Vec<_>>();
    assert!(disagree(&of(&[Reason::Crashed, Reason::Unknown, Reason::GivenUp])));
    assert!(!disagree(&of(&[Reason::Crashed, Reason::Unknown, Reason::Crashed])));
}

#[test]
fn a_hangar_that_is_newer_than_known_is_taken_by_what_it_answers() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    let metrics = w.hangar.metrics();
    let w = w.watch(&json!({}));
    assert_eq!(w.medic.status()["hangar"]["cannot_see"], Value::Null);
    let body = metrics.replace("version=\"2.34.4\"", "version=\"9.9.9\"");
    w.proxy.fault(|s| s.path == "/metrics", Fault::Answer { status: 200, content_type: "text/plain", body });
    w.wait("the version is read", 10, |w| w.medic.status()["hangar"]["version"] == "9.9.9");
    assert_eq!(w.medic.status()["hangar"]["cannot_see"], Value::Null);
    w.wait("it is named so", 5, |w| w.medic.log().contains("\"newer_than_known\":true"));
}

#[test]
fn the_webhook_asks_for_what_is_configured() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    let token = w.dir().join("token");
    std::fs::write(&token, "alertmanagers-token\n").unwrap();
    let w = w.watch(&json!({"web": {"webhook": {"bearer_token_file": token}}}));
    let port = w.medic.port();
    let send = |authorization: &str| {
        let body = r#"{"version":"4","status":"firing","alerts":[]}"#;
        let out = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", body, "-H", &format!("Authorization: {authorization}")])
            .arg(format!("http://127.0.0.1:{port}/api/v1/alertmanager"))
            .output()
            .unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!([send("Bearer alertmanagers-token"), send("Bearer another"), send("")], ["200", "401", "401"]);
    std::fs::remove_file(&token).unwrap();
    assert_eq!(send("Bearer alertmanagers-token"), "503", "it comes again later");
}
