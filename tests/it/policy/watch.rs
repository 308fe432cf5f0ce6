//! What the medic sees of the modelled Hangar: gauges by polling, REST answers that go out of date, the log.

use std::collections::{BTreeMap, BTreeSet};

use hangar_medic::policy::{HangarReading, History, Policy, ServerReading, Snapshot, State, suspect};
use jiff::Timestamp;

use super::hangar::{Hangar, secs};

/// What can go wrong with reading.
#[allow(clippy::struct_excessive_bools, reason = "independent facts of a model")]
#[derive(Debug, Clone, Default)]
pub struct Faults {
    pub metrics: bool,
    pub rest: bool,
    pub no_log: bool,
    pub auth: bool,
    pub forbidden: bool,
}

#[derive(Debug, Default)]
pub struct Watch {
    pub hangar: HangarReading,
    pub servers: BTreeMap<String, (ServerReading, u64)>,
    pub faults: Faults,
}

impl Watch {
    pub fn read_metrics(&mut self, hangar: &Hangar, now: Timestamp) {
        let h = &mut self.hangar;
        if !hangar.up || self.faults.metrics {
            h.fresh = false;
            h.lost_at.get_or_insert(now);
            return;
        }
        h.fresh = true;
        h.read_at = Some(now);
        h.version = Some(hangar.version);
        let restarted = h.process_start != Some(hangar.process_start);
        if restarted {
            self.servers.clear();
        } else {
            h.lost_at = None;
        }
        h.process_start = Some(hangar.process_start);
        for (id, server) in &hangar.servers {
            let (reading, changes) = self.servers.entry(id.clone()).or_default();
            if reading.gauge != server.gauge || reading.gauge_since.is_none() {
                reading.gauge_since = Some(now);
            }
            if *changes != server.changes {
                reading.rest_outdated = reading.rest.is_some();
                *changes = server.changes;
            }
            reading.gauge = server.gauge;
            reading.last_healthy = server.last_healthy;
            reading.stops = server.stops.clone();
            reading.starting = server.start_ends.is_some();
        }
        self.read_log(hangar);
    }

    fn read_log(&mut self, hangar: &Hangar) {
        for (id, (reading, _)) in &mut self.servers {
            reading.log = hangar.log(id).filter(|_| !self.faults.no_log);
        }
    }

    pub fn read_server(&mut self, hangar: &Hangar, id: &str, now: Timestamp) {
        let (reading, changes) = self.servers.entry(id.to_owned()).or_default();
        if self.faults.auth {
            self.hangar.auth_refused = true;
            self.hangar.auth_refused_until = Some(now + secs(900));
        }
        if self.faults.forbidden {
            self.hangar.read_forbidden = true;
        }
        if !hangar.up || self.faults.rest || self.faults.auth || self.faults.forbidden {
            reading.rest_failed_at = Some(now);
            return;
        }
        self.hangar.read_forbidden = false;
        reading.rest_failed_at = None;
        reading.rest = hangar.rest(id, now);
        let starting = reading.rest.as_ref().is_some_and(|r| r.state == State::Initializing);
        reading.initializing_since = starting.then(|| reading.initializing_since.unwrap_or(now));
        reading.rest_not_found = reading.rest.is_none();
        reading.rest_outdated = false;
        reading.group = hangar.group(id, now);
        *changes = hangar.servers.get(id).map_or(0, |s| s.changes);
        self.read_log(hangar);
    }

    /// As the board does it: how old anything is cannot be told any more.
    pub fn clock_stepped(&mut self) {
        self.hangar.fresh = false;
        self.hangar.read_at = None;
        for (reading, _) in self.servers.values_mut() {
            reading.rest_outdated |= reading.rest.is_some();
        }
    }

    pub fn forget_refusals(&mut self) {
        self.hangar.auth_refused = false;
        self.hangar.auth_refused_until = None;
        self.hangar.read_forbidden = false;
    }

    pub fn snapshot(&self, policy: &Policy, history: &History, running: &BTreeSet<String>, now: Timestamp) -> Snapshot {
        let wanted = |id: &String, reading: &ServerReading| {
            history.open.contains_key(id) || history.orders.contains_key(id) || suspect(policy, reading, now)
        };
        let known = self.servers.values().filter(|(r, _)| r.gauge.is_some_and(|g| g != State::Cold)).count().max(self.servers.len());
        let servers = self.servers.iter().filter(|(id, (r, _))| wanted(id, r)).map(|(id, (r, _))| (id.clone(), r.clone())).collect();
        Snapshot { known, hangar: self.hangar.clone(), servers, running: running.clone(), ..Snapshot::default() }
    }
}
