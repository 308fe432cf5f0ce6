//! A Hangar from before 2.20, of which little can be seen.

use serde_json::json;

use crate::support::world::Unwatched;
use crate::support::{V2_19, rest};

#[test]
fn of_a_hangar_before_2_20_the_daemon_says_what_it_cannot_see_and_does_no_harm() {
    let w = Unwatched::start(V2_19, |h| h.server("api", "ok", &json!({})).server("idle", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&json!({}));
    w.wait("its version is known", 10, |w| w.medic.status()["hangar"]["version"] == "2.19.1");
    let cannot = w.medic.status()["hangar"]["cannot_see"].clone();
    let cannot: Vec<&str> = cannot.as_array().unwrap().iter().filter_map(|said| said.as_str()).collect();
    assert_eq!(cannot.len(), 4, "{cannot:?}");
    assert!(cannot.iter().all(|said| said.contains("older than 2.20.0")), "{cannot:?}");
    assert_eq!(w.medic.log().matches("\"cannot\"").count(), 4, "each is said once\n{}", w.medic.log());
    rest(3.0);
    w.must("a server that is well is left alone", w.medic.incidents(None).is_empty());
    w.nothing_sent_since(0);
}
