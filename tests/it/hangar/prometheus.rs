//! Answers as documented at <https://prometheus.io/docs/prometheus/latest/querying/api/>.

use std::collections::BTreeMap;
use std::time::Duration;

use hangar_medic::observe::prometheus::{PrometheusSample, PrometheusSource, Settings, Unknown};
use hangar_medic::policy::State;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::stub::{Reply, Stub, json as reply, text};

const NOW: i64 = 1_796_052_100;

fn source(stub: &Stub) -> PrometheusSource {
    let settings = Settings {
        url: stub.url.parse().unwrap(),
        instance: "hangar-1:8000".to_owned(),
        selector: Some("job=\"h\"".to_owned()),
        http: hangar_medic::config::HttpAccess::default(),
        timeout: Duration::from_millis(300),
        stale_after: SignedDuration::from_secs(45),
        max_body: 100_000,
    };
    PrometheusSource::new(settings).unwrap()
}

fn vector(samples: &[(&str, &str, &str)]) -> Value {
    let result: Vec<Value> =
        samples.iter().map(|(label, name, value)| json!({"metric": {*label: name, "job": "h"}, "value": [NOW, value]})).collect();
    json!({"status": "success", "data": {"resultType": "vector", "result": result}})
}

/// Answers by the start of the (percent-decoded enough) query.
fn prometheus(state: Value, scraped: &'static str) -> Stub {
    Stub::new(move |r| {
        let query = r.line.strip_prefix("GET /api/v1/query?query=").unwrap_or_else(|| panic!("{}", r.line));
        reply(
            200,
            &match query.split(['%', '+']).next().unwrap() {
                "mcp_hangar_mcp_server_state" => state.clone(),
                "timestamp" | "timestamp(mcp_hangar_mcp_server_state" => {
                    vector(&[("mcp_server", "a", scraped), ("mcp_server", "b", scraped)])
                }
                "mcp_hangar_mcp_server_last_healthy_timestamp_seconds" => vector(&[("mcp_server", "a", "1796052054.25")]),
                "up" => vector(&[]),
                "ALERTS" => vector(&[("mcp_server", "a", "1")]),
                "count" => vector(&[("instance", "127.0.0.1:8000", "1")]),
                other => panic!("{other}"),
            },
        )
    })
}

async fn read(stub: &Stub) -> Result<BTreeMap<String, PrometheusSample>, Unknown> {
    source(stub).read(Timestamp::from_second(NOW).unwrap()).await.map(|reading| reading.servers)
}

#[tokio::test]
async fn fresh_series_give_state_and_last_healthy() {
    let stub = prometheus(vector(&[("mcp_server", "a", "4"), ("mcp_server", "b", "NaN"), ("mcp_server", "api\n", "4")]), "1796052090");
    let servers = read(&stub).await.unwrap();
    assert_eq!(servers.keys().collect::<Vec<_>>(), ["a", "b"], "an id that Hangar would refuse is skipped");
    assert_eq!(servers["a"].state, Some(State::Dead));
    assert_eq!(servers["a"].last_healthy, Some("2026-11-30T15:20:54.25Z".parse().unwrap()));
    assert_eq!((servers["b"].state, servers["b"].last_healthy), (None, None), "NaN is no state");
    let selected = "%7Binstance%3D%22hangar-1%3A8000%22%2Cjob%3D%22h%22%7D";
    assert!(stub.lines()[0].contains(selected), "{:?}", stub.lines());
    assert!(stub.lines().iter().all(|l| l.contains("partial_response=false")), "{:?}", stub.lines());
}

#[tokio::test]
async fn two_series_that_differ_are_no_state() {
    let stub = prometheus(vector(&[("mcp_server", "a", "4"), ("mcp_server", "a", "2")]), "1796052090");
    assert_eq!(read(&stub).await.unwrap()["a"].state, None);
}

#[tokio::test]
async fn what_is_stale_empty_or_of_another_instance_is_unknown() {
    let stale = prometheus(vector(&[("mcp_server", "a", "4")]), "1796052000");
    assert_eq!(read(&stale).await, Err(Unknown::Stale { age: SignedDuration::from_secs(100) }));
    let elsewhere = read(&prometheus(vector(&[]), "1")).await.unwrap_err();
    assert_eq!(elsewhere.to_string(), "no series with instance=\"hangar-1:8000\"; there are: 127.0.0.1:8000");
    assert_eq!(read(&Stub::always(reply(200, &vector(&[])))).await, Err(Unknown::Empty));
    let down = Stub::new(|r| {
        let series = vector(&[("mcp_server", "a", "4")]);
        reply(200, &if r.line.contains("query=up") { vector(&[("job", "h", "0")]) } else { series })
    });
    assert_eq!(read(&down).await, Err(Unknown::Down));
}

#[tokio::test]
async fn an_answer_that_is_not_whole_is_unknown() {
    let mut warned = vector(&[("mcp_server", "a", "2")]);
    warned["warnings"] = json!(["remote read: partial response"]);
    assert_eq!(read(&prometheus(warned, "1796052090")).await, Err(Unknown::Warning("remote read: partial response".to_owned())));
    let mut remarked = vector(&[("mcp_server", "a", "2")]);
    remarked["warnings"] = json!(["PromQL warning: bucket label \"le\" is missing", "PromQL info: metric might not be a counter"]);
    remarked["infos"] = json!(["PromQL info: metric might not be a counter"]);
    assert_eq!(read(&prometheus(remarked, "1796052090")).await.unwrap()["a"].state, Some(State::Ready));
    let refused = json!({"status": "error", "errorType": "bad_data", "error": "parse error"});
    assert_eq!(read(&Stub::always(reply(400, &refused))).await, Err(Unknown::Refused("bad_data: parse error".to_owned())));
    let scalar = json!({"status": "success", "data": {"resultType": "scalar", "result": [NOW, "1"]}});
    assert_eq!(read(&Stub::always(reply(200, &scalar))).await, Err(Unknown::BadAnswer("not a vector".to_owned())));
    for broken in [text(502, "<html>"), text(200, "{\"status\":\"succ"), text(200, &" ".repeat(100_001))] {
        assert!(matches!(read(&Stub::always(broken)).await, Err(Unknown::BadAnswer(_))));
    }
    for lost in [Reply::Hang(Duration::from_secs(2)), Reply::Raw(String::new())] {
        assert!(matches!(read(&Stub::always(lost)).await, Err(Unknown::Unreachable(_))));
    }
}
