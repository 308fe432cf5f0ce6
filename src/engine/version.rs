//! What this Hangar's version cannot show, said once at start and shown in the status.

/// No dead state for a given-up server, no last-healthy series.
pub const FIRST_SUPPORTED: (u32, u32, u32) = (2, 20, 0);
/// REST tells the reason itself from here on.
pub const FIRST_WITH_DEAD_BLOCK: (u32, u32, u32) = (2, 21, 0);
/// The newest that was tried.
const NEWEST_KNOWN: (u32, u32, u32) = (2, 34, 4);

/// What the medic cannot see of a Hangar of this version, each as a sentence; empty where it sees everything.
#[must_use]
pub fn blind_spots(version: Option<(u32, u32, u32)>, reads_log: bool) -> Vec<&'static str> {
    let mut spots = Vec::new();
    if version.is_some_and(|v| v < FIRST_SUPPORTED) {
        spots.extend([
            "Hangar is older than 2.20.0: a given-up server reads cold, like one that is idle, so it is not brought back",
            "Hangar is older than 2.20.0: a crashed server stays ready; only its process' end (`alive`) tells, and nothing for a remote one",
            "Hangar is older than 2.20.0: a failed start stays initializing",
            "Hangar is older than 2.20.0: there is no last-healthy time, so a recovery cannot be proved by it",
        ]);
    }
    if version.is_some_and(|v| v < FIRST_WITH_DEAD_BLOCK) && !reads_log {
        spots.push("Hangar is older than 2.21.0 and no log is read: why a server is dead is told by its events only, from now on");
    }
    spots
}

/// The version that was told last.
#[derive(Debug, Default)]
pub(super) struct Told {
    told: bool,
    version: Option<(u32, u32, u32)>,
}

impl Told {
    /// Says it, once for each version that is met.
    pub(super) fn tell(&mut self, version: Option<(u32, u32, u32)>, reads_log: bool) {
        if !std::mem::replace(&mut self.told, true) || self.version != version {
            self.version = version;
            tell(version, reads_log);
        }
    }
}

fn tell(version: Option<(u32, u32, u32)>, reads_log: bool) {
    let Some((major, minor, patch)) = version else {
        tracing::warn!(event = "hangar_version", "Hangar tells no version: going by what it answers");
        return;
    };
    let version = format!("{major}.{minor}.{patch}");
    if (major, minor, patch) < FIRST_SUPPORTED {
        let advice = "upgrade Hangar to 2.20.0 or later; 2.21.0 or later also tells why a server is dead";
        tracing::error!(
            event = "hangar_version",
            version,
            advice,
            "this Hangar is too old: most deaths cannot be seen, and no recovery proved"
        );
    }
    let newer = (major, minor, patch) > NEWEST_KNOWN;
    tracing::info!(event = "hangar_version", version, newer_than_known = newer, "going by what Hangar answers, not by its number");
    for cannot in blind_spots(Some((major, minor, patch)), reads_log) {
        tracing::warn!(event = "hangar_version", version, cannot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_hangar_is_told_apart_and_a_newer_one_is_not() {
        let count = |version, log| blind_spots(Some(version), log).len();
        assert_eq!([count((2, 19, 1), true), count((2, 20, 0), true), count((2, 20, 0), false)], [4, 0, 1]);
        assert_eq!([count((2, 21, 0), false), count((2, 34, 4), false), count((3, 0, 0), false)], [0, 0, 0]);
        assert_eq!(blind_spots(None, false), Vec::<&str>::new());
    }
}
