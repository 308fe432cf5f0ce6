//! What a file may say, as data.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::SignedDuration;

use super::{Config, MAX_FILE, Overrides, SecretFile, effective, parse, render, schema, show_duration};
use crate::policy::{Policy, Rung};

const URL: &str = "http://127.0.0.1:8000";

/// The one flag that a file without a URL needs.
pub(super) fn flags() -> Overrides {
    Overrides { hangar_url: Some(URL.to_owned()), ..Overrides::default() }
}

pub(super) fn valid(yaml: &str) -> Config {
    parse(yaml.as_bytes(), &flags()).unwrap_or_else(|faults| panic!("{yaml}: {faults:?}"))
}

fn faults(yaml: &str) -> Vec<String> {
    let faults = parse(yaml.as_bytes(), &flags()).expect_err(yaml);
    faults.iter().map(ToString::to_string).collect()
}

/// The file has exactly this one fault.
fn refused(yaml: &str, fault: &str) {
    assert_eq!(faults(yaml), [fault], "{yaml}");
}

fn refused_flag(flags: &Overrides, fault: &str) {
    let faults: Vec<String> = parse(b"", flags).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(faults, [fault]);
}

#[test]
fn an_empty_file_is_the_defaults() {
    for empty in ["", "\n", "# nothing\n", "---\n", "null", "{}", "hangar:\npolicy:\n  storm:\n", "\u{feff}# bom\n"] {
        let config = valid(empty);
        assert_eq!(config.policy, Policy::default(), "{empty:?}");
        assert_eq!(config.hangar.instance, "127.0.0.1:8000");
        assert_eq!(config.warnings, [""; 0]);
    }
}

#[test]
fn neither_file_nor_url_says_both_ways() {
    let text = "hangar.url: missing; give it in a file (--config.file FILE) or on the command line (--hangar.url http://127.0.0.1:8000)";
    refused_flag(&Overrides::default(), text);
}

#[test]
fn every_fault_is_named_at_once() {
    let yaml = "
hangar: {url: 'http://me:secret@h/', pol_interval: 5s, request_timeout: 5, max_body: 1TB, stale_after_polls: 1}
hangar: {}
prometheus: 7
policy:
  settle: -5s
  rungs:
  - {action: client_reconnect}
  - {action: client_reconnect, attempts_max: 0}
  - {action: host_restart}
  - {action: sesion_reconnect}
  -
  - {pause: 1.5s}
  storm: {share: 2, share: 3}
bogus: {a: {b: 1, b: 2}}
settle: 5s
";
    let paths: Vec<String> = parse(yaml.as_bytes(), &Overrides::default()).unwrap_err().into_iter().map(|f| f.path).collect();
    let expected = [
        "hangar",
        "policy.storm.share",
        "bogus.a.b",
        "hangar.url",
        "hangar.request_timeout",
        "hangar.max_body",
        "hangar.stale_after_polls",
        "hangar.pol_interval",
        "prometheus",
        "policy.rungs[1].attempts_max",
        "policy.rungs[3].action",
        "policy.rungs[4]",
        "policy.rungs[5].pause",
        "policy.settle",
        "policy.storm.share",
        "bogus",
        "settle",
        "policy.rungs[1].action",
        "policy.rungs[5].action",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn an_unknown_key_is_refused_with_what_was_meant() {
    refused("polcy: {}", "polcy: unknown key; did you mean policy?");
    refused("hangar: {poll-interval: 5s}", "hangar.poll-interval: unknown key; did you mean poll_interval?");
    refused("hangar: {api_key: sk-1}", "hangar.api_key: unknown key; did you mean api_key_file?");
    refused(
        "policy: {rungs: [{action: client_reconnect, attempts: 2}, {action: session_reconnect}]}",
        "policy.rungs[0].attempts: unknown key; did you mean attempts_max?",
    );
    refused("policy: {retention: 1d}", "policy.retention: unknown key here; there is storage.retention");
    refused("quux: 1", "quux: unknown key");
    refused("1: 2", "1: unknown key");
    refused("? [a]\n: 2", "<a list>: unknown key");
    refused("\"a\\nb\": 2", "\"a\\nb\": unknown key");
    refused("log: &x {}\nweb: {<<: *x}", "web.\"<<\": unknown key");
}

#[test]
fn a_duplicate_key_is_refused_at_any_depth() {
    let text = "duplicate key; the same mapping gives it more than once";
    refused("policy: {budgets: {actions: 1, in_flight: 1, actions: 20}}", &format!("policy.budgets.actions: {text}"));
    refused("policy: {settle: 5s}\npolicy: {settle: 5s}", &format!("policy: {text}"));
    refused("log: {level: info, \"level\": debug, level: warn}", &format!("log.level: {text}"));
    refused("policy: {rungs: [{action: session_reconnect, pause: 1s, pause: 2s}]}", &format!("policy.rungs[0].pause: {text}"));
}

#[test]
fn a_rung_is_named_once() {
    refused(
        "policy: {rungs: [{action: session_reconnect}, {action: client_reconnect}, {action: session_reconnect}]}",
        "policy.rungs[2].action: session_reconnect is named twice, first in policy.rungs[0]",
    );
    refused("policy: {owners: [{servers: a}]}", "policy.owners[0].owner: missing");
    refused(
        "policy: {owners: [{servers: a, owner: x}, {servers: a, owner: y}]}",
        "policy.owners[1].servers: a is named twice, first in policy.owners[0]",
    );
    assert_eq!(valid("policy: {owners: [{servers: 'a*', owner: x}]}").policy.owners.of("ab"), Some("x"));
    refused("policy: {rungs: []}", "policy.rungs: lists no rung; to only watch, set policy.mode to observe");
    refused("policy: {rungs: }", "policy.rungs: must be a list, not nothing; leave the key out for the default");
    refused("policy: {rungs: session_reconnect}", "policy.rungs: must be a list, not text");
    refused("policy: {rungs: [session_reconnect]}", "policy.rungs[0]: must be a mapping of settings, not text");
    refused("policy: {rungs: [{action: null}]}", {
        "policy.rungs[0].action: has no value; leave the key out for the default, or give one of client_reconnect|capability_refresh|\
         session_reconnect|configuration_reload|lease_recovery|worker_restart|role_runtime_restart|connector_restart|\
         rolling_mcp_restart|full_mcp_restart|host_restart"
    });
}

#[test]
fn a_rung_without_bounds_has_those_of_its_action() {
    let config = valid("policy: {rungs: [{action: session_reconnect}, {action: worker_restart, pause: 7s}]}");
    let expected = Policy { rungs: Vec::new(), ..Policy::default() };
    let rungs: Vec<_> = config.policy.rungs.iter().map(|r| (r.action, r.attempts_max.get(), show_duration(r.pause))).collect();
    assert_eq!(rungs, [(Rung::SessionReconnect, 2, "5s".to_owned()), (Rung::WorkerRestart, 1, "7s".to_owned())]);
    assert_eq!(Policy { rungs: Vec::new(), ..config.policy }, expected);
}

#[test]
fn rungs_out_of_order_are_put_in_rank_order_with_a_warning() {
    let config = valid("policy: {rungs: [{action: session_reconnect}, {action: client_reconnect}]}");
    assert_eq!(config.policy.rungs.iter().map(|r| r.action.rank()).collect::<Vec<_>>(), [0, 2]);
    let text = "policy.rungs: not in rank order; they are climbed from the narrowest to the broadest all the same";
    assert_eq!(config.warnings, [text]);
}

#[test]
fn a_duration_is_whole_numbers_with_units() {
    let read = |text: &str| valid(&format!("policy: {{flap_window: 1d, settle: {text}}}")).policy.settle;
    assert_eq!(read("5s"), SignedDuration::from_secs(5));
    assert_eq!(read("1m30s"), SignedDuration::from_secs(90));
    assert_eq!(read("' 1m  30 s 500ms '"), SignedDuration::from_millis(90_500));
    let check = |text: &str, fault: &str| refused(&format!("policy: {{settle: {text}}}"), &format!("policy.settle: {fault}"));
    check("5", "has no unit; write \"5s\" for seconds (ms, s, m, h, d)");
    check("'5'", "\"5\" has no unit; write \"5s\" for seconds (ms, s, m, h, d)");
    check("0", "has no unit; write \"0s\" for seconds (ms, s, m, h, d)");
    check("-1", "must not be negative");
    check("-1.5", "must not be negative");
    check("-1s", "must not be negative");
    check("1.5s", "\"1.5s\": whole numbers only, for example \"1s 500ms\"");
    check("5 sec", "\"5 sec\": unknown unit \"sec\"; known: ms, s, m, h, d");
    check("5s 1m", "\"5s 1m\": each unit once, the largest first");
    check("5s5s", "\"5s5s\": each unit once, the largest first");
    check("soon", "\"soon\" is not a duration; write for example \"5s\" or \"1h 30m\" (ms, s, m, h, d)");
    check("''", "\"\" is not a duration; write for example \"5s\" or \"1h 30m\" (ms, s, m, h, d)");
    check("99999999999999999999d", "\"99999999999999999999d\" is too long");
    check("999999999999d", "\"999999999999d\" is too long");
    check("0s", "0s is out of bounds: 100ms to 10m");
    check("1h", "1h is out of bounds: 100ms to 10m");
    check("true", "must be a duration such as \"5s\" or \"1h 30m\", not true or false");
    check("[5s]", "must be a duration such as \"5s\" or \"1h 30m\", not a list");
    check("!x 5s", "must be a duration such as \"5s\" or \"1h 30m\", not a tagged value");
    check("", "has no value; leave the key out for the default, or give a duration such as \"5s\" or \"1h 30m\"");
}

#[test]
fn zero_is_taken_only_where_it_means_something() {
    assert!(valid("policy: {exhausted_retry: 0s}").policy.exhausted_retry.is_zero());
    assert!(valid("policy: {neighbour_wait: 0s}").policy.neighbour_wait.is_zero());
    refused("policy: {exhausted_retry: 10ms}", "policy.exhausted_retry: 10ms is out of bounds: 0s, or 1s to 7d");
    refused("policy: {flap_window: 0s}", "policy.flap_window: 0s is out of bounds: 1s to 1d");
}

#[test]
fn a_size_has_a_unit_and_bounds() {
    assert_eq!(valid("hangar: {max_body: 1536KiB}").hangar.max_body, 1536 * 1024);
    let check = |text: &str, fault: &str| refused(&format!("hangar: {{max_body: {text}}}"), &format!("hangar.max_body: {fault}"));
    check("64", "has no unit; write \"64B\" for bytes (B, KiB, MiB, GiB)");
    check("64MB", "\"64MB\": unknown unit \"MB\"; known: B, KiB, MiB, GiB");
    check("-1MiB", "must not be negative");
    check("2GiB", "\"2GiB\" is out of bounds: 1KiB to 1GiB");
    check("99999999999999999999GiB", "\"99999999999999999999GiB\" is out of bounds: 1KiB to 1GiB");
    check("MiB", "\"MiB\" is not a size; write for example \"64MiB\" (B, KiB, MiB, GiB)");
    check("1.5MiB", "\"1.5MiB\": unknown unit \".5MiB\"; known: B, KiB, MiB, GiB");
}

#[test]
fn a_number_is_whole_and_within_its_bounds() {
    let check = |text: &str, fault: &str| {
        refused(&format!("policy: {{budgets: {{in_flight: {text}}}}}"), &format!("policy.budgets.in_flight: {fault}"));
    };
    check("0", "0 is out of bounds: 1 to 64");
    check("-3", "-3 is out of bounds: 1 to 64");
    check("65", "65 is out of bounds: 1 to 64");
    check("99999999999999999999", "9223372036854775807 is out of bounds: 1 to 64");
    check("4.0", "must be a whole number, not a number");
    check("'4'", "must be a whole number, not text");
    refused(
        "policy: {rungs: [{action: session_reconnect, attempts_max: 300}]}",
        "policy.rungs[0].attempts_max: 300 is out of bounds: 1 to 10",
    );
}

#[test]
fn a_share_is_between_0_and_1() {
    for (text, share) in [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("-0.0", 0.0)] {
        let read = valid(&format!("policy: {{storm: {{share: {text}}}}}")).policy.storm.share;
        assert!(read.to_bits() == f64::to_bits(share), "{text}: {read}");
    }
    for (text, shown) in [("1.01", "1.01"), ("-0.1", "-0.1"), (".nan", "NaN"), (".inf", "inf"), ("30", "30")] {
        refused(&format!("policy: {{storm: {{share: {text}}}}}"), &format!("policy.storm.share: {shown} is out of bounds: 0 to 1"));
    }
    refused("policy: {storm: {share: 30%}}", "policy.storm.share: must be a number from 0 to 1, not text");
}

#[test]
fn a_url_is_http_with_a_host_and_nothing_secret() {
    let read = |url: &str| {
        let config = valid(&format!("hangar: {{instance: x}}\nprometheus: {{url: '{url}'}}"));
        config.prometheus.url.unwrap().to_string()
    };
    assert_eq!(read("http://h:9090"), "http://h:9090/");
    assert_eq!(read("HTTPS://H/base"), "https://h/base/");
    assert_eq!(read("http://[::1]:80/a/b/"), "http://[::1]/a/b/");
    let check = |url: &str, fault: &str| refused(&format!("prometheus: {{url: '{url}'}}"), &format!("prometheus.url: {fault}"));
    check("127.0.0.1:9090", "must begin with http:// or https://");
    check("localhost:9090", "must begin with http:// or https://");
    check("ftp://h", "must begin with http:// or https://");
    check("http:/h", "must begin with http:// or https://");
    check("é", "must begin with http:// or https://");
    check("http://", "is not a URL: empty host");
    check("http://h:99999", "is not a URL: invalid port number");
    check("http://h:0", "port 0 cannot be reached");
    check("http://me:sk-1@h", "must not hold a user name or password; use hangar.api_key_file");
    check("http://me@h", "must not hold a user name or password; use hangar.api_key_file");
    check("http://h/?a=sk-1", "must end with its path, without ? or #");
    check("http://h/#a", "must end with its path, without ? or #");
    check("http://h/ a", "holds a space, a backslash or a control character");
    check("http://a\\b", "holds a space, a backslash or a control character");
    check(&format!("http://h/{}", "a".repeat(3000)), "is longer than 2048 bytes");
}

#[test]
fn a_base_path_survives_join() {
    let config = parse(b"hangar: {url: 'https://h.example/hangar'}", &Overrides::default()).unwrap();
    assert_eq!(config.hangar.url.join("api/system/").unwrap().as_str(), "https://h.example/hangar/api/system/");
    assert_eq!(config.hangar.instance, "h.example:443");
}

#[test]
fn a_listen_address_is_an_ip_and_a_port() {
    let read = |text: &str| valid(&format!("web: {{listen_address: '{text}'}}")).web.listen_address.to_string();
    assert_eq!(read("127.0.0.2:1"), "127.0.0.2:1");
    assert_eq!(read("[::1]:9923"), "[::1]:9923");
    assert_eq!(read("localhost:80"), "127.0.0.1:80");
    assert_eq!(read("127.0.0.1:0"), "127.0.0.1:0");
    let check = |text: &str, fault: &str| refused(&format!("web: {{listen_address: {text}}}"), &format!("web.listen_address: {fault}"));
    check("':9923'", "\":9923\" has no host; write 127.0.0.1:9923");
    check("127.0.0.1", "\"127.0.0.1\" is not an IP address and port such as 127.0.0.1:9923 or [::1]:9923");
    check("127.0.0.1:99999", "\"127.0.0.1:99999\" is not an IP address and port such as 127.0.0.1:9923 or [::1]:9923");
    check("example.com:80", "\"example.com:80\" is not an IP address and port such as 127.0.0.1:9923 or [::1]:9923");
    check("9923", "must be an address such as \"127.0.0.1:9923\", not a number");
}

#[test]
fn a_word_is_one_of_its_set() {
    refused("policy: {mode: obsrve}", "policy.mode: \"obsrve\" is not known; did you mean observe?; known: observe, act");
    refused("log: {level: INFO}", "log.level: \"INFO\" is not known; did you mean info?; known: error, warn, info, debug, trace");
    refused("log: {format: 3}", "log.format: must be one of json|logfmt|pretty, not a number");
}

#[test]
fn times_that_contradict_each_other_are_refused() {
    refused("policy: {settle: 2m, flap_window: 1m}", "policy.settle: 2m is longer than policy.flap_window (1m)");
    refused("policy: {exhausted_retry: 2h}", "policy.exhausted_retry: 2h is longer than policy.exhausted_retry_max (1h)");
    refused("policy: {neighbour_wait: 1m, storm: {window: 30s}}", "policy.neighbour_wait: 1m is longer than policy.storm.window (30s)");
    refused("policy: {budgets: {in_flight: 30}}", "policy.budgets.in_flight: 30 is more than policy.budgets.actions (20)");
    refused(
        "hangar: {poll_interval: 5m, stale_after_polls: 4}",
        "hangar.stale_after_polls: 4 polls of 5m are 20m: servers would count as alive for that long after Hangar was last read; at most 15m",
    );
    refused(
        "storage: {retention: 1d}\npolicy: {budgets: {starts_window: 2d}}",
        "storage.retention: 1d is shorter than policy.budgets.starts_window (2d)",
    );
}

#[test]
fn a_faulty_setting_is_not_compared() {
    refused("policy: {settle: 9m, flap_window: 1x}", "policy.flap_window: \"1x\": unknown unit \"x\"; known: ms, s, m, h, d");
    refused(
        "policy: {exhausted_retry: 2h, exhausted_retry_max: 1}",
        "policy.exhausted_retry_max: has no unit; write \"1s\" for seconds (ms, s, m, h, d)",
    );
}

#[test]
fn an_address_that_run_would_not_listen_on_is_a_fault() {
    let text = "web.listen_address: not on loopback: whoever reaches it could read what it shows; allow that with web.unsafe_no_auth";
    refused("web: {listen_address: '0.0.0.0:1'}", text);
    refused("web: {listen_address: '[::]:1'}", text);
    assert!(valid("web: {listen_address: '0.0.0.0:1', unsafe_no_auth: true}").web.unsafe_no_auth);
}

#[test]
fn what_is_allowed_but_hardly_meant_is_a_warning() {
    let check = |yaml: &str, warning: &str| assert_eq!(valid(yaml).warnings, [warning], "{yaml}");
    check("policy: {rungs: [{action: client_reconnect}]}", "policy.rungs: session_reconnect is off: no dead server is started");
    check("policy: {settle: 1s}", "policy.settle: shorter than hangar.poll_interval (5s): a recovery is proved by a single read");
    check(
        "hangar: {start_timeout: 5s}",
        "hangar.start_timeout: below 30s, which Hangar gives a hung upstream: a start cut off earlier may still have happened",
    );
    check(
        "hangar: {request_timeout: 1m}",
        "hangar.request_timeout: longer than 15s (poll_interval x stale_after_polls): one slow answer makes everything unknown",
    );
    check(
        "policy: {not_seen_healthy_after: 1m}",
        "policy.not_seen_healthy_after: below 2m: Hangar checks health every 60 s, so a healthy server may be restarted",
    );
    check("policy: {degraded_too_long_after: 1m}", "policy.degraded_too_long_after: below 4m: Hangar's own retries can take that long");
    check(
        "policy: {stuck_starting_after: 10s}",
        "policy.stuck_starting_after: shorter than hangar.start_timeout (1m): a start of ours may be taken for a stuck one",
    );
    check("policy: {budgets: {starts_per_server: 1}}", {
        "policy.budgets.starts_per_server: the listed rungs make up to 4 starts in one incident: the budget ends the climb before the \
         ladder does"
    });
    check(
        "hangar: {log_file: /nowhere/hangar.log}",
        "hangar.log_file: /nowhere/hangar.log cannot be read yet: No such file or directory (os error 2)",
    );
    let metrics = Overrides { hangar_url: Some(format!("{URL}/metrics")), ..Overrides::default() };
    let text = "hangar.url: ends in /metrics; give Hangar's own address, the rest is added";
    assert_eq!(parse(b"", &metrics).unwrap().warnings, [text]);
}

#[test]
fn a_flag_goes_over_the_file_and_is_judged_like_it() {
    let yaml = b"hangar: {url: 'http://a:1', instance: a}\npolicy: {mode: act}\nstorage: {path: /a}";
    let flags = Overrides {
        hangar_url: Some("http://b:2".to_owned()),
        mode: Some(crate::policy::Mode::Observe),
        storage_path: Some("/b".into()),
        ..Overrides::default()
    };
    let config = parse(yaml, &flags).unwrap();
    assert_eq!((config.hangar.url.as_str(), config.hangar.instance.as_str()), ("http://b:2/", "a"));
    assert_eq!((config.policy.mode.as_str(), config.storage.path.to_str()), ("observe", Some("/b")));
    let wrong = |set: fn(&mut Overrides, String), value: &str, fault: &str| {
        let mut flags = self::flags();
        set(&mut flags, value.to_owned());
        refused_flag(&flags, fault);
    };
    wrong(|f, v| f.hangar_url = Some(v), "h", "--hangar.url: must begin with http:// or https://");
    wrong(|f, v| f.prometheus_url = Some(v), "h", "--prometheus.url: must begin with http:// or https://");
    wrong(
        |f, v| f.hangar_instance = Some(v),
        "a b",
        "--hangar.instance: \"a b\" is not 1 to 200 printable ASCII characters without spaces",
    );
    wrong(|f, v| f.web_listen_address = Some(v), ":1", "--web.listen-address: \":1\" has no host; write 127.0.0.1:1");
    wrong(|f, v| f.storage_path = Some(v.into()), "", "--storage.path: is empty");
    wrong(|f, v| f.hangar_log_file = Some(v.into()), "/", "hangar.log_file: / is a directory");
}

#[test]
fn a_file_that_is_no_yaml_document_is_refused_as_a_whole() {
    let check = |bytes: &[u8], start: &str| {
        let faults = parse(bytes, &flags()).unwrap_err();
        let one = faults.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(one.len() == 1 && one[0].starts_with(start), "{one:?}");
    };
    check(b"\xff\xfe", "not UTF-8 at byte 0");
    check(b"a: [", "not valid YAML: ");
    check(b"hangar:\n\turl: x", "not valid YAML: ");
    check(b"a: *b", "not valid YAML: unknown anchor");
    check(b"{}\n---\n{}\n", "holds more than one YAML document");
    check(b"[1]", "must be a mapping of settings, not a list");
    check(b"hello", "must be a mapping of settings, not text");
    check(&vec![b'#'; MAX_FILE + 1], "larger than 1048576 bytes");
    check("[".repeat(40).as_bytes(), "nested deeper than 32 levels");
    check("- ".repeat(1000).as_bytes(), "nested deeper than 32 levels");
    check("{a: ".repeat(200_000).as_bytes(), "holds more than 1000 opening brackets");
}

#[test]
fn anchors_that_grow_without_bound_are_refused() {
    let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..30 {
        let refs = vec![format!("*a{}", i - 1); 9].join(", ");
        let _ = writeln!(yaml, "a{i}: &a{i} [{refs}]");
    }
    let faults = parse(yaml.as_bytes(), &flags()).unwrap_err();
    assert!(faults.len() == 1 && faults[0].text == "holds more than 20000 values", "{faults:?}");
}

#[test]
fn a_file_of_noise_ends_in_a_count() {
    let yaml: String = (0..3000).fold(String::new(), |mut yaml, i| {
        let _ = writeln!(yaml, "zz{i}: 1");
        yaml
    });
    let faults = faults(&yaml);
    assert_eq!((faults.len(), faults[500].as_str()), (501, "and 2500 more faults"));
}

#[test]
fn the_secret_of_a_file_is_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, "sk-very-secret\n").unwrap();
    let flags = Overrides { hangar_api_key_file: Some(path.clone()), ..flags() };
    let config = parse(b"", &flags).unwrap();
    let secret = config.hangar.api_key.as_ref().unwrap().read().unwrap();
    assert_eq!(secret.expose(), "sk-very-secret");
    let printed = format!("{secret:?} {config:?} {}", render(&config));
    assert!(!printed.contains("very-secret") && printed.contains(path.to_str().unwrap()), "{printed}");
    assert_eq!(secret.sha256(), config.hangar.api_key.unwrap().sha256().unwrap());
    assert_eq!(secret.sha256(), "6fff6aec260649c251a4f5a8aaa8482ac5914393ab5d825dbe06c696b925505b");
}

#[test]
fn a_secret_file_that_gives_no_secret_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = |content: &[u8], expected: &str| {
        let path = dir.path().join("key");
        std::fs::write(&path, content).unwrap();
        let got = SecretFile { path }.read().map_or_else(|e| e.explained(), |s| s.expose().to_owned());
        assert_eq!(got, expected);
    };
    check(b"  key with space \r\n", "key with space");
    check(b"", "the secret file is empty");
    check(b" \n\n", "the secret file is empty");
    let bad = "the secret file holds more than one line, or a character that no HTTP header takes";
    check(b"a\nb", bad);
    check(b"a\0b", bad);
    check("clé".as_bytes(), bad);
    check(b"\xff", bad);
    check(&vec![b'a'; 64 * 1024 + 1], "the secret file is larger than 64 KiB");
    let explained = |path: &str| SecretFile { path: dir.path().join(path) }.read().unwrap_err().explained();
    assert_eq!(explained("none"), "cannot read the secret file: No such file or directory (os error 2)");
    assert_eq!(explained("."), "the secret file is not a regular file");
}

#[cfg(unix)]
#[test]
fn a_secret_that_everybody_can_read_is_a_warning_and_one_that_nobody_can_a_fault() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, "k").unwrap();
    let flags = Overrides { hangar_api_key_file: Some(path.clone()), ..flags() };
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o604);
    assert_eq!(parse(b"", &flags).unwrap().warnings, ["hangar.api_key_file: the secret file can be read by every user of this machine"]);
    mode(0o600);
    assert_eq!(parse(b"", &flags).unwrap().warnings, [""; 0]);
    std::fs::remove_file(&path).unwrap();
    refused_flag(&flags, "hangar.api_key_file: cannot read the secret file: No such file or directory (os error 2)");
}

#[cfg(unix)]
#[test]
fn a_key_sent_in_the_clear_to_another_machine_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, "k").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let warnings = |url: &str| {
        let flags = Overrides { hangar_url: Some(url.to_owned()), hangar_api_key_file: Some(path.clone()), ..Overrides::default() };
        parse(b"", &flags).unwrap().warnings
    };
    for url in ["http://hangar.example:8000", "http://127.example", "http://10.0.0.1"] {
        assert_eq!(warnings(url), ["hangar.url: the API key travels unencrypted to another machine; use https"], "{url}");
    }
    for url in ["https://hangar.example", "http://127.0.0.1:1", "http://localhost", "http://[::1]"] {
        assert_eq!(warnings(url), [""; 0], "{url}");
    }
}

/// Every path of the JSON Schema, as `read` knows it.
fn schema_paths(schema: &serde_json::Value, prefix: &str, paths: &mut BTreeSet<String>) {
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        schema_paths(value, &path, paths);
        schema_paths(&value["items"], &format!("{path}[]"), paths);
        assert!(value["description"].as_str().is_some_and(|d| d.len() > 10), "{path}");
        paths.insert(path);
    }
}

#[test]
fn the_schema_knows_every_setting_and_nothing_else() {
    let mut paths = BTreeSet::new();
    schema_paths(&schema(), "", &mut paths);
    assert_eq!(paths, super::render::paths().into_iter().collect());
    assert!(paths.contains("policy.rungs[].attempts_max") && paths.contains("policy.storm.share"));
    assert_eq!(schema()["properties"]["policy"]["properties"]["rungs"]["items"]["required"], serde_json::json!(["action"]));
    assert_eq!(schema()["properties"]["hangar"]["additionalProperties"], false);
}

#[test]
fn the_effective_configuration_is_the_same_as_json_and_as_yaml() {
    let config = valid("");
    let json = serde_json::to_value(effective(&config)).unwrap();
    let yaml: serde_json::Value = serde_yaml::from_str(&render(&config)).unwrap();
    assert_eq!(json, yaml);
    assert_eq!(json["policy"]["rungs"][2]["attempts_max"], 2);
    assert_eq!(json["hangar"]["api_key_file"], serde_json::Value::Null);
}

#[test]
fn every_fault_of_the_platform_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("key");
    std::fs::write(&secret, "s3cret-of-the-hook\n").unwrap();
    let secret = secret.display();
    let yaml = format!(
        "
platform:
  restarts:
  - {{action: full_mcp_restart, executor: systemd, url: 'http://x/'}}
  - {{action: host_restart, executor: systemd, unit: a.service}}
  - {{action: full_mcp_restart, executor: hook, url: 'ftp://x', secret_file: /nowhere}}
  - {{action: session_reconnect, executor: kubernetes}}
  upstreams:
  - {{mcp_server: 'a b', executor: hook}}
  - {{mcp_server: a, executor: kubernetes, namespace: n, deployment: d}}
  - {{mcp_server: a, executor: hook, url: 'http://127.0.0.1/x', secret_file: {secret}}}
  - {{executor: hook, url: 'http://127.0.0.1/x', secret_file: {secret}}}
  definitions: [{{mcp_server: '1x', file: f}}, {{mcp_server: b}}]
"
    );
    let paths: Vec<String> = parse(yaml.as_bytes(), &flags()).unwrap_err().into_iter().map(|f| f.path).collect();
    let expected = [
        "platform.restarts",
        "platform.restarts[2].url",
        "platform.upstreams[0].mcp_server",
        "platform.restarts[0].unit",
        "platform.restarts[0].url",
        "platform.restarts[1].executor",
        "platform.restarts[2].secret_file",
        "platform.restarts[2].action",
        "platform.restarts[3].namespace",
        "platform.restarts[3].deployment",
        "platform.restarts[3].action",
        "platform.upstreams[0].url",
        "platform.upstreams[0].secret_file",
        "platform.upstreams[2].mcp_server",
        "platform.upstreams[3].mcp_server",
        "platform.definitions[0].mcp_server",
        "platform.definitions[1].file",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn a_platform_is_read_as_it_is_written_and_decides_what_is_configured() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("key");
    std::fs::write(&secret, "s3cret-of-the-hook\n").unwrap();
    let yaml = format!(
        "
hangar: {{config_file: /etc/hangar.yaml, instances: 2}}
policy: {{rungs: [{{action: session_reconnect}}, {{action: configuration_reload}}, {{action: rolling_mcp_restart}}, {{action: host_restart}}]}}
platform:
  restarts: [{{action: host_restart, executor: hook, url: 'https://auto.example/x', secret_file: {}}}]
  upstreams: [{{mcp_server: a, executor: kubernetes, namespace: n, deployment: d, timeout: 90s}}]
  definitions: [{{mcp_server: b, file: b.json}}]
",
        secret.display()
    );
    let config = valid(&yaml);
    let again = valid(&render(&config));
    assert_eq!((again.platform.clone(), again.policy.clone()), (config.platform.clone(), config.policy.clone()));
    let why = |rung: Rung| config.policy.why_not(rung);
    assert_eq!((why(Rung::ConfigurationReload), why(Rung::HostRestart)), (None, None));
    assert_eq!(why(Rung::RollingMcpRestart), Some("no executor is configured for it (platform.restarts)"));
    assert_eq!(why(Rung::FullMcpRestart), Some("not listed in policy.rungs"));
    assert!(config.warnings.iter().any(|w| w.starts_with("policy.rungs: rolling_mcp_restart does nothing")), "{:?}", config.warnings);
}

#[test]
fn peers_are_the_other_replicas_each_once_and_no_more_than_there_are() {
    let fault = |hangar: &str| {
        let faults = parse(format!("hangar: {{url: 'http://h-0:8080', {hangar}}}").as_bytes(), &Overrides::default()).unwrap_err();
        faults.into_iter().map(|f| f.to_string()).collect::<Vec<_>>().join("; ")
    };
    for (hangar, text) in [
        ("instances: 3, peers: 'http://h-1:8080'", "hangar.peers: must be a list such as [http://hangar-1:8000], not text"),
        ("instances: 3, peers: ['ftp://h-1']", "hangar.peers: entry 0 must begin with http:// or https://"),
        ("instances: 3, peers: ['http://h-1', 'http://h-1/']", "hangar.peers: entry 1 is named twice"),
        ("instances: 3, peers: ['http://h-0:8080/']", "hangar.peers: names hangar.url itself; only the other replicas belong here"),
        ("peers: ['http://h-1']", "hangar.peers: lists 1 other replicas; by hangar.instances (1) there are 0"),
    ] {
        assert_eq!(fault(hangar), text);
    }
    let url = "http://user:s3cret@h-1";
    assert!(!fault(&format!("instances: 2, peers: ['{url}']")).contains("s3cret"));
    let many = (0..100).map(|n| format!("'http://h-{}'", n + 1)).collect::<Vec<_>>().join(", ");
    assert_eq!(fault(&format!("instances: 100, peers: [{many}]")), "hangar.peers: holds 100 URLs; at most 99");
    let config = valid("hangar: {instances: 3, peers: ['https://h-1/base', 'http://h-2:8080']}");
    let peers: Vec<&str> = config.hangar.peers.iter().map(reqwest::Url::as_str).collect();
    assert_eq!(peers, ["https://h-1/base/", "http://h-2:8080/"]);
    assert_eq!(valid(&render(&config)).hangar, config.hangar);
}
