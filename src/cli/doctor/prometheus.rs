//! Prometheus: whether it answers, whether its series are of exactly this Hangar, and whether Hangar's alerts are loaded.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, DATE};
use serde_json::Value;

use super::Check;
use super::hangar::{Seen, clock};
use crate::clock;
use crate::config::{Config, HttpAccess};
use crate::hangar::client::Clocks;
use crate::observe::http;
use crate::observe::prometheus::{PrometheusSource, Unknown, quote};
use crate::run::prometheus_source;

/// Largest answer that is read, in bytes.
const BODY_MAX: u64 = 16 * 1024 * 1024;
/// Hangar's alerts of a dead server.
const ALERTS: [&str; 2] = ["MCPHangarProviderDead", "MCPHangarProviderNotSeenHealthy"];

pub(super) async fn examine(config: &Config, seen: &Seen, checks: &mut Vec<Check>) {
    const CHECK: &str = "prometheus";
    let Some(url) = &config.prometheus.url else {
        checks.push(Check::skip(CHECK, "prometheus.url is not set: Hangar's own /metrics is enough"));
        return;
    };
    let source = match prometheus_source(config) {
        Ok(Some(source)) => source,
        Ok(None) => return,
        Err(error) => {
            checks.push(Check::fail(CHECK, error.to_string(), "correct prometheus.url and prometheus.http"));
            return;
        }
    };
    let asked = ask(url, "api/v1/rules?type=alert", &config.prometheus.http, config.prometheus.timeout).await;
    match &asked {
        Ok((_, clocks)) => {
            checks.push(Check::ok(CHECK, format!("{url} answers")));
            checks.push(clock("prometheus_clock", "Prometheus", *clocks, config.policy.settle));
        }
        Err(why) => {
            let advice = "correct prometheus.url (with the path prefix, if it has one) and the credentials in prometheus.http";
            checks.push(Check::fail(CHECK, format!("{url}: {why}"), advice));
            return;
        }
    }
    checks.push(instance(config, seen, source).await);
    if let Ok((rules, _)) = asked {
        checks.push(alerts(&rules));
    }
}

/// A JSON document and both clocks, in one line where it cannot be had.
pub(super) async fn ask(url: &Url, path: &str, access: &HttpAccess, bound: SignedDuration) -> Result<(Value, Option<Clocks>), String> {
    let client = http::client(url, bound.unsigned_abs(), access)?;
    let mut request = client.get(url.join(path).map_err(|e| e.to_string())?);
    if let Some(value) = http::authorization(access)? {
        request = request.header(AUTHORIZATION, value);
    }
    let sent_at = clock::now();
    let response = request.send().await.map_err(|e| crate::hangar::fault::chain(&e.without_url()))?;
    let answered_at = clock::now();
    if !response.status().is_success() {
        return Err(format!("HTTP {}", response.status().as_u16()));
    }
    let date = response.headers().get(DATE).and_then(|v| v.to_str().ok()).and_then(|v| jiff::fmt::rfc2822::parse(v).ok());
    let body = http::body(response, BODY_MAX).await?;
    let document = serde_json::from_slice(&body).map_err(|_| "what answers is not its API".to_owned())?;
    Ok((document, date.map(|date| Clocks { theirs: date.timestamp(), sent_at, answered_at })))
}

/// Exactly this Hangar, told by the start of its process, and not two targets under one name.
async fn instance(config: &Config, seen: &Seen, mut source: PrometheusSource) -> Check {
    const CHECK: &str = "prometheus_instance";
    let label = format!("instance={}", quote(&config.hangar.instance));
    let ours = config.prometheus.selector.as_ref().map_or_else(|| label.clone(), |more| format!("{label},{}", more.trim_end_matches(',')));
    let advice = "make hangar.instance equal to the instance label of Hangar's target in Prometheus (its /targets page)";
    let starts = match source.series(&format!("mcp_hangar_process_start_time_seconds{{{ours}}}")).await {
        Ok(starts) => starts,
        Err(why) => return Check::fail(CHECK, why.to_string(), "look at Prometheus' own log"),
    };
    if starts.is_empty() {
        let why = source.read(clock::now()).await.err();
        let found = why.map_or_else(|| format!("no Hangar is scraped as {{{ours}}}"), |why| why.to_string());
        return Check::fail(CHECK, found, advice);
    }
    if starts.len() > 1 {
        let jobs: Vec<String> = starts.iter().map(|(labels, _)| job(labels)).collect();
        let found = format!("{{{ours}}} finds {} targets: {}", starts.len(), jobs.join(", "));
        return Check::fail(CHECK, found, "add prometheus.selector, e.g. job=\"hangar\", so that one is left");
    }
    if let (Some(own), Some((_, theirs))) = (seen.process_start, starts.first())
        && let Some(theirs) = crate::observe::metrics_text::time(*theirs)
        && differ(own, theirs)
    {
        let found = format!("{{{ours}}} is another Hangar: its process began at {theirs}, that of hangar.url at {own}");
        return Check::fail(CHECK, found, format!("{advice}; right after a restart of Hangar wait for the next scrape"));
    }
    match source.read(clock::now()).await {
        Ok(reading) => series(reading.servers.values().filter(|s| s.last_healthy.is_some()).count(), reading.servers.len()),
        Err(Unknown::Empty) if !seen.has_series => {
            Check::ok(CHECK, format!("{{{ours}}} is exactly this Hangar; it has no series of servers yet"))
        }
        Err(why) => Check::fail(CHECK, why.to_string(), advice),
    }
}

fn series(healthy: usize, states: usize) -> Check {
    const CHECK: &str = "prometheus_instance";
    let found = format!("exactly this Hangar: {states} servers have a state, {healthy} a last-healthy time");
    if healthy > 0 || states == 0 {
        return Check::ok(CHECK, found);
    }
    Check::warn(
        CHECK,
        found,
        "if servers were healthy before: does a relabelling drop mcp_hangar_mcp_server_last_healthy_timestamp_seconds?",
    )
}

fn job(labels: &BTreeMap<String, String>) -> String {
    format!("job=\"{}\"", labels.get("job").map_or("", String::as_str))
}

fn differ(a: Timestamp, b: Timestamp) -> bool {
    a.duration_since(b).abs() > SignedDuration::from_secs(1)
}

/// Hangar's two alerts, loaded and evaluated without error.
fn alerts(document: &Value) -> Check {
    const CHECK: &str = "alerts";
    let groups = document.pointer("/data/groups").and_then(Value::as_array).into_iter().flatten();
    let rules: Vec<&Value> = groups.flat_map(|g| g.get("rules").and_then(Value::as_array).into_iter().flatten()).collect();
    let text = |rule: &Value, key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let of = |name: &str| rules.iter().copied().filter(|r| text(r, "name") == name).collect::<Vec<_>>();
    let missing: Vec<&str> = ALERTS.into_iter().filter(|name| of(name).is_empty()).collect();
    if !missing.is_empty() {
        let found = format!("Prometheus has no rule {}", missing.join(" and "));
        return Check::warn(CHECK, found, "add alerts/mcp-hangar-dead.rules.yml to rule_files and reload Prometheus: else nobody is paged");
    }
    let broken = ALERTS.into_iter().flat_map(of).find(|rule| text(rule, "health") == "err");
    if let Some(rule) = broken {
        let found = format!("{} fails: {}", text(rule, "name"), crate::hangar::fault::clean(&text(rule, "lastError")));
        return Check::fail(CHECK, found, "correct the rule, or the series that it reads");
    }
    Check::ok(CHECK, format!("{} are loaded", ALERTS.join(" and ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Status;
    use super::*;

    #[test]
    fn alerts_are_missing_broken_or_loaded() {
        let rule = |name: &str, health: &str| json!({"name": name, "health": health, "lastError": "no such\nseries", "type": "alerting"});
        let check = |rules: Vec<Value>, status: Status, words: &str| {
            let found = alerts(&json!({"status": "success", "data": {"groups": [{"rules": rules}]}}));
            assert!(found.status == status && format!("{found:?}").contains(words), "{words}: {found:?}");
        };
        check(vec![rule(ALERTS[0], "ok")], Status::Warn, "no rule MCPHangarProviderNotSeenHealthy");
        check(vec![rule(ALERTS[0], "ok"), rule(ALERTS[1], "err")], Status::Fail, "MCPHangarProviderNotSeenHealthy fails: no such");
        check(vec![rule(ALERTS[0], "ok"), rule(ALERTS[1], "unknown")], Status::Ok, "are loaded");
        assert_eq!(alerts(&json!([])).status, Status::Warn);
    }
}
