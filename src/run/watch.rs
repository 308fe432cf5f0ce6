//! Self-watch: whether the daemon is of use, told to `/-/ready` and to systemd.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

use crate::engine::{Live, STALLED_AFTER, Share};
use crate::metrics::Metrics;
use crate::server::Shared;

/// How often readiness follows what is so.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why the daemon is of no use now, if so: what must be mended first comes first.
fn blind(live: &Live, turn_age: Option<Duration>) -> Option<&'static str> {
    if turn_age.is_none_or(|age| age >= STALLED_AFTER) {
        return Some("the engine does not turn: nothing is seen or done");
    }
    if live.log_unwritable {
        return Some("the attempt log cannot be written: nothing acts");
    }
    if live.read_at.is_none() {
        return Some("Hangar's metrics were not read yet");
    }
    if !live.fresh {
        return Some("Hangar's metrics cannot be read: nothing is known now");
    }
    if live.auth_refused {
        return Some("Hangar refuses our key: servers can neither be read nor started");
    }
    live.read_forbidden.then_some("Hangar does not permit our key to read servers (mcp_servers:read)")
}

/// Keeps `/-/ready`, its metric and systemd up to date until `stop`.
///
/// `READY=1` is told at once: the store is open and the engine about to turn. A Hangar that cannot be read is no reason
/// for systemd to start us anew; why we are of no use then is the unit's status. `WATCHDOG=1` only while the engine turns.
pub async fn watch(live: Arc<Share>, shared: Arc<Shared>, metrics: Arc<Metrics>, stop: CancellationToken) -> anyhow::Result<()> {
    let watchdog = sd_notify::watchdog_enabled().map(|within| within / 3);
    let every = watchdog.map_or(LOOK_EVERY, |within| within.clamp(Duration::from_millis(100), LOOK_EVERY));
    tell(vec![NotifyState::Ready]).await;
    let mut told = Some("");
    loop {
        let age = metrics.turn_age();
        let why = blind(&live.get(), age);
        metrics.set_ready(why.is_none());
        match why {
            Some(why) => shared.set_not_ready(why),
            None => shared.set_ready(),
        }
        if why != told {
            tell(vec![NotifyState::Status(why.unwrap_or("watching"))]).await;
            match why {
                // What keeps the first read from succeeding is said by whoever reads.
                Some(why) if told == Some("") => tracing::info!(event = "not_ready", why),
                Some(why) => tracing::warn!(event = "not_ready", why),
                None => tracing::info!(event = "ready"),
            }
            told = why;
        }
        if watchdog.is_some() && age.is_some_and(|age| age < STALLED_AFTER) {
            tell(vec![NotifyState::Watchdog]).await;
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(every) => {}
        }
    }
    shared.set_not_ready("shutting down");
    metrics.set_ready(false);
    tell(vec![NotifyState::Stopping]).await;
    Ok(())
}

/// Nobody may be there to hear it.
async fn tell(state: Vec<NotifyState<'static>>) {
    let told = tokio::task::spawn_blocking(move || sd_notify::notify(&state)).await;
    if let Ok(Err(error)) = told {
        tracing::debug!(%error, "systemd does not hear us");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_it_blind_is_named_the_first_thing_to_mend_first() {
        let seeing = Live { read_at: Some(crate::clock::now()), fresh: true, ..Live::default() };
        let soon = Some(Duration::ZERO);
        let begins = |live: &Live, age| blind(live, age).map(|why| why.split(' ').take(2).collect::<Vec<_>>().join(" "));
        assert_eq!(begins(&seeing, soon), None);
        assert_eq!(begins(&seeing, None).as_deref(), Some("the engine"));
        assert_eq!(begins(&seeing, Some(STALLED_AFTER)).as_deref(), Some("the engine"));
        assert_eq!(begins(&Live { log_unwritable: true, ..seeing.clone() }, soon).as_deref(), Some("the attempt"));
        assert_eq!(begins(&Live::default(), soon).as_deref(), Some("Hangar's metrics"));
        assert_eq!(begins(&Live { fresh: false, ..seeing.clone() }, soon).as_deref(), Some("Hangar's metrics"));
        assert_eq!(begins(&Live { auth_refused: true, ..seeing.clone() }, soon).as_deref(), Some("Hangar refuses"));
        assert_eq!(begins(&Live { read_forbidden: true, ..seeing }, soon).as_deref(), Some("Hangar does"));
    }
}
