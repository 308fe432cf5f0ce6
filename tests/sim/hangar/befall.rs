//! What users, people and the world do to the modelled Hangar and its servers.

use std::collections::BTreeMap;

use hangar_medic::observe::events::What;
use hangar_medic::policy::{Reason, State, StopReason};
use serde_json::json;

use super::super::time::wall;
use super::{Hangar, Restart, Server, Upstream};

impl Hangar {
    /// Hangar's process ends; everything but the definitions, and the log, is lost.
    pub fn down(&mut self, back_at: i64) {
        self.up = false;
        self.back_at = Some(back_at);
        self.downs.push(self.now);
        self.lose_state();
    }

    /// The platform restarts it.
    pub(super) fn restarted(&mut self, restart: Restart) {
        let back_at = self.now + restart.lasts;
        self.took_medic |= restart.takes_medic;
        self.ordered_downs.push(self.now);
        self.restarted_by_others |= !restart.ours;
        if !self.up {
            self.back_at = Some(self.back_at.unwrap_or(back_at).max(back_at));
            return;
        }
        self.up = false;
        self.back_at = Some(back_at);
        for server in self.servers.values_mut() {
            server.owed = restart.ours && server.state == State::Ready;
        }
        self.lose_state();
    }

    /// The platform restarts what is behind a server.
    pub fn renew(&mut self, id: &str) {
        if let Some(server) = self.servers.get_mut(id).filter(|s| s.upstream == Upstream::NeedsRuntime) {
            server.upstream = Upstream::Works;
        }
    }

    fn lose_state(&mut self) {
        self.group_due.clear();
        for server in self.servers.values_mut() {
            let upstream = if server.upstream == Upstream::NeedsHangar { Upstream::Works } else { server.upstream };
            let fresh = Server::new(server.mode, server.group.clone(), upstream);
            let kept = std::mem::replace(server, fresh);
            server.blocked = kept.blocked;
            server.drift = kept.drift;
            server.broken = kept.broken;
            server.owed = kept.owed;
            server.stopped = kept.stopped;
            server.ever_stopped = kept.ever_stopped;
            server.last_served = kept.last_served;
            server.taken_out = kept.taken_out;
        }
        self.events.clear();
    }

    /// A user's call that names the server, or one through its group.
    pub fn call(&mut self, id: &str) {
        let Some(server) = self.servers.get_mut(id).filter(|_| self.up) else { return };
        let waits = server.backoff_until().is_some_and(|until| wall() < until);
        // A user's call is as good as a start by the operator.
        server.stopped &= server.state != State::Cold;
        let crashed = matches!(server.dead, Some((Reason::Crashed, _)));
        let blocked = matches!(server.dead, Some((Reason::CapabilityBlocked, _)));
        match server.state {
            State::Ready if server.process_gone => {
                self.say(json!({"event": format!("mcp_server_dead: {id}"), "level": "warning"}));
                self.begin_start(id);
            }
            State::Ready if !server.session_lost => server.last_healthy = Some(wall()),
            State::Ready | State::Initializing | State::Degraded => {}
            State::Dead if blocked || (waits && !crashed) => {}
            State::Cold | State::Dead => self.begin_start(id),
        }
    }

    /// Ends cold, whatever it was.
    pub fn stop(&mut self, id: &str, reason: StopReason) {
        let (now, lag, twice) = (self.now, self.rng.between(0, 250), self.version < (2, 21, 0));
        let Some(server) = self.servers.get_mut(id).filter(|_| self.up) else { return };
        server.state = State::Cold;
        server.gauge = Some(State::Cold);
        server.dead = None;
        server.saga = None;
        server.start = None;
        server.stuck = false;
        server.session_lost = false;
        server.process_gone = false;
        server.in_rotation = false;
        server.evicted = false;
        server.uncounted.push((now + lag, reason));
        if twice && !matches!(reason, StopReason::Idle | StopReason::Shutdown | StopReason::MaxRetriesExceeded) {
            server.uncounted.push((now + lag, StopReason::Shutdown));
        }
        self.tell(id, What::Stopped(reason));
        self.watch();
    }

    /// A person's stop, or a detection rule's.
    pub fn stop_on_purpose(&mut self, id: &str, reason: StopReason) {
        if self.up && self.servers.contains_key(id) {
            self.stop(id, reason);
            let server = self.servers.get_mut(id).expect("it is there");
            server.stopped = true;
            server.owed = false;
            server.ever_stopped = true;
        }
    }

    /// The process of a ready server ends.
    pub fn crash(&mut self, id: &str) {
        if let Some(server) = self.servers.get_mut(id).filter(|s| s.state == State::Ready) {
            server.process_gone = true;
            if server.mode == "subprocess" {
                self.say(json!({"event": "stdio_client_eof_on_stdout", "level": "warning", "logger": "mcp_hangar.stdio_client"}));
            }
        }
        self.watch();
    }

    /// As if so many starts had failed.
    pub fn kill(&mut self, id: &str, failures: u32, reason: Reason) {
        if !self.up || !self.servers.contains_key(id) {
            return;
        }
        let server = self.servers.get_mut(id).expect("it is there");
        // Somebody must have started it for that.
        server.stopped = false;
        server.failures = failures;
        server.failed_at = (failures > 0).then(wall);
        server.starts_failed += u64::from(failures);
        if reason == Reason::GivenUp {
            server.stops.entry(StopReason::MaxRetriesExceeded).and_modify(|n| *n += 1).or_insert(1);
            self.say_failed(id, "McpServerStartError");
            self.die(id, reason);
            self.say(json!({"mcp_server_id": id, "reason": "max_retries_exceeded", "event": "mcp_server_given_up", "level": "warning"}));
        } else if reason == Reason::StartFailed {
            self.say_failed(id, "McpServerStartError");
            self.die(id, reason);
        } else {
            self.say(json!({"event": format!("mcp_server_dead: {id}"), "level": "warning"}));
            self.die(id, Reason::Crashed);
        }
        self.watch();
    }

    /// Degraded or initializing, and nothing goes on.
    pub fn stick(&mut self, id: &str, state: State) {
        let now = self.now;
        let known = |s: &&mut Server| s.gauge.is_some() && s.state != State::Cold;
        let Some(server) = self.servers.get_mut(id).filter(|_| self.up).filter(known) else { return };
        server.stuck = true;
        server.dead = None;
        server.start = None;
        server.saga = None;
        // The same gauge as before tells nobody of anything new.
        if server.gauge != Some(state) || server.state != state {
            server.busy_since = now;
        }
        server.gauge = Some(state);
        server.state = state;
        server.in_rotation = false;
        self.watch();
    }

    /// A changed definition of a dead server: REST cold, and the gauge stays.
    pub fn edit(&mut self, id: &str) {
        if let Some(server) = self.servers.get_mut(id).filter(|s| self.up && s.state == State::Dead) {
            server.state = State::Cold;
            server.dead = None;
            server.saga = None;
        }
    }

    /// Spends the bucket that all callers share.
    pub fn spend(&mut self, n: f64) {
        self.refill();
        self.tokens = (self.tokens - n).max(0.0);
    }

    /// A blocked server's upstream exposes yet another tool, and somebody started it: what a person looked at is no longer so.
    pub fn drift_on(&mut self, id: &str) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.drift += 1;
        if self.up && server.blocked && server.state == State::Dead {
            self.begin_start(id);
        }
    }

    /// A group with nothing to select has its evicted members started.
    pub(super) fn recover_groups(&mut self) {
        if self.version < (2, 23, 0) || !self.up {
            return self.group_due.clear();
        }
        let mut groups: BTreeMap<String, (usize, Vec<String>)> = BTreeMap::new();
        for (id, server) in &self.servers {
            if let Some(group) = &server.group {
                let entry = groups.entry(group.clone()).or_default();
                entry.0 += usize::from(server.in_rotation);
                if server.evicted && server.state == State::Dead && !server.blocked {
                    entry.1.push(id.clone());
                }
            }
        }
        for (group, (selectable, evicted)) in groups {
            if selectable > 0 || evicted.is_empty() {
                self.group_due.remove(&group);
                continue;
            }
            let (due, wait) = *self.group_due.entry(group.clone()).or_insert((self.now + 30_000, 30_000));
            if due <= self.now {
                self.group_due.insert(group, (self.now + wait * 2, (wait * 2).min(600_000)));
                for id in evicted {
                    self.begin_start(&id);
                }
            }
        }
    }
}
