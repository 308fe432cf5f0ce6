//! The named conditions seen in signals, and the narrowest rung that can clear each.

use super::ladder::Rung;
use super::reason::Reason;
use super::words::words;

words! {
    /// A condition of one target (playbook, *Symptom → first rung*; the `server_*` ones are Hangar's).
    pub enum Symptom as "symptom" {
        TransportEof = "transport_eof",
        StaleCapability = "stale_capability",
        StaleSession = "stale_session",
        ConfigDrift = "config_drift",
        StaleLease = "stale_lease",
        WorkerCorrupt = "worker_corrupt",
        GroupUnavailable = "group_unavailable",
        ConnectorCorrupt = "connector_corrupt",
        DaemonCorrupt = "daemon_corrupt",
        ServerCrashed = "server_crashed",
        ServerStartFailed = "server_start_failed",
        ServerGivenUp = "server_given_up",
        ServerCapabilityBlocked = "server_capability_blocked",
        ServerStuckStarting = "server_stuck_starting",
        ServerDegradedTooLong = "server_degraded_too_long",
        ServerNotSeenHealthy = "server_not_seen_healthy",
        ServerLostInRestart = "server_lost_in_restart",
        HangarUnreachable = "hangar_unreachable",
    }
}

impl Symptom {
    /// The narrowest rung that can clear this symptom. The daemon and `recommend` share this table.
    #[must_use]
    pub const fn first_rung(self) -> Rung {
        match self {
            Self::TransportEof | Self::ServerCrashed | Self::HangarUnreachable => Rung::ClientReconnect,
            // Look first: these may hide a capability block or a broken upstream.
            Self::StaleCapability
            | Self::ServerCapabilityBlocked
            | Self::ServerStartFailed
            | Self::ServerGivenUp
            | Self::ServerLostInRestart => Rung::CapabilityRefresh,
            Self::StaleSession | Self::ServerNotSeenHealthy => Rung::SessionReconnect,
            Self::ConfigDrift => Rung::ConfigurationReload,
            Self::StaleLease => Rung::LeaseRecovery,
            Self::WorkerCorrupt | Self::ServerStuckStarting | Self::ServerDegradedTooLong => Rung::WorkerRestart,
            Self::GroupUnavailable => Rung::RoleRuntimeRestart,
            Self::ConnectorCorrupt => Rung::ConnectorRestart,
            Self::DaemonCorrupt => Rung::RollingMcpRestart,
        }
    }

    /// The symptom of a server that Hangar calls dead for this reason.
    #[must_use]
    pub const fn of_dead(reason: Reason) -> Self {
        match reason {
            Reason::Crashed => Self::ServerCrashed,
            Reason::StartFailed => Self::ServerStartFailed,
            Reason::GivenUp => Self::ServerGivenUp,
            Reason::CapabilityBlocked => Self::ServerCapabilityBlocked,
            Reason::Unknown => Self::ServerNotSeenHealthy,
        }
    }

    /// Whether what is broken may be only our own link to Hangar, so that rungs 0 and 1 can truly recover it.
    #[must_use]
    pub const fn is_of_our_link(self) -> bool {
        matches!(self, Self::HangarUnreachable | Self::StaleCapability)
    }
}
