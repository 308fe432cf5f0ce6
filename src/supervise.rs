//! Tasks and their end. The only place that spawns: a task that ends early or panics stops the daemon with its name.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// What a task may fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long tasks get to end after the shutdown began.
pub const GRACE: Duration = Duration::from_secs(10);

/// Why the daemon stopped, if not because it was told to.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("task {name} ended though nobody asked it to")]
    EndedEarly { name: &'static str },
    #[error("task {name} failed")]
    Failed { name: &'static str, source: BoxError },
    #[error("task {name} panicked: {message}")]
    Panicked { name: &'static str, message: String },
    #[error("not ended within {} s and aborted: {}", .grace.as_secs_f64(), .names.join(", "))]
    Hung { names: Vec<&'static str>, grace: Duration },
    #[error("signals cannot be heard")]
    Signals(#[source] std::io::Error),
}

/// Owns the daemon's tasks.
#[derive(Debug, Default)]
pub struct Supervisor {
    stop: CancellationToken,
    tasks: JoinSet<Result<(), BoxError>>,
    names: HashMap<Id, &'static str>,
}

impl Supervisor {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the daemon is to stop. Every task must end soon after.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task. It must run until `stop` is cancelled; an earlier end, good or bad, stops the daemon.
    pub fn task<F, E>(&mut self, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let handle = self.tasks.spawn(async move { future.await.map_err(Into::into) });
        self.names.insert(handle.id(), name);
    }

    /// Runs until `told` is done, `stop` is cancelled or a task ends; then tells all to stop, waits at most `grace`, and
    /// aborts what is left. An abort reaches a task at its next await only: shut the runtime down with a time-out.
    ///
    /// # Errors
    /// The first task that failed, panicked or ended early; else the tasks that had to be aborted.
    pub async fn run(mut self, told: impl Future<Output = ()>, grace: Duration) -> Result<(), SuperviseError> {
        let first = tokio::select! {
            () = told => None,
            () = self.stop.cancelled() => None,
            Some(ended) = self.tasks.join_next_with_id() => Some(self.early(ended)),
        };
        if let Some(error) = &first {
            tracing::error!(error = chain(error), "stopping");
        }
        self.stop.cancel();
        let drained = self.drain(grace).await;
        first.map_or(drained, Err)
    }

    async fn drain(&mut self, grace: Duration) -> Result<(), SuperviseError> {
        let deadline = tokio::time::sleep(grace);
        tokio::pin!(deadline);
        let mut worst = Ok(());
        loop {
            let ended = tokio::select! {
                ended = self.tasks.join_next_with_id() => ended,
                () = &mut deadline => break,
            };
            let Some(ended) = ended else { return worst };
            if let Some(error) = self.ended(ended).err() {
                tracing::error!(error = chain(&error), "while stopping");
                worst = worst.and(Err(error));
            }
        }
        self.tasks.abort_all();
        let mut names: Vec<_> = self.names.values().copied().collect();
        names.sort_unstable();
        let hung = SuperviseError::Hung { names, grace };
        tracing::error!(error = chain(&hung), "while stopping");
        worst.and(Err(hung))
    }

    fn early(&mut self, ended: Ended) -> SuperviseError {
        let name = self.name(&ended);
        self.ended(ended).err().unwrap_or(SuperviseError::EndedEarly { name })
    }

    fn ended(&mut self, ended: Ended) -> Result<(), SuperviseError> {
        let name = self.name(&ended);
        match ended {
            Ok((id, result)) => {
                self.names.remove(&id);
                result.map_err(|source| SuperviseError::Failed { name, source })
            }
            Err(error) => {
                self.names.remove(&error.id());
                Err(SuperviseError::Panicked { name, message: panic_message(error) })
            }
        }
    }

    fn name(&self, ended: &Ended) -> &'static str {
        let id = match ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        self.names.get(&id).copied().unwrap_or("?")
    }
}

type Ended = Result<(Id, Result<(), BoxError>), JoinError>;

/// Short-lived work of one task: connections, actions under way. `K` says which one ended, even by a panic.
/// Dropping it aborts what still runs.
#[derive(Debug)]
pub struct Children<K, T> {
    set: JoinSet<T>,
    keys: HashMap<Id, K>,
}

impl<K, T> Default for Children<K, T> {
    fn default() -> Self {
        Self { set: JoinSet::new(), keys: HashMap::new() }
    }
}

impl<K, T: Send + 'static> Children<K, T> {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts one. The caller bounds how many.
    pub fn spawn(&mut self, key: K, future: impl Future<Output = T> + Send + 'static) {
        let handle = self.set.spawn(future);
        self.keys.insert(handle.id(), key);
    }

    /// How many were not taken by `next` yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The next one that ends, or what its panic said; waits for ever while there is none, so that it can stand in a
    /// `select!`. Safe to cancel.
    pub async fn next(&mut self) -> (K, Result<T, String>) {
        while let Some(ended) = self.set.join_next_with_id().await {
            let (id, result) = match ended {
                Ok((id, value)) => (id, Ok(value)),
                Err(error) => (error.id(), Err(panic_message(error))),
            };
            if let Some(key) = self.keys.remove(&id) {
                return (key, result);
            }
        }
        std::future::pending().await
    }

    /// Waits at most `grace` for all, then aborts the rest and gives their keys.
    pub async fn drain(mut self, grace: Duration) -> Vec<K> {
        let all = async {
            while !self.is_empty() {
                let _ = self.next().await;
            }
        };
        let _ = tokio::time::timeout(grace, all).await;
        self.keys.into_values().collect()
    }
}

/// Begins to listen for SIGTERM and SIGINT at once; the future is done, with the signal's name, when one comes.
///
/// # Errors
/// The handlers cannot be installed.
pub fn signals() -> Result<impl Future<Output = &'static str>, SuperviseError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(SuperviseError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(SuperviseError::Signals)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// An error and its sources in one line, for the one place that logs it.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |e| e.source());
    sources.fold(error.to_string(), |line, source| format!("{line}: {source}"))
}

fn panic_message(error: JoinError) -> String {
    if error.is_cancelled() {
        return "aborted".to_owned();
    }
    let payload: Box<dyn Any + Send> = error.into_panic();
    let text = payload.downcast_ref::<&str>().copied().map(ToOwned::to_owned);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    async fn outcome(add: impl FnOnce(&mut Supervisor)) -> Result<(), String> {
        let mut supervisor = Supervisor::new();
        add(&mut supervisor);
        let told = tokio::time::sleep(SOON);
        supervisor.run(told, SOON).await.map_err(|e| chain(&e))
    }

    fn patient(supervisor: &mut Supervisor, name: &'static str) {
        let stop = supervisor.stop();
        supervisor.task(name, async move {
            stop.cancelled().await;
            Ok::<_, io::Error>(())
        });
    }

    #[tokio::test]
    async fn tasks_that_end_when_told_make_a_clean_stop() {
        let run = outcome(|s| {
            patient(s, "engine");
            patient(s, "web");
        });
        assert_eq!(run.await, Ok(()));
    }

    #[tokio::test]
    async fn a_task_that_ends_early_fails_or_panics_stops_the_daemon_with_its_name() {
        let early = outcome(|s| {
            patient(s, "web");
            s.task("poll", async { Ok::<_, io::Error>(()) });
        });
        assert_eq!(early.await.unwrap_err(), "task poll ended though nobody asked it to");
        let failed = outcome(|s| s.task("poll", async { Err(io::Error::other("no disk")) }));
        assert_eq!(failed.await.unwrap_err(), "task poll failed: no disk");
        let panicked = outcome(|s| s.task::<_, io::Error>("poll", async { panic!("bug {}", 7) }));
        assert_eq!(panicked.await.unwrap_err(), "task poll panicked: bug 7");
    }

    #[tokio::test]
    async fn a_task_that_does_not_end_is_aborted_and_named() {
        let hung = outcome(|s| {
            patient(s, "web");
            s.task("tail", pending::<io::Result<()>>());
            s.task("engine", pending::<io::Result<()>>());
        });
        assert_eq!(hung.await.unwrap_err(), "not ended within 0.05 s and aborted: engine, tail");
    }

    #[tokio::test]
    async fn a_failure_while_stopping_is_told() {
        let run = outcome(|s| {
            let stop = s.stop();
            s.task("store", async move {
                stop.cancelled().await;
                Err(io::Error::other("checkpoint"))
            });
        });
        assert_eq!(run.await.unwrap_err(), "task store failed: checkpoint");
    }

    #[tokio::test]
    async fn children_give_their_results_survive_panics_and_are_drained_under_a_bound() {
        let mut children = Children::new();
        children.spawn("a", async { 7 });
        assert_eq!(children.next().await, ("a", Ok(7)));
        children.spawn("b", async { panic!("bad action") });
        assert_eq!(children.next().await, ("b", Err("bad action".to_owned())));
        children.spawn("hangs", pending());
        children.spawn("c", async { 8 });
        assert_eq!(children.drain(SOON).await, ["hangs"]);
    }

    #[tokio::test]
    async fn a_signal_sent_to_the_process_is_heard_with_its_name() {
        let heard = signals().unwrap();
        let kill = std::process::Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status().unwrap();
        assert!(kill.success());
        assert_eq!(heard.await, "SIGTERM");
    }
}
