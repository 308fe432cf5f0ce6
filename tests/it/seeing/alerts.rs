//! Real Prometheus and Alertmanager between Hangar and the webhook.

use std::time::Duration;

use hangar_medic::config::HttpAccess;
use hangar_medic::observe::prometheus::{PrometheusSource, Settings, Unknown};
use hangar_medic::policy::State;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::support::hangar::declares_echo;
use crate::support::monitoring::{Alertmanager, Prometheus};
use crate::support::world::{Unwatched, World};
use crate::support::{Fault, Proxy, V2_34, poll, rest};

const WEBHOOK: &str = "/api/v1/alertmanager";

fn port_of(proxy: &Proxy) -> u16 {
    proxy.url().rsplit(':').next().unwrap().parse().unwrap()
}

/// Deliveries that the daemon took.
fn taken(webhook: &Proxy) -> usize {
    webhook.seen().iter().filter(|s| s.path == WEBHOOK && s.status == 200).count()
}

fn quiet() -> Value {
    json!({"hangar": {"poll_interval": "60s", "events": "off"}})
}

fn dead_by_our_word(w: &World) -> Vec<String> {
    let metrics = w.medic.metrics();
    let of = |line: &str| line.strip_prefix("hangar_medic_server_dead{mcp_server=\"")?.split('"').next().map(str::to_owned);
    metrics.lines().filter_map(of).collect()
}

#[test]
fn an_exporter_that_is_gone_resolves_the_alert_and_the_daemon_neither_closes_nor_acts() {
    let w = Unwatched::start(V2_34, |h| h.server("blocked", "extra_tool", &declares_echo("block")).server("fine", "ok", &json!({})));
    w.hangar.bring_up(&["fine"]);
    let w = w.watch(&json!({}));
    let (exporter, webhook) = (Proxy::start(w.hangar.port), Proxy::start(w.medic.port()));
    let alertmanager = Alertmanager::start(w.dir(), "am", port_of(&webhook));
    let prometheus = Prometheus::start(w.dir(), &[port_of(&exporter)], &[alertmanager.port]);
    w.hangar.user_start("blocked");

    w.wait("the alert fires", 30, |_| prometheus.firing() == ["blocked"]);
    w.wait("it is delivered", 20, |_| taken(&webhook) > 0);
    w.wait_held("blocked", "approval_needed", 10);
    assert_eq!(dead_by_our_word(&w), prometheus.firing(), "ALERTS agree with what we hold true");

    let delivered = taken(&webhook);
    exporter.fault(|s| s.path == "/metrics", Fault::Drop);
    w.wait("the series are gone", 20, |_| prometheus.servers("mcp_hangar_mcp_server_state").is_empty() && prometheus.firing().is_empty());
    let resolved = |w: &World| w.medic.metrics().contains("hangar_medic_webhook_alerts_total") && taken(&webhook) > delivered;
    w.wait("the end of the alert is delivered", 60, resolved);
    rest(3.0);
    w.wait_held("blocked", "approval_needed", 1);
    assert_eq!(w.medic.incidents(None).len(), 1);
    w.must("its own exporter is still read: it stays dead", dead_by_our_word(&w) == ["blocked"]);
    w.nothing_sent_since(0);

    exporter.lift_all();
    w.wait("the alert fires again", 30, |_| prometheus.firing() == ["blocked"]);
    rest(2.0);
    assert_eq!(w.medic.incidents(None).len(), 1);
    w.nothing_sent_since(0);
}

#[test]
fn deliveries_that_come_late_twice_or_again_are_one_incident_and_one_start() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})));
    let w = w.watch_without_log(&quiet());
    let webhook = Proxy::start(w.medic.port());
    let mut alertmanagers = [1, 2].map(|n| Alertmanager::start(w.dir(), &format!("am{n}"), port_of(&webhook)));
    let prometheus = Prometheus::start(w.dir(), &[w.hangar.port], &[alertmanagers[0].port, alertmanagers[1].port]);
    let busy = Fault::Answer { status: 503, content_type: "application/json", body: "{}".to_owned() };
    let rule = webhook.fault(|s| s.path == WEBHOOK, busy);

    w.hangar.user_start("api");
    w.hangar.set_mode("api", "ok");
    w.wait("the alert fires", 30, |_| prometheus.firing() == ["api"]);
    w.wait("both Alertmanagers were turned away", 20, |_| webhook.seen().iter().filter(|s| s.status == 503).count() >= 2);
    w.must("nobody told the daemon yet", w.medic.incidents(None).is_empty());

    webhook.lift(rule);
    w.wait_closed("api", "recovered", 60);
    w.must("it was told by a delivery", taken(&webhook) >= 1);
    assert_eq!((w.medic.incidents(None).len(), w.proxy.starts("api").len()), (1, 1));
    w.wait("the alert is over", 30, |_| prometheus.firing().is_empty());

    alertmanagers[0].sigkill();
    alertmanagers[0].restart();
    rest(8.0);
    assert_eq!((w.medic.incidents(None).len(), w.proxy.starts("api").len()), (1, 1), "{}", w.medic.report());
    assert_eq!((w.hangar.state("api").as_str(), w.hangar.starts("api")), ("ready", 2));
}

#[test]
fn a_delivery_that_left_alerts_out_has_everything_read_again_and_a_resolved_one_closes_nothing() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})));
    let w = w.watch_without_log(&quiet());
    w.hangar.user_start("api");
    let alert = |status: &str| {
        json!({"status": status, "startsAt": "2026-11-30T15:18:05Z", "endsAt": "0001-01-01T00:00:00Z", "fingerprint": "f",
               "labels": {"alertname": "MCPHangarProviderDead", "mcp_server": "elsewhere", "team": "x"}})
    };
    let deliver = |truncated: u64, alerts: &[Value]| {
        let body = json!({"version": "4", "status": "firing", "receiver": "r", "truncatedAlerts": truncated, "alerts": alerts, "new": {}});
        let answer = crate::support::http::post(w.medic.port(), WEBHOOK, None, Some(&body));
        assert!(answer.ok(), "{answer:?}");
    };
    let lists = |mark: usize| w.proxy.since(mark).iter().filter(|s| s.path == "/api/mcp_servers/").count();
    // No alert of the batch names the server that is dead.
    let mark = w.proxy.mark();
    deliver(3, &[]);
    w.wait("the dead server is found", 5, |w| w.medic.incidents(Some("api")).len() == 1);
    assert_eq!(lists(mark), 1);

    for alerts in [vec![alert("resolved")], vec![alert("firing"), alert("resolved")], vec![alert("firing"), json!({"bad": 1})]] {
        for _ in 0..5 {
            deliver(0, &alerts);
        }
    }
    rest(2.5);
    w.must("a flood is at most one list a second", lists(mark) <= 5);
    w.must("an alert opens nothing by itself", w.medic.incidents(Some("elsewhere")).is_empty());
    w.must("a resolved one closes nothing", w.medic.incident("api")["phase"] != "closed");
    assert_eq!(w.medic.incidents(None).len(), 1);
}

#[test]
fn one_prometheus_of_two_hangars_is_read_apart_by_instance() {
    let mut first = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})));
    let second = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    first.hangar.user_start("api");
    second.hangar.bring_up(&["api"]);
    let prometheus = Prometheus::start(first.dir(), &[first.hangar.port, second.hangar.port], &[]);
    let scraped = poll(Duration::from_secs(20), || (prometheus.servers("mcp_hangar_mcp_server_state").len() == 2).then_some(()));
    assert!(scraped.is_some());
    let fires = poll(Duration::from_secs(20), || (prometheus.firing() == ["api"]).then_some(()));
    assert!(fires.is_some());

    let source = |port: u16, selector: Option<&str>| {
        let settings = Settings {
            url: format!("{}/", prometheus.url()).parse().unwrap(),
            instance: format!("127.0.0.1:{port}"),
            selector: selector.map(str::to_owned),
            timeout: Duration::from_secs(5),
            stale_after: SignedDuration::from_secs(30),
            max_body: 1_000_000,
            http: HttpAccess::default(),
        };
        PrometheusSource::new(settings).unwrap()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = |port: u16, selector| runtime.block_on(source(port, selector).read(hangar_medic::clock::now()));
    let dead = read(first.hangar.port, Some("job=\"hangar\"")).unwrap();
    assert_eq!((dead.servers["api"].state, dead.firing.len()), (Some(State::Dead), 1));
    let ready = read(second.hangar.port, None).unwrap();
    assert_eq!((ready.servers["api"].state, ready.firing.len()), (Some(State::Ready), 0));
    assert_eq!(read(second.hangar.port, Some("job=\"other\"")), Err(Unknown::Empty));
    assert!(matches!(read(1, None), Err(Unknown::WrongInstance { .. })));

    first.hangar.kill();
    let down = poll(Duration::from_secs(20), || (read(first.hangar.port, None) == Err(Unknown::Down)).then_some(()));
    assert!(down.is_some(), "{:?}", read(first.hangar.port, None));
    assert!(read(second.hangar.port, None).is_ok());
}

#[test]
fn prometheus_wakes_the_daemon_of_its_own_hangar_only() {
    let first = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})));
    let second = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    second.hangar.bring_up(&["api"]);
    let prometheus = Prometheus::start(first.dir(), &[first.hangar.port, second.hangar.port], &[]);
    let settings = |port: u16| {
        let instance = format!("127.0.0.1:{port}");
        let mut all = quiet();
        crate::support::medic::merge(&mut all, &json!({"prometheus": {"url": prometheus.url(), "poll_interval": "500ms"}}));
        crate::support::medic::merge(&mut all, &json!({"hangar": {"instance": instance}}));
        all
    };
    let (one, two) = (settings(first.hangar.port), settings(second.hangar.port));
    let (first, second) = (first.watch_without_log(&one), second.watch_without_log(&two));
    first.hangar.user_start("api");
    first.hangar.set_mode("api", "ok");
    first.wait_closed("api", "recovered", 40);
    assert!(second.medic.incidents(None).is_empty());
    second.nothing_sent_since(0);
}
