//! A real Hangar and a real daemon on a machine whose wall clock steps, or that is suspended, with incidents open.
//!
//! Debian's `faketime` tells both processes the time; their monotonic clocks go on as they are, as when NTP steps a machine.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::medic::rungs;
use crate::support::process::signal;
use crate::support::world::{Unwatched, World};
use crate::support::{V2_34, rest};

fn library() -> String {
    let found = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|e| e.path().join("faketime/libfaketime.so.1"));
    let found = found.filter(|path| path.exists()).max();
    found.expect("no faketime: run tests/run.sh once, it installs it").to_str().unwrap().to_owned()
}

/// The machine: its clock, and what runs on it.
struct Machine {
    w: World,
    clock: PathBuf,
}

fn set(clock: &Path, seconds: i64) {
    let fresh = clock.with_extension("new");
    std::fs::write(&fresh, format!("{seconds:+}\n")).unwrap();
    std::fs::rename(fresh, clock).unwrap();
}

impl Machine {
    /// `bad` does not start once it died, `well` is never touched, `other` can be brought back.
    fn start(policy: &Value) -> Self {
        let mut clock = PathBuf::new();
        let w = Unwatched::start(V2_34, |mut h| {
            clock = h.log_file().with_file_name("clock");
            set(&clock, 0);
            let env = [
                ("LD_PRELOAD", library()),
                ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap().to_owned()),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
                ("FAKETIME_NO_CACHE", "1".to_owned()),
                ("NO_FAKE_STAT", "1".to_owned()),
            ];
            h.env = env.map(|(k, v)| (k.to_owned(), v)).to_vec();
            h.server("bad", "ok", &json!({})).server("well", "ok", &json!({})).server("other", "ok", &json!({}))
        });
        w.hangar.bring_up(&["bad", "well", "other"]);
        let mut policy = policy.clone();
        policy["rungs"] = rungs(&json!({"session_reconnect": {"pause": "500ms"}}));
        Self { w: w.watch(&json!({"policy": policy})), clock }
    }

    fn step(&self, seconds: i64) {
        set(&self.clock, seconds);
    }

    /// `bad` dies and every rung is tried on it.
    fn exhaust(&self) -> usize {
        self.w.hangar.set_mode("bad", "exit");
        self.w.hangar.kill_child("bad");
        self.w.wait("bad is exhausted", 60, |w| w.medic.incident("bad")["phase"] == "exhausted");
        self.starts("bad")
    }

    fn starts(&self, id: &str) -> usize {
        self.w.proxy.starts(id).len()
    }

    /// What must be so whatever the clock did: each start has its attempt, nobody else's server was touched.
    fn in_order(&self) {
        for id in ["bad", "other"] {
            let acted =
                self.w.medic.attempts(id).iter().filter(|a| a["rank"].as_u64() >= Some(2) && a["outcome"] != "not_applicable").count();
            assert!(self.starts(id) <= acted, "{id}: {} starts for {acted} attempts\n{}", self.starts(id), self.w.medic.report());
            assert_eq!(self.w.proxy.stops(id).len(), 0, "{id}");
        }
        assert_eq!((self.starts("well"), self.w.hangar.starts("well"), self.w.medic.incidents(Some("well")).len()), (0, 1, 0));
        self.w.must("no hold order came of it", self.w.medic.hold_orders().is_empty());
        self.w.must("it is of use", self.w.medic.status()["ready"] == json!(true));
    }
}

#[test]
fn an_hour_forward_makes_nothing_more_than_is_due_and_holds_nothing_for_ever() {
    let m = Machine::start(&json!({"exhausted_retry": "30m", "settle": "1s"}));
    let sent = m.exhaust();
    m.step(3600);
    m.w.wait("the slow try that is due is made", 30, |_| m.starts("bad") > sent);
    rest(4.0);
    assert_eq!(m.starts("bad"), sent + 1, "one was due, however much time seems to be gone\n{}", m.w.medic.report());
    assert!(m.w.medic.log().contains("clock_stepped"), "{}", m.w.medic.log());
    m.in_order();
    // What dies now is brought back now; what was exhausted, when its next try is due.
    m.w.hangar.kill_child("other");
    m.w.wait_closed("other", "recovered", 40);
    m.w.hangar.set_mode("bad", "ok");
    m.step(2 * 3600);
    // By our next slow try, or by Hangar's own: the third failure in a row set its saga to work.
    m.w.wait("bad is back", 60, |w| w.medic.incident("bad")["phase"] == "closed" && w.hangar.state("bad") == "ready");
    assert!(m.starts("bad") <= sent + 2, "{}", m.w.medic.report());
    m.in_order();
}

#[test]
fn an_hour_back_repeats_nothing_and_holds_nothing_for_ever() {
    let m = Machine::start(&json!({"exhausted_retry": "20s", "settle": "1s"}));
    let sent = m.exhaust();
    m.step(-3600);
    m.w.hangar.kill_child("other");
    m.w.wait_closed("other", "recovered", 40);
    assert_eq!(m.starts("other"), 1, "{}", m.w.medic.report());
    assert_eq!(m.starts("bad"), sent, "its slow try is not due: the step is not counted as waited\n{}", m.w.medic.report());
    m.in_order();
    // The clock is set right again: records of an hour ahead are of the past again.
    m.w.hangar.set_mode("bad", "ok");
    m.step(0);
    m.w.wait_closed("bad", "recovered", 60);
    assert_eq!(m.starts("bad"), sent + 1, "{}", m.w.medic.report());
    m.in_order();
}

/// A suspend stops every process and every monotonic clock; only the wall clock goes on. Two seconds of SIGSTOP and a step of
/// 40 s are the same to a process: neither its own clock nor its timers tell of the 40 s.
#[test]
fn forty_seconds_of_suspend_prove_nothing_and_repeat_nothing() {
    let m = Machine::start(&json!({"exhausted_retry": "0s", "settle": "15s"}));
    m.w.hangar.kill_child("other");
    m.w.wait("other was started", 30, |_| m.starts("other") == 1);
    m.w.wait("its start is verified", 30, |w| w.medic.incident("other")["phase"] == "settling");
    m.w.hangar.set_mode("bad", "exit");
    m.w.hangar.kill_child("bad");
    m.w.wait("an attempt on bad is under way or over", 30, |_| m.starts("bad") >= 1);
    let before = m.starts("bad");
    let (medic, hangar) = (m.w.medic.pid(), m.w.hangar.pid());
    for pid in [medic, hangar] {
        signal("STOP", pid);
    }
    m.step(40);
    // Dies while nobody runs: the settle window is over by the clock, and nothing was seen in it.
    m.w.hangar.kill_child("other");
    rest(2.0);
    for pid in [hangar, medic] {
        signal("CONT", pid);
    }
    m.w.wait("the death is seen", 40, |_| m.w.medic.attempts("other").iter().any(|a| a["outcome"] == "insufficient" && a["rank"] == 2));
    m.w.wait_closed("other", "recovered", 60);
    m.w.must(
        "the first start was not called a recovery",
        m.w.medic.incidents(Some("other")).iter().filter(|i| i["how"] == "recovered").count() == 1,
    );
    m.w.wait("bad is exhausted", 60, |w| w.medic.incident("bad")["phase"] == "exhausted");
    assert!(m.starts("bad") <= before.max(2), "{}", m.w.medic.report());
    m.in_order();
    // And what stood still is not held for ever.
    m.w.hangar.set_mode("bad", "ok");
    assert!(m.w.hangar.user_start("bad").ok());
    m.w.wait("bad is closed", 60, |w| w.medic.incident("bad")["phase"] == "closed");
}
