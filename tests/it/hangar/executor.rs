use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use hangar_medic::execute::hangar::{Done, Executor};
use hangar_medic::policy::Part;
use hangar_medic::policy::{Outcome, Reason, Receipt, Rung, State};
use serde_json::{Value, json};

use super::stub::{Reply, Request, Stub, json as reply, recorded, text};
use super::{client, job, run};

const METRICS: &str = include_str!("../../fixtures/hangar/metrics-2.34.4.txt");

/// A whole Hangar with one server `gu`.
fn hangar(detail: &'static str) -> impl Fn(&Request) -> Reply {
    move |r| match r.line.as_str() {
        "GET /health/live" => reply(200, &json!({"status": "healthy"})),
        "GET /metrics" => text(200, METRICS),
        "GET /api/system/me" => reply(200, &json!({"authenticated": true, "principal": {"id": "service:medic"}})),
        "GET /api/mcp_servers/gu" => recorded(detail),
        "GET /api/mcp_servers/gu/tools" => recorded("2.34.4/tools"),
        "GET /api/mcp_servers/gu/logs?lines=200" => recorded("2.34.4/logs"),
        other => panic!("{other}"),
    }
}

fn verdict(done: &Done) -> (Receipt, Option<Outcome>) {
    (done.receipt, done.outcome)
}

#[tokio::test]
async fn a_start_is_judged_by_the_code_of_its_answer() {
    use Outcome::{Denied, Error, Failed};
    let api = |code: &str, status| reply(status, &json!({"error": {"code": code, "message": "m", "details": null}}));
    let cases = [
        (recorded("2.34.4/start_ok"), Receipt::Accepted, None),
        (recorded("2.34.4/start_failed"), Receipt::Refused, Some(Failed)),
        (recorded("2.20.0/start_failed"), Receipt::Refused, Some(Failed)),
        (recorded("2.34.4/start_blocked"), Receipt::Refused, Some(Failed)),
        (recorded("2.34.4/cannot_start"), Receipt::Refused, Some(Denied)),
        (api("McpServerNotHereError", 409), Receipt::Refused, Some(Denied)),
        (recorded("2.34.4/not_found"), Receipt::Refused, Some(Error)),
        (recorded("2.34.4/bad_key"), Receipt::Refused, Some(Denied)),
        (recorded("2.34.4/locked_out"), Receipt::Refused, Some(Denied)),
        (recorded("2.34.4/forbidden"), Receipt::Refused, Some(Denied)),
        (recorded("2.34.4/redirect"), Receipt::Refused, Some(Error)),
        (text(400, "Invalid host header"), Receipt::Refused, Some(Error)),
        (api("InternalServerError", 500), Receipt::Unknown, None),
        (text(500, "Internal Server Error"), Receipt::Unknown, None),
        (text(502, "<html>Bad Gateway</html>"), Receipt::Unknown, None),
        (text(200, "{\"mcp_server\":\"gu\",\"sta"), Receipt::Unknown, None),
        (text(200, "<html>Welcome</html>"), Receipt::Unknown, None),
        (Reply::Hang(Duration::from_secs(3)), Receipt::Unknown, None),
        (Reply::Raw("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_owned()), Receipt::Unknown, None),
    ];
    for (answer, receipt, outcome) in cases {
        let said = format!("{answer:?}");
        for action in [Rung::SessionReconnect, Rung::LeaseRecovery] {
            let stub = Stub::always(answer.clone());
            let done = run(&stub, action, Part::First).await;
            assert_eq!(verdict(&done), (receipt, outcome), "{said}: {}", done.detail);
            assert_eq!(stub.lines(), ["POST /api/mcp_servers/gu/start"], "sent once");
            assert_eq!(done.not_found, said.contains("McpServerNotFoundError"));
            assert_eq!(done.told, said.contains("CapabilityBlockedError").then_some(Reason::CapabilityBlocked));
            assert_eq!(done.half, action == Rung::LeaseRecovery && receipt == Receipt::Accepted);
        }
    }
}

#[tokio::test]
async fn a_failed_start_keeps_hangars_words() {
    let done = run(&Stub::always(recorded("2.34.4/start_failed")), Rung::SessionReconnect, Part::First).await;
    assert!(done.detail.contains("POST /api/mcp_servers/gu/start: McpServerStartError: Failed to start"), "{}", done.detail);
    assert_eq!((&done.evidence["error_code"], &done.evidence["error_details"]["exit_code"]), (&json!("McpServerStartError"), &json!(3)));
}

#[tokio::test]
async fn the_rate_limit_is_waited_out_three_times_at_most() {
    let limited = || recorded("2.34.4/rate_limited");
    let stub = Stub::script(vec![limited(), limited(), recorded("2.34.4/start_ok")]);
    assert_eq!(verdict(&run(&stub, Rung::SessionReconnect, Part::First).await), (Receipt::Accepted, None));
    assert_eq!(stub.seen().len(), 3);
    let stub = Stub::always(limited());
    assert_eq!(verdict(&run(&stub, Rung::SessionReconnect, Part::First).await), (Receipt::Refused, Some(Outcome::Denied)));
    assert_eq!(stub.seen().len(), 4);
    let long = json!({"error": {"code": "RateLimitExceeded", "message": "m", "details": {"retry_after": 6.0}}});
    let stub = Stub::always(reply(429, &long));
    assert_eq!(verdict(&run(&stub, Rung::SessionReconnect, Part::First).await), (Receipt::Refused, Some(Outcome::Denied)));
    assert_eq!(stub.seen().len(), 1, "6 s are left to the planner");
}

#[tokio::test]
async fn starts_of_all_jobs_and_their_retries_share_one_pace() {
    let stub = Stub::script(vec![recorded("2.34.4/start_ok"), recorded("2.34.4/rate_limited"), recorded("2.34.4/start_ok")]);
    let executor = Executor::new(Arc::new(client(&stub)), NonZeroU32::new(10).unwrap());
    let jobs: Vec<_> = ["a", "b", "c", "d"].iter().map(|id| job(id, Rung::SessionReconnect, Part::First)).collect();
    futures_util::future::join_all(jobs.iter().map(|j| executor.run(j))).await;
    let seen = stub.seen();
    assert_eq!(seen.len(), 5);
    for pair in seen.windows(2) {
        assert!(pair[1].at - pair[0].at > Duration::from_millis(80), "100 ms apart, less what the way here takes");
    }
}

#[tokio::test]
async fn a_server_found_healthy_is_credited_to_nobody() {
    for action in [Rung::ClientReconnect, Rung::CapabilityRefresh] {
        let stub = Stub::new(hangar("2.34.4/detail_ready"));
        let done = run(&stub, action, Part::First).await;
        assert_eq!(verdict(&done), (Receipt::Accepted, Some(Outcome::Cancelled)));
        assert_eq!((done.detail.as_str(), done.reading.unwrap().state), ("found healthy", State::Ready));
        let stub = Stub::new(hangar("2.34.4/detail_given_up"));
        let done = run(&stub, action, Part::First).await;
        assert_eq!(verdict(&done), (Receipt::Accepted, Some(Outcome::Insufficient)));
        assert_eq!(done.detail, "still dead (given_up)");
        assert!(stub.lines().iter().all(|line| line.starts_with("GET ")), "these rungs only look");
    }
}

#[tokio::test]
async fn client_reconnect_dials_anew_and_reads_afresh() {
    let stub = Stub::new(hangar("2.34.4/detail_given_up"));
    let hangar = Arc::new(client(&stub));
    hangar.live().await.unwrap();
    let executor = Executor::new(Arc::clone(&hangar), NonZeroU32::MIN);
    let done = executor.run(&job("gu", Rung::ClientReconnect, Part::First)).await;
    assert_eq!(done.process_start, Some("2026-11-30T15:20:53.378323Z".parse().unwrap()));
    assert_eq!(done.evidence["gauge"], "degraded");
    assert_eq!(stub.lines(), ["GET /health/live", "GET /health/live", "GET /metrics", "GET /api/mcp_servers/gu"]);
    assert_eq!(stub.connections(), 2);
    hangar.live().await.unwrap();
    assert_eq!(stub.connections(), 2, "later calls use the fresh connections");
}

#[tokio::test]
async fn looking_in_vain_is_an_error_and_not_a_finding() {
    let nobody = Stub::always(Reply::Raw(String::new()));
    for action in [Rung::ClientReconnect, Rung::CapabilityRefresh] {
        assert_eq!(verdict(&run(&nobody, action, Part::First).await), (Receipt::Unknown, Some(Outcome::Error)));
    }
    let refused = Stub::new(|r| if r.line.starts_with("GET /api") { recorded("2.34.4/bad_key") } else { hangar("")(r) });
    let done = run(&refused, Rung::CapabilityRefresh, Part::First).await;
    assert_eq!((verdict(&done), refused.seen().len()), ((Receipt::Refused, Some(Outcome::Denied)), 1));
    let done = run(&refused, Rung::ClientReconnect, Part::First).await;
    assert_eq!(verdict(&done), (Receipt::Refused, Some(Outcome::Denied)));
    assert!(done.process_start.is_some(), "what was read is kept");
}

#[tokio::test]
async fn capability_refresh_keeps_what_a_person_needs() {
    let done = run(&Stub::new(hangar("2.34.4/detail_given_up")), Rung::CapabilityRefresh, Part::First).await;
    assert_eq!(done.evidence["principal"], "service:medic");
    assert_eq!(done.evidence["exposed_tools"], json!(["echo"]));
    assert_eq!(done.evidence["state"], "dead");
    assert_eq!(done.evidence["consecutive_failures"], 4);
    assert_eq!(done.evidence["server_log"][1], "fatal: cannot reach upstream database (toy exit)");
    assert_eq!(done.evidence.get("not_read"), None);

    let partly = Stub::new(|r| match r.line.as_str() {
        "GET /api/system/me" => recorded("2.34.4/forbidden"),
        line if line.contains("/logs") => text(502, "<html>"),
        _ => hangar("2.34.4/detail_given_up")(r),
    });
    let done = run(&partly, Rung::CapabilityRefresh, Part::First).await;
    assert_eq!(verdict(&done), (Receipt::Accepted, Some(Outcome::Insufficient)));
    assert_eq!((&done.evidence["principal"], &done.evidence["server_log"]), (&Value::Null, &Value::Null));
    let not_read = done.evidence["not_read"].as_object().unwrap();
    assert_eq!(not_read.keys().collect::<Vec<_>>(), ["principal", "server_log"]);

    let gone = Stub::new(|r| if r.line.contains("mcp_servers") { recorded("2.34.4/not_found") } else { hangar("")(r) });
    let done = run(&gone, Rung::CapabilityRefresh, Part::First).await;
    assert!(done.not_found && gone.seen().len() == 4);
}

#[tokio::test]
async fn what_may_have_been_stopped_must_be_started() {
    let cases = [
        (recorded("2.34.4/stop"), Receipt::Accepted, None, true),
        (Reply::Hang(Duration::from_secs(2)), Receipt::Unknown, None, true),
        (text(502, "<html>"), Receipt::Unknown, None, true),
        (recorded("2.34.4/forbidden"), Receipt::Refused, Some(Outcome::Denied), false),
        (recorded("2.34.4/not_found"), Receipt::Refused, Some(Outcome::Error), false),
    ];
    for (answer, receipt, outcome, half) in cases {
        let stub = Stub::always(answer);
        let done = run(&stub, Rung::WorkerRestart, Part::First).await;
        assert_eq!((verdict(&done), done.half), ((receipt, outcome), half), "{}", done.detail);
        assert_eq!(stub.lines(), ["POST /api/mcp_servers/gu/stop"]);
    }
    let stub = Stub::always(recorded("2.34.4/start_ok"));
    let done = run(&stub, Rung::WorkerRestart, Part::Second).await;
    assert_eq!((verdict(&done), done.half), ((Receipt::Accepted, None), false));
    assert_eq!(stub.lines(), ["POST /api/mcp_servers/gu/start"]);
}

#[tokio::test]
async fn a_group_is_rebalanced_only_where_that_evicts_nobody() {
    let group = |mine: bool, other: &str| {
        let member = |id: &str, state: &str, in_rotation| json!({"id": id, "state": state, "in_rotation": in_rotation});
        let body = json!({"group_id": "grp", "members": [member("gu", "ready", mine), member("x", other, true)]});
        Stub::new(move |r| if r.line.starts_with("GET") { reply(200, &body) } else { reply(200, &json!({"status": "rebalanced"})) })
    };
    let read = "GET /api/groups/grp";
    let out = group(false, "ready");
    assert_eq!(verdict(&run(&out, Rung::LeaseRecovery, Part::Second).await), (Receipt::Accepted, None));
    assert_eq!(out.lines(), [read, "POST /api/groups/grp/rebalance"]);
    let back = group(true, "ready");
    assert_eq!(verdict(&run(&back, Rung::LeaseRecovery, Part::Second).await), (Receipt::Accepted, None));
    assert_eq!(back.lines(), [read]);
    let degraded = group(false, "degraded");
    assert_eq!(verdict(&run(&degraded, Rung::LeaseRecovery, Part::Second).await), (Receipt::Refused, Some(Outcome::Insufficient)));
    assert_eq!(degraded.lines(), [read]);
}

#[tokio::test]
async fn rungs_without_an_executor_are_not_applicable_and_send_nothing() {
    let stub = Stub::always(recorded("2.34.4/start_ok"));
    for action in Rung::ALL.iter().filter(|r| r.restores_fleet()) {
        assert_eq!(verdict(&run(&stub, *action, Part::First).await), (Receipt::Refused, Some(Outcome::NotApplicable)));
    }
    assert!(stub.lines().is_empty());
}

#[test]
fn a_running_job_can_be_moved_between_threads() {
    fn is_send<T: Send>(_: T) {}
    let executor = Executor::new(Arc::new(client(&Stub::always(text(200, "")))), NonZeroU32::MIN);
    is_send(executor.run(&job("gu", Rung::ClientReconnect, Part::First)));
}
