use super::*;
use proptest::prelude::*;

const NEW: &str = include_str!("../../../tests/fixtures/hangar/metrics-2.34.4.txt");
const OLD: &str = include_str!("../../../tests/fixtures/hangar/metrics-2.20.0.txt");
const END: &str = include_str!("../../../tests/fixtures/hangar/metrics-2.34.4-end.txt");

/// Two lines that make any body Hangar's.
const HEAD: &str = "mcp_hangar_build_info{python=\"3.11.7\",version=\"2.34.4\"} 1\nmcp_hangar_process_start_time_seconds 1796052053.5\n";

fn read_in(body: &[u8], chunk: usize) -> Result<MetricsReading, MetricsFault> {
    let mut collector = Collector::default();
    for part in body.chunks(chunk) {
        collector.feed(part)?;
    }
    collector.finish()
}

fn read(body: &str) -> Result<MetricsReading, MetricsFault> {
    read_in(body.as_bytes(), 7)
}

fn one(line: &str) -> ServerSample {
    let reading = read(&format!("{HEAD}{line}\n")).unwrap();
    assert_eq!(reading.servers.keys().collect::<Vec<_>>(), ["api"]);
    reading.servers["api"].clone()
}

fn error(body: &str) -> String {
    read(body).unwrap_err().to_string()
}

#[test]
fn real_bodies_are_read_whatever_the_chunks() {
    let new = read_in(NEW.as_bytes(), NEW.len()).unwrap();
    assert_eq!(new.version.as_deref(), Some("2.34.4"));
    assert_eq!(new.process_start, Some("2026-11-30T15:20:53.378323Z".parse().unwrap()));
    assert_eq!(new.servers.keys().collect::<Vec<_>>(), ["gu", "healthy"], "a server never started has no series");
    assert_eq!(new.servers["healthy"].gauge, Some(State::Ready));
    assert_eq!(new.servers["healthy"].last_healthy, Some("2026-11-30T15:20:54.229772Z".parse().unwrap()));
    assert_eq!(new.servers["healthy"].starts_success, 2);
    assert_eq!(new.servers["gu"].gauge, Some(State::Degraded));
    assert_eq!((new.servers["gu"].last_healthy, new.servers["gu"].starts_failure), (None, 1));
    for body in [NEW, OLD, END] {
        let whole = read_in(body.as_bytes(), body.len()).unwrap();
        assert_eq!(whole.bytes, body.len() as u64);
        for chunk in [1, 3, 64, 4096] {
            assert_eq!(read_in(body.as_bytes(), chunk).unwrap(), whole);
        }
    }
    assert_eq!(read(OLD).unwrap().version.as_deref(), Some("2.20.0"));
    assert_eq!(read(END).unwrap().servers["gu"].stops, Stops::from([(StopReason::MaxRetriesExceeded, 1)]));
}

#[test]
fn each_family_that_matters_is_read() {
    assert_eq!(one("mcp_hangar_mcp_server_state{mcp_server=\"api\"} 4").gauge, Some(State::Dead));
    assert!(one("mcp_hangar_mcp_server_cold_start_in_progress{mcp_server=\"api\"} 1").starting);
    assert!(!one("mcp_hangar_mcp_server_cold_start_in_progress{mcp_server=\"api\"} 0").starting);
    let stop = |reason: &str| one(&format!("mcp_hangar_mcp_server_stops_total{{mcp_server=\"api\",reason=\"{reason}\"}} 3.0")).stops;
    assert_eq!(stop("detection_enforcement:block"), Stops::from([(StopReason::DetectionBlock, 3)]));
    assert_eq!(stop("failback"), Stops::from([(StopReason::Other, 3)]), "a new reason is a deliberate stop");
}

#[test]
fn the_format_is_read_as_prometheus_writes_it() {
    let dead = |line: &str| assert_eq!(one(line).gauge, Some(State::Dead), "{line}");
    dead("mcp_hangar_mcp_server_state{mcp_server=\"api\"} 4\r");
    dead("mcp_hangar_mcp_server_state{ mcp_server = \"api\" , } 4.0 1796052053000");
    dead("mcp_hangar_mcp_server_state{region=\"a\\\\b\\\"c\\nd, }\",mcp_server=\"api\"} 4e0");
    dead("# HELP mcp_hangar_mcp_server_state x \" {\n\n# anything\nup{job=\"x\"} 1\nmcp_hangar_mcp_server_state{mcp_server=\"api\"} 4");
    dead("mcp_hangar_mcp_server_state{mcp_server=\"api\"} 4 1796052053.5 # {trace_id=\"x\"} 1\n# EOF\nleft over");
    let mut fallback = HEAD.replace("mcp_hangar_process", "process");
    assert_eq!(read(&fallback).unwrap().process_start, Some("2026-11-30T15:20:53.5Z".parse().unwrap()));
    fallback.push_str("mcp_hangar_process_start_time_seconds 1796052054\n");
    assert_eq!(read(&fallback).unwrap().process_start, Some("2026-11-30T15:20:54Z".parse().unwrap()), "Hangar's own wins");
}

#[test]
fn a_value_that_is_no_state_leaves_the_state_unknown() {
    for value in ["NaN", "nan", "+Inf", "-Inf", "inf", "7", "2.5", "-1"] {
        let sample = one(&format!("mcp_hangar_mcp_server_state{{mcp_server=\"api\"}} {value}"));
        assert_eq!((sample.gauge, sample.gauge_odd), (None, true), "{value}");
    }
    let twice = "mcp_hangar_mcp_server_state{mcp_server=\"api\",x=\"1\"} 2\nmcp_hangar_mcp_server_state{mcp_server=\"api\",x=\"2\"} 4";
    assert_eq!((one(twice).gauge, one(twice).gauge_odd), (None, true), "two series that differ");
    assert!(one("mcp_hangar_mcp_server_cold_start_in_progress{mcp_server=\"api\"} NaN").starting, "may be starting");
    for value in ["NaN", "0", "-5", "1e300", "Inf"] {
        let line = format!("mcp_hangar_mcp_server_last_healthy_timestamp_seconds{{mcp_server=\"api\"}} {value}");
        assert_eq!(one(&line).last_healthy, None, "{value}");
    }
}

#[test]
fn what_is_not_hangars_text_is_no_reading() {
    assert_eq!(
        error("<html><body>502</body></html>\n"),
        "line 1 is not Prometheus text: no metric name starts so: \"<html><body>502</body></html>\""
    );
    assert!(error(&format!("{HEAD}<html>\n")).starts_with("line 3 is not Prometheus text"), "in the middle too");
    assert!(error("{\"error\":{\"code\":\"x\"}}\n").contains("not Prometheus text"));
    assert_eq!(error(""), "no mcp_hangar metric in 0 bytes, 0 lines");
    assert_eq!(error("up 1\npython_info 1\n"), "no mcp_hangar metric in 19 bytes, 2 lines");
    assert_eq!(error("Internal Server Error"), "no mcp_hangar metric in 21 bytes, 0 lines");
    let cut = format!("{HEAD}mcp_hangar_mcp_server_state{{mcp_server=\"a");
    assert_eq!(error(&cut), "cut off in the middle of line 3: \"mcp_hangar_mcp_server_state{mcp_server=\\\"a\"");
    assert!(
        error(&format!("{HEAD}mcp_hangar_mcp_server_state{{mcp_server=\"api\"}} 4")).starts_with("cut off"),
        "4 may have been 4.0 or 42"
    );
}

#[test]
fn garbage_on_a_line_of_ours_spoils_the_reading() {
    let bad = |line: &str| {
        let said = error(&format!("{HEAD}{line}\n"));
        assert!(said.starts_with("line 3: "), "{line}: {said}");
    };
    bad("mcp_hangar_mcp_server_state{mcp_server=\"api\"}");
    bad("mcp_hangar_mcp_server_state{mcp_server=\"api\"} four");
    bad("mcp_hangar_mcp_server_state{mcp_server=\"api\"} 4 soon");
    bad("mcp_hangar_mcp_server_state{mcp_server=\"api\"} 4 1 1");
    bad("mcp_hangar_mcp_server_state 4");
    bad("mcp_hangar_mcp_server_state{mcp_server=api} 4");
    bad("mcp_hangar_mcp_server_state{mcp_server=\"api} 4");
    bad("mcp_hangar_mcp_server_state{mcp_server=\"a\\pi\"} 4");
    bad("mcp_hangar_mcp_server_state{mcp_server=\"api\" x=\"y\"} 4");
    bad("mcp_hangar_mcp_server_state{mcp_server\"api\"} 4");
    bad("mcp_hangar_mcp_server_stops_total{mcp_server=\"api\"} 1");
    bad("mcp_hangar_mcp_server_stops_total{mcp_server=\"api\",reason=\"idle\"} NaN");
    bad("mcp_hangar_process_start_time_seconds NaN");
    let long = format!("{HEAD}up{{x=\"{}\"}} 1\n", "x".repeat(70_000));
    assert_eq!(error(&long), "line 3 is longer than 65536 bytes");
    assert_eq!(read_in(long.as_bytes(), long.len()).unwrap_err().to_string(), "line 3 is longer than 65536 bytes");
    let binary = [HEAD.as_bytes(), b"mcp_hangar_mcp_server_state{mcp_server=\"\xff\"} 4\n"].concat();
    assert!(read_in(&binary, 9).unwrap_err().to_string().starts_with("line 3: not UTF-8"));
}

#[test]
fn ids_that_hangar_itself_refuses_are_counted_and_skipped() {
    let long = "a".repeat(65);
    let body = format!(
        "{HEAD}mcp_hangar_mcp_server_state{{mcp_server=\"api\\n\"}} 4\nmcp_hangar_mcp_server_state{{mcp_server=\"{long}\"}} 4\n\
         mcp_hangar_mcp_server_state{{mcp_server=\"\"}} 4\nmcp_hangar_mcp_server_state{{mcp_server=\"{}\"}} 4\n\
         mcp_hangar_mcp_server_stops_total{{mcp_server=\"api\\n\",reason=\"idle\"}} 1\n",
        "a".repeat(64)
    );
    let reading = read(&body).unwrap();
    assert_eq!(reading.skipped_ids, 3);
    assert_eq!(reading.skipped_examples, ["api\\n".to_owned(), long, String::new()]);
    assert_eq!(reading.servers.len(), 1, "64 characters are allowed");
}

#[test]
fn a_flood_of_servers_is_refused() {
    let mut collector = Collector::default();
    let fed =
        (0..=SERVERS_MAX).try_for_each(|n| collector.feed(format!("mcp_hangar_mcp_server_state{{mcp_server=\"s{n}\"}} 2\n").as_bytes()));
    assert_eq!(fed, Err(MetricsFault::TooManyServers));
}

proptest! {
    /// Foreign bytes make an error or a reading, never a panic; and the chunks never matter.
    #[test]
    fn chunks_never_change_what_is_read(body in hostile_body(), chunk in 1_usize..40) {
        let whole = read_in(&body, body.len().max(1));
        prop_assert_eq!(read_in(&body, chunk), whole);
    }
}

fn hostile_body() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(HEAD.as_bytes().to_vec()),
        Just(b"mcp_hangar_mcp_server_state{mcp_server=\"api\"} 4\n".to_vec()),
        Just(b"mcp_hangar_mcp_server_stops_total{reason=\"idle\",mcp_server=\"b\"} 1\r\n".to_vec()),
        Just(b"mcp_hangar_mcp_server_state{mcp_server=\"".to_vec()),
        Just(b"\\\"} 2 ".to_vec()),
        Just(b"# EOF\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..30),
        "[a-z{}\"=, \\\\n#0-9.\n]{0,40}".prop_map(String::into_bytes),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_bytes_and_any_damage_to_a_real_body_read_the_same_in_every_chunking(
        noise in proptest::collection::vec(any::<u8>(), 0..300),
        at in any::<proptest::sample::Index>(),
        cut in any::<bool>(),
    ) {
        fuzz_metrics(&noise);
        let mut body = OLD.as_bytes().to_vec();
        let at = at.index(body.len());
        if cut { body.truncate(at) } else { body.splice(at..at, noise).for_each(drop) }
        fuzz_metrics(&body);
    }
}
