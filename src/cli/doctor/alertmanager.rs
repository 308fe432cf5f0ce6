//! Alertmanager: whether it answers, and whether one of its routes leads to us.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Check;
use super::prometheus::ask;
use crate::config::Config;

const PATH: &str = "/api/v1/alertmanager";
/// What Alertmanager shows in place of a URL that it keeps secret (0.26 and later).
const SECRET: &str = "<secret>";

pub(super) async fn examine(config: &Config, checks: &mut Vec<Check>) {
    const CHECK: &str = "alertmanager";
    let Some(url) = &config.alertmanager.url else {
        checks.push(Check::skip(CHECK, "alertmanager.url is not set: silences are not heard, and a death is seen at the next poll"));
        return;
    };
    match ask(url, "api/v2/status", &config.alertmanager.http, config.alertmanager.timeout).await {
        Ok((status, _)) => {
            checks.push(Check::ok(CHECK, format!("{url} answers")));
            checks.push(route(&status, config.web.listen_address.port()));
        }
        Err(why) => {
            let advice = "correct alertmanager.url (with the path prefix, if it has one) and the credentials in alertmanager.http";
            checks.push(Check::fail(CHECK, format!("{url}: {why}"), advice));
        }
    }
}

/// Reads its configuration, as it shows it: the receivers whose webhook is ours, and the routes that lead to one.
fn route(status: &Value, port: u16) -> Check {
    const CHECK: &str = "alertmanager_route";
    let text = status.pointer("/config/original").and_then(Value::as_str).unwrap_or_default();
    let Ok(config) = serde_yaml::from_str::<Value>(text) else {
        return Check::skip(CHECK, "Alertmanager does not show its configuration");
    };
    let snippet = format!(
        "add a receiver with webhook_configs: [{{url: 'http://<this host>:{port}{PATH}', send_resolved: true}}] and a route (continue: true) \
         with the matcher alertname=~\"MCPHangar.*\" that leads to it; it only makes us look sooner"
    );
    let receivers = config.get("receivers").and_then(Value::as_array).into_iter().flatten();
    let (mut ours, mut hidden, mut elsewhere) = (BTreeSet::new(), BTreeSet::new(), None);
    for receiver in receivers {
        let name = receiver.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        for hook in receiver.get("webhook_configs").and_then(Value::as_array).into_iter().flatten() {
            match hook.get("url").and_then(Value::as_str) {
                Some(SECRET) | None => {
                    hidden.insert(name.clone());
                }
                Some(url) => match reqwest::Url::parse(url) {
                    Ok(url) if url.path().ends_with(PATH) && url.port_or_known_default() == Some(port) => {
                        ours.insert(name.clone());
                    }
                    Ok(url) if url.path().ends_with(PATH) => elsewhere = url.port_or_known_default(),
                    Ok(_) | Err(_) => {}
                },
            }
        }
    }
    let reached = |names: &BTreeSet<String>| config.get("route").is_some_and(|route| leads(route, names, 0));
    if reached(&ours) {
        return Check::ok(CHECK, format!("a route leads to {PATH} at port {port}"));
    }
    if !ours.is_empty() {
        return Check::warn(CHECK, "a receiver has our webhook, but no route leads to it", snippet);
    }
    if let Some(other) = elsewhere {
        let found = format!("the webhook {PATH} goes to port {other}, and we listen on {port}");
        return Check::warn(CHECK, found, "correct the port, unless a proxy or a port mapping lies between");
    }
    if reached(&hidden) {
        return Check::skip(CHECK, format!("Alertmanager hides where its webhooks go; ours is http://<this host>:{port}{PATH}"));
    }
    Check::warn(CHECK, "no receiver has our webhook: a death is seen at the next poll", snippet)
}

/// Whether a route of this tree ends at one of these receivers.
fn leads(route: &Value, receivers: &BTreeSet<String>, depth: u32) -> bool {
    let here = route.get("receiver").and_then(Value::as_str).is_some_and(|r| receivers.contains(r));
    let below = || route.get("routes").and_then(Value::as_array).into_iter().flatten();
    here || (depth < 32 && below().any(|r| leads(r, receivers, depth + 1)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Status;
    use super::*;

    #[track_caller]
    fn check(receivers: &Value, route_tree: &Value, status: Status, words: &str) {
        let original = json!({"receivers": receivers, "route": route_tree}).to_string();
        let found = route(&json!({"config": {"original": original}}), 9923);
        assert!(found.status == status && format!("{found:?}").contains(words), "{words}: {found:?}");
    }

    #[test]
    fn the_route_to_us_is_there_missing_elsewhere_or_hidden() {
        let hook =
            |url: &str| json!([{"name": "page", "email_configs": [{"to": "x"}]}, {"name": "medic", "webhook_configs": [{"url": url}]}]);
        let to_medic = json!({"receiver": "page", "routes": [{"receiver": "page", "routes": [{"receiver": "medic"}]}]});
        let ours = hook("http://medic:9923/api/v1/alertmanager");
        check(&ours, &to_medic, Status::Ok, "a route leads to");
        check(&ours, &json!({"receiver": "page"}), Status::Warn, "no route leads to it");
        check(&hook("http://medic:9924/api/v1/alertmanager"), &to_medic, Status::Warn, "goes to port 9924");
        check(&hook("<secret>"), &to_medic, Status::Skip, "hides");
        check(&hook("http://other:1/x"), &to_medic, Status::Warn, "no receiver has our webhook");
        assert_eq!(route(&json!({}), 9923).status, Status::Warn);
    }
}
