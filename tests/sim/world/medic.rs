//! The medic's process in a world: how it begins, ends, and hears.

use std::sync::Arc;
use std::time::Duration;

use hangar_medic::attempt_log::{AttemptLog, Checkpoints};
use hangar_medic::engine::{Engine, Parts, Share, Signal};
use hangar_medic::execute::hangar::{Broad, Executor};
use hangar_medic::execute::platform::CarryOut;
use hangar_medic::hangar::{AuthMemory, HangarClient, Settings};
use hangar_medic::metrics::Metrics;
use hangar_medic::observe::events::Update as EventUpdate;
use hangar_medic::observe::log::tail::TailCounts;
use hangar_medic::observe::log::{InputFormat, Reader, ServerState, Update};
use hangar_medic::observe::silences::{Silences, Update as SilenceUpdate};
use hangar_medic::policy::{State as ServerStateWord, Unasked};
use jiff::SignedDuration;
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::edges::blocked_in;
use super::super::fleet::{Lock, Platform};
use super::super::mutants::Mutant;
use super::super::time::{mono, wall};
use super::World;

thread_local! {
    static METRICS: Arc<Metrics> = Arc::new(Metrics::register(&prometheus::Registry::new()).expect("metrics"));
}

/// A process of the medic.
pub(super) struct Medic {
    pub task: JoinHandle<Result<(), String>>,
    pub stop: CancellationToken,
    pub signals: mpsc::Sender<Signal>,
    pub wake: Arc<Notify>,
    pub live: Arc<Share>,
    reader: Reader,
    read: usize,
}

impl World {
    pub(super) async fn start_medic(&mut self) {
        self.medic_back = None;
        let shared = self.shared.clone();
        let mutant = shared.lock().mutant;
        let instance = shared.lock().instance.clone();
        shared.lock().check.medic_began();
        let policy = mutant.map_or_else(|| self.plan.policy.clone(), |m| m.policy(self.plan.policy.clone()));
        shared.lock().check.configured(self.plan.policy.clone(), self.plan.windows.clone());
        let settings = Settings {
            url: "http://127.0.0.1:1".to_owned(),
            instance: instance.clone(),
            api_key_file: None,
            request_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_mins(1),
            max_body: 1 << 20,
        };
        let memory: Arc<dyn AuthMemory> = Arc::new(shared.clone());
        let client = HangarClient::new(settings, memory).expect("a client").over(Arc::new(shared.clone()));
        let client = Arc::new(client);
        let reads_log = self.plan.reads_log;
        let live = Arc::new(Share::default());
        let parts = Parts {
            executor: Arc::new(Executor::new(Arc::clone(&client), policy.budgets.starts_per_second).with_broad(self.platform(&instance))),
            client,
            poll_interval: Duration::from_millis(u64::try_from(self.plan.poll).expect("positive")),
            stale_after: SignedDuration::from_millis(self.plan.poll * 3),
            log: Arc::new(shared.clone()) as Arc<dyn AttemptLog>,
            checkpoints: Arc::new(shared.clone()) as Arc<dyn Checkpoints>,
            metrics: METRICS.with(Arc::clone),
            live: Arc::clone(&live),
            log_source: reads_log.then(|| "file hangar.log".into()),
            log_file: reads_log.then(|| "hangar.log".into()),
            alertmanager: self.plan.asks_alertmanager.then_some((Unasked::Narrow, SignedDuration::from_secs(100))),
            policy,
        };
        let (signals, heard) = mpsc::channel(64);
        let (wake, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let engine = match Engine::new(parts).await {
            Ok(engine) => engine.with_maintenance(self.windows(mutant)),
            Err(error) => {
                shared.lock().check.violation = Some(format!("the medic does not start: {error}"));
                return;
            }
        };
        let (told, stopped) = (Arc::clone(&wake), stop.clone());
        #[allow(clippy::disallowed_methods, reason = "a test has no supervisor: a killed medic is a task that is aborted")]
        let task = tokio::spawn(async move { engine.run(heard, told, stopped).await.map_err(|e| format!("{e:#}")) });
        shared.lock().say("** the medic starts");
        self.medic = Some(Medic { task, stop, signals, wake, live, reader: Reader::new(InputFormat::Json), read: 0 });
        self.log_due = Some(mono() + 20);
        self.silences_due = mono();
        if self.plan.hears_events && !self.deaf {
            self.signal(Signal::Events(EventUpdate::Open));
        }
    }

    /// What the broad rungs act with.
    fn platform(&self, instance: &str) -> Broad {
        let (site, fleet) = (self.shared.clone(), self.fleet.clone());
        let carrier: Arc<dyn CarryOut> = Arc::new(Platform { site: site.clone(), fleet: fleet.clone() });
        let platform = &self.plan.policy.platform;
        Broad {
            instance: instance.to_owned(),
            restarts: platform.restarts.iter().map(|rung| (*rung, Arc::clone(&carrier))).collect(),
            upstreams: platform.upstreams.iter().map(|id| (id.clone(), Arc::clone(&carrier))).collect(),
            restart_within: Duration::try_from(platform.restart_within).expect("positive"),
            lock: Arc::new(Lock { site, fleet, instance: instance.to_owned() }),
            ..Broad::default()
        }
    }

    pub(super) fn kill_medic(&mut self) {
        if let Some(medic) = self.medic.take() {
            medic.task.abort();
            self.shared.lock().say("** the medic is killed");
        }
        self.shared.lock().fuse = None;
        self.medic_back = Some(mono() + self.rng.between(300, 20_000));
    }

    pub(super) fn medic_ended(&mut self, ended: Result<Result<(), String>, tokio::task::JoinError>) {
        let stopped = self.medic.take().is_some_and(|m| m.stop.is_cancelled());
        let mut state = self.shared.lock();
        match ended {
            Ok(Ok(())) if stopped => state.say("** the medic has ended"),
            Ok(Ok(())) => state.check.violation = Some("the engine ended though nobody told it to".to_owned()),
            Ok(Err(error)) => state.check.violation = Some(format!("the engine failed: {error}")),
            Err(panic) => state.check.violation = Some(format!("the engine panicked: {panic}")),
        }
        drop(state);
        self.medic_back = Some(mono() + self.rng.between(300, 20_000));
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(medic) = &self.medic {
            // A full queue loses nothing for good: everything heard only wakes.
            let _ = medic.signals.try_send(signal);
        }
    }

    /// What Hangar wrote and said reaches the medic.
    pub(super) fn deliver(&mut self, now: i64) {
        let (lines, events) = {
            let state = self.shared.lock();
            (state.hangar.log.len(), !state.hangar.events.is_empty())
        };
        if self.plan.reads_log && self.medic.as_ref().is_some_and(|m| m.read < lines) && self.log_due.is_none() {
            self.log_due = Some(now + self.rng.between(1, self.log_lag));
        }
        if self.log_due.is_some_and(|at| at <= now) {
            self.log_due = None;
            self.deliver_log();
        }
        if events && self.events_due.is_none() {
            self.events_due = Some(now + self.rng.between(1, 150));
        }
        if self.events_due.is_some_and(|at| at <= now) {
            self.events_due = None;
            self.deliver_events();
        }
        if self.plan.asks_alertmanager && self.silences_due <= now {
            self.silences_due = now + 15_000;
            self.deliver_silences();
        }
    }

    fn deliver_log(&mut self) {
        let Some(medic) = &mut self.medic else { return };
        if !self.plan.reads_log {
            return;
        }
        let mut told = Vec::new();
        let mut state = self.shared.lock();
        let mut offset = u64::try_from(medic.read).unwrap_or(0) * 1000;
        for line in state.hangar.log.iter().skip(medic.read) {
            medic.reader.line(line.as_bytes(), offset, &mut |t| told.push(t));
            offset += 1000;
        }
        medic.read = state.hangar.log.len();
        let servers: Arc<[ServerState]> = medic.reader.classifier().states().collect();
        let ignores = state.mutant.is_some_and(Mutant::ignores_log);
        state.check.log_heard(blocked_in(&servers));
        drop(state);
        let update = Update {
            told,
            line_sha256: Vec::new(),
            servers: if ignores { Arc::from([]) } else { servers },
            checkpoint: hangar_medic::observe::log::tail::Tail::new(std::path::Path::new("hangar.log"), None).checkpoint(),
            counts: TailCounts::default(),
            frames: medic.reader.counts(),
            trouble: None,
            caught_up: true,
        };
        self.signal(Signal::Log(Box::new(update)));
    }

    /// Events come late, in any order, twice or never.
    fn deliver_events(&mut self) {
        let mut told = std::mem::take(&mut self.shared.lock().hangar.events);
        let news = !told.is_empty();
        if self.plan.hears_events && !self.deaf {
            if self.rng.chance(20) {
                told.reverse();
            }
            if self.rng.chance(10) {
                told.extend(told.clone());
            }
            let missed = u64::from(self.rng.chance(5));
            if missed > 0 {
                told.pop();
            }
            self.signal(Signal::Events(EventUpdate::Told { told, missed }));
        }
        // Prometheus and Alertmanager hear of it much later, or not at all, or again.
        let now = mono();
        if news && now >= self.told_at && self.rng.chance(50) {
            self.told_at = now + 15_000;
            let dead = self.dead_by_gauge();
            if self.rng.chance(50) {
                self.signal(Signal::Prometheus { dead, at: wall() });
            } else if let Some(medic) = &self.medic {
                medic.wake.notify_one();
            }
        }
    }

    fn dead_by_gauge(&self) -> Vec<String> {
        let state = self.shared.lock();
        let dead = state.hangar.servers.iter().filter(|(_, s)| s.gauge == Some(ServerStateWord::Dead));
        dead.map(|(id, _)| id.clone()).collect()
    }

    fn deliver_silences(&mut self) {
        if self.deaf {
            self.shared.lock().check.silenced.clear();
            return self.signal(Signal::Silences(SilenceUpdate::Unknown));
        }
        let until = (wall() + SignedDuration::from_mins(30)).to_string();
        let begun = (wall() - SignedDuration::from_mins(30)).to_string();
        let silence = |id: &String| {
            let matcher = |name: &str, value: &str| json!({"name": name, "value": value, "isRegex": false, "isEqual": true});
            json!({"id": format!("x-{id}"), "status": {"state": "active"}, "startsAt": begun, "endsAt": until, "createdBy": "ops", "comment": "at work",
                "updatedAt": begun, "matchers": [matcher("alertname", "MCPHangarProviderDead"), matcher("mcp_server", id)]})
        };
        let all: Vec<_> = self.silenced.iter().map(silence).collect();
        let silences =
            Silences::parse(&self.shared.lock().instance, json!(all).to_string().as_bytes(), b"[]").expect("what Alertmanager says");
        // Heard, and obeyed from the next turn on.
        let heard = self.silenced.iter().filter(|id| silences.of(id, wall()).is_some()).cloned().collect();
        self.signal(Signal::Silences(SilenceUpdate::Known(Arc::new(silences))));
        self.shared.lock().check.silenced = heard;
    }
}
