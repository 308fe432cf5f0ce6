//! The attempt log, from the file or the server that the configuration names.

use std::sync::Arc;
use std::time::Duration;

use super::watch;
use crate::attempt_log::fleet::{FleetLock, NoFleet};
use crate::attempt_log::{Counts, Log, LogError, Shared as OnServer, Store};
use crate::clock;
use crate::config::Config;
use crate::hangar::fault::chain;
use crate::metrics::Metrics;
use crate::server::Shared;

/// What refused is asked again after this, then ever later.
const AGAIN_FIRST: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(15);

/// An open log, and what it said first.
pub struct Opened {
    pub store: Arc<dyn Log>,
    /// Of the replicas that share a server; where there is none nobody is excluded.
    pub fleet: Arc<dyn FleetLock>,
    pub place: String,
    pub counts: Counts,
    /// The last record's seq.
    pub records: u64,
}

/// Opens the log. A server that is not there is waited for, since it comes back by itself; a damaged store until a person
/// puts another one there or lets an empty one begin. Everything else is an error.
pub async fn open(config: &Config, shared: &Shared, metrics: &Metrics) -> Result<Opened, LogError> {
    let (mut again, mut told) = (AGAIN_FIRST, None);
    loop {
        let error = match opened(config).await {
            Ok(opened) => return Ok(opened),
            Err(error) if !config.storage.postgres.is_set() && error.is_damage() => {
                Store::keep_aside(&config.storage.path, error, clock::now())
            }
            Err(error) => error,
        };
        // Once it is waited for, whoever holds it for a moment (a person's command, our own last connection) is waited for too.
        let for_a_moment = told.is_some() && matches!(error, LogError::Held { .. });
        let on_server = config.storage.postgres.is_set() && !matches!(error, LogError::Held { .. });
        let Some(why) = why_wait(&error, for_a_moment || on_server) else { return Err(error) };
        let words = chain(&error);
        if told.as_ref() != Some(&words) {
            tracing::error!(
                event = "store_refused",
                error = words,
                "the attempt log cannot be opened: it is tried again, and nothing acts until then"
            );
            told = Some(words);
        }
        metrics.set_attempt_log_writable(false);
        shared.set_not_ready(&*why);
        watch::wait_held(why, again).await;
        again = (again * 2).min(AGAIN_MAX);
    }
}

/// Why the store is waited for, if it may come to be opened in this process.
fn why_wait(error: &LogError, passes: bool) -> Option<String> {
    if error.is_damage() {
        return Some(format!("nothing acts: {error}"));
    }
    if matches!(error, LogError::KeptAside { .. }) {
        return Some(error.to_string());
    }
    (passes && error.may_pass()).then(|| "the attempt log cannot be opened: nothing acts until it can".to_owned())
}

async fn opened(config: &Config) -> Result<Opened, LogError> {
    if config.storage.postgres.is_set() { on_server(config).await } else { in_file(config).await }
}

async fn in_file(config: &Config) -> Result<Opened, LogError> {
    let store = Store::open(&config.storage.path, &config.hangar.instance).await?;
    let place = store.place().to_string();
    let whole = async {
        store.check_the_rest().await?;
        looked_at(&store, config).await
    };
    match whole.await {
        Ok((counts, records)) => Ok(Opened { store: Arc::new(store), fleet: Arc::new(NoFleet), place, counts, records }),
        Err(error) => {
            // Not just dropped: it must be gone before its files are moved.
            store.close().await;
            Err(error)
        }
    }
}

async fn on_server(config: &Config) -> Result<Opened, LogError> {
    let store = OnServer::open(&config.storage.postgres, &config.hangar.instance).await?;
    let (fleet, place) = (Arc::new(store.fleet()), store.place().to_string());
    match looked_at(&store, config).await {
        Ok((counts, records)) => Ok(Opened { store: Arc::new(store), fleet, place, counts, records }),
        Err(error) => {
            store.close().await;
            Err(error)
        }
    }
}

/// What decides is read once before anything rests on it. What only cannot be read now is read later, by the engine.
async fn looked_at(store: &dyn Log, config: &Config) -> Result<(Counts, u64), LogError> {
    match store.history(&config.policy, clock::now()).await {
        Err(error) if !error.may_pass() => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let counts = store.counts().await?;
    let records = store.head().await?.map_or(0, |head| head.seq);
    Ok((counts, records))
}
