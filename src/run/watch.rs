//! Self-watch: whether the daemon is of use, told to `/-/ready` and to systemd.

use std::borrow::Cow;
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
fn blind(live: &Live, turn_age: Option<Duration>) -> Option<Cow<'static, str>> {
    if turn_age.is_none_or(|age| age >= STALLED_AFTER) {
        return words("the engine does not turn: nothing is seen or done");
    }
    if live.log_unwritable {
        let damage = live.log_damage.as_ref().map(|damage| format!("nothing acts: {damage}").into());
        return damage.or_else(|| words("the attempt log cannot be written: nothing acts"));
    }
    if live.read_at.is_none() {
        return words("Hangar's metrics were not read yet");
    }
    if !live.fresh {
        return words("Hangar's metrics cannot be read: nothing is known now");
    }
    if live.auth_refused {
        return words("Hangar refuses our key: servers can neither be read nor started");
    }
    if live.read_forbidden {
        return words("Hangar does not permit our key to read servers (mcp_servers:read)");
    }
    None
}

#[allow(clippy::unnecessary_wraps, reason = "what `blind` returns")]
const fn words(why: &'static str) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(why))
}

/// Keeps `/-/ready`, its metric and systemd up to date until `stop`.
///
/// `READY=1` is told at once: the store is open and the engine about to turn. A Hangar that cannot be read is no reason
/// for systemd to start us anew; why we are of no use then is the unit's status. `WATCHDOG=1` only while the engine turns.
pub async fn watch(live: Arc<Share>, shared: Arc<Shared>, metrics: Arc<Metrics>, stop: CancellationToken) -> anyhow::Result<()> {
    let watchdog = sd_notify::watchdog_enabled().map(|within| within / 3);
    let every = watchdog.map_or(LOOK_EVERY, |within| within.clamp(Duration::from_millis(100), LOOK_EVERY));
    tell(vec![NotifyState::Ready]).await;
    let mut told = Some(Cow::Borrowed(""));
    loop {
        let age = metrics.turn_age();
        let why = blind(&live.get(), age);
        metrics.set_ready(why.is_none());
        match &why {
            Some(why) => shared.set_not_ready(why.as_ref()),
            None => shared.set_ready(),
        }
        if why != told {
            tell_status(why.as_deref().unwrap_or("watching").to_owned()).await;
            match why.as_deref() {
                // What keeps the first read from succeeding is said by whoever reads.
                Some(why) if told.as_deref() == Some("") => tracing::info!(event = "not_ready", why),
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

/// Waits while the attempt log cannot be opened: systemd hears why, and that a start anew would not help.
pub async fn wait_held(why: String, wait: Duration) {
    tell(vec![NotifyState::Ready]).await;
    tell_status(why).await;
    let every = sd_notify::watchdog_enabled().map_or(wait, |within| within / 3).max(Duration::from_millis(100));
    let until = tokio::time::Instant::now() + wait;
    while tokio::time::Instant::now() < until {
        tell(vec![NotifyState::Watchdog]).await;
        tokio::time::sleep_until(until.min(tokio::time::Instant::now() + every)).await;
    }
}

async fn tell_status(why: String) {
    // What comes from a file must stay on its line.
    let why = why.replace(['\n', '\r'], " ");
    heard(tokio::task::spawn_blocking(move || sd_notify::notify(&[NotifyState::Status(&why)])).await);
}

/// Nobody may be there to hear it.
async fn tell(state: Vec<NotifyState<'static>>) {
    heard(tokio::task::spawn_blocking(move || sd_notify::notify(&state)).await);
}

fn heard(told: Result<std::io::Result<()>, tokio::task::JoinError>) {
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
