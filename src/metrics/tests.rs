//! What the metrics page says.

use super::*;

fn metrics() -> Metrics {
    Metrics::register(&Registry::new()).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn line(page: &str, series: &str) -> Option<String> {
    page.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' ').map(ToOwned::to_owned))
}

fn attempt(mcp_server: &str, action: Rung, outcome: Option<Outcome>, second: i64) -> ServerAttempt<'_> {
    ServerAttempt { mcp_server, action, outcome, started_at: at(second) }
}

#[test]
fn the_families_and_their_labels_are_these() {
    let metrics = metrics();
    metrics.set_dead([("api", Reason::Crashed)]);
    metrics.set_owners([("api", "ann")]);
    metrics.set_server_incidents([("api", Phase::Held, None)]);
    metrics.set_server_attempts([attempt("api", Rung::SessionReconnect, None, 5)]);
    let families = metrics.registry.gather();
    let described = families.iter().map(|f| {
        let labels: Vec<&str> =
            f.get_metric().first().map(|m| m.get_label().iter().map(prometheus::proto::LabelPair::name).collect()).unwrap();
        format!("{:?} {}{{{}}} x{}: {}\n", f.get_field_type(), f.name(), labels.join(","), f.get_metric().len(), f.help())
    });
    insta::assert_snapshot!(described.collect::<String>());
}

#[test]
fn a_fresh_page_claims_nothing() {
    let page = metrics().render_at(at(0));
    assert_eq!(line(&page, "fraction_avoided_full_restart").unwrap(), "NaN");
    assert_eq!(line(&page, "hangar_medic_signal_age_seconds{source=\"log\"}").unwrap(), "NaN");
    assert_eq!(line(&page, "hangar_medic_attempts_total{action=\"host_restart\",outcome=\"not_applicable\"}").unwrap(), "0");
    assert_eq!(line(&page, "hangar_medic_holds{hold=\"approval_needed\"}").unwrap(), "0");
    assert!(!page.contains("server_dead"));
}

#[test]
fn only_full_and_host_restarts_lower_the_fraction() {
    let metrics = metrics();
    let check = |action, fraction| {
        metrics.attempt_settled(action, None, Outcome::Recovered);
        assert_eq!(metrics.fraction_avoided_full_restart(), Some(fraction));
    };
    assert_eq!(metrics.fraction_avoided_full_restart(), None);
    check(Rung::SessionReconnect, 1.0);
    check(Rung::RollingMcpRestart, 1.0);
    check(Rung::FullMcpRestart, 2.0 / 3.0);
    check(Rung::HostRestart, 0.5);
    metrics.attempt_settled(Rung::SessionReconnect, Some(Outcome::Recovered), Outcome::Insufficient);
    assert_eq!(metrics.fraction_avoided_full_restart(), Some(1.0 / 3.0));
    metrics.attempt_settled(Rung::WorkerRestart, None, Outcome::Failed);
    assert_eq!(metrics.fraction_avoided_full_restart(), Some(1.0 / 3.0));
    metrics.recount(&[((Rung::HostRestart, Outcome::Recovered), 1)].into());
    assert_eq!(metrics.fraction_avoided_full_restart(), Some(0.0));
}

#[test]
fn counters_go_on_from_the_attempt_log() {
    let metrics = metrics();
    metrics.seed(&Seed {
        attempts: [((Rung::SessionReconnect, Outcome::Recovered), 3), ((Rung::HostRestart, Outcome::Recovered), 1)].into(),
        recoveries: [((Rung::SessionReconnect, Reason::GivenUp), 3), ((Rung::HostRestart, Reason::Crashed), 1)].into(),
        incidents: [(Reason::GivenUp, 4)].into(),
        closed: [(Closed::Recovered, 4)].into(),
        records: 40,
    });
    metrics.attempt_settled(Rung::SessionReconnect, None, Outcome::Recovered);
    metrics.attempt_log_appended(2);
    let page = metrics.render_at(at(0));
    assert_eq!(line(&page, "hangar_medic_attempts_total{action=\"session_reconnect\",outcome=\"recovered\"}").unwrap(), "4");
    assert_eq!(line(&page, "hangar_medic_incidents_closed_total{how=\"recovered\"}").unwrap(), "4");
    assert_eq!(line(&page, "hangar_medic_attempt_log_records_total").unwrap(), "42");
    assert_eq!(line(&page, "fraction_avoided_full_restart").unwrap(), "0.8");
}

#[test]
fn a_server_has_one_series_while_dead_and_none_after() {
    let metrics = metrics();
    let shown = |dead: &[(&str, Reason)]| {
        metrics.set_dead(dead.iter().copied());
        let page = metrics.render_at(at(0));
        page.lines().filter_map(|l| l.strip_prefix("hangar_medic_server_dead")).map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let crashed = "{mcp_server=\"api\",reason=\"crashed\"} 1";
    assert_eq!(shown(&[("api", Reason::Crashed)]), [crashed]);
    assert_eq!(
        shown(&[("api", Reason::GivenUp), ("b\n\"", Reason::Unknown)]),
        ["{mcp_server=\"api\",reason=\"given_up\"} 1", "{mcp_server=\"b\\n\\\"\",reason=\"unknown\"} 1"]
    );
    assert_eq!(shown(&[]), [""; 0]);
    assert_eq!(shown(&[("api", Reason::Crashed)]), [crashed]);
}

#[test]
fn the_series_of_a_server_follow_it_and_leave_with_it() {
    let metrics = metrics();
    let shown = || {
        let page = metrics.render_at(at(0));
        let of = |l: &str| l.strip_prefix("hangar_medic_server_").map(ToOwned::to_owned);
        page.lines().filter_map(of).collect::<Vec<_>>()
    };
    metrics.set_owners([("api", "ann"), ("db", "bob")]);
    metrics.set_server_incidents([("api", Phase::Held, Some(Hold::Backoff))]);
    let (first, second) = (Some(Outcome::Failed), None);
    metrics.set_server_attempts([
        attempt("api", Rung::SessionReconnect, first, 5),
        attempt("api", Rung::ClientReconnect, first, 4),
        attempt("api", Rung::SessionReconnect, second, 9),
    ]);
    assert_eq!(
        shown(),
        [
            "attempt_timestamp_seconds{action=\"client_reconnect\",mcp_server=\"api\",outcome=\"failed\"} 4",
            "attempt_timestamp_seconds{action=\"session_reconnect\",mcp_server=\"api\",outcome=\"open\"} 9",
            "incident{hold=\"backoff\",mcp_server=\"api\",phase=\"held\"} 1",
            "info{mcp_server=\"api\",owner=\"ann\"} 1",
            "info{mcp_server=\"db\",owner=\"bob\"} 1",
        ]
    );
    metrics.set_owners([("api", "eve")]);
    metrics.set_server_incidents([("api", Phase::Exhausted, None)]);
    metrics.set_server_attempts([]);
    assert_eq!(shown(), ["incident{hold=\"none\",mcp_server=\"api\",phase=\"exhausted\"} 1", "info{mcp_server=\"api\",owner=\"eve\"} 1"]);
}

#[test]
fn open_incidents_are_replaced_as_a_whole() {
    let metrics = metrics();
    let held = OpenIncident { reason: Reason::GivenUp, phase: Phase::Held, hold: Some(Hold::Backoff) };
    let spent = OpenIncident { reason: Reason::GivenUp, phase: Phase::Exhausted, hold: None };
    let check = |open: &[OpenIncident], values: [&str; 4]| {
        metrics.set_open_incidents(open.iter().copied());
        let page = metrics.render_at(at(0));
        let of = |phase| line(&page, &format!("hangar_medic_incidents_open{{phase=\"{phase}\",reason=\"given_up\"}}")).unwrap();
        let exhausted = line(&page, "hangar_medic_incidents_exhausted").unwrap();
        assert_eq!([of("held"), of("exhausted"), line(&page, "hangar_medic_holds{hold=\"backoff\"}").unwrap(), exhausted], values);
    };
    check(&[held, held, spent], ["2", "1", "2", "1"]);
    check(&[spent], ["0", "1", "0", "1"]);
    check(&[], ["0", "0", "0", "0"]);
}

#[test]
fn the_age_of_a_source_is_of_the_last_time_it_was_heard_and_never_negative() {
    let metrics = metrics();
    let age = |now| line(&metrics.render_at(at(now)), "hangar_medic_signal_age_seconds{source=\"metrics\"}").unwrap();
    metrics.heard(Source::Metrics, at(100));
    metrics.heard(Source::Metrics, at(90));
    assert_eq!([age(107), age(50)], ["7", "0"]);
}

#[test]
fn only_known_codes_are_labels_and_only_metrics_reads_say_whether_hangar_is_up() {
    let metrics = metrics();
    metrics.webhook_answered(418);
    metrics.webhook_answered(200);
    metrics.hangar_read(ReadKind::Metrics, ReadResult::Ok);
    metrics.hangar_read(ReadKind::Server, ReadResult::Timeout);
    let page = metrics.render_at(at(0));
    assert_eq!(line(&page, "hangar_medic_webhook_requests_total{code=\"other\"}").unwrap(), "1");
    assert_eq!(line(&page, "hangar_medic_webhook_requests_total{code=\"200\"}").unwrap(), "1");
    assert_eq!(line(&page, "hangar_medic_hangar_up").unwrap(), "1");
    metrics.hangar_read(ReadKind::Metrics, ReadResult::Unreachable);
    assert_eq!(line(&metrics.render_at(at(0)), "hangar_medic_hangar_up").unwrap(), "0");
}

#[test]
fn the_hash_of_a_configuration_is_exact_in_a_float() {
    let metrics = metrics();
    metrics.config_loaded(&[0xff; 32], at(5));
    let page = metrics.render_at(at(9));
    assert_eq!(line(&page, "hangar_medic_config_hash").unwrap(), ((1_u64 << 48) - 1).to_string());
    assert_eq!(line(&page, "hangar_medic_config_last_reload_success_timestamp_seconds").unwrap(), "5");
}
