//! One Hangar, one proxy, one daemon and a directory, as most tests need them.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::process::tail;
use super::{Hangar, Medic, Proxy, Seen, poll};

/// Dropped in this order: the daemon first, the directory last.
pub struct World {
    pub medic: Medic,
    pub proxy: Proxy,
    pub hangar: Hangar,
    dir: TempDir,
}

/// A Hangar that runs, before the daemon watches it.
pub struct Unwatched {
    pub hangar: Hangar,
    dir: TempDir,
}

impl Unwatched {
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a Hangar of this version; `servers` configures it.
    pub fn start(version: &str, servers: impl FnOnce(Hangar) -> Hangar) -> Self {
        let dir = tempfile::Builder::new().prefix("hangar-medic-").tempdir().unwrap();
        let mut hangar = servers(Hangar::new(version, dir.path()));
        hangar.start();
        Self { hangar, dir }
    }

    /// The same under a supervisor; also its service directory.
    pub fn start_supervised(version: &str, servers: impl FnOnce(Hangar) -> Hangar) -> (Self, std::path::PathBuf) {
        let dir = tempfile::Builder::new().prefix("hangar-medic-").tempdir().unwrap();
        let mut hangar = servers(Hangar::new(version, dir.path()));
        let service = hangar.start_supervised();
        (Self { hangar, dir }, service)
    }

    /// Starts the daemon on it, with Hangar's log.
    pub fn watch(self, settings: &Value) -> World {
        let mut all = json!({"hangar": {"log_file": self.hangar.log_file()}});
        super::medic::merge(&mut all, settings);
        self.watch_without_log(&all)
    }

    /// Starts the daemon on it, in Hangar's own environment; it knows no log file.
    pub fn watch_without_log(self, settings: &Value) -> World {
        let proxy = Proxy::start(self.hangar.port);
        let medic = Medic::start_in(&self.hangar.env, &self.dir.path().join("medic"), &proxy.url(), settings);
        let world = World { medic, proxy, hangar: self.hangar, dir: self.dir };
        world.wait("the daemon has read Hangar once", 20, |w| w.medic.status()["ready"] == json!(true));
        world
    }
}

impl World {
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until `holds`; else fails and prints what everybody saw.
    #[track_caller]
    pub fn wait(&self, what: &str, seconds: u64, holds: impl Fn(&Self) -> bool) {
        let came = poll(Duration::from_secs(seconds), || holds(self).then_some(()));
        assert!(came.is_some(), "not within {seconds} s: {what}\n{}", self.report());
    }

    /// Asserts with the report; `what` says what must be so.
    #[track_caller]
    pub fn must(&self, what: &str, holds: bool) {
        assert!(holds, "must be so: {what}\n{}", self.report());
    }

    /// Asserts the whole climb for a server: `action outcome`, oldest first.
    #[track_caller]
    pub fn climbed(&self, server: &str, expected: &[&str]) {
        assert_eq!(self.medic.climb(server), expected, "attempts for {server}\n{}", self.report());
    }

    /// Waits until the newest incident of a server is closed in this way.
    #[track_caller]
    pub fn wait_closed(&self, server: &str, how: &str, seconds: u64) {
        self.wait(&format!("the incident of {server} is closed: {how}"), seconds, |w| {
            let incident = w.medic.incident(server);
            incident["phase"] == "closed" && incident["how"] == how
        });
    }

    /// Waits until a server's incident is held for this reason.
    #[track_caller]
    pub fn wait_held(&self, server: &str, hold: &str, seconds: u64) {
        self.wait(&format!("{server} is held: {hold}"), seconds, |w| w.medic.incident(server)["hold"] == hold);
    }

    /// Asserts that the daemon changed nothing at Hangar since `mark`.
    #[track_caller]
    pub fn nothing_sent_since(&self, mark: usize) {
        let acted = self.proxy.acted_since(mark);
        assert!(acted.is_empty(), "nothing may be sent, but there was {acted:?}\n{}", self.report());
    }

    fn report(&self) -> String {
        let line = |s: &Seen| format!("{} {} {} -> {}", s.at, s.method, s.path, s.status);
        let quiet = |s: &&Seen| s.path != "/metrics";
        let seen: Vec<String> = self.proxy.seen().iter().filter(quiet).map(line).collect();
        format!(
            "{}\n--- requests but /metrics (last 30)\n{}\n--- Hangar's log\n{}",
            self.medic.report(),
            seen[seen.len().saturating_sub(30)..].join("\n"),
            tail(&self.hangar.log_file(), 8)
        )
    }
}
