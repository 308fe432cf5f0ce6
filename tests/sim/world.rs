//! One world: a Hangar, a medic, and what befalls them, from one seed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hangar_medic::attempt_log::{AttemptLog, Checkpoints, GENESIS, hash_of};
use hangar_medic::engine::{Engine, Parts, Share, Signal};
use hangar_medic::execute::hangar::Executor;
use hangar_medic::hangar::{AuthMemory, HangarClient, Settings};
use hangar_medic::metrics::Metrics;
use hangar_medic::observe::events::Update as EventUpdate;
use hangar_medic::observe::log::tail::TailCounts;
use hangar_medic::observe::log::{InputFormat, Reader, ServerState, Update};
use hangar_medic::observe::silences::{Silences, Update as SilenceUpdate};
use hangar_medic::policy::{State as ServerStateWord, StopReason, Unasked};
use jiff::SignedDuration;
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::check::Check;
use super::edges::{INSTANCE, Shared, State, Weather, blocked_in};
use super::hangar::{Hangar, Upstream};
use super::mutants::Mutant;
use super::plan::{Blow, Plan};
use super::rng::Rng;
use super::time::{self, mono, until, wall};

/// A process of the medic.
struct Medic {
    task: JoinHandle<Result<(), String>>,
    stop: CancellationToken,
    signals: mpsc::Sender<Signal>,
    wake: Arc<Notify>,
    reader: Reader,
    read: usize,
}

pub struct World {
    plan: Plan,
    shared: Shared,
    medic: Option<Medic>,
    medic_back: Option<i64>,
    log_lag: i64,
    deaf: bool,
    silenced: BTreeSet<String>,
    rng: Rng,
    /// Log lines and events on their way: due time.
    log_due: Option<i64>,
    events_due: Option<i64>,
    told_at: i64,
    silences_due: i64,
    bound: i64,
}

/// How a world ended.
#[derive(Debug)]
pub struct End {
    pub violation: Option<String>,
    pub timeline: Vec<String>,
    pub virtual_ms: i64,
    /// From the last fault's end until all was well.
    pub healed_after_ms: i64,
    pub incidents: usize,
    pub acts: usize,
}

/// Lives one world through.
pub fn live(plan: Plan, mutant: Option<Mutant>) -> End {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async move { World::new(plan, mutant).run().await })
}

impl World {
    fn new(plan: Plan, mutant: Option<Mutant>) -> Self {
        time::begin();
        let mut rng = Rng::new(plan.seed ^ 0xabcd);
        let mut hangar = Hangar::new(plan.version, Rng::new(rng.next()));
        for (id, mode, group, ready) in &plan.servers {
            hangar.add(id, mode, group.clone(), *ready);
        }
        let mut check = Check::new(plan.policy.clone(), plan.poll);
        check.known = plan.servers.len();
        let state = State::new(Rng::new(rng.next()), hangar, check, mutant);
        Self {
            shared: Shared(Arc::new(Mutex::new(state))),
            bound: plan.bound(),
            plan,
            medic: None,
            medic_back: Some(0),
            log_lag: 100,
            deaf: false,
            silenced: BTreeSet::new(),
            rng,
            log_due: None,
            events_due: None,
            told_at: 0,
            silences_due: 0,
        }
    }

    async fn run(mut self) -> End {
        let knocked = Arc::clone(&self.shared.lock().blown);
        let mut blows = std::mem::take(&mut self.plan.blows).into_iter().peekable();
        let mended = self.plan.mended;
        let bound = mended + self.bound;
        let mut healed: Option<i64> = None;
        let mut mending = false;
        loop {
            let now = mono();
            while let Some((_, blow)) = blows.next_if(|(at, _)| *at <= now) {
                self.strike(blow);
            }
            if now >= mended && !mending {
                mending = true;
                self.mend();
            }
            if self.medic.is_none() && self.medic_back.is_some_and(|at| at <= now) {
                self.start_medic().await;
            }
            self.deliver(now);
            let (violation, left, unsettled) = {
                let state = self.shared.lock();
                let left = if mending { state.check.left(&state.hangar, self.tells_reasons()) } else { Vec::new() };
                (state.check.violation.clone(), left, state.check.unsettled().len())
            };
            if violation.is_some() {
                return self.end(violation, now, now);
            }
            if mending && self.medic.is_some() && now >= mended + 30_000 {
                if left.is_empty() && unsettled == 0 {
                    let since = *healed.get_or_insert(now);
                    if now >= since + 60_000 {
                        let broken = self.chain();
                        return self.end(broken, now, since);
                    }
                } else {
                    healed = None;
                }
                if now > bound {
                    let what = format!(
                        "not brought back within {} s after the last fault: {left:?}, unsettled {unsettled}",
                        (now - mended) / 1000
                    );
                    return self.end(Some(what), now, now);
                }
            }
            let hangars = self.shared.lock().hangar.next();
            let heartbeat = now + if mending { 10_000 } else { 60_000 };
            let due = [self.log_due, self.events_due, self.medic_back.filter(|_| self.medic.is_none())];
            let next = due.into_iter().flatten().chain(blows.peek().map(|(at, _)| *at)).chain([hangars, heartbeat]);
            let next = next.chain((!mending).then_some(mended)).chain(self.plan.asks_alertmanager.then_some(self.silences_due));
            let next = next.min().unwrap_or(heartbeat).max(now + 1);
            let died = if let Some(medic) = &mut self.medic {
                tokio::select! {
                    biased;
                    () = knocked.notified() => true,
                    ended = &mut medic.task => { self.medic_ended(ended); false }
                    () = until(next) => false,
                }
            } else {
                until(next).await;
                false
            };
            if died {
                self.kill_medic();
            }
        }
    }

    fn tells_reasons(&self) -> bool {
        self.plan.reads_log || self.plan.version >= (2, 21, 0)
    }

    fn end(self, violation: Option<String>, now: i64, healed: i64) -> End {
        let state = self.shared.lock();
        let (incidents, acts) = state.check.counts();
        End { violation, timeline: state.timeline.clone(), virtual_ms: now, healed_after_ms: healed - self.plan.mended, incidents, acts }
    }

    /// What is on disk is one unbroken chain.
    fn chain(&self) -> Option<String> {
        let state = self.shared.lock();
        let (mut prev, mut seq) = (GENESIS.to_owned(), 0);
        for (record, text) in &state.disk.records {
            let hash = hash_of(&prev, INSTANCE, seq + 1, &format!("{:.6}", record.at), &record.actor, text);
            if record.seq != seq + 1 || record.prev_hash != prev || record.hash != hash {
                return Some(format!("record {} does not fit the chain", record.seq));
            }
            (prev, seq) = (hash, record.seq);
        }
        None
    }

    // ---- the medic ----

    async fn start_medic(&mut self) {
        self.medic_back = None;
        let shared = self.shared.clone();
        let mutant = shared.lock().mutant;
        shared.lock().check.medic_began();
        let policy = mutant.map_or_else(|| self.plan.policy.clone(), |m| m.policy(self.plan.policy.clone()));
        let settings = Settings {
            url: "http://127.0.0.1:1".to_owned(),
            instance: INSTANCE.to_owned(),
            api_key_file: None,
            request_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_mins(1),
            max_body: 1 << 20,
        };
        let memory: Arc<dyn AuthMemory> = Arc::new(shared.clone());
        let client = HangarClient::new(settings, memory).expect("a client").over(Arc::new(shared.clone()));
        let client = Arc::new(client);
        let reads_log = self.plan.reads_log;
        let parts = Parts {
            executor: Arc::new(Executor::new(Arc::clone(&client), policy.budgets.starts_per_second)),
            client,
            poll_interval: Duration::from_millis(u64::try_from(self.plan.poll).expect("positive")),
            stale_after: SignedDuration::from_millis(self.plan.poll * 3),
            log: Arc::new(shared.clone()) as Arc<dyn AttemptLog>,
            checkpoints: Arc::new(shared.clone()) as Arc<dyn Checkpoints>,
            metrics: METRICS.with(Arc::clone),
            live: Arc::new(Share::default()),
            log_source: reads_log.then(|| "file hangar.log".into()),
            log_file: reads_log.then(|| "hangar.log".into()),
            alertmanager: self.plan.asks_alertmanager.then_some((Unasked::Narrow, SignedDuration::from_secs(100))),
            policy,
        };
        let (signals, heard) = mpsc::channel(64);
        let (wake, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let engine = match Engine::new(parts).await {
            Ok(engine) => engine,
            Err(error) => {
                shared.lock().check.violation = Some(format!("the medic does not start: {error}"));
                return;
            }
        };
        let (told, stopped) = (Arc::clone(&wake), stop.clone());
        #[allow(clippy::disallowed_methods, reason = "a test has no supervisor: a killed medic is a task that is aborted")]
        let task = tokio::spawn(async move { engine.run(heard, told, stopped).await.map_err(|e| format!("{e:#}")) });
        shared.lock().say("** the medic starts");
        self.medic = Some(Medic { task, stop, signals, wake, reader: Reader::new(InputFormat::Json), read: 0 });
        self.log_due = Some(mono() + 20);
        self.silences_due = mono();
        if self.plan.hears_events && !self.deaf {
            self.signal(Signal::Events(EventUpdate::Open));
        }
    }

    fn kill_medic(&mut self) {
        if let Some(medic) = self.medic.take() {
            medic.task.abort();
            self.shared.lock().say("** the medic is killed");
        }
        self.shared.lock().fuse = None;
        self.medic_back = Some(mono() + self.rng.between(300, 20_000));
    }

    fn medic_ended(&mut self, ended: Result<Result<(), String>, tokio::task::JoinError>) {
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

    fn signal(&mut self, signal: Signal) {
        if let Some(medic) = &self.medic {
            // A full queue loses nothing for good: everything heard only wakes.
            let _ = medic.signals.try_send(signal);
        }
    }

    /// What Hangar wrote and said reaches the medic.
    fn deliver(&mut self, now: i64) {
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
        let silences = Silences::parse(INSTANCE, json!(all).to_string().as_bytes(), b"[]").expect("what Alertmanager says");
        // Heard, and obeyed from the next turn on.
        let heard = self.silenced.iter().filter(|id| silences.of(id, wall()).is_some()).cloned().collect();
        self.signal(Signal::Silences(SilenceUpdate::Known(Arc::new(silences))));
        self.shared.lock().check.silenced = heard;
    }

    // ---- what befalls it ----

    #[allow(clippy::too_many_lines, reason = "one arm a kind of blow")]
    fn strike(&mut self, blow: Blow) {
        self.shared.lock().say(format!("!! {blow:?}"));
        match blow {
            Blow::MedicKill => return self.kill_medic(),
            Blow::MedicTerm => {
                if let Some(medic) = &self.medic {
                    medic.stop.cancel();
                }
                return;
            }
            Blow::Step(by) => {
                time::step(SignedDuration::from_millis(by));
                self.shared.lock().check.steps += 1;
                return;
            }
            Blow::LogLag(lag) => {
                self.log_lag = lag;
                return;
            }
            Blow::DeafTo(deaf) => {
                self.deaf = deaf;
                let update = if deaf { EventUpdate::Closed } else { EventUpdate::Open };
                if self.plan.hears_events {
                    self.signal(Signal::Events(update));
                }
                return;
            }
            Blow::Noise => {
                if let Some(medic) = &self.medic {
                    medic.wake.notify_one();
                }
                return;
            }
            Blow::Silence(id, on) => {
                if on {
                    self.silenced.insert(id);
                } else {
                    self.silenced.remove(&id);
                    self.shared.lock().check.silenced.clear();
                }
                self.silences_due = mono();
                return;
            }
            _ => {}
        }
        let mut state = self.shared.lock();
        let State { hangar, disk, weather, .. } = &mut *state;
        let up = hangar.up;
        let touched = |hangar: &mut Hangar, id: &str| {
            if let Some(server) = hangar.servers.get_mut(id) {
                server.broken = true;
            }
        };
        match blow {
            Blow::Crash(id) => {
                touched(hangar, &id);
                hangar.crash(&id);
            }
            Blow::Kill(id, reason, failures) => {
                touched(hangar, &id);
                hangar.kill(&id, failures, reason);
            }
            Blow::Upstream(id, upstream) => {
                touched(hangar, &id);
                if let Some(server) = hangar.servers.get_mut(&id) {
                    server.upstream = upstream;
                }
            }
            Blow::LoseSession(id) => {
                touched(hangar, &id);
                if let Some(server) = hangar.servers.get_mut(&id).filter(|s| up && s.state == ServerStateWord::Ready) {
                    server.session_lost = true;
                }
            }
            Blow::Stick(id, state) => {
                touched(hangar, &id);
                hangar.stick(&id, state);
            }
            Blow::Stop(id, reason) => {
                touched(hangar, &id);
                if reason == StopReason::Idle {
                    if hangar.servers.get(&id).is_some_and(|s| s.state == ServerStateWord::Ready) {
                        hangar.stop(&id, reason);
                    }
                } else {
                    hangar.stop_on_purpose(&id, reason);
                }
            }
            Blow::Call(id) => hangar.call(&id),
            Blow::Edit(id) => hangar.edit(&id),
            Blow::Remove(id) => {
                hangar.servers.remove(&id);
            }
            Blow::HangarDown(lasts) => {
                let back = hangar.now + lasts;
                if hangar.up {
                    hangar.down(back);
                }
            }
            #[allow(clippy::cast_precision_loss, reason = "at most 20")]
            Blow::Spend(n) => hangar.spend(n as f64),
            Blow::Refuse(on) => hangar.refuses = on,
            Blow::LockOut => hangar.locked_until = hangar.now + 300_000,
            Blow::Weather(bad) => *weather = bad,
            Blow::DiskFull(full) => disk.full = full,
            Blow::DiskSlow(slow) => disk.slow = slow,
            Blow::MedicCrash(edges) => state.arm(edges),
            Blow::MedicKill | Blow::MedicTerm | Blow::Step(_) | Blow::LogLag(_) | Blow::DeafTo(_) | Blow::Noise | Blow::Silence(..) => {}
        }
    }

    /// All faults end.
    fn mend(&mut self) {
        self.log_lag = 100;
        self.deaf = false;
        self.silenced.clear();
        let mut state = self.shared.lock();
        state.say("!! all faults end");
        state.weather = Weather::default();
        state.disk.full = false;
        state.disk.slow = 0;
        state.fuse = None;
        state.check.silenced.clear();
        let State { hangar, .. } = &mut *state;
        hangar.refuses = false;
        hangar.locked_until = hangar.locked_until.min(hangar.now + 300_000);
        for server in hangar.servers.values_mut() {
            server.upstream = Upstream::Works;
        }
        if !hangar.up {
            hangar.back_at = Some(hangar.back_at.unwrap_or(hangar.now + 1).min(hangar.now + 10_000));
        }
        drop(state);
        self.silences_due = mono();
        if self.plan.hears_events {
            self.signal(Signal::Events(EventUpdate::Open));
        }
    }
}

thread_local! {
    static METRICS: Arc<Metrics> = Arc::new(Metrics::register(&prometheus::Registry::new()).expect("metrics"));
}
