//! Places for connections. When all are taken, whoever has asked for nothing the longest leaves: ten thousand idle
//! connections, or as many that never finish a request's head, keep nobody out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// A request that has taken this long may go too: its client is slow on purpose, or nothing can be done for it.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// How long a newcomer waits for the place of the one that leaves.
const ROOM_WAIT: Duration = Duration::from_secs(1);

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

    /// A place, if need be that of another; `None` when everybody is at work and none is slow.
    pub(super) async fn enter(self: &Arc<Self>) -> Option<Guest> {
        let free = Arc::clone(&self.places).try_acquire_owned().ok();
        let place = match free {
            Some(place) => place,
            None if self.make_room(Instant::now()) => {
                timeout(ROOM_WAIT, Arc::clone(&self.places).acquire_owned()).await.ok().and_then(Result::ok)?
            }
            None => return None,
        };
        let leave = CancellationToken::new();
        let mut guests = self.guests();
        let id = guests.next;
        guests.next += 1;
        guests.all.insert(id, Entry { since: Instant::now(), busy: false, leave: leave.clone() });
        drop(guests);
        Some(Guest { crowd: Arc::clone(self), id, leave, _place: place })
    }

    /// Tells one to leave: the one that has been idle the longest, else the slowest.
    fn make_room(&self, now: Instant) -> bool {
        let guests = self.guests();
        let may_go = |e: &&Entry| !e.leave.is_cancelled() && (!e.busy || now.duration_since(e.since) >= BUSY_MAX);
        let goes = guests.all.values().filter(may_go).min_by_key(|e| (e.busy, e.since));
        goes.map(|e| e.leave.cancel()).is_some()
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

    #[tokio::test(start_paused = true)]
    async fn whoever_is_idle_the_longest_leaves_first_and_who_works_stays() {
        let crowd = Crowd::new(3);
        let mut guests = Vec::new();
        for _ in 0..3 {
            guests.push(crowd.enter().await.unwrap());
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        guests[0].note()(true);
        let told = |guests: &[Guest]| guests.iter().map(|g| g.leave().is_cancelled()).collect::<Vec<_>>();
        assert!(crowd.enter().await.is_none(), "the place is not free yet");
        assert_eq!(told(&guests), [false, true, false]);
        drop(guests.remove(1));
        let late = crowd.enter().await.unwrap();
        late.note()(true);
        guests[1].note()(true);
        assert!(crowd.enter().await.is_none(), "everybody is at work");
        assert_eq!(told(&guests), [false, false]);
        tokio::time::advance(BUSY_MAX).await;
        assert!(crowd.enter().await.is_none());
        assert_eq!(told(&guests), [true, false], "the slowest");
    }
}
