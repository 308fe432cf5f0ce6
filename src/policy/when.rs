//! Arithmetic on instants that cannot panic: a duration may be as long as an operator can write it.

use jiff::{SignedDuration, Timestamp};

/// `at` and `wait` later, or the end of time.
#[must_use]
pub fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(if wait.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

/// `at` and `wait` earlier, or the beginning of time.
#[must_use]
pub fn before(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_sub(wait).unwrap_or(if wait.is_negative() { Timestamp::MAX } else { Timestamp::MIN })
}

/// `pause`, doubled so many times, but at most `max`.
#[must_use]
pub fn doubled(pause: SignedDuration, times: usize, max: SignedDuration) -> SignedDuration {
    let factor = 1_i32 << times.min(16);
    pause.checked_mul(factor).unwrap_or(SignedDuration::MAX).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_ends_instead_of_overflowing() {
        let hour = SignedDuration::from_hours(1);
        assert_eq!(after(Timestamp::MAX, hour), Timestamp::MAX);
        assert_eq!(after(Timestamp::MIN, -hour), Timestamp::MIN);
        assert_eq!(before(Timestamp::MIN, hour), Timestamp::MIN);
        assert_eq!(before(Timestamp::MAX, -hour), Timestamp::MAX);
        assert_eq!(after(Timestamp::UNIX_EPOCH, SignedDuration::MAX), Timestamp::MAX);
        assert_eq!(before(Timestamp::UNIX_EPOCH, SignedDuration::MIN), Timestamp::MAX);
        assert_eq!(before(after(Timestamp::UNIX_EPOCH, hour), hour), Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn a_pause_doubles_up_to_its_bound() {
        let minute = SignedDuration::from_mins(1);
        assert_eq!([0, 1, 3].map(|n| doubled(minute, n, 5 * minute)), [1, 2, 5].map(|n| n * minute));
        assert_eq!(doubled(SignedDuration::MAX, usize::MAX, SignedDuration::MAX), SignedDuration::MAX);
    }
}
