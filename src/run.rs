//! Wiring: the one file that knows every part.

mod operations;
mod reload;
mod store;
mod views;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use prometheus::Registry;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::attempt_log::fleet::FleetLock;
use crate::attempt_log::{AttemptLog, Checkpoints, Log, LogError};
use crate::cli::assess::break_glass_authorised;
use crate::clock;
use crate::config::{Config, unsigned};
use crate::engine::{ACTOR, Command, Engine, Parts, Share, Signal, log_checkpoint};
use crate::execute::hangar::{Broad, Executor, Peer};
use crate::execute::hook::Callbacks;
use crate::execute::platform::carrier;
use crate::hangar::{AuthMemory, HangarClient, MemoryError, Settings};
use crate::jitter::Jitter;
use crate::metrics::{Metrics, Seed};
use crate::observe::log::tail::follow;
use crate::observe::log::{Checkpoint, InputFormat, journal};
use crate::observe::prometheus::{self as prom, PrometheusSource};
use crate::observe::{events, processes, silences};
use crate::policy::{Rung, State};
use crate::server::{self, Principals, Shared};
use crate::supervise::{GRACE, Supervisor};
use operations::ThroughEngine;
pub use reload::Origin;
use store::Opened;
use views::DaemonViews;

/// Signals on their way to the engine at once; then their sources wait.
const SIGNALS_MAX: usize = 64;
/// How often Hangar's log is looked at where inotify gives no hint.
const LOG_INTERVAL: Duration = Duration::from_millis(250);
/// How often retention is looked after, from the start on: a daemon that is often started anew must not keep everything.
const RETENTION_EVERY: Duration = Duration::from_hours(6);

/// Runs the daemon until SIGTERM or SIGINT, then drains for at most 10 s.
pub async fn run(mut config: Config, origin: Origin) -> anyhow::Result<()> {
    // From here on a hangup is no end.
    let hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).context("signals cannot be heard")?;
    config.policy.break_glass_authorised = break_glass_authorised();
    let metrics = Arc::new(Metrics::register(&Registry::new()).context("the metrics cannot be registered")?);
    metrics.set_mode(config.policy.mode);
    metrics.config_loaded(&config.sha256(), clock::now());
    let principals = Principals::new(&config.web.principals, config.policy.matrix.clone());
    let shared = Shared::with_principals(Arc::clone(&metrics), principals);
    shared.set_webhook_access(config.web.webhook.clone());
    shared.set_webhook_certificate(config.web.webhook_certificate.clone());
    let tls = config.web.tls.as_ref().map(server::Tls::load).transpose()?;
    let bound = server::bind(&config.web.listen_address.to_string(), config.web.unsafe_no_auth).await?.with_tls(tls);
    tracing::info!(event = "listening", address = %bound.address(), version = env!("CARGO_PKG_VERSION"));

    let mut supervisor = Supervisor::new();
    supervisor.task("server", bound.serve(Arc::clone(&shared), supervisor.stop()));
    // The server answers while the store opens.
    let told = terminated().context("signals cannot be heard")?;
    tokio::pin!(told);
    let opened = tokio::select! {
        opened = store::open(&config, &shared, &metrics) => opened,
        () = &mut told => return Ok(()),
    };
    let Opened { store, fleet, place, counts, records } = opened?;
    metrics.seed(&Seed {
        attempts: counts.settled,
        recoveries: counts.recoveries,
        incidents: counts.incidents,
        closed: counts.closed,
        records,
    });
    tracing::info!(event = "store_open", %place, records);

    daemon(&mut supervisor, config, (store, fleet), metrics, shared, (origin, hangup)).await?;
    supervisor.run(told, GRACE).await?;
    tracing::info!(event = "stopped");
    Ok(())
}

async fn daemon(
    supervisor: &mut Supervisor,
    config: Config,
    (store, fleet): (Arc<dyn Log>, Arc<dyn FleetLock>),
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
    (origin, hangup): (Origin, tokio::signal::unix::Signal),
) -> anyhow::Result<()> {
    let stop = supervisor.stop();
    let client = Arc::new(HangarClient::new(Settings::from(&config.hangar), Arc::new(Memory(Arc::clone(&store))))?);
    // Whoever restarts Hangar pauses it meanwhile.
    let events_gate = events::Gate::new();
    let callbacks = Arc::new(Callbacks::default());
    shared.set_callbacks(Arc::clone(&callbacks));
    let executor = Executor::new(Arc::clone(&client), config.policy.budgets.starts_per_second);
    let memory = || Arc::new(Memory(Arc::clone(&store))) as Arc<dyn AuthMemory>;
    let executor = Arc::new(executor.with_broad(broad(&config, Arc::clone(&fleet), &callbacks, events_gate.clone(), memory)?));
    let (signals, heard) = mpsc::channel(SIGNALS_MAX);
    let (wake, live) = (Arc::new(Notify::new()), Arc::new(Share::default()));
    let parts = Parts {
        policy: config.policy.clone(),
        poll_interval: unsigned(config.hangar.poll_interval),
        stale_after: config.hangar.stale_after(),
        client: Arc::clone(&client),
        executor: Arc::clone(&executor),
        log: Arc::clone(&store) as Arc<dyn AttemptLog>,
        checkpoints: Arc::clone(&store) as Arc<dyn Checkpoints>,
        metrics: Arc::clone(&metrics),
        live: Arc::clone(&live),
        log_source: log_source(&config),
        log_file: config.hangar.log_file.clone(),
        alertmanager: config.alertmanager.url.as_ref().map(|_| (config.alertmanager.on_unreachable, silences_stale_after(&config))),
    };
    let engine = Engine::new(parts).await?.with_maintenance(config.maintenance.clone()).with_fleet(fleet);
    let log_from = match log_source(&config) {
        Some(source) => log_checkpoint(&*store, &source).await?,
        None => None,
    };
    let log = Arc::clone(&store) as Arc<dyn AttemptLog>;
    let views = DaemonViews::new(&config, log, Arc::clone(&live), Arc::clone(&metrics), Arc::clone(&client), Arc::clone(&wake));
    let views = Arc::new(views);
    shared.set_views(Arc::clone(&views) as Arc<dyn server::Views>);
    let (reloader, asked) = mpsc::channel(reload::ASKED_MAX);
    shared.set_operations(Arc::new(ThroughEngine { engine: signals.clone(), reloader }));

    watch_hangar(supervisor, &config, client, events_gate, &live, &signals);
    watch_log(supervisor, &config, log_from, &signals)?;
    watch_others(supervisor, &config, &signals)?;
    supervisor.task("ready", watch::watch(live, Arc::clone(&shared), Arc::clone(&metrics), stop.clone()));
    let (retention, kept) = tokio::sync::watch::channel(config.storage.retention);
    supervisor.task("retention", retain(store, kept, signals.clone(), stop.clone()));
    let parts = reload::Parts { engine: signals, metrics, shared, views, executor, retention };
    let reloader = reload::Reloader { origin, in_use: config, parts };
    supervisor.task("reload", reloader.run(asked, hangup, stop.clone()));
    supervisor.task("engine", engine.run(heard, wake, stop));
    Ok(())
}

/// What rungs 3 and 6 to 10 act with.
fn broad(
    config: &Config,
    lock: Arc<dyn FleetLock>,
    callbacks: &Arc<Callbacks>,
    events: events::Gate,
    memory: impl Fn() -> Arc<dyn AuthMemory>,
) -> anyhow::Result<Broad> {
    let platform = &config.platform;
    let of = |action: Rung| move |executor| carrier(executor, action, callbacks);
    let peer = |url: &reqwest::Url| {
        let name = url.as_str().trim_end_matches('/').to_owned();
        // Each locks out by itself, so each refusal is remembered by itself.
        let instance = format!("{}, peer {name}", config.hangar.instance);
        let settings = Settings { url: url.to_string(), instance, ..Settings::from(&config.hangar) };
        HangarClient::new(settings, memory()).map(|client| Peer { name, client }).context("a client of hangar.peers")
    };
    Ok(Broad {
        instance: config.hangar.instance.clone(),
        peers: config.hangar.peers.iter().map(peer).collect::<anyhow::Result<_>>()?,
        others: config.hangar.instances.get() as usize - 1,
        restarts: platform.restarts.iter().map(|(action, e)| (*action, of(*action)(e))).collect(),
        upstreams: platform.upstreams.iter().map(|(id, e)| (id.clone(), of(Rung::RoleRuntimeRestart)(e))).collect(),
        definitions: platform.definitions.clone(),
        config_file: config.hangar.config_file.clone(),
        log_file: config.hangar.log_file.clone(),
        restart_within: unsigned(platform.restart_within),
        lock,
        events,
    })
}

/// Hangar's events, and the ends of its processes.
fn watch_hangar(
    supervisor: &mut Supervisor,
    config: &Config,
    client: Arc<HangarClient>,
    gate: events::Gate,
    live: &Arc<Share>,
    signals: &mpsc::Sender<Signal>,
) {
    let stop = supervisor.stop();
    if config.hangar.hears_events() {
        let (to_engine, stopped) = (signals.clone(), stop.clone());
        supervisor.task("events", async move {
            events::follow(client, Jitter::new(), gate, to_engine, stopped.clone()).await;
            until(&stopped).await
        });
        let (live, to_engine, stopped) = (Arc::clone(live), signals.clone(), stop.clone());
        let port = local_port(&config.hangar.url);
        supervisor.task("processes", async move {
            processes::follow("/proc".into(), port, move || live.process_start(), to_engine, stopped.clone()).await;
            until(&stopped).await
        });
    }
}

/// Hangar's log, where one is read.
fn watch_log(supervisor: &mut Supervisor, config: &Config, from: Option<Checkpoint>, signals: &mpsc::Sender<Signal>) -> anyhow::Result<()> {
    let (signals, stop) = (signals.clone(), supervisor.stop());
    if let Some(path) = &config.hangar.log_file {
        let (follower, updates) = follow(path, InputFormat::Auto, from, LOG_INTERVAL).context("Hangar's log cannot be followed")?;
        supervisor.task("log", async move {
            pass_on(updates, &signals, &stop).await;
            drop(follower);
            Ok::<(), anyhow::Error>(())
        });
    } else if let Some(unit) = &config.hangar.log_journal {
        let settings = journal::Settings::unit(unit);
        supervisor.task("log", async move {
            journal::follow(settings, from, Jitter::new(), signals, stop.clone()).await;
            until(&stop).await
        });
    }
    Ok(())
}

/// Names the log that is read: a position in one says nothing about another.
fn log_source(config: &Config) -> Option<String> {
    let file = config.hangar.log_file.as_ref().map(|path| format!("file {}", path.display()));
    file.or_else(|| config.hangar.log_journal.as_ref().map(|unit| format!("journal {unit}")))
}

/// Prometheus and Alertmanager, where they are configured.
fn watch_others(supervisor: &mut Supervisor, config: &Config, signals: &mpsc::Sender<Signal>) -> anyhow::Result<()> {
    let stop = supervisor.stop();
    if let Some(source) = prometheus_source(config)? {
        let every = unsigned(config.prometheus.poll_interval);
        supervisor.task("prometheus", watch_prometheus(source, every, signals.clone(), stop.clone()));
    }
    if let Some(url) = config.alertmanager.url.clone() {
        let settings = silences::Settings {
            url,
            instance: config.hangar.instance.clone(),
            poll_interval: unsigned(config.alertmanager.poll_interval),
            timeout: unsigned(config.alertmanager.timeout),
            http: config.alertmanager.http.clone(),
        };
        let signals = signals.clone();
        supervisor.task("silences", async move {
            silences::follow(settings, signals, stop.clone()).await;
            until(&stop).await
        });
    }
    Ok(())
}

/// The port of a Hangar that is asked on loopback.
fn local_port(url: &reqwest::Url) -> Option<u16> {
    let host = url.host_str()?.trim_matches(['[', ']']);
    let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    url.port_or_known_default().filter(|_| local)
}

/// A source whose engine is gone ends with it, not before.
async fn until(stop: &CancellationToken) -> anyhow::Result<()> {
    stop.cancelled().await;
    Ok(())
}

/// Age at which silences are unknown: three reads missed.
fn silences_stale_after(config: &Config) -> SignedDuration {
    (config.alertmanager.poll_interval + config.alertmanager.timeout).saturating_mul(3)
}

/// SIGTERM or SIGINT, heard from this call on.
fn terminated() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

async fn pass_on(mut updates: mpsc::Receiver<crate::observe::log::tail::Update>, signals: &mpsc::Sender<Signal>, stop: &CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            update = updates.recv() => match update {
                Some(update) => if signals.send(update.into()).await.is_err() { return },
                None => return,
            },
        }
    }
}

/// The Prometheus source of a configuration; `None` where it is off.
///
/// # Errors
/// Its URL or certificates cannot make a client.
pub fn prometheus_source(config: &Config) -> anyhow::Result<Option<PrometheusSource>> {
    let Some(url) = &config.prometheus.url else { return Ok(None) };
    let settings = prom::Settings {
        url: url.clone(),
        instance: config.hangar.instance.clone(),
        selector: config.prometheus.selector.clone(),
        http: config.prometheus.http.clone(),
        timeout: unsigned(config.prometheus.timeout),
        stale_after: config.prometheus.poll_interval.saturating_mul(3).max(SignedDuration::from_mins(2)),
        max_body: config.hangar.max_body,
    };
    Ok(Some(PrometheusSource::new(settings)?))
}

/// Prometheus wakes; Hangar itself is asked before anything is believed.
async fn watch_prometheus(
    mut source: PrometheusSource,
    every: Duration,
    signals: mpsc::Sender<Signal>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut last = None;
    loop {
        let at: Timestamp = clock::now();
        match source.read(at).await {
            Ok(read) => {
                last = None;
                let dead = |(id, sample): (String, prom::PrometheusSample)| (sample.state == Some(State::Dead)).then_some(id);
                let dead: BTreeSet<String> = read.servers.into_iter().filter_map(dead).chain(read.firing).collect();
                let dead = dead.into_iter().collect();
                if signals.send(Signal::Prometheus { dead, at }).await.is_err() {
                    return Ok(());
                }
            }
            Err(unknown) => {
                let words = unknown.to_string();
                if last.as_ref() != Some(&words) {
                    tracing::warn!(error = words, "Prometheus says nothing about this Hangar: unknown, not healthy");
                    last = Some(words);
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(every) => {}
        }
    }
}

async fn retain(
    store: Arc<dyn Log>,
    retention: tokio::sync::watch::Receiver<SignedDuration>,
    signals: mpsc::Sender<Signal>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let (now, kept) = (clock::now(), *retention.borrow());
        match store.cut(now - kept, now, ACTOR).await {
            Ok(cut) if cut.removed > 0 => {
                tracing::info!(event = "retention", removed = cut.removed, first_seq = cut.first_seq);
                // The engine is gone only when everything stops.
                let _ = signals.send(Signal::Command(Box::new(Command::Recount))).await;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(error = crate::hangar::fault::chain(&error), "retention failed; it is tried again"),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(RETENTION_EVERY) => {}
        }
    }
}

/// What is remembered of refused credentials, in the store.
struct Memory(Arc<dyn Log>);

impl AuthMemory for Memory {
    fn get<'a>(&'a self, key: &'a str) -> futures_util::future::BoxFuture<'a, Result<Option<serde_json::Value>, MemoryError>> {
        Box::pin(async move { self.0.get(key).await.map_err(forgotten) })
    }

    fn put<'a>(&'a self, key: &'a str, value: serde_json::Value) -> futures_util::future::BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async move { self.0.put(key, value).await.map_err(forgotten) })
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
fn forgotten(error: LogError) -> MemoryError {
    MemoryError(crate::hangar::fault::chain(&error))
}
