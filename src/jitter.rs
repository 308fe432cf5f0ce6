//! Small irregularities in waits, so that many medics do not come back to one Hangar at the same instant. No secret: never
//! used for ids or keys.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A generator of waits (xorshift64*). The same seed gives the same waits.
#[derive(Debug, Clone)]
pub struct Jitter(u64);

impl Jitter {
    /// For a test, or to repeat a run.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(if seed == 0 { 0x9e37_79b9_7f4a_7c15 } else { seed })
    }

    /// Another one at each call.
    #[must_use]
    pub fn new() -> Self {
        Self::seeded(RandomState::new().build_hasher().finish())
    }

    /// Between half of `wait` and one and a half.
    pub fn around(&mut self, wait: Duration) -> Duration {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        let share = u32::try_from(drawn).map_or(0.5, |n| f64::from(n) / f64::from(u32::MAX));
        wait.mul_f64(0.5 + share)
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits between tries: doubling from `first` to `most`, each one jittered.
#[derive(Debug)]
pub struct Backoff {
    jitter: Jitter,
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// The first wait is around `first`.
    #[must_use]
    pub const fn new(jitter: Jitter, first: Duration, most: Duration) -> Self {
        Self { jitter, first, most, next: first }
    }

    /// The wait before the next try.
    pub fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.most);
        self.jitter.around(wait)
    }

    /// It went well: the next wait is a first one.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_scatter_around_it() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(Jitter::seeded(7), second, 8 * second);
        for base in [1, 2, 4, 8, 8, 8_u32] {
            let wait = backoff.wait();
            assert!(wait >= base * second / 2 && wait <= base * second * 3 / 2, "{base}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.wait() <= second * 3 / 2);
    }

    #[test]
    fn the_same_seed_gives_the_same_waits_and_another_seed_others() {
        let waits = |seed| {
            let mut jitter = Jitter::seeded(seed);
            [0; 4].map(|_| jitter.around(Duration::from_secs(1)))
        };
        assert_eq!(waits(3), waits(3));
        assert_ne!(waits(3), waits(4));
    }
}
