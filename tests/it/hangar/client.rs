use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hangar_medic::hangar::{AuthFault, Fault, HangarClient, Me};
use hangar_medic::policy::{Auth, Reason, State};
use serde_json::json;

use super::stub::{Reply, Stub, json as reply, recorded, text};
use super::{Memory, client, settings};
use crate::support::process::free_port;

const METRICS: &str = include_str!("../../fixtures/hangar/metrics-2.34.4.txt");

#[tokio::test]
async fn details_of_2_34_4_and_2_20_0_are_read() {
    let detail = |name, id: &'static str| async move { client(&Stub::always(recorded(name))).server(id).await.unwrap() };
    let given_up = detail("2.34.4/detail_given_up", "gu").await;
    assert_eq!((given_up.reading.state, given_up.reading.alive, given_up.tells_dead), (State::Dead, false, true));
    assert_eq!(given_up.reading.consecutive_failures, Some(4));
    let dead = given_up.reading.dead.unwrap();
    assert_eq!((dead.reason, dead.revived_by_call), (Reason::GivenUp, true));
    assert!(dead.retry_allowed_at.unwrap() > dead.since.unwrap());

    let blocked = detail("2.34.4/detail_blocked", "block1").await.reading.dead.unwrap();
    assert_eq!((blocked.reason, blocked.revived_by_call, blocked.retry_allowed_at), (Reason::CapabilityBlocked, false, None));

    let ready = detail("2.34.4/detail_ready", "gu").await;
    assert_eq!((ready.reading.state, ready.reading.alive, ready.reading.dead), (State::Ready, true, None));
    assert!(ready.reading.started_at.is_some());
    assert_eq!(ready.tools, ["echo"]);

    let old = detail("2.20.0/detail_dead", "gu2").await;
    assert_eq!((old.reading.state, old.reading.dead, old.tells_dead), (State::Dead, None, false));
}

#[tokio::test]
async fn every_other_answer_is_read() {
    let list = client(&Stub::always(recorded("2.34.4/list"))).list().await.unwrap();
    assert!(list.tells_dead && list.servers["healthy"].alive);
    assert_eq!(list.servers["gu"].dead.as_ref().unwrap().reason, Reason::GivenUp);
    assert!(!client(&Stub::always(recorded("2.20.0/list"))).list().await.unwrap().tells_dead);
    let lines = client(&Stub::always(recorded("2.34.4/logs"))).logs("gu", 200).await.unwrap();
    assert_eq!(lines[1].content, "fatal: cannot reach upstream database (toy exit)");
    assert_eq!(client(&Stub::always(recorded("2.34.4/tools"))).tools("gu").await.unwrap(), ["echo"]);
    let system = client(&Stub::always(recorded("2.34.4/system"))).system().await.unwrap();
    assert_eq!((system.instance_id.as_deref(), system.version.as_deref()), (Some("host-f983aa90"), Some("2.34.4")));
    let groups = client(&Stub::always(recorded("2.34.4/groups"))).groups().await.unwrap();
    assert_eq!(groups.iter().map(|g| g.id.as_str()).collect::<Vec<_>>(), ["grp", "allgone"]);
    let group = client(&Stub::always(recorded("2.34.4/group"))).group("grp").await.unwrap();
    let reading = group.reading("m2", hangar_medic::clock::now()).unwrap();
    assert_eq!((reading.in_rotation, reading.degraded_member, reading.in_rotation_count), (false, false, 1));
    assert_eq!(group.reading("nobody", hangar_medic::clock::now()), None);
    let me = reply(200, &json!({"authenticated": true, "principal": {"id": "service:medic", "type": "service"}}));
    assert_eq!(client(&Stub::always(me)).me().await.unwrap().principal.as_deref(), Some("service:medic"));
    let nobody = reply(200, &json!({"authenticated": false, "principal": null}));
    assert_eq!(client(&Stub::always(nobody)).me().await.unwrap(), Me { authenticated: false, principal: None });
}

#[tokio::test]
async fn one_odd_entry_makes_only_that_server_unknown() {
    let entry = |id: &str, state: &str| json!({"mcp_server_id": id, "state": state, "mode": "remote", "alive": true});
    let body =
        json!({"mcp_servers": [entry("a", "ready"), entry("b", "hibernating"), entry("api\n", "dead"), entry(&"x".repeat(65), "dead")]});
    let list = client(&Stub::always(reply(200, &body))).list().await.unwrap();
    assert_eq!(list.servers.keys().collect::<Vec<_>>(), ["a"]);
    assert!(list.unreadable["b"].starts_with("unknown state \"hibernating\""), "{:?}", list.unreadable);
    assert_eq!(list.skipped_ids, ["api\\n".to_owned(), "x".repeat(65)]);
}

#[tokio::test]
async fn refusals_are_told_apart_by_code() {
    let fault = |reply: Reply| async move { client(&Stub::always(reply)).start("gu").await.unwrap_err().fault };
    assert!(matches!(fault(recorded("2.34.4/not_found")).await, Fault::NotFound { .. }));
    assert!(matches!(fault(recorded("2.34.4/forbidden")).await, Fault::Forbidden { .. }));
    let Fault::RateLimited { retry_after } = fault(recorded("2.34.4/rate_limited")).await else { panic!() };
    assert!(retry_after.as_millis() < 100, "the body's 0.0x s, not the header's whole second");
    assert!(matches!(fault(recorded("2.34.4/bad_key")).await, Fault::Auth(AuthFault::Refused { .. })));
    assert!(matches!(fault(recorded("2.34.4/locked_out")).await, Fault::Auth(AuthFault::LockedOut { .. })));
    for (name, wanted) in [
        ("2.34.4/start_failed", "McpServerStartError"),
        ("2.20.0/start_blocked", "CapabilityBlockedError"),
        ("2.34.4/cannot_start", "CannotStartMcpServerError"),
    ] {
        let Fault::Api { status: 500, code, .. } = fault(recorded(name)).await else { panic!("{name}") };
        assert_eq!(code, wanted);
    }
    let not_hangars = [
        (recorded("2.34.4/not_found_plain"), 404),
        (recorded("2.34.4/redirect"), 307),
        (text(500, "Internal Server Error"), 500),
        (text(502, "<html><h1>Bad Gateway</h1></html>"), 502),
        (text(400, "Invalid host header"), 400),
    ];
    for (reply, wanted) in not_hangars {
        let Fault::BadAnswer { status: Some(status), .. } = fault(reply).await else { panic!("{wanted}") };
        assert_eq!(status, wanted);
    }
}

#[tokio::test]
async fn broken_answers_are_told_as_what_they_are() {
    let said = |reply: Reply| async move {
        let error = client(&Stub::always(reply)).server("gu").await.unwrap_err();
        assert!(error.to_string().starts_with("GET /api/mcp_servers/gu: "), "{error}");
        error
    };
    let Reply::Http { body, .. } = recorded("2.34.4/detail_ready") else { panic!() };
    let truncated = said(text(200, &body[..body.len() / 2])).await;
    assert!(truncated.to_string().contains("bad answer: truncated JSON after"), "{truncated}");
    let html = said(text(200, "<!DOCTYPE html><title>Log in</title>\u{1b}[2J")).await;
    assert!(html.to_string().ends_with("not JSON: <!DOCTYPE html><title>Log in</title>\\u{1b}[2J"), "{html}");
    let large = said(text(200, &" ".repeat(100_001))).await;
    assert!(large.to_string().ends_with("larger than hangar.max_body (100000 bytes)"), "{large}");
    let chunked =
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}", format!("2000\r\n{}\r\n", " ".repeat(0x2000)).repeat(20));
    assert!(said(Reply::Raw(chunked)).await.to_string().contains("larger than"), "without a content-length too");
    let other = said(reply(200, &json!({"mcp_server_id": "other", "state": "ready", "mode": "remote", "alive": true}))).await;
    assert!(other.to_string().contains("asked for gu, answered for \"other\""));
    let word = said(reply(200, &json!({"mcp_server_id": "gu", "state": "sleepy", "mode": "remote", "alive": true}))).await;
    assert!(word.to_string().contains("unknown state \"sleepy\""));

    let cut = said(Reply::Raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"mcp".to_owned())).await;
    let gone = said(Reply::Raw(String::new())).await;
    let hung = said(Reply::Hang(Duration::from_secs(2))).await;
    for lost in [cut, gone, hung] {
        assert!(matches!(lost.fault, Fault::Lost { .. }) && lost.may_have_acted(), "{lost}");
    }
}

#[tokio::test]
async fn a_hostile_refusal_is_cut_and_escaped() {
    let message = format!("\u{1b}[31m{}\r\n\u{202e}", "x".repeat(5000));
    let body = json!({"error": {"code": "Weird\nError", "message": message, "details": null}});
    let said = client(&Stub::always(reply(500, &body))).server("gu").await.unwrap_err().to_string();
    assert!(said.chars().count() < 400 && !said.chars().any(char::is_control), "{said}");
    assert!(said.starts_with("GET /api/mcp_servers/gu: Weird\\nError: \\u{1b}[31mxxx"), "{said}");
}

#[tokio::test]
async fn nothing_listening_is_unreachable_and_has_not_acted() {
    let closed = format!("127.0.0.1:{}", free_port());
    let plain = Stub::always(text(200, ""));
    // No resolver is asked about a label of more than 63 characters.
    let unknown = format!("http://{}:8000", "x".repeat(64));
    for url in [format!("http://{closed}"), unknown, plain.url.replace("http:", "https:")] {
        let settings = super::Settings { url, ..settings(&plain) };
        let error = HangarClient::new(settings, Arc::new(Memory::default())).unwrap().start("gu").await.unwrap_err();
        assert!(matches!(error.fault, Fault::Unreachable { .. }) && !error.may_have_acted(), "{error}");
    }
}

#[tokio::test]
async fn a_url_that_cannot_be_used_is_a_fault_of_the_settings() {
    for url in ["", "hangar:8000", "ftp://h/", "http://user:secret@h/", "http://h/?x=1", "http://h/#x"] {
        let settings = super::Settings { url: url.to_owned(), ..settings(&Stub::always(text(200, ""))) };
        assert!(HangarClient::new(settings, Arc::new(Memory::default())).is_err(), "{url}");
    }
}

#[tokio::test]
async fn a_base_path_is_kept() {
    let stub = Stub::always(recorded("2.34.4/stop"));
    let settings = super::Settings { url: format!("{}/hangar", stub.url), ..settings(&stub) };
    HangarClient::new(settings, Arc::new(Memory::default())).unwrap().stop("sf", "manual").await.unwrap();
    assert_eq!(stub.lines(), ["POST /hangar/api/mcp_servers/sf/stop"]);
    assert_eq!(stub.seen()[0].body, "{\"reason\":\"manual\"}");
}

#[tokio::test]
async fn a_hostile_id_never_gets_into_a_request() {
    let stub = Stub::always(recorded("2.34.4/start_ok"));
    for id in ["api\n", "", "../system", "a b", &"x".repeat(65), "a?x=1", "a/start"] {
        let error = client(&stub).start(id).await.unwrap_err();
        assert!(matches!(error.fault, Fault::BadId { .. }), "{error}");
    }
    assert!(stub.lines().is_empty());
}

#[tokio::test]
async fn metrics_are_read_without_the_key_and_faults_name_the_source() {
    let stub = Stub::always(text(200, METRICS));
    let reading = client(&stub).metrics().await.unwrap();
    assert_eq!((reading.servers.len(), reading.bytes), (2, METRICS.len() as u64));
    assert_eq!((stub.lines(), stub.seen()[0].key.clone()), (vec!["GET /metrics".to_owned()], None));
    let said = |reply: Reply| async move { client(&Stub::always(reply)).metrics().await.unwrap_err().to_string() };
    let html = said(text(200, "<html>\n")).await;
    assert_eq!(html, "GET /metrics: bad answer (HTTP 200): line 1 is not Prometheus text: no metric name starts so: \"<html>\"");
    assert!(said(text(200, &METRICS[..5000])).await.contains("cut off in the middle of line"));
    assert!(said(text(200, &METRICS.repeat(5))).await.contains("larger than hangar.max_body"));
    assert!(said(text(503, "no upstream")).await.starts_with("GET /metrics: bad answer (HTTP 503)"));
    let reset = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}", METRICS.len(), &METRICS[..9000]);
    assert!(said(Reply::Raw(reset)).await.starts_with("GET /metrics: no answer: "));
}

#[tokio::test]
async fn connections_are_kept_until_redialled() {
    let stub = Stub::always(recorded("2.34.4/detail_given_up"));
    let client = client(&stub);
    for _ in 0..3 {
        client.server("gu").await.unwrap();
    }
    assert_eq!(stub.connections(), 1);
    client.redial().unwrap();
    for _ in 0..3 {
        client.server("gu").await.unwrap();
    }
    assert_eq!(stub.connections(), 2, "the fresh pool serves all later calls");
}

#[tokio::test]
async fn a_wrong_key_is_sent_twice_over_restarts_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let key_file = dir.path().join("key");
    fs::write(&key_file, "mcp_secret-key\n").unwrap();
    let stub = Stub::always(recorded("2.34.4/bad_key"));
    let memory = Arc::new(Memory::default());
    let start = || {
        let settings = super::Settings { api_key_file: Some(key_file.clone()), ..settings(&stub) };
        HangarClient::new(settings, Arc::clone(&memory) as Arc<_>).unwrap()
    };
    for _ in 0..4 {
        let client = start();
        let all = futures_util::future::join_all((0..5).map(|_| client.server("gu"))).await;
        for error in all.into_iter().map(Result::unwrap_err) {
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
    }
    assert_eq!(stub.seen().len(), 2);
    assert_eq!(stub.seen()[0].key.as_deref(), Some("mcp_secret-key"));
    assert!(!format!("{:?}", memory.0.lock().unwrap()).contains("secret"), "only a hash is kept");
    fs::write(&key_file, "mcp_other").unwrap();
    assert!(start().auth_look().await);
    start().server("gu").await.unwrap_err();
    assert_eq!(stub.seen().len(), 3);
}

#[tokio::test]
async fn a_lock_out_stops_every_call_with_credentials_and_metrics_go_on() {
    let stub = Stub::new(|r| if r.line == "GET /metrics" { text(200, METRICS) } else { recorded("2.34.4/locked_out") });
    let client = client(&stub);
    client.server("gu").await.unwrap_err();
    for _ in 0..3 {
        let error = client.start("gu").await.unwrap_err();
        assert!(matches!(error.fault, Fault::Auth(AuthFault::LockedOut { .. })) && !error.may_have_acted(), "{error}");
    }
    client.metrics().await.unwrap();
    assert_eq!(stub.lines(), ["GET /api/mcp_servers/gu", "GET /metrics"]);
    let state = client.auth_state();
    assert_eq!(state.auth, Auth::Refused);
    let wait = state.until.unwrap().duration_since(hangar_medic::clock::now());
    assert!((298..=302).contains(&wait.as_secs()), "{wait}");
}
