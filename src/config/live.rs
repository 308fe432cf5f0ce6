//! What of a changed configuration a running daemon can take over.

use std::collections::BTreeMap;

use super::yaml::Node;
use super::{Config, effective};

/// Settings that change while the daemon runs, by the beginning of their path. Every other one needs a restart.
const LIVE: &[&str] = &[
    "policy",
    "matrix",
    "requests",
    "reload",
    "web.principals",
    "web.webhook",
    "storage.retention",
    "hangar.poll_interval",
    "hangar.stale_after_polls",
];

/// The settings that differ and cannot change while the daemon runs, by path.
#[must_use]
pub fn needs_restart(in_use: &Config, wanted: &Config) -> Vec<String> {
    let (in_use, wanted) = (settings(in_use), settings(wanted));
    let differs = |path: &&String| in_use.get(*path) != wanted.get(*path);
    let live = |path: &&String| !LIVE.iter().any(|live| *path == live || path.strip_prefix(live).is_some_and(|p| p.starts_with('.')));
    let all = in_use.keys().chain(wanted.keys().filter(|path| !in_use.contains_key(*path)));
    all.filter(differs).filter(live).cloned().collect()
}

/// Every setting by its path; a list is one setting.
fn settings(config: &Config) -> BTreeMap<String, Node> {
    fn walk(path: &str, node: Node, found: &mut BTreeMap<String, Node>) {
        let Node::Map(entries) = node else {
            found.insert(path.to_owned(), node);
            return;
        };
        for (key, value) in entries {
            let Node::Text(key) = key else { continue };
            let path = if path.is_empty() { key } else { format!("{path}.{key}") };
            walk(&path, value, found);
        }
    }
    let mut found = BTreeMap::new();
    walk("", effective(config).0, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::valid;

    #[test]
    fn what_cannot_change_while_it_runs_is_named() {
        let base = valid("");
        for (yaml, paths) in [
            ("", &[][..]),
            ("policy: {mode: observe, settle: 5s, storm: {servers: 9}}", &[]),
            ("storage: {retention: 30d}\nhangar: {poll_interval: 2s}", &[]),
            ("web: {listen_address: '127.0.0.1:1'}", &["web.listen_address"]),
            (
                "storage: {path: /x}\nhangar: {instance: other, request_timeout: 1s}",
                &["hangar.instance", "hangar.request_timeout", "storage.path"],
            ),
            ("prometheus: {url: 'http://p'}\npolicy: {mode: observe}", &["prometheus.url"]),
        ] {
            assert_eq!(needs_restart(&base, &valid(yaml)), paths, "{yaml}");
            assert_eq!(needs_restart(&valid(yaml), &base), paths, "{yaml}");
        }
    }
}
