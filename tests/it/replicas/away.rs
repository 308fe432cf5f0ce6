//! The server that holds the attempt log is stopped, or not there yet.

use serde_json::{Value, json};

use crate::support::medic::Medic;
use crate::support::world::Unwatched;
use crate::support::{Postgres, Proxy, V2_34, http, rest};

fn on(postgres: &Postgres) -> Value {
    json!({"storage": {"postgres": {"url": postgres.url("fleet")}}})
}

#[test]
fn a_stopped_server_means_no_action_and_no_crash_and_then_the_work_goes_on() {
    let mut postgres = Postgres::start();
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})).server("web", "exit", &json!({}))).watch(&on(&postgres));
    w.hangar.user_start("api");
    w.wait("the first is tried", 20, |w| w.proxy.starts("api").len() == 1);
    postgres.stop();
    w.hangar.set_mode("api", "ok");
    w.hangar.set_mode("web", "ok");
    // The start that was under way when the log went is all that there may be.
    rest(1.0);
    let mark = w.proxy.mark();
    w.hangar.set_mode("web", "exit");
    w.hangar.user_start("web");
    w.wait("it says why nothing happens", 30, |w| http::sum(&w.medic.metrics(), "hangar_medic_holds", "hold=\"log_unwritable\"") >= 1.0);
    w.wait("it is not ready, and well", 20, |w| {
        http::get(w.medic.port(), "/-/ready", None).status == 503 && http::get(w.medic.port(), "/-/healthy", None).ok()
    });
    w.hangar.set_mode("web", "ok");
    rest(4.0);
    w.nothing_sent_since(mark);
    postgres.resume();
    for id in ["api", "web"] {
        w.wait(&format!("{id} is brought back"), 60, |w| w.hangar.state(id) == "ready" && w.medic.incident(id)["phase"] == "closed");
    }
    w.wait("it is ready again", 20, |w| http::get(w.medic.port(), "/-/ready", None).ok());
    w.must("it was never started anew", w.medic.log().matches("store_open").count() == 1);
}

#[test]
fn a_medic_that_starts_without_its_server_stays_up_and_waits_for_it() {
    let mut postgres = Postgres::start();
    postgres.stop();
    let w = Unwatched::start(V2_34, |h| h.server("api", "exit", &json!({})));
    w.hangar.user_start("api");
    w.hangar.set_mode("api", "ok");
    let proxy = Proxy::start(w.hangar.port);
    let mut settings = on(&postgres);
    settings["hangar"]["log_file"] = json!(w.hangar.log_file());
    let mut medic = Medic::start(&w.dir().join("medic"), &proxy.url(), &settings);
    rest(3.0);
    assert_eq!((http::get(medic.port(), "/-/healthy", None).status, http::get(medic.port(), "/-/ready", None).status), (200, 503));
    assert!(proxy.acted_since(0).is_empty());
    postgres.resume();
    let back = crate::support::poll(std::time::Duration::from_mins(1), || {
        (w.hangar.state("api") == "ready" && medic.incident("api")["how"] == "recovered").then_some(())
    });
    assert!(back.is_some(), "{}", medic.report());
    assert!(medic.sigterm().is_some_and(|status| status.success()), "{}", medic.report());
}
