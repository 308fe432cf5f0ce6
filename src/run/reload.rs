//! Taking over a changed configuration: all of it or nothing, on SIGHUP, on request, or when the file is another one.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::signal::unix::Signal as Hangup;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::views::DaemonViews;
use crate::clock;
use crate::config::{self, Config, Overrides, needs_restart};
use crate::engine::{Command, Reconfigure, Signal};
use crate::execute::hangar::Executor;
use crate::metrics::Metrics;
use crate::policy::hex;
use crate::server::{Principals, Shared};

/// How often a file that is not watched is looked at: never, for all that matters.
const NEVER: Duration = Duration::from_hours(24 * 365);
/// Reloads that may wait at once.
pub const ASKED_MAX: usize = 8;

/// Where the configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

/// What a reload came to: the SHA-256 of what is in use now, in hex; or every reason why nothing changed.
pub type Reloaded = Result<String, Vec<String>>;

/// Somebody asks for a reload, by name.
pub struct Asked {
    pub principal: String,
    pub reply: oneshot::Sender<Reloaded>,
}

/// The parts that take over a new configuration.
pub struct Parts {
    pub engine: mpsc::Sender<Signal>,
    pub metrics: Arc<Metrics>,
    pub shared: Arc<Shared>,
    pub views: Arc<DaemonViews>,
    pub executor: Arc<Executor>,
    pub retention: watch::Sender<SignedDuration>,
}

/// Reloads, one at a time.
pub struct Reloader {
    pub origin: Origin,
    pub in_use: Config,
    pub parts: Parts,
}

/// Whether a file may be another one: a ConfigMap is swapped by a link, an editor renames, others write in place.
type Stamp = (u64, u64, u64, i64, i64, i64, i64);

fn stamp(file: &Path) -> Option<Stamp> {
    let m = std::fs::metadata(file).ok()?;
    Some((m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()))
}

impl Reloader {
    /// Runs until `stop`.
    pub async fn run(mut self, mut asked: mpsc::Receiver<Asked>, mut hangup: Hangup, stop: CancellationToken) -> anyhow::Result<()> {
        let mut known = self.stamp();
        let mut last = known;
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = hangup.recv() => None,
                Some(asked) = asked.recv() => Some(asked),
                () = tokio::time::sleep(self.watch_interval()) => {
                    let found = self.stamp();
                    // Another one, and the same at two looks: nobody is writing it at this moment.
                    let another = found.is_some() && found != known && found == last;
                    last = found;
                    if !another {
                        continue;
                    }
                    None
                }
            };
            // Before it is read: what changes meanwhile is another one again.
            let before = self.stamp();
            let changed = before != known;
            match asked {
                Some(Asked { principal, reply }) => {
                    let taken = self.reload(&principal).await;
                    // Nobody may be waiting any more.
                    let _ = reply.send(taken);
                }
                None => drop(self.reload(if changed { "a changed file" } else { "a signal" }).await),
            }
            known = before;
            last = before;
        }
    }

    fn stamp(&self) -> Option<Stamp> {
        self.origin.file.as_deref().and_then(stamp)
    }

    fn watch_interval(&self) -> Duration {
        let every = self.in_use.reload.watch_interval;
        if every.is_zero() || self.origin.file.is_none() { NEVER } else { Duration::try_from(every).unwrap_or(NEVER) }
    }

    async fn reload(&mut self, by: &str) -> Reloaded {
        let taken = self.take_over().await;
        match &taken {
            Ok(sha256) => tracing::info!(event = "config_reloaded", by, sha256, mode = %self.in_use.policy.mode),
            Err(faults) => {
                self.parts.metrics.config_refused();
                for fault in faults {
                    tracing::error!(event = "config_refused", by, fault, "the configuration in use stays");
                }
            }
        }
        taken
    }

    async fn take_over(&mut self) -> Reloaded {
        let mut wanted = self.load().await?;
        let fixed = needs_restart(&self.in_use, &wanted);
        if !fixed.is_empty() {
            let why = |path: &String| format!("{path}: cannot change while the daemon runs: restart it to take that over");
            return Err(fixed.iter().map(why).collect());
        }
        wanted.policy.break_glass_authorised = self.in_use.policy.break_glass_authorised;
        self.hand_to_engine(&wanted).await?;
        for warning in &wanted.warnings {
            tracing::warn!(event = "config_warning", "{warning}");
        }
        let parts = &self.parts;
        parts.shared.set_principals(Principals::new(&wanted.web.principals, wanted.policy.matrix.clone()));
        parts.shared.set_webhook_access(wanted.web.webhook.clone());
        parts.shared.set_webhook_certificate(wanted.web.webhook_certificate.clone());
        parts.executor.set_pace(wanted.policy.budgets.starts_per_second);
        parts.views.set_policy(wanted.policy.clone());
        parts.retention.send_replace(wanted.storage.retention);
        let sha256 = wanted.sha256();
        parts.metrics.set_mode(wanted.policy.mode);
        parts.metrics.config_loaded(&sha256, clock::now());
        self.in_use = wanted;
        Ok(hex(&sha256))
    }

    async fn load(&self) -> Result<Config, Vec<String>> {
        let Origin { file, overrides } = self.origin.clone();
        if file.is_none() {
            return Err(vec!["there is no configuration file: the daemon was started with flags alone".to_owned()]);
        }
        let loaded = tokio::task::spawn_blocking(move || {
            let faults = |faults: Vec<config::Invalid>| faults.iter().map(|f| f.about(file.as_deref())).collect::<Vec<_>>();
            config::load(file.as_deref(), &overrides).map_err(faults)
        });
        loaded.await.unwrap_or_else(|e| Err(vec![format!("the file could not be read: {e}")]))
    }

    async fn hand_to_engine(&self, wanted: &Config) -> Result<(), Vec<String>> {
        let (reply, answer) = oneshot::channel();
        let new = Box::new(Reconfigure {
            policy: wanted.policy.clone(),
            maintenance: wanted.maintenance.clone(),
            poll_interval: config::unsigned(wanted.hangar.poll_interval),
            stale_after: wanted.hangar.stale_after(),
        });
        let stopping = || vec!["the daemon is stopping".to_owned()];
        self.parts.engine.send(Signal::Command(Box::new(Command::Reconfigure(new, reply)))).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?.map_err(|error| vec![error.to_string()])
    }
}
