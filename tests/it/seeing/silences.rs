//! A silence says that a person is at work.

use serde_json::{Value, json};

use crate::support::monitoring::Alertmanager;
use crate::support::process::free_port;
use crate::support::world::{Unwatched, World};
use crate::support::{V2_34, rest};

fn asking(url: &str, on_unreachable: &str) -> Value {
    json!({"alertmanager": {"url": url, "poll_interval": "500ms", "on_unreachable": on_unreachable}})
}

#[test]
fn a_silenced_server_is_held_until_the_silence_expires_and_its_neighbour_is_not() {
    let servers = |h: crate::support::Hangar| h.server("api", "ok", &json!({})).server("db", "ok", &json!({}));
    let w = Unwatched::start(V2_34, servers);
    w.hangar.bring_up(&["api", "db"]);
    let mut alertmanager = Alertmanager::start(w.dir(), "am", free_port());
    alertmanager.silence(&[("alertname", "MCPHangarProviderDead"), ("mcp_server", "api")], 14);
    let w = w.watch(&asking(&alertmanager.url(), "narrow"));
    w.hangar.kill_child("api");
    w.wait_held("api", "silenced", 10);
    let incident = w.medic.incident("api");
    assert!(incident["why"].as_str().is_some_and(|why| why.contains("ann") && why.contains("replacing the disk")), "{incident}");
    w.must("it says until when", incident["hold_until"].is_string());
    w.hangar.kill_child("db");
    w.wait_closed("db", "recovered", 30);
    // The silence holds on while nobody can be asked about it.
    alertmanager.sigkill();
    rest(1.5);
    assert_eq!((w.medic.incident("api")["hold"].clone(), w.hangar.starts("api")), (json!("silenced"), 1));
    w.climbed("api", &[]);
    alertmanager.restart();
    w.wait_closed("api", "recovered", 40);
    assert_eq!(w.proxy.starts("api").len(), 1);
}

fn unreachable(on_unreachable: &str) -> World {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&asking(&format!("http://127.0.0.1:{}", free_port()), on_unreachable));
    w.hangar.kill_child("api");
    w
}

#[test]
fn while_alertmanager_cannot_be_asked_narrow_rungs_are_climbed_by_default_and_none_where_told() {
    let narrow = unreachable("narrow");
    narrow.wait_closed("api", "recovered", 30);
    let hold = unreachable("hold");
    hold.wait_held("api", "silenced", 20);
    hold.climbed("api", &["client_reconnect insufficient", "capability_refresh insufficient"]);
    hold.nothing_sent_since(0);
}
