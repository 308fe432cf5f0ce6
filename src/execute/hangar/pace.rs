//! No more starts a second than configured: Hangar's bucket is shared with its users.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Hands out moments at least `1 / per_second` apart.
pub(super) struct Pacer {
    gap: Duration,
    next: Mutex<Option<Instant>>,
}

impl Pacer {
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        Self { gap: Duration::from_secs(1) / per_second.get(), next: Mutex::new(None) }
    }

    /// Waits for this caller's moment. A caller that is dropped while it waits leaves its moment unused.
    pub(super) async fn slot(&self) {
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let at = next.map_or(now, |next| next.max(now));
            *next = Some(at + self.gap);
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn starts_are_never_closer_than_the_gap() {
        let pacer = Pacer::new(NonZeroU32::new(2).unwrap());
        let begin = Instant::now();
        let slots = futures_util::future::join_all((0..5).map(|_| async {
            pacer.slot().await;
            (Instant::now() - begin).as_millis()
        }));
        assert_eq!(slots.await, [0, 500, 1000, 1500, 2000]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let rested = Instant::now();
        pacer.slot().await;
        assert_eq!(Instant::now(), rested, "a rest saves nothing up, and costs nothing");
        pacer.slot().await;
        assert_eq!((Instant::now() - rested).as_millis(), 500);
    }
}
