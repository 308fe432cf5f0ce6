//! The words of records and plans as sentences, for a person who has never seen them.

use super::plan::Phase;
use super::reason::{Reason, Source};
use super::record::{Closed, HoldCause, Outcome, Receipt};

impl Reason {
    /// What happened to the server.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::GivenUp => "Hangar tried to restart it several times and gave up.",
            Self::Crashed => "Its process or connection died.",
            Self::StartFailed => "It could not be started.",
            Self::CapabilityBlocked => "It exposed tools that it does not declare, so Hangar blocked it: a security signal.",
            Self::Unknown => "Nobody tells why it is dead; it may have been blocked for safety.",
        }
    }
}

impl Source {
    /// Who told.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Rest => "Hangar's API",
            Self::Metrics => "Hangar's metrics",
            Self::Prometheus => "Prometheus",
            Self::Log => "Hangar's log",
            Self::Events => "Hangar's event stream",
        }
    }
}

impl Phase {
    /// Where an incident stands.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Watching => "The medic watches it and has nothing to do at this moment.",
            Self::Held => "The medic waits.",
            Self::Acting => "The medic is doing something about it right now.",
            Self::Settling => "The medic has acted and waits for the proof that it helped.",
            Self::Exhausted => "Everything that the medic may do was tried, and it is still dead: a person is needed.",
            Self::Closed => "It is over.",
        }
    }
}

impl Receipt {
    /// What Hangar answered.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Accepted => "Hangar said yes, which proves nothing yet",
            Self::Refused => "Hangar said no",
            Self::Unknown => "no answer came; it may have been done all the same",
        }
    }
}

impl Outcome {
    /// What came of an attempt.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Recovered => "it helped, and that was proved",
            Self::Failed => "it did not work",
            Self::Insufficient => "it was done, and did not help",
            Self::Denied => "it was not allowed",
            Self::Unresolved => "what came of it cannot be told",
            Self::Timeout => "it took too long",
            Self::Error => "it could not be done",
            Self::Cancelled => "it was not needed any more",
            Self::NotApplicable => "it does not apply here",
        }
    }
}

impl Closed {
    /// How an incident ended.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Recovered => "The medic brought it back.",
            Self::HealedByItself => "It came back without the medic.",
            Self::Cancelled => "It was stopped or removed, so there is nothing to bring back.",
        }
    }
}

impl HoldCause {
    /// Who stopped a server.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::UserRequest | Self::Manual => "somebody stopped it",
            Self::Shutdown => "it was shut down",
            Self::DetectionBlock => "a detection rule blocked it",
            Self::Other => "it was stopped for a reason that the medic does not know",
            Self::TookHangarDown => "Hangar went down right after the medic started it",
            Self::Person => "a person asked the medic to leave it alone",
        }
    }
}
