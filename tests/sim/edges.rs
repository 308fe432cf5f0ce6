//! The daemon's outward edges in a world: the wire to Hangar, the disk, and what is remembered of credentials.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hangar_medic::attempt_log::{
    AttemptLog, Checkpoints, Counts, Cut, GENESIS, Head, IncidentState, LogError, Place, Progress, VerifyReport, hash_of,
};
use hangar_medic::hangar::client::{Answer, Sent, Wire};
use hangar_medic::hangar::{AuthMemory, Fault, MemoryError};
use hangar_medic::observe::metrics_text::MetricsReading;
use hangar_medic::policy::{Attempt, Body, History, Incident, Policy, Record};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use super::check::Check;
use super::hangar::{Hangar, Reply};
use super::mutants::Mutant;
use super::rng::Rng;
use super::time::{mono, until, wait};

/// What is wrong with the way between the medic and Hangar.
#[derive(Debug, Clone, Default)]
pub struct Weather {
    /// Nothing listens.
    pub unreachable: bool,
    /// Of a hundred requests: never arrive, or their answers never come back.
    pub lost: usize,
    /// Of a hundred requests: answered by something that is not Hangar.
    pub garbled: usize,
    /// Longest delay either way, ms.
    pub delay: i64,
    /// 403 to everything.
    pub forbidden: bool,
    /// Only `/metrics` fails.
    pub metrics_gone: bool,
}

/// Everything of a world that is shared.
pub struct State {
    pub instance: String,
    pub rng: Rng,
    pub hangar: Hangar,
    pub check: Check,
    pub weather: Weather,
    pub disk: Disk,
    pub timeline: Vec<String>,
    pub mutant: Option<Mutant>,
    edges: u64,
    /// The medic dies at this edge.
    pub fuse: Option<u64>,
    pub blown: Arc<Notify>,
}

/// What outlives the medic.
#[derive(Debug, Default)]
pub struct Disk {
    pub records: Vec<(Record, String)>,
    pub checkpoints: BTreeMap<String, Value>,
    pub full: bool,
    /// Longest time that a write takes, ms.
    pub slow: i64,
}

impl State {
    pub fn new(instance: String, rng: Rng, hangar: Hangar, check: Check, mutant: Option<Mutant>) -> Self {
        Self {
            instance,
            rng,
            hangar,
            check,
            weather: Weather::default(),
            disk: Disk::default(),
            timeline: Vec::new(),
            mutant,
            edges: 0,
            fuse: None,
            blown: Arc::new(Notify::new()),
        }
    }

    pub fn say(&mut self, what: impl AsRef<str>) {
        #[allow(clippy::cast_precision_loss, reason = "for a person")]
        let at = mono() as f64 / 1000.0;
        self.timeline.push(format!("{at:9.3}  {}", what.as_ref()));
    }

    /// Lights a fuse that is so many edges long.
    pub fn arm(&mut self, edges: u64) {
        self.fuse = Some(self.edges + edges);
    }
}

/// Handle on a world.
#[derive(Clone)]
pub struct Shared(pub Arc<Mutex<State>>);

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().expect("no panic before");
        let now = mono();
        state.hangar.advance(now);
        if std::mem::take(&mut state.hangar.took_medic) {
            state.say("** the medic goes down with Hangar");
            state.blown.notify_one();
        }
        state
    }

    /// A point at which the medic may die: nothing after it happens in that process.
    pub async fn edge(&self, name: &str) {
        let blown = {
            let mut state = self.lock();
            state.edges += 1;
            let dies = state.fuse == Some(state.edges);
            if dies {
                state.fuse = None;
                state.say(format!("** the medic dies at {name}"));
            }
            dies.then(|| Arc::clone(&state.blown))
        };
        if let Some(blown) = blown {
            blown.notify_one();
            std::future::pending::<()>().await;
        }
    }

    fn nobody_listens(&self) -> bool {
        let state = self.lock();
        state.weather.unreachable || !state.hangar.up
    }

    async fn carry(&self, sent: &Sent) -> Result<Answer, Fault> {
        let posts = sent.method != "GET";
        let what = format!("{} {}", sent.method, sent.path);
        if posts {
            self.edge(&format!("before {what}")).await;
            self.lock().check.leaves(&sent.path);
        }
        let left = mono();
        if self.nobody_listens() {
            wait(1).await;
            return Err(Fault::Unreachable { why: "connection refused".to_owned() });
        }
        let (there, back, lost, lost_back, garbled, twice) = {
            let mut state = self.lock();
            let weather = state.weather.clone();
            let (there, back) = (1 + state.rng.delay(weather.delay), 1 + state.rng.delay(weather.delay));
            let lost = state.rng.chance(weather.lost);
            let lost_back = state.rng.chance(weather.lost);
            let garbled = state.rng.chance(weather.garbled);
            let twice = posts && state.mutant == Some(Mutant::SendsTwice);
            (there, back, lost, lost_back, garbled, twice)
        };
        wait(there).await;
        if lost {
            wait(1_000_000_000).await;
        }
        if garbled && !posts {
            wait(back).await;
            return Ok(Answer { status: 502, retry_after: None, body: b"<html>Bad Gateway</html>".to_vec() });
        }
        let id = sent.path.split('/').nth(2).unwrap_or_default().to_owned();
        let (mut reply, truth) = {
            let mut state = self.lock();
            let State { hangar, check, weather, .. } = &mut *state;
            let reply = if weather.forbidden && sent.path != "health/live" {
                let body = serde_json::json!({"error": "access_denied", "message": "no", "details": {}});
                Reply::Now(403, body)
            } else {
                let body: Value = sent.body.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default();
                let reply = hangar.arrive(&sent.method, &sent.path, body["member_id"].as_str());
                if posts {
                    let served = !matches!(reply, Reply::Now(401 | 403 | 429, _) | Reply::Gone);
                    check.arrives(&sent.method, &sent.path, served, hangar);
                    if twice {
                        check.arrives(&sent.method, &sent.path, served, hangar);
                    }
                    state.say(format!("-> {what}"));
                }
                reply
            };
            let refused = state.hangar.failed_logins;
            if refused > 0 {
                state.check.refused_login(refused);
            }
            let truths: Vec<(String, _)> = if sent.method == "GET" && sent.path == "api/mcp_servers/" {
                Vec::new()
            } else {
                Check::truth(&state.hangar, &id, left).map(|t| (id.clone(), t)).into_iter().collect()
            };
            (reply, truths)
        };
        while let Reply::When(at) = reply {
            let started = self.lock().hangar.process_start;
            until(at.min(mono() + 31_000)).await;
            wait(1).await;
            let state = self.lock();
            reply = if state.hangar.process_start == started { state.hangar.started(&id) } else { Reply::Gone };
        }
        if lost_back {
            wait(1_000_000_000).await;
        }
        wait(back).await;
        let Reply::Now(status, body) = reply else { return Err(Fault::Lost { why: "connection reset".to_owned() }) };
        if posts {
            self.edge(&format!("after {what}")).await;
            self.lock().say(format!("<- {what}: {status} {}", body["error"]["code"].as_str().unwrap_or_default()));
        }
        let mut state = self.lock();
        let body = state.mutant.map_or(body.clone(), |mutant| mutant.answer(body));
        let detail = sent.method == "GET" && sent.path.split('/').count() == 3 && sent.path.starts_with("api/mcp_servers/");
        if status == 200 && detail {
            for (id, truth) in truth {
                state.check.rest_heard(&id, &truth);
            }
        }
        Ok(Answer { status, retry_after: None, body: body.to_string().into_bytes() })
    }

    async fn read_metrics(&self) -> Result<MetricsReading, Fault> {
        if self.nobody_listens() {
            wait(1).await;
            self.lock().check.metrics_lost();
            return Err(Fault::Unreachable { why: "connection refused".to_owned() });
        }
        let (left, there, back, fails, lost) = {
            let mut state = self.lock();
            let weather = state.weather.clone();
            let (there, back) = (1 + state.rng.delay(weather.delay), 1 + state.rng.delay(weather.delay));
            let garbled = state.rng.chance(weather.garbled) || weather.metrics_gone;
            (mono(), there, back, garbled, state.rng.chance(weather.lost))
        };
        if lost {
            wait(10_000).await;
            self.lock().check.metrics_lost();
            return Err(Fault::Lost { why: "timed out".to_owned() });
        }
        wait(there).await;
        let reading = {
            let state = self.lock();
            state.hangar.up.then(|| state.hangar.metrics())
        };
        wait(back).await;
        let mut state = self.lock();
        if let Some(reading) = reading.filter(|_| !fails) {
            let State { hangar, check, .. } = &mut *state;
            check.metrics_heard(left, hangar);
            Ok(state.mutant.map_or(reading.clone(), |mutant| mutant.metrics(reading)))
        } else {
            state.check.metrics_lost();
            Err(Fault::BadAnswer { status: Some(502), what: "not Prometheus text".to_owned() })
        }
    }
}

impl Wire for Shared {
    fn send(&self, sent: Sent) -> BoxFuture<'_, Result<Answer, Fault>> {
        Box::pin(async move {
            match tokio::time::timeout(sent.timeout, self.carry(&sent)).await {
                Ok(answer) => answer,
                Err(_) => Err(Fault::Lost { why: "timed out".to_owned() }),
            }
        })
    }

    fn metrics(&self) -> BoxFuture<'_, Result<MetricsReading, Fault>> {
        Box::pin(async move {
            if let Ok(answer) = tokio::time::timeout(Duration::from_secs(10), self.read_metrics()).await {
                answer
            } else {
                self.lock().check.metrics_lost();
                Err(Fault::Lost { why: "timed out".to_owned() })
            }
        })
    }
}

pub fn full() -> LogError {
    LogError::Unwritable { place: Place::Server("sim".to_owned()), source: "no space left".into() }
}

impl AttemptLog for Shared {
    fn append<'a>(&'a self, at: Timestamp, actor: &'a str, bodies: Vec<Body>) -> BoxFuture<'a, Result<Vec<Record>, LogError>> {
        Box::pin(async move {
            let slow = {
                let mut state = self.lock();
                let State { check, hangar, disk, rng, .. } = &mut *state;
                check.wants(&bodies, hangar);
                rng.between(0, disk.slow)
            };
            self.edge("before an append").await;
            if slow > 0 {
                wait(slow).await;
            }
            let records = {
                let mut state = self.lock();
                if state.disk.full {
                    return Err(full());
                }
                let forgets = state.mutant == Some(Mutant::ForgetsIntent);
                let instance = state.instance.clone();
                let mut records = Vec::new();
                for body in bodies {
                    let before = state.disk.records.last().map(|(r, _)| (r.seq, r.hash.clone()));
                    let (seq, prev_hash) = before.map_or((1, GENESIS.to_owned()), |(seq, hash)| (seq + 1, hash));
                    let text = serde_json::to_string(&body).expect("a body is JSON");
                    let hash = hash_of(&prev_hash, &instance, seq, &format!("{at:.6}"), actor, &text);
                    let lost = forgets && matches!(body, Body::AttemptOpened { .. });
                    let record = Record { instance: instance.clone(), seq, at, actor: actor.to_owned(), body, prev_hash, hash };
                    if !lost {
                        state.say(format!("   {text}"));
                        let State { check, hangar, .. } = &mut *state;
                        check.wrote(&record, hangar);
                        state.disk.records.push((record.clone(), text));
                    }
                    records.push(state.mutant.map_or(record.clone(), |mutant| mutant.record(record)));
                }
                records
            };
            self.edge("after an append").await;
            Ok(records)
        })
    }

    fn history<'a>(&'a self, policy: &'a Policy, now: Timestamp) -> BoxFuture<'a, Result<History, LogError>> {
        Box::pin(async move {
            let mut history = History::default();
            let mut state = self.lock();
            let keeps = state.mutant == Some(Mutant::KeepsItsConfig);
            state.check.takes_over(policy, keeps);
            drop(state);
            for (record, text) in &self.lock().disk.records {
                // As a store does it: what was written is read again.
                let body: Body = serde_json::from_str(text).expect("what was written can be read");
                history.apply(&Record { body, ..record.clone() });
            }
            history.prune(policy, now);
            Ok(history)
        })
    }

    fn replay<'a>(&'a self, _: &'a mut (dyn FnMut(Record) + Send)) -> BoxFuture<'a, Result<(), LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn incidents(&self, _: IncidentState, _: u32) -> BoxFuture<'_, Result<Vec<Incident>, LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn incident<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Incident>, LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn attempts<'a>(&'a self, _: Option<&'a str>, _: u32) -> BoxFuture<'a, Result<Vec<Attempt>, LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts, LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn verify<'a>(&'a self, _: &'a mut (dyn FnMut(Progress) + Send)) -> BoxFuture<'a, Result<VerifyReport, LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn export<'a>(&'a self, _: &'a mut (dyn std::io::Write + Send)) -> BoxFuture<'a, Result<u64, LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn cut<'a>(&'a self, _: Timestamp, _: Timestamp, _: &'a str) -> BoxFuture<'a, Result<Cut, LogError>> {
        unimplemented!("the engine does not ask")
    }

    fn head(&self) -> BoxFuture<'_, Result<Option<Head>, LogError>> {
        unimplemented!("the engine does not ask")
    }
}

impl Checkpoints for Shared {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, LogError>> {
        Box::pin(async move { Ok(self.lock().disk.checkpoints.get(key).cloned()) })
    }

    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async move {
            self.edge("before a checkpoint").await;
            {
                let mut state = self.lock();
                if state.disk.full {
                    return Err(full());
                }
                state.disk.checkpoints.insert(key.to_owned(), value);
            }
            self.edge("after a checkpoint").await;
            Ok(())
        })
    }
}

impl AuthMemory for Shared {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, MemoryError>> {
        Box::pin(async move { Checkpoints::get(self, key).await.map_err(|e| MemoryError(e.to_string())) })
    }

    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async move { Checkpoints::put(self, key, value).await.map_err(|e| MemoryError(e.to_string())) })
    }
}

/// Servers of which the log that the medic has read tells a capability block, and the tools that it names.
pub fn blocked_in(states: &[hangar_medic::observe::log::ServerState]) -> BTreeMap<String, BTreeSet<String>> {
    let blocked = states.iter().filter(|s| s.capability_blocked_since_start);
    blocked.map(|s| (s.mcp_server.clone(), s.undeclared_tools.iter().cloned().collect())).collect()
}
