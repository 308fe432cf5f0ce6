//! No more starts a second than configured: Hangar's bucket is shared with its users.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Hands out moments at least `1 / per_second` apart.
pub(super) struct Pacer(Mutex<State>);

struct State {
    gap: Duration,
    next: Option<Instant>,
}

impl Pacer {
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        Self(Mutex::new(State { gap: gap(per_second), next: None }))
    }

    /// Counts from the next moment on.
    pub(super) fn set(&self, per_second: NonZeroU32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).gap = gap(per_second);
    }

    /// Waits for this caller's moment. A caller that is dropped while it waits leaves its moment unused.
    pub(super) async fn slot(&self) {
        let at = self.reserve(Instant::now());
        tokio::time::sleep_until(at).await;
    }

    fn reserve(&self, now: Instant) -> Instant {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = state.next.map_or(now, |next| next.max(now));
        state.next = Some(at + state.gap);
        at
    }
}

fn gap(per_second: NonZeroU32) -> Duration {
    Duration::from_secs(1) / per_second.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_never_closer_than_the_gap() {
        let pacer = Pacer::new(NonZeroU32::new(2).unwrap());
        let begin = Instant::now();
        let at = |asked: u64| (pacer.reserve(begin + Duration::from_millis(asked)) - begin).as_millis();
        assert_eq!([at(0), at(0), at(100), at(600), at(1600)], [0, 500, 1000, 1500, 2000]);
        assert_eq!([at(60_000), at(60_001)], [60_000, 60_500], "a rest saves nothing up, and costs nothing");
    }
}
