//! Places for connections. When all are taken, whoever has asked for nothing the longest leaves: ten thousand idle
//! connections, or as many that never finish a request's head, keep nobody out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// A request that has taken this long may go too: its client is slow on purpose, or nothing can be done for it.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// A guest gets this long to ask for something, however many others want in.
const IDLE_MIN: Duration = Duration::from_millis(250);
/// How long the one that was told to leave has for it, before another one is told.
const ROOM_WAIT: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Everybody who is in.
pub(super) struct Crowd {
    places: Arc<Semaphore>,
    guests: Mutex<Guests>,
}

#[derive(Default)]
struct Guests {
    next: u64,
    all: BTreeMap<u64, Entry>,
}

struct Entry {
    since: Instant,
    busy: bool,
    leave: CancellationToken,
}

/// One connection's place. Dropping it frees the place.
pub(super) struct Guest {
    crowd: Arc<Crowd>,
    id: u64,
    leave: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Crowd {
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places: Arc::new(Semaphore::new(places)), guests: Mutex::default() })
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if need be that of another. When everybody is at work it takes a while: others wait in the kernel's queue.
    pub(super) async fn enter(self: &Arc<Self>) -> Guest {
        let place = loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                break place;
            }
            let again = self.make_room(Instant::now());
            if let Ok(Ok(place)) = timeout_at(again, Arc::clone(&self.places).acquire_owned()).await {
                break place;
            }
        };
        let leave = CancellationToken::new();
        let mut guests = self.guests();
        let id = guests.next;
        guests.next += 1;
        guests.all.insert(id, Entry { since: Instant::now(), busy: false, leave: leave.clone() });
        drop(guests);
        Guest { crowd: Arc::clone(self), id, leave, _place: place }
    }

    /// Tells one to leave: the one that has been idle the longest, else the slowest. Gives when to look again.
    fn make_room(&self, now: Instant) -> Instant {
        let guests = self.guests();
        let may_go_at = |e: &Entry| e.since + if e.busy { BUSY_MAX } else { IDLE_MIN };
        let left = guests.all.values().filter(|e| !e.leave.is_cancelled());
        let first = left.clone().filter(|e| may_go_at(e) <= now).min_by_key(|e| (e.busy, e.since));
        if let Some(goes) = first {
            goes.leave.cancel();
            return now + ROOM_WAIT;
        }
        left.map(may_go_at).min().unwrap_or(now + ROOM_WAIT).max(now + LOOK_AGAIN)
    }
}

impl Guest {
    /// Cancelled when another one gets this place.
    pub(super) fn leave(&self) -> CancellationToken {
        self.leave.clone()
    }

    /// Notes when requests begin and end.
    pub(super) fn note(&self) -> impl Fn(bool) + Clone + Send + Sync + 'static {
        let (crowd, id) = (Arc::clone(&self.crowd), self.id);
        move |busy| {
            if let Some(entry) = crowd.guests().all.get_mut(&id) {
                *entry = Entry { since: Instant::now(), busy, leave: entry.leave.clone() };
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.crowd.guests().all.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_idle_the_longest_leaves_first_and_who_works_stays() {
        let begin = Instant::now();
        let crowd = Crowd::new(3);
        let entry = |since_ms: u64, busy| Entry { since: begin + Duration::from_millis(since_ms), busy, leave: CancellationToken::new() };
        crowd.guests().all = BTreeMap::from([(0, entry(0, true)), (1, entry(20, false)), (2, entry(10, false))]);
        let told = |ms: u64| {
            crowd.make_room(begin + Duration::from_millis(ms));
            crowd.guests().all.iter().filter(|(_, e)| e.leave.is_cancelled()).map(|(id, _)| *id).collect::<Vec<_>>()
        };
        assert_eq!(told(259), [0; 0], "everybody gets a moment");
        assert_eq!(told(260), [2]);
        assert_eq!(told(270), [1, 2]);
        assert_eq!(told(4_999), [1, 2], "who works stays");
        assert_eq!(told(5_000), [0, 1, 2], "but not for ever");
    }

    #[tokio::test]
    async fn the_place_of_one_that_leaves_is_free() {
        let crowd = Crowd::new(1);
        let first = crowd.enter().await;
        let leaves = async {
            first.leave().cancelled().await;
            drop(first);
        };
        let ((), second) = tokio::join!(leaves, crowd.enter());
        assert!(!second.leave().is_cancelled());
    }
}
