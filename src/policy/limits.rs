//! The operator's policy: every bound the planner obeys.

use std::num::{NonZeroU8, NonZeroU32};

use jiff::SignedDuration;

use super::ladder::Rung;
use super::matrix::Matrix;
use super::owners::Owners;
use super::platform::Platform;
use super::words::words;

words! {
    /// Whether the daemon acts or only records what it would do.
    pub enum Mode as "mode" {
        Observe = "observe",
        Act = "act",
    }
}

/// Bounds of one enabled rung.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RungLimits {
    pub action: Rung,
    /// Attempts of this rung in one incident.
    pub attempts_max: NonZeroU8,
    /// Pause after an attempt of this rung before the next one. Not negative.
    pub pause: SignedDuration,
}

/// Sliding-window budgets. Rungs 0 and 1 only look and are not counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budgets {
    /// Starts of ours per server within `starts_window`.
    pub starts_per_server: NonZeroU32,
    pub starts_window: SignedDuration,
    /// Acting attempts over all servers within `actions_window`.
    pub actions: NonZeroU32,
    pub actions_window: SignedDuration,
    /// Attempts under way at once over all servers; one per target always.
    pub in_flight: NonZeroU32,
    /// Starts sent to Hangar per second; Hangar's bucket is shared with its users.
    pub starts_per_second: NonZeroU32,
}

/// Many servers dead at once is one cause: one canary goes first.
#[derive(Debug, Clone, PartialEq)]
pub struct StormLimits {
    /// At least this many incidents opened within `window` ...
    pub servers: NonZeroU32,
    /// ... and at least this share (0 to 1) of the known servers.
    pub share: f64,
    pub window: SignedDuration,
}

/// Everything the operator decides. Durations are never negative.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub mode: Mode,
    /// Enabled rungs, each once, in rank order.
    pub rungs: Vec<RungLimits>,
    /// A recovery must hold this long to be proved.
    pub settle: SignedDuration,
    /// A death within this time after a recovery reopens the incident on the next rung.
    pub flap_window: SignedDuration,
    /// Not cold, and nothing healthy seen for this long (runbook: 15 min).
    pub not_seen_healthy_after: SignedDuration,
    /// Degraded this long without a start attempt seen is a symptom.
    pub degraded_too_long_after: SignedDuration,
    /// Initializing this long is a symptom.
    pub stuck_starting_after: SignedDuration,
    /// A server seen dead at most this long before Hangar's restart is lost in it, not idle.
    pub lost_in_restart_within: SignedDuration,
    /// Hangar gone this soon after our start of a server: that start is held responsible.
    pub took_hangar_down_within: SignedDuration,
    /// First slow retry of an exhausted incident; zero means never. Doubles up to `exhausted_retry_max`.
    pub exhausted_retry: SignedDuration,
    pub exhausted_retry_max: SignedDuration,
    /// An incident that opens this soon after another waits this long, so that a storm is seen first.
    pub neighbour_wait: SignedDuration,
    /// How long Hangar's group recovery worker (2.23+) gets for its one pass.
    pub group_recovery_pass: SignedDuration,
    /// A started group member that is out of rotation this long after ready may need a rebalance.
    pub rejoin_after: SignedDuration,
    /// How long an approval may be used.
    pub approval_lasts: SignedDuration,
    pub budgets: Budgets,
    pub storm: StormLimits,
    /// Which role may do what, the daemon's own included.
    pub matrix: Matrix,
    /// An allowed restart request becomes a step; else it is recorded and reported only.
    pub requests_act: bool,
    /// Whom to tell about which server.
    pub owners: Owners,
    /// `HANGAR_MEDIC_BREAKGLASS_AUTHORIZATION` is set and not empty where the daemon runs. No setting of the file.
    pub break_glass_authorised: bool,
    /// What rungs 3 and 6 to 10 can act with.
    pub platform: Platform,
}

impl Policy {
    /// The limits of a rung, if it is enabled.
    #[must_use]
    pub fn rung(&self, rung: Rung) -> Option<&RungLimits> {
        self.rungs.iter().find(|r| r.action == rung)
    }
}

const fn nz8(n: u8) -> NonZeroU8 {
    match NonZeroU8::new(n) {
        Some(n) => n,
        None => NonZeroU8::MIN,
    }
}

const fn nz32(n: u32) -> NonZeroU32 {
    match NonZeroU32::new(n) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    }
}

impl Default for Policy {
    fn default() -> Self {
        let rung = |action: Rung| RungLimits {
            action,
            attempts_max: nz8(if action == Rung::SessionReconnect { 2 } else { 1 }),
            pause: if action.only_looks() { SignedDuration::ZERO } else { SignedDuration::from_secs(5) },
        };
        Self {
            mode: Mode::Act,
            rungs: Rung::ALL.iter().copied().filter(|r| r.on_by_default()).map(rung).collect(),
            settle: SignedDuration::from_secs(10),
            flap_window: SignedDuration::from_mins(10),
            not_seen_healthy_after: SignedDuration::from_mins(15),
            degraded_too_long_after: SignedDuration::from_secs(300),
            stuck_starting_after: SignedDuration::from_secs(120),
            lost_in_restart_within: SignedDuration::from_mins(10),
            took_hangar_down_within: SignedDuration::from_secs(60),
            exhausted_retry: SignedDuration::from_mins(15),
            exhausted_retry_max: SignedDuration::from_hours(1),
            neighbour_wait: SignedDuration::from_secs(1),
            group_recovery_pass: SignedDuration::from_secs(35),
            rejoin_after: SignedDuration::from_secs(30),
            approval_lasts: SignedDuration::from_mins(15),
            budgets: Budgets {
                starts_per_server: nz32(4),
                starts_window: SignedDuration::from_hours(1),
                actions: nz32(20),
                actions_window: SignedDuration::from_mins(10),
                in_flight: nz32(4),
                starts_per_second: nz32(2),
            },
            storm: StormLimits { servers: nz32(5), share: 0.3, window: SignedDuration::from_secs(60) },
            matrix: Matrix::default(),
            requests_act: false,
            owners: Owners::default(),
            break_glass_authorised: false,
            platform: Platform::default(),
        }
    }
}
