//! What the configuration gives the broad half of the ladder to act with, as far as deciding needs it: names only.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use jiff::SignedDuration;

use super::ladder::Rung;
use super::limits::Policy;

/// Everything is off by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// Rungs 8 to 10 that have an executor.
    pub restarts: BTreeSet<Rung>,
    /// Servers whose upstream has an executor (rung 6).
    pub upstreams: BTreeSet<String>,
    /// Servers whose full definition is at hand (rung 7).
    pub definitions: BTreeSet<String>,
    /// Hangar's configuration file can be looked at (rung 3).
    pub config_file: bool,
    /// Replicas of this Hangar.
    pub instances: NonZeroU32,
    /// The replicas share a lock.
    pub fleet_lock: bool,
    /// Bound of one restart of Hangar, from the order to the first healthy answer.
    pub restart_within: SignedDuration,
}

impl Default for Platform {
    fn default() -> Self {
        Self {
            restarts: BTreeSet::new(),
            upstreams: BTreeSet::new(),
            definitions: BTreeSet::new(),
            config_file: false,
            instances: NonZeroU32::MIN,
            fleet_lock: false,
            restart_within: SignedDuration::from_mins(10),
        }
    }
}

impl Platform {
    /// Why a rung can act on nothing at all, whatever the incident.
    #[must_use]
    pub fn missing(&self, rung: Rung) -> Option<&'static str> {
        match rung {
            Rung::ConfigurationReload if !self.config_file => {
                Some("hangar.config_file is not set: nobody can tell what a reload would delete")
            }
            Rung::RollingMcpRestart | Rung::FullMcpRestart | Rung::HostRestart if !self.restarts.contains(&rung) => {
                Some("no executor is configured for it (platform.restarts)")
            }
            Rung::ClientReconnect
            | Rung::CapabilityRefresh
            | Rung::SessionReconnect
            | Rung::ConfigurationReload
            | Rung::LeaseRecovery
            | Rung::WorkerRestart
            | Rung::RoleRuntimeRestart
            | Rung::ConnectorRestart
            | Rung::RollingMcpRestart
            | Rung::FullMcpRestart
            | Rung::HostRestart => None,
        }
    }
}

impl Policy {
    /// Why a rung is not configured; `None` when it is.
    #[must_use]
    pub fn why_not(&self, rung: Rung) -> Option<&'static str> {
        if self.rung(rung).is_none() { Some("not listed in policy.rungs") } else { self.platform.missing(rung) }
    }
}
