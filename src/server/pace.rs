//! Requests per second of one listener, by what is asked: a flood of one kind keeps no other out.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// A bucket that fills at a rate.
struct Bucket {
    per_second: f64,
    most: f64,
    left: Mutex<(f64, Option<Instant>)>,
}

impl Bucket {
    fn new(per_second: f64, most: f64) -> Self {
        Self { per_second, most, left: Mutex::new((most, None)) }
    }

    /// Takes one, if there is one.
    fn take(&self, now: Instant) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = left.1.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        left.0 = (left.0 + passed * self.per_second).min(self.most);
        left.1 = Some(now);
        if left.0 < 1.0 {
            return false;
        }
        left.0 -= 1.0;
        true
    }
}

/// The buckets. Health is never refused: whoever restarts us by it must not be led to by a flood.
pub(super) struct Paces {
    metrics: Bucket,
    reads: Bucket,
    webhook: Bucket,
    /// Of principals.
    changes: Bucket,
    /// Refused credentials: guessing is slow, and cannot keep a principal out.
    refused: Bucket,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    Metrics,
    Read,
    Webhook,
    Change,
    Refused,
}

impl Paces {
    pub(super) fn new() -> Self {
        Self {
            metrics: Bucket::new(50.0, 100.0),
            reads: Bucket::new(300.0, 600.0),
            // A delivery only wakes, so as many as a machine can send do no harm; no slower than a server without a limit.
            webhook: Bucket::new(100_000.0, 100_000.0),
            changes: Bucket::new(20.0, 100.0),
            refused: Bucket::new(10.0, 50.0),
        }
    }

    /// Whether one more may be answered now.
    pub(super) fn take(&self, pace: Pace) -> bool {
        let bucket = match pace {
            Pace::Metrics => &self.metrics,
            Pace::Read => &self.reads,
            Pace::Webhook => &self.webhook,
            Pace::Change => &self.changes,
            Pace::Refused => &self.refused,
        };
        bucket.take(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_let_through_then_the_rate() {
        let (bucket, begin) = (Bucket::new(2.0, 3.0), Instant::now());
        let takes = |ms: u64| bucket.take(begin + Duration::from_millis(ms));
        let at = [0, 0, 0, 0, 400, 500, 500, 1000, 60_000, 60_000, 60_000, 60_000];
        let want = [true, true, true, false, false, true, false, true, true, true, true, false];
        assert_eq!(at.map(takes), want);
    }
}
