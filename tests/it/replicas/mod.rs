//! Several replicas of one Hangar on one PostgreSQL, a medic beside each.

mod away;
mod fleet;
mod lease;
mod repair;

use serde_json::{Value, json};

use crate::support::medic::merge;
use crate::support::process::free_port;
use crate::support::world::{Unwatched, World};
use crate::support::{Postgres, V2_34};

/// Two real replicas under a supervisor each, before anybody watches them. Dropped before their server.
struct Replicas {
    a: Unwatched,
    b: Unwatched,
    /// Their service directories.
    services: [std::path::PathBuf; 2],
    /// The port of the upstream of `far`, which nobody serves yet.
    far: u16,
    postgres: Postgres,
}

impl Replicas {
    /// Both have the `remote` servers `far` and `up`; the upstream of `up` answers.
    fn start() -> Self {
        // Only calls and starts find out that a server is gone: what the test does decides when.
        Self::start_checking(60)
    }

    /// The replicas check the health of their servers this often, in seconds.
    fn start_checking(every: u32) -> Self {
        Self::start_with(move |mut h| {
            h.check_health_every(every);
            h
        })
    }

    fn start_with(more: impl Fn(crate::support::Hangar) -> crate::support::Hangar) -> Self {
        let postgres = Postgres::start();
        postgres.execute("postgres", "CREATE DATABASE hangar");
        let (far, up) = (free_port(), free_port());
        let start =
            || Unwatched::start_supervised(V2_34, |h| more(h.remote("far", far).remote("up", up).on_postgres(postgres.port, "hangar")));
        let ((a, of_a), (mut b, of_b)) = (start(), start());
        b.hangar.start_upstream(up);
        a.hangar.bring_up(&["up"]);
        b.hangar.bring_up(&["up"]);
        Self { a, b, services: [of_a, of_b], far, postgres }
    }

    /// The settings of the medic beside replica `instance`.
    fn settings(&self, instance: &str, over: &Value) -> Value {
        let mut settings = json!({
            "hangar": {"instance": instance, "instances": 2},
            "storage": {"postgres": {"url": self.postgres.url("fleet")}},
        });
        merge(&mut settings, over);
        settings
    }
}

/// Two watched replicas. Dropped before their server.
struct Fleet {
    a: World,
    b: World,
    postgres: Postgres,
}

impl Replicas {
    fn watch(self, over: &Value) -> Fleet {
        let (of_a, of_b) = (self.settings("a", over), self.settings("b", over));
        let Self { a, b, postgres, .. } = self;
        Fleet { a: a.watch(&of_a), b: b.watch(&of_b), postgres }
    }
}
