use std::collections::BTreeMap;

use super::*;

const RECORDED: &str = include_str!("../../../tests/fixtures/hangar/answers.json");

fn recorded(name: &str) -> String {
    let all: BTreeMap<String, Value> = serde_json::from_str(RECORDED).unwrap();
    all[name]["body"].to_string()
}

fn at() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

#[test]
fn no_answer_cut_off_anywhere_is_taken_for_one() {
    type Read = fn(&[u8]) -> bool;
    let reads: [(&str, Read); 8] = [
        ("2.34.4/detail_given_up", |b| server(b, "gu", at()).is_ok()),
        ("2.20.0/list", |b| list(b, at()).is_ok()),
        ("2.34.4/groups", |b| groups(b).is_ok()),
        ("2.34.4/group", |b| group(b).is_ok()),
        ("2.34.4/tools", |b| tools(b).is_ok()),
        ("2.34.4/logs", |b| logs(b).is_ok()),
        ("2.34.4/start_ok", |b| started(b).is_ok()),
        ("2.34.4/stop", |b| acknowledged(b).is_ok()),
    ];
    for (name, read) in reads {
        let body = recorded(name);
        assert!(read(body.as_bytes()), "{name}");
        for end in 0..body.len() {
            assert!(!read(&body.as_bytes()[..end]), "{name} cut at {end}");
        }
        assert!(!read(b"null") && !read(b"[]") && !read(b"{\"error\":\"x\"") && !read(b"<html>"), "{name}");
    }
}

#[test]
fn what_a_newer_hangar_may_say_of_a_death_is_taken_strictly() {
    let with = |from: &str, to: &str| server(recorded("2.34.4/detail_given_up").replace(from, to).as_bytes(), "gu", at());
    let dead = |from: &str, to: &str| with(from, to).unwrap().reading.dead.unwrap();
    assert_eq!(dead("given_up", "quarantined_by_policy").reason, Reason::Unknown);
    assert!(!dead("call_or_start", "ceremony").revived_by_call);
    assert!(with("+00:00", "+99:99").is_err(), "a time that is none");
    assert!(with("\"alive\":false", "\"alive\":\"no\"").is_err());
    assert!(with("\"mcp_server_id\"", "\"extra\":[{}],\"mcp_server_id\"").is_ok(), "more fields are no matter");
}

#[test]
fn versions_are_read_with_what_a_pre_release_appends() {
    let cases = [("2.34.4", Some((2, 34, 4))), ("2.35.0rc1", Some((2, 35, 0))), ("3.0", Some((3, 0, 0))), ("0.0.0.dev", Some((0, 0, 0)))];
    for (text, wanted) in cases {
        assert_eq!(parse_version(text), wanted, "{text}");
    }
    assert_eq!(["", "x", "2", "2.x"].map(parse_version), [None; 4]);
}

#[test]
fn an_odd_lock_out_is_waited_out_all_the_same() {
    let until = |details: &str| {
        let body = format!("{{\"error\":\"authentication_failed\",\"message\":\"m\",\"details\":{details}}}");
        let Fault::Auth(AuthFault::LockedOut { until }) = refusal(401, None, body.as_bytes(), at()) else { panic!("{details}") };
        until.as_second()
    };
    assert_eq!(until("{\"auth_method\":\"rate_limit\",\"retry_after\":299.5}"), 300);
    for odd in ["", ",\"retry_after\":-5", ",\"retry_after\":\"soon\"", ",\"retry_after\":1e300"] {
        assert_eq!(until(&format!("{{\"auth_method\":\"rate_limit\"{odd}}}")), 301, "Hangar's own default");
    }
    assert_eq!(until("{\"auth_method\":\"rate_limit\",\"retry_after\":999999}"), 24 * 3600 + 1);
    let nested = b"{\"error\":{\"code\":\"RateLimitExceededError\",\"message\":\"m\",\"details\":null}}";
    assert!(matches!(refusal(429, Some(SignedDuration::from_secs(7)), nested, at()), Fault::Auth(AuthFault::LockedOut { .. })));
}
