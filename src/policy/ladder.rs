//! The recovery ladder: eleven actions from the narrowest to the broadest (playbook, *Ladder*).

use serde::Serialize;

use super::words::words;

words! {
    /// One action of the ladder. Order is rank order.
    pub enum Rung as "action" {
        ClientReconnect = "client_reconnect",
        CapabilityRefresh = "capability_refresh",
        SessionReconnect = "session_reconnect",
        ConfigurationReload = "configuration_reload",
        LeaseRecovery = "lease_recovery",
        WorkerRestart = "worker_restart",
        RoleRuntimeRestart = "role_runtime_restart",
        ConnectorRestart = "connector_restart",
        RollingMcpRestart = "rolling_mcp_restart",
        FullMcpRestart = "full_mcp_restart",
        HostRestart = "host_restart",
    }
}

impl Rung {
    /// 0 (narrowest) to 10 (broadest).
    #[must_use]
    pub const fn rank(self) -> u8 {
        self as u8
    }

    /// The rung of this rank; `None` above 10.
    #[must_use]
    pub fn from_rank(rank: u8) -> Option<Self> {
        Self::ALL.get(usize::from(rank)).copied()
    }

    /// Whether a client may do this for itself (playbook).
    #[must_use]
    pub const fn self_service(self) -> bool {
        self.rank() <= 2
    }

    /// Ranks 8 to 10 touch servers that are healthy and need the gate.
    #[must_use]
    pub const fn broad(self) -> bool {
        self.rank() >= 8
    }

    /// Rungs 0 and 1 only look; everything above changes something at Hangar.
    #[must_use]
    pub const fn only_looks(self) -> bool {
        self.rank() <= 1
    }

    /// `fraction_avoided_full_restart` counts every recovery but these (playbook, *Metrics*).
    #[must_use]
    pub const fn is_full_restart(self) -> bool {
        matches!(self, Self::FullMcpRestart | Self::HostRestart)
    }

    /// Whether this version enables the rung when the configuration says nothing.
    #[must_use]
    pub const fn on_by_default(self) -> bool {
        matches!(self, Self::ClientReconnect | Self::CapabilityRefresh | Self::SessionReconnect | Self::LeaseRecovery | Self::WorkerRestart)
    }

    /// Touches every server of the Hangar, and has to bring back what was ready or dead before.
    #[must_use]
    pub const fn restores_fleet(self) -> bool {
        matches!(self, Self::ConfigurationReload | Self::RollingMcpRestart | Self::FullMcpRestart | Self::HostRestart)
    }

    /// Takes something away first: what is to be put back is on record before, and the next process puts it back.
    #[must_use]
    pub const fn saves_first(self) -> bool {
        self.puts_back() || matches!(self, Self::RoleRuntimeRestart)
    }

    /// Its second half puts back what was taken away, whatever became of the server whose incident it is.
    #[must_use]
    pub const fn puts_back(self) -> bool {
        self.restores_fleet() || matches!(self, Self::ConnectorRestart)
    }

    /// What the rung does in Hangar's terms, in one sentence.
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Self::ClientReconnect => "drop and re-dial every connection to Hangar and read the server afresh; clears false positives",
            Self::CapabilityRefresh => "read who we are, the server's detail, tools and last 200 log lines, and keep them as evidence",
            Self::SessionReconnect => "a deliberate start of the dead server, after its backoff: the main repair",
            Self::ConfigurationReload => "reload Hangar's configuration, only if the file changed and names every live server; then start",
            Self::LeaseRecovery => {
                "group member: start it, the group takes it back into rotation; several replicas: wait out a stale management lease, then start"
            }
            Self::WorkerRestart => "stop then start of one server that is not dead but does not work",
            Self::RoleRuntimeRestart => "restart the upstream of a remote server, or start a group's dead members one by one",
            Self::ConnectorRestart => "take the server's definition out of Hangar and put it back",
            Self::RollingMcpRestart => "the platform restarts Hangar's replicas one at a time",
            Self::FullMcpRestart => "the platform restarts Hangar; then every server that was up or dead before is brought to ready",
            Self::HostRestart => "the operator's hook restarts the host",
        }
    }
}

/// One line of the ladder document (`ladder`, `GET /api/v1/ladder`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LadderRow {
    pub rank: u8,
    pub action: Rung,
    pub self_service: bool,
    pub broad: bool,
    /// What it does here.
    pub what: &'static str,
    pub configured: bool,
    /// Why it is not configured; absent when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<&'static str>,
}

/// The ladder document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LadderDocument {
    pub rungs: Vec<LadderRow>,
}

/// The whole ladder as a document; `why_not` tells why the configuration has a rung off.
#[must_use]
pub fn document(why_not: impl Fn(Rung) -> Option<&'static str>) -> LadderDocument {
    let row = |&rung: &Rung| {
        let why_not = why_not(rung);
        LadderRow {
            rank: rung.rank(),
            action: rung,
            self_service: rung.self_service(),
            broad: rung.broad(),
            what: rung.what(),
            configured: why_not.is_none(),
            why_not,
        }
    };
    LadderDocument { rungs: Rung::ALL.iter().map(row).collect() }
}
