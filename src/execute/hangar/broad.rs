//! The broad half of the ladder: what it acts with, and what all its rungs share.

mod config_file;
mod connector;
mod restart;
mod runtime;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::{Done, Executor, Job, refused};
use crate::attempt_log::fleet::{FleetLock, NoFleet};
use crate::execute::platform::{CarryOut, Order};
use crate::hangar::{CallError, HangarClient, ServerList};
use crate::observe::events::Gate;
use crate::policy::{Outcome, Part, Receipt, Rung, State};

/// Servers that are brought back at once; the pace of starts holds besides.
const AT_ONCE: usize = 4;
/// How often the list is asked for again, and how long after.
const LIST_TRIES: u32 = 10;
const LIST_PAUSE: Duration = Duration::from_secs(1);
/// Ids that evidence names in one list.
const NAMED_MAX: usize = 200;

/// Evidence: the servers that Hangar had before a reload.
pub const SERVERS_BEFORE: &str = "servers_before";

/// What rungs 3 and 6 to 10 act with. The default is nothing.
pub struct Broad {
    pub instance: String,
    /// The other replicas that can be asked who holds the management lease.
    pub peers: Vec<Peer>,
    /// Other replicas that there are, asked or not.
    pub others: usize,
    pub restarts: BTreeMap<Rung, Arc<dyn CarryOut>>,
    pub upstreams: BTreeMap<String, Arc<dyn CarryOut>>,
    pub definitions: BTreeMap<String, PathBuf>,
    /// Hangar's own configuration file.
    pub config_file: Option<PathBuf>,
    /// Hangar's log: tells when it last read that file.
    pub log_file: Option<PathBuf>,
    /// Bound of one restart of Hangar, from the order to the first healthy answer.
    pub restart_within: Duration,
    pub lock: Arc<dyn FleetLock>,
    /// Keeps our event stream closed while Hangar is restarted.
    pub events: Gate,
}

/// Another replica.
pub struct Peer {
    /// Its address, for people.
    pub name: String,
    pub client: HangarClient,
}

impl Default for Broad {
    fn default() -> Self {
        Self {
            instance: String::new(),
            peers: Vec::new(),
            others: 0,
            restarts: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            definitions: BTreeMap::new(),
            config_file: None,
            log_file: None,
            restart_within: Duration::from_mins(10),
            lock: Arc::new(NoFleet),
            events: Gate::new(),
        }
    }
}

impl Executor {
    /// The same, with what rungs 3 and 6 to 10 act with.
    #[must_use]
    pub fn with_broad(self, broad: Broad) -> Self {
        Self { broad, ..self }
    }

    pub(super) async fn broad(&self, job: &Job) -> Done {
        match (job.action, job.part) {
            (Rung::ConfigurationReload, Part::First) => self.reload(job).await,
            (Rung::RoleRuntimeRestart, Part::First) => self.role_runtime(job).await,
            (Rung::RoleRuntimeRestart, Part::Second) => self.start(&job.mcp_server).await,
            (Rung::ConnectorRestart, Part::First) => self.take_out(job).await,
            (Rung::ConnectorRestart, Part::Second) => self.put_back(job).await,
            (_, Part::First) => self.restart(job).await,
            (_, Part::Second) => self.bring_back(job).await,
        }
    }

    fn order(&self, job: &Job) -> Order {
        Order {
            attempt_id: job.attempt_id.clone(),
            action: job.action,
            instance: self.broad.instance.clone(),
            mcp_server: job.mcp_server.clone(),
        }
    }

    /// Starts those of these servers that are down; what is up or being started is left alone. Each that did not answer
    /// 200 is named with why.
    async fn start_down(&self, ids: &BTreeSet<String>) -> Result<(Vec<String>, BTreeMap<String, Value>), CallError> {
        let list = self.list_patiently().await?;
        let down = |id: &&String| {
            let reading = list.servers.get(*id);
            reading.is_none_or(|r| {
                matches!(r.state, State::Cold | State::Dead) || (!r.alive && r.mode == "subprocess" && r.state == State::Ready)
            })
        };
        let each = async |id: &String| {
            let done = self.start_one_of_many(id).await;
            (id.clone(), if done.receipt == Receipt::Accepted { Ok(()) } else { Err(done.detail) })
        };
        let outcomes: Vec<_> = stream::iter(ids.iter().filter(down)).map(each).buffer_unordered(AT_ONCE).collect().await;
        let mut started = Vec::new();
        let mut failed = BTreeMap::new();
        for (id, outcome) in outcomes {
            match outcome {
                Ok(()) => started.push(id),
                Err(why) => {
                    failed.insert(id, Value::from(why));
                }
            }
        }
        started.sort();
        Ok((started, failed))
    }

    /// A Hangar that has just come up may not answer everything yet.
    async fn list_patiently(&self) -> Result<ServerList, CallError> {
        let mut tries = 0;
        loop {
            match self.hangar.list().await {
                Err(_) if tries < LIST_TRIES => tries += 1,
                other => return other,
            }
            tokio::time::sleep(LIST_PAUSE).await;
        }
    }
}

/// Our own check says no: nothing was sent. It proves nothing against a narrower rung, and is not tried again.
pub(super) fn held_back(detail: impl Into<String>) -> Done {
    Done::new(Receipt::Refused, Some(Outcome::Cancelled), detail)
}

/// The ids of servers as evidence has them.
pub fn named<'a>(ids: impl IntoIterator<Item = &'a String>) -> Value {
    json!(ids.into_iter().take(NAMED_MAX).collect::<Vec<_>>())
}
