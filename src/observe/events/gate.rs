//! Keeps the event stream closed while Hangar is restarted: an open one makes it exit 1 on SIGTERM.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How long a close may take: two bounded writes and one bounded call, with room.
const CLOSE_MAX: Duration = Duration::from_secs(15);

/// The door of one Hangar's event stream. Clones are the same door; one that no stream uses is always shut.
///
/// ```no_run
/// # async fn restart(gate: &hangar_medic::observe::events::Gate) {
/// let paused = gate.pause().await;
/// // Hangar may still hold the closed stream for this long, and ends only after it.
/// let longer = paused.hangar_lets_go_in();
/// // … send the restart, wait until Hangar is back …
/// drop(paused); // the stream is opened again
/// # let _ = longer;
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Sides>);

#[derive(Debug)]
struct Sides {
    /// How many restarts are under way.
    holders: watch::Sender<usize>,
    stream: watch::Sender<Stream>,
}

impl Default for Sides {
    fn default() -> Self {
        Self { holders: watch::Sender::new(0), stream: watch::Sender::new(Stream::Shut { let_go_at: None }) }
    }
}

/// What the stream says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// Open, or being dialled.
    Open,
    /// Closed; until `let_go_at` Hangar may not have noticed.
    Shut { let_go_at: Option<Instant> },
}

impl Gate {
    /// A door that is open.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Closes the stream and keeps it closed until the answer, and every other one, is dropped. Returns once it is closed,
    /// after 15 s at most; at once where no stream is heard.
    pub async fn pause(&self) -> Paused {
        self.0.holders.send_modify(|n| *n += 1);
        // From here on the count goes back even if this future is dropped.
        let mut paused = Paused { gate: self.clone(), closed: false };
        let mut stream = self.0.stream.subscribe();
        let shut = stream.wait_for(|s| matches!(s, Stream::Shut { .. }));
        paused.closed = matches!(timeout(CLOSE_MAX, shut).await, Ok(Ok(_)));
        paused
    }

    /// Waits until somebody wants the stream closed.
    pub(super) async fn held(&self) {
        self.wait(|n| n > 0).await;
    }

    /// Waits until nobody does.
    pub(super) async fn free(&self) {
        self.wait(|n| n == 0).await;
    }

    async fn wait(&self, wanted: impl Fn(usize) -> bool) {
        let mut holders = self.0.holders.subscribe();
        // The sender lives as long as `self`.
        let _ = holders.wait_for(|n| wanted(*n)).await;
    }

    pub(super) fn tell(&self, stream: Stream) {
        self.0.stream.send_replace(stream);
    }
}

/// The stream stays closed while this lives.
#[derive(Debug)]
#[must_use = "the stream is opened again as soon as this is dropped"]
pub struct Paused {
    gate: Gate,
    closed: bool,
}

impl Paused {
    /// Whether the stream was closed within the bound. If not, Hangar may exit 1: it restarts all the same.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// How long Hangar's side of the closed stream may still keep it from ending after SIGTERM (it then exits 0). Zero where
    /// no stream was open, and where Hangar checks keys: there we can wake it.
    #[must_use]
    pub fn hangar_lets_go_in(&self) -> Duration {
        let stream = *self.gate.0.stream.borrow();
        match stream {
            Stream::Shut { let_go_at: Some(at) } => at.saturating_duration_since(Instant::now()),
            Stream::Shut { let_go_at: None } | Stream::Open => Duration::ZERO,
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.gate.0.holders.send_modify(|n| *n = n.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_door_without_a_stream_is_shut_at_once() {
        let paused = Gate::new().pause().await;
        assert!(paused.is_closed() && paused.hangar_lets_go_in().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_waits_for_the_stream_to_close_and_every_one_must_end_before_it_opens() {
        let gate = Gate::new();
        gate.tell(Stream::Open);
        let at = Instant::now() + Duration::from_mins(1);
        let stream = async {
            gate.held().await;
            gate.tell(Stream::Shut { let_go_at: Some(at) });
        };
        let (first, ()) = tokio::join!(gate.pause(), stream);
        let second = gate.pause().await;
        assert!(first.is_closed() && second.is_closed() && first.hangar_lets_go_in() > Duration::from_secs(59));
        drop(first);
        assert!(timeout(Duration::from_secs(1), gate.free()).await.is_err());
        drop(second);
        gate.free().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_does_not_close_is_waited_for_under_a_bound_and_a_dropped_pause_ends() {
        let gate = Gate::new();
        gate.tell(Stream::Open);
        assert!(timeout(Duration::from_secs(1), gate.pause()).await.is_err());
        gate.free().await;
        let paused = gate.pause().await;
        assert!(!paused.is_closed());
    }
}
