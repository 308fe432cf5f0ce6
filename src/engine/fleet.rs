//! What the medics of the other replicas do, read from the log that they share: only when something turns on it.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{Brought, Engine};
use crate::attempt_log::LogError;
use crate::attempt_log::fleet::{FleetLock, LOCK, NoFleet};
use crate::clock;
use crate::hangar::fault::chain;
use crate::policy::{OrderedRestart, Others, waits_for_lock};

/// While something waits for the fleet lock it is looked at this often: its holder may give it back long before its deadline.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Restarts of others are read at least this far back.
const LOOK_BACK_MIN: SignedDuration = SignedDuration::from_hours(1);

/// What a look at the lock brings back: when it was asked for, if it was free, and the others' restarts.
pub(super) type Looked = Result<(Option<Timestamp>, Vec<OrderedRestart>), LogError>;

/// The others, as last read.
pub(super) struct Fleet {
    lock: Arc<dyn FleetLock>,
    pub(super) others: Others,
    /// The Hangar process after whose start their restarts were read.
    read_for: Option<Timestamp>,
    looking: bool,
    looked_at: Option<Instant>,
}

impl Default for Fleet {
    fn default() -> Self {
        Self { lock: Arc::new(NoFleet), others: Others::default(), read_for: None, looking: false, looked_at: None }
    }
}

impl Engine {
    /// With the lock that the replicas share.
    #[must_use]
    pub fn with_fleet(self, lock: Arc<dyn FleetLock>) -> Self {
        Self { fleet: Fleet { lock, ..self.fleet }, ..self }
    }

    /// Before a new Hangar process means anything: whether the medic of another replica had it made. False while that
    /// cannot be read.
    pub(super) async fn others_known(&mut self) -> bool {
        let (now, before) = (self.board.process_start(), self.history.process_start);
        if now.is_none() || now == before || now == self.fleet.read_for {
            return true;
        }
        match self.fleet.lock.ordered(self.look_back()).await {
            Ok(restarts) => {
                (self.fleet.others.restarts, self.fleet.read_for) = (restarts, now);
                true
            }
            Err(error) => {
                tracing::error!(error = chain(&error), "what the other replicas' medics do cannot be read: nothing acts until it can");
                (self.history_outdated, self.history_trouble, self.log_unwritable) = (true, None, true);
                false
            }
        }
    }

    fn look_back(&self) -> Timestamp {
        let longest = self.parts.policy.budgets.rungs.iter().map(|r| r.window).max().unwrap_or(LOOK_BACK_MIN);
        crate::policy::before(clock::now(), longest.max(LOOK_BACK_MIN))
    }

    /// Looks at the lock while something waits for it.
    pub(super) fn look_at_lock(&mut self) {
        if self.fleet.looking || !waits_for_lock(&self.history, clock::now()) || self.next_look() > Instant::now() {
            return;
        }
        (self.fleet.looking, self.fleet.looked_at) = (true, Some(Instant::now()));
        let (lock, since, asked_at) = (Arc::clone(&self.fleet.lock), self.look_back(), clock::now());
        self.tasks.spawn(async move {
            let looked = async { Ok((lock.is_free(LOCK).await?.then_some(asked_at), lock.ordered(since).await?)) };
            Brought::Lock(looked.await)
        });
    }

    fn next_look(&self) -> Instant {
        self.fleet.looked_at.map_or_else(Instant::now, |at| at + LOOK_EVERY)
    }

    /// When the lock is looked at again, if anything waits for it.
    pub(super) fn lock_wake(&self) -> Option<Instant> {
        (!self.fleet.looking && waits_for_lock(&self.history, clock::now())).then(|| self.next_look())
    }

    pub(super) fn take_lock_look(&mut self, looked: Looked) {
        self.fleet.looking = false;
        match looked {
            Ok((free_at, restarts)) => {
                self.fleet.others.restarts = restarts;
                self.fleet.others.lock_free_at = free_at.or(self.fleet.others.lock_free_at);
            }
            // Its deadline is waited for, as if nobody had looked.
            Err(error) => tracing::debug!(error = chain(&error), "the fleet lock cannot be looked at"),
        }
    }
}
