//! The attempt log, from the file or the server that the configuration names.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt_log::fleet::{FleetLock, NoFleet};
use crate::attempt_log::{Counts, Log, LogError, Shared as OnServer, Store};
use crate::config::Config;
use crate::hangar::fault::chain;
use crate::server::Shared;

/// A server that does not answer is asked again after this, then ever later.
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

/// Opens the log. A server that is not there is waited for, since it comes back by itself; everything else is an error.
pub async fn open(config: &Config, shared: &Shared) -> Result<Opened, LogError> {
    if !config.storage.postgres.is_set() {
        let store = Store::open(&config.storage.path, &config.hangar.instance).await?;
        let place = store.place().to_string();
        return opened(Arc::new(store), Arc::new(NoFleet), place).await;
    }
    let (mut again, mut told) = (AGAIN_FIRST, None);
    loop {
        match on_server(config).await {
            Err(error) if error.may_pass() && !matches!(error, LogError::Held { .. }) => {
                let words = chain(&error);
                if told.as_ref() != Some(&words) {
                    tracing::error!(error = words, "the attempt log cannot be opened: it is tried again, and nothing acts until then");
                    shared.set_not_ready("the attempt log cannot be opened: nothing acts until it can");
                    told = Some(words);
                }
                tokio::time::sleep(again).await;
                again = (again * 2).min(AGAIN_MAX);
            }
            done => return done,
        }
    }
}

async fn on_server(config: &Config) -> Result<Opened, LogError> {
    let store = OnServer::open(&config.storage.postgres, &config.hangar.instance).await?;
    let (fleet, place) = (Arc::new(store.fleet()), store.place().to_string());
    opened(Arc::new(store), fleet, place).await
}

async fn opened(store: Arc<dyn Log>, fleet: Arc<dyn FleetLock>, place: String) -> Result<Opened, LogError> {
    let counts = store.counts().await?;
    let records = store.head().await?.map_or(0, |head| head.seq);
    Ok(Opened { store, fleet, place, counts, records })
}
