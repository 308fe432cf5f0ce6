//! The loop: wake, look at the board, plan, write down, act, sleep. The one task that changes anything.

mod broad;
mod commands;
mod fleet;
mod fusion;
mod hear;
mod history;
mod log_position;
mod records;
mod share;
mod version;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use commands::{Asker, Command, CommandError, Held, Reconfigure, Reply, Resume};
pub use fusion::Said;
pub use hear::Signal;
pub use log_position::log_checkpoint;
pub use records::tell;
pub use share::{Live, Share};
pub use version::{FIRST_SUPPORTED, FIRST_WITH_DEAD_BLOCK, blind_spots};

use crate::attempt_log::{AttemptLog, Checkpoints, LogError};
use crate::clock;
use crate::config::Window;
use crate::execute::hangar::{Done, Executor, Job};
use crate::hangar::fault::chain;
use crate::hangar::{CallError, Fault, Group, HangarClient, ServerDetail, ServerList};
use crate::metrics::{Metrics, ReadKind, ReadResult};
use crate::observe::board::{Board, is_down};
use crate::observe::log::tail::TailCounts;
use crate::observe::metrics_text::MetricsReading;
use crate::policy::{
    Action, Body, History, Part, Plan, Policy, Provenance, Read, Reason, RequestEnd, Rung, Seen, Snapshot, Source, Step, Unasked, plan,
    seen,
};

use fusion::Disagreements;
use log_position::Position;

/// Who acts, in the attempt log.
pub const ACTOR: &str = "hangar-medic";
/// Where the engine remembers when each server was last seen dead.
const SEEN_DEAD: &str = "seen_dead";
/// Written over and over while the log refuses, to see when it no longer does.
const WRITE_PROBE: &str = "write_probe";
const SEEN_DEAD_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// Bookkeeping comes to rest within a few rounds; more is a fault of the planner, and then nothing acts.
const ROUNDS_MAX: usize = 64;
/// Reads of the whole list or of the metrics, whatever wakes us: at most one in this time.
const WAKE_READ_EVERY: Duration = Duration::from_secs(1);
/// The wall clock runs away from the monotonic one by at most this between two turns, or it stepped.
const CLOCK_STEP: SignedDuration = SignedDuration::from_millis(500);
/// More servers than this are read as one list.
const SERVER_READS_MAX: usize = 16;
/// A failed list is asked for again at once this often; then with the next good read of the metrics.
const LIST_RETRIES: u32 = 2;
/// A log that refused a write is tried again after this.
const LOG_RETRY: Duration = Duration::from_secs(1);
/// Whatever happens or does not: the loop turns at least this often, so that one that does not is seen.
const TURN_EVERY: Duration = Duration::from_secs(10);
/// A loop that has not turned for this long is stuck.
pub const STALLED_AFTER: Duration = Duration::from_mins(1);
/// How long a shutdown waits for what is under way.
const DRAIN_MAX: Duration = Duration::from_secs(8);
/// How long the first plan waits for the log to be read, so that a reason is known before anything is looked at.
const LOG_FIRST: Duration = Duration::from_secs(5);

/// What a task of the loop brings back.
enum Brought {
    Metrics(Result<MetricsReading, CallError>),
    Server { id: String, detail: Box<Result<ServerDetail, CallError>>, groups: Option<Vec<Group>> },
    List(Result<ServerList, CallError>, Option<Vec<Group>>),
    Done { action: Action, done: Box<Done> },
    Lock(fleet::Looked),
}

/// Everything that the loop is made of.
pub struct Parts {
    pub policy: Policy,
    pub poll_interval: Duration,
    pub stale_after: SignedDuration,
    pub client: Arc<HangarClient>,
    pub executor: Arc<Executor>,
    pub log: Arc<dyn AttemptLog>,
    pub checkpoints: Arc<dyn Checkpoints>,
    pub metrics: Arc<Metrics>,
    pub live: Arc<Share>,
    /// Names Hangar's log, where one is read: its first news are waited for.
    pub log_source: Option<String>,
    /// The same, where it is a file.
    pub log_file: Option<PathBuf>,
    /// Where Alertmanager is asked: see [`Board::asking_alertmanager`].
    pub alertmanager: Option<(Unasked, SignedDuration)>,
}

/// See the module's page.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each read in one place")]
pub struct Engine {
    parts: Parts,
    board: Board,
    history: History,
    maintenance: Vec<Window>,
    fleet: fleet::Fleet,
    running: BTreeSet<String>,
    /// Bodies that must be appended before anything else happens; an attempt stays in `running` until its receipt is in.
    pending: VecDeque<(Vec<Body>, Option<String>)>,
    log_unwritable: bool,
    /// An append failed since the history was read.
    history_outdated: bool,
    /// It was read at least once.
    history_known: bool,
    history_trouble: Option<String>,
    /// The attempt log is damaged, and how.
    log_damage: Option<String>,
    /// When it was last read again.
    history_tried: Option<Instant>,
    /// Servers whose incidents wait for the attempt log.
    unwritten: BTreeSet<String>,
    draining: bool,
    tasks: JoinSet<Brought>,
    reading: BTreeSet<Read>,
    listing: bool,
    next_poll: Instant,
    last_list: Option<Instant>,
    /// When servers that were named dead were last read by themselves.
    read_directly: Vec<Instant>,
    list_wanted: bool,
    /// The last list failed: another one is owed once Hangar is read again.
    list_owed: bool,
    lists_failed: u32,
    /// A process of Hangar's ended since the last list.
    process_ended: bool,
    prometheus_said: Vec<String>,
    disagreements: Disagreements,
    version: version::Told,
    log_caught_up: bool,
    /// The two clocks, when they were last compared.
    clocks: (Instant, Timestamp),
    log_counts: TailCounts,
    log_position: Position,
    log_trouble: Option<String>,
    seen_dead_saved: Option<Timestamp>,
    /// What each kind of read was last complained of for.
    complaints: BTreeMap<ReadKind, String>,
    canary_failed: bool,
    told_ids: Option<String>,
    told_standing: BTreeMap<String, String>,
    /// Milliseconds in the last id that was given to a grant or request.
    last_id_ms: i64,
}

impl Engine {
    /// Reads the history. What cannot be read now is read later, and nothing acts until then; fails where time does not help.
    pub async fn new(parts: Parts) -> Result<Self, LogError> {
        let (history, history_known) = match Self::read_history(&parts).await {
            Ok(history) => (history, true),
            Err(error) if error.may_pass() => {
                tracing::error!(error = chain(&error), "the attempt log cannot be read: nothing acts until it can");
                (History::default(), false)
            }
            Err(error) => return Err(error),
        };
        let mut board = Board::new(parts.stale_after);
        if let Some((unasked, stale_after)) = parts.alertmanager {
            board = board.asking_alertmanager(unasked, stale_after);
        }
        let log_caught_up = parts.log_source.is_none();
        Ok(Self {
            parts,
            board,
            history,
            maintenance: Vec::new(),
            fleet: fleet::Fleet::default(),
            running: BTreeSet::new(),
            pending: VecDeque::new(),
            log_unwritable: !history_known,
            history_outdated: !history_known,
            history_known,
            history_trouble: None,
            log_damage: None,
            history_tried: None,
            unwritten: BTreeSet::new(),
            draining: false,
            tasks: JoinSet::new(),
            reading: BTreeSet::new(),
            listing: false,
            next_poll: Instant::now(),
            last_list: None,
            read_directly: Vec::new(),
            list_wanted: false,
            list_owed: false,
            lists_failed: 0,
            process_ended: false,
            prometheus_said: Vec::new(),
            disagreements: Disagreements::default(),
            version: version::Told::default(),
            log_caught_up,
            clocks: (Instant::now(), clock::now()),
            log_counts: TailCounts::default(),
            log_position: Position::default(),
            log_trouble: None,
            seen_dead_saved: None,
            complaints: BTreeMap::new(),
            canary_failed: false,
            told_ids: None,
            told_standing: BTreeMap::new(),
            last_id_ms: 0,
        })
    }

    /// With windows in which others work on servers.
    #[must_use]
    pub fn with_maintenance(self, maintenance: Vec<Window>) -> Self {
        Self { maintenance, ..self }
    }

    /// Runs until `stop`, then until what is under way has its receipt, at most 8 s.
    pub async fn run(
        mut self,
        mut signals: mpsc::Receiver<Signal>,
        wake: Arc<Notify>,
        stop: CancellationToken,
    ) -> Result<(), anyhow::Error> {
        let log_first = Instant::now() + LOG_FIRST;
        let mut drain_until = None;
        loop {
            if !self.log_caught_up && Instant::now() >= log_first {
                tracing::warn!("Hangar's log is not read yet; going on without it");
                self.log_caught_up = true;
            }
            let wake_at = self.turn().await;
            self.parts.metrics.turned(clock::now());
            if self.draining
                && (self.running.is_empty() || drain_until.is_some_and(|until| Instant::now() >= until))
                && self.pending.is_empty()
            {
                return Ok(());
            }
            if drain_until.is_some_and(|until| Instant::now() >= until) {
                tracing::warn!(running = self.running.len(), "leaving attempts open: the next process settles them");
                return Ok(());
            }
            // Asked every time, so that no flood of signals keeps it waiting.
            if wake.notified().now_or_never().is_some() {
                self.want_list();
            }
            let sleep = tokio::time::sleep_until(self.next_wake(wake_at, drain_until, log_first));
            // In order and not by lot: the same things heard at the same times lead to the same deeds.
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.draining => {
                    self.draining = true;
                    drain_until = Some(Instant::now() + DRAIN_MAX);
                    tracing::info!(running = self.running.len(), "shutting down: no new action");
                }
                Some(brought) = self.tasks.join_next() => self.take(brought?),
                Some(signal) = signals.recv() => self.hear(signal).await,
                () = wake.notified() => self.want_list(),
                () = sleep => {}
            }
        }
    }

    fn next_wake(&self, wake_at: Option<Timestamp>, drain_until: Option<Instant>, log_first: Instant) -> Instant {
        let now = Instant::now();
        let planned = wake_at.map(|at| {
            let wait = Duration::try_from(at.duration_since(clock::now())).unwrap_or(Duration::ZERO);
            now + wait.max(Duration::from_millis(1))
        });
        let list = (self.list_wanted && !self.listing).then(|| self.last_list.map_or(now, |at| at + WAKE_READ_EVERY));
        let poll = (!self.reading.contains(&Read::Metrics)).then_some(self.next_poll);
        let log = (!self.log_caught_up).then_some(log_first);
        let retry = (self.log_unwritable || !self.pending.is_empty()).then(|| now + LOG_RETRY);
        [planned, list, poll, log, retry, drain_until, self.lock_wake(), Some(now + TURN_EVERY)].into_iter().flatten().min().unwrap_or(now)
    }

    /// One turn: read what is due, then plan until there is nothing more to write down, then act.
    async fn turn(&mut self) -> Option<Timestamp> {
        self.compare_clocks();
        self.read_what_is_due();
        self.look_at_lock();
        if !self.flush().await || !self.log_caught_up || !self.others_known().await {
            self.publish(&Plan::default(), &self.snapshot(clock::now()));
            return None;
        }
        for _ in 0..ROUNDS_MAX {
            let now = clock::now();
            self.history.prune(&self.parts.policy, now);
            let snapshot = self.snapshot(now);
            let begun = Instant::now();
            let plan = plan(&self.parts.policy, &snapshot, &self.history, now);
            self.parts.metrics.planned(begun.elapsed());
            let records: Vec<Body> =
                plan.steps.iter().filter_map(|s| if let Step::Record(body) = s { Some(body.clone()) } else { None }).collect();
            if records.is_empty() {
                self.remember_dead(&snapshot, now).await;
                self.remember_log().await;
                let wake_at = self.carry_out(&plan).await;
                let look_again = self.disagreements.look(&snapshot, &self.history, &self.parts.metrics, now);
                self.publish(&plan, &snapshot);
                return [wake_at, look_again].into_iter().flatten().min();
            }
            if !self.append(records.clone()).await {
                let opened = |body: &Body| if let Body::IncidentOpened { mcp_server, .. } = body { Some(mcp_server.clone()) } else { None };
                self.unwritten = records.iter().filter_map(opened).collect();
                self.publish(&plan, &snapshot);
                return None;
            }
            self.unwritten.clear();
        }
        tracing::error!(rounds = ROUNDS_MAX, "bookkeeping does not come to rest; nothing is done until something changes");
        None
    }

    /// A step of the wall clock makes old readings look young: after one nothing is known until it is read again.
    fn compare_clocks(&mut self) {
        let (instant, wall) = (Instant::now(), clock::now());
        let ran = SignedDuration::try_from(instant - self.clocks.0).unwrap_or(SignedDuration::MAX);
        let drift = wall.duration_since(self.clocks.1).saturating_sub(ran);
        self.clocks = (instant, wall);
        if drift.abs() > CLOCK_STEP {
            tracing::warn!(event = "clock_stepped", seconds = drift.as_secs_f64(), "the wall clock stepped: everything is read again");
            self.board.clock_stepped(drift, wall);
            self.next_poll = instant;
        }
    }

    fn snapshot(&self, now: Timestamp) -> Snapshot {
        let mut snapshot = self.board.snapshot(&self.parts.client.auth_state(), &self.history, now);
        snapshot.running.clone_from(&self.running);
        snapshot.log_unwritable = self.log_unwritable;
        snapshot.draining = self.draining;
        snapshot.others.clone_from(&self.fleet.others);
        snapshot.maintenance = self.maintenance.iter().filter_map(|window| window.open_at(now)).collect();
        snapshot
    }

    /// Intent before act: the attempt is durable before its executor runs.
    async fn carry_out(&mut self, plan: &Plan) -> Option<Timestamp> {
        // Many at once are read as one list; before it acts on one of them the planner asks for that one again.
        let asked = plan.steps.iter().filter(|s| matches!(s, Step::Read(Read::Server(_)))).count();
        let as_list = asked > SERVER_READS_MAX;
        if as_list {
            self.want_list();
        }
        for step in &plan.steps {
            match step {
                Step::Read(Read::Server(_)) if as_list => {}
                Step::Read(read) => self.read(read),
                Step::Act(action) => {
                    let intended = match action.part {
                        Part::First => self.begin(action).await,
                        Part::Second => self.begin_second(action).await,
                    };
                    if !intended {
                        return None;
                    }
                    self.act(action.clone());
                }
                Step::Record(_) => {}
            }
        }
        plan.wake_at
    }

    /// The attempt, and the end of the request that asked for it, are written down together.
    async fn begin(&mut self, action: &Action) -> bool {
        let mut bodies = vec![opened(action)];
        bodies.extend(self.saved(action).map(|saved| Body::AttemptSaved { attempt_id: action.attempt_id.clone(), saved }));
        let Some(asked) = &action.asked_by else { return self.append(bodies).await };
        let (request_id, why) = (asked.request_id.clone(), action.attempt_id.clone());
        bodies.push(Body::RequestEnded { request_id, how: RequestEnd::Acted, why });
        self.append_as(&asked.principal, bodies).await
    }

    fn act(&mut self, action: Action) {
        self.running.insert(action.attempt_id.clone());
        self.tell_what_is_left_alone();
        let executor = Arc::clone(&self.parts.executor);
        let job = Job {
            attempt_id: action.attempt_id.clone(),
            incident_id: action.incident_id.clone(),
            mcp_server: action.mcp_server.clone(),
            action: action.rung,
            part: action.part,
            group: action.group.clone(),
            saved: self.still_to_do(&action),
        };
        self.tasks.spawn(async move {
            crate::crash::point("act.begin");
            let done = Box::new(executor.run(&job).await);
            crate::crash::point("act.done");
            Brought::Done { action, done }
        });
    }

    fn read_what_is_due(&mut self) {
        let now = Instant::now();
        if now >= self.next_poll {
            self.read(&Read::Metrics);
        }
        if self.list_wanted && !self.listing && self.last_list.is_none_or(|at| now >= at + WAKE_READ_EVERY) {
            self.list_wanted = false;
            self.listing = true;
            self.last_list = Some(now);
            self.read(&Read::Metrics);
            let client = Arc::clone(&self.parts.client);
            let groups_wanted = !self.board.groups_read();
            self.tasks.spawn(async move {
                let list = client.list().await;
                let groups = groups(&client, groups_wanted && list.is_ok()).await;
                Brought::List(list, groups)
            });
        }
    }

    /// A wake reads the list once, at most one a second, whatever wakes us.
    fn want_list(&mut self) {
        self.list_wanted = true;
    }

    fn read(&mut self, read: &Read) {
        if !self.reading.insert(read.clone()) {
            return;
        }
        let client = Arc::clone(&self.parts.client);
        match read {
            Read::Metrics => {
                self.next_poll = Instant::now() + self.parts.poll_interval;
                self.tasks.spawn(async move {
                    // A changed key file ends a refusal; looking at it sends nothing.
                    client.auth_look().await;
                    Brought::Metrics(client.metrics().await)
                });
            }
            Read::Server(id) => {
                let id = id.clone();
                let watch_group = self.board.group_of(&id).is_some() || !self.board.groups_read();
                self.tasks.spawn(async move {
                    let detail = Box::new(client.server(&id).await);
                    let groups = groups(&client, watch_group && detail.is_ok()).await;
                    Brought::Server { id, detail, groups }
                });
            }
        }
    }

    fn take(&mut self, brought: Brought) {
        let now = clock::now();
        match brought {
            Brought::Metrics(result) => {
                self.reading.remove(&Read::Metrics);
                self.take_metrics(now, result);
            }
            Brought::Server { id, detail, groups } => {
                self.reading.remove(&Read::Server(id.clone()));
                if let Some(groups) = groups {
                    self.board.groups(now, &groups);
                }
                self.count(ReadKind::Server, detail.as_ref().as_ref().err());
                match *detail {
                    Ok(detail) => {
                        self.read_again(ReadKind::Server);
                        self.board.server(&id, detail);
                    }
                    Err(error) => self.read_failed(&id, &error, now),
                }
            }
            Brought::List(result, groups) => {
                self.listing = false;
                if let Some(groups) = groups {
                    self.board.groups(now, &groups);
                }
                self.count(ReadKind::List, result.as_ref().err());
                match result {
                    Ok(list) => {
                        self.lists_failed = 0;
                        // A process that has just ended may not have been noticed by Hangar itself: one more look, then.
                        let seen = list.servers.values().any(is_down);
                        self.list_wanted |= std::mem::take(&mut self.process_ended) && !seen;
                        self.read_again(ReadKind::List);
                        let asked: BTreeSet<&String> = self.history.subjects().collect();
                        for (id, reading) in list.servers {
                            self.board.listed(&id, reading, asked.contains(&id));
                        }
                    }
                    Err(error) => {
                        // Whatever it was wanted for is still unseen. Soon again, then when Hangar is read again.
                        self.lists_failed = self.lists_failed.saturating_add(1);
                        self.list_wanted |=
                            self.lists_failed <= LIST_RETRIES && !matches!(error.fault, Fault::Auth(_) | Fault::Forbidden { .. });
                        self.list_owed = true;
                        self.complain(ReadKind::List, &error);
                    }
                }
            }
            Brought::Done { action, done } => self.finish(&action, *done),
            Brought::Lock(looked) => self.take_lock_look(looked),
        }
    }

    fn take_metrics(&mut self, now: Timestamp, result: Result<MetricsReading, CallError>) {
        self.count(ReadKind::Metrics, result.as_ref().err());
        match result {
            Ok(reading) => {
                self.read_again(ReadKind::Metrics);
                self.tell_of_ids(&reading);
                self.parts.metrics.heard(Source::Metrics, now);
                if self.board.metrics(&self.parts.policy, now, reading) {
                    tracing::warn!("Hangar restarted: every server reads cold now");
                }
                self.version.tell(self.board.version(), self.parts.log_source.is_some());
                if std::mem::take(&mut self.list_owed) {
                    self.want_list();
                }
            }
            Err(error) => {
                self.board.metrics_failed(now);
                self.complain(ReadKind::Metrics, &error);
            }
        }
    }

    fn read_failed(&mut self, id: &str, error: &CallError, now: Timestamp) {
        if matches!(error.fault, Fault::NotFound { .. }) {
            return self.board.not_found(id);
        }
        self.board.read_failed(id, now, matches!(error.fault, Fault::Forbidden { .. }));
        self.complain(ReadKind::Server, error);
    }

    fn count(&self, kind: ReadKind, error: Option<&CallError>) {
        self.parts.metrics.hangar_read(kind, error.map_or(ReadResult::Ok, read_result));
    }

    /// The same words are logged once, until a good read of this kind comes between.
    fn complain(&mut self, kind: ReadKind, error: &CallError) {
        let text = error.to_string();
        if self.complaints.get(&kind) != Some(&text) {
            let advice = error.fault.advice(self.parts.client.has_key());
            tracing::warn!(error = text, read = kind.as_str(), advice, "Hangar cannot be read: its state is unknown until it can");
            self.complaints.insert(kind, text);
        }
    }

    fn read_again(&mut self, kind: ReadKind) {
        if self.complaints.remove(&kind).is_some() {
            tracing::info!(read = kind.as_str(), "Hangar is read again");
        }
    }

    fn tell_of_ids(&mut self, reading: &MetricsReading) {
        let ids = (reading.skipped_ids > 0).then(|| reading.skipped_examples.join(", "));
        if ids != self.told_ids {
            if let Some(ids) = &ids {
                tracing::warn!(ids, "Hangar's metrics name ids that Hangar itself would refuse; they are left alone");
            }
            self.told_ids = ids;
        }
    }

    /// An executor is done: its receipt is written down before the attempt counts as no longer running.
    fn finish(&mut self, action: &Action, done: Done) {
        let mut bodies = Vec::new();
        if done.told == Some(Reason::CapabilityBlocked) {
            let incident = self.history.open.get(&action.mcp_server).filter(|i| i.reason != Reason::CapabilityBlocked);
            bodies.extend(incident.map(|incident| Body::IncidentUpdated {
                incident_id: incident.incident_id.clone(),
                symptom: incident.symptom(),
                reason: Reason::CapabilityBlocked,
                provenance: Some(Provenance::of(Source::Rest, clock::now())),
            }));
        }
        bodies.push(if done.half {
            Body::AttemptHalfDone { attempt_id: action.attempt_id.clone(), evidence: done.evidence }
        } else {
            let mut evidence = self.found_before(action);
            evidence.extend(done.evidence);
            let evidence = self.evidence(action, evidence);
            Body::AttemptReceipt {
                attempt_id: action.attempt_id.clone(),
                receipt: done.receipt,
                outcome: done.outcome,
                detail: done.detail,
                evidence,
            }
        });
        self.pending.push_back((bodies, Some(action.attempt_id.clone())));
        if done.not_found {
            self.board.not_found(&action.mcp_server);
        }
        if action.rung == Rung::ClientReconnect && done.process_start.is_none() {
            // It read the metrics afresh, and could not: what was read before it says nothing any more.
            self.board.metrics_failed(clock::now());
            self.read(&Read::Metrics);
        }
        if action.rung.only_looks() {
            if let Some(reading) = done.reading {
                self.board.rest(&action.mcp_server, reading);
            }
        } else {
            self.board.news_of(&action.mcp_server);
            self.read(&Read::Metrics);
        }
    }

    /// What rung 1 keeps for the person who must judge: to what Hangar exposes, the names that only its log tells.
    fn evidence(&self, action: &Action, mut evidence: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
        if action.rung == Rung::CapabilityRefresh {
            match self.board.log_of(&action.mcp_server) {
                Some(log) if log.undeclared_tools.is_empty() => {
                    evidence.insert("undeclared_tools".to_owned(), json!([]));
                }
                Some(log) => {
                    evidence.insert("undeclared_tools".to_owned(), json!(log.undeclared_tools));
                }
                None => {
                    evidence.insert("undeclared_tools".to_owned(), Value::Null);
                    let note =
                        "no log of Hangar is read (hangar.log_file, hangar.log_journal): the names of undeclared tools are told only there";
                    evidence.insert("undeclared_tools_note".to_owned(), json!(note));
                }
            }
        }
        evidence
    }

    /// Appends what is pending, in order. False while the log refuses.
    async fn flush(&mut self) -> bool {
        if !self.history_is_whole().await {
            return false;
        }
        while let Some((bodies, attempt)) = self.pending.front().cloned() {
            if !self.append(bodies).await {
                return false;
            }
            self.pending.pop_front();
            if let Some(attempt) = attempt {
                self.running.remove(&attempt);
            }
        }
        true
    }

    async fn append(&mut self, bodies: Vec<Body>) -> bool {
        self.append_as(ACTOR, bodies).await
    }

    async fn append_as(&mut self, actor: &str, bodies: Vec<Body>) -> bool {
        match self.parts.log.append(clock::now(), actor, bodies).await {
            Ok(records) => {
                if std::mem::take(&mut self.log_unwritable) {
                    tracing::info!("the attempt log can be written again");
                }
                self.parts.metrics.attempt_log_appended(records.len() as u64);
                for record in &records {
                    tell(record, &self.history, &self.parts.metrics);
                    self.history.apply(record);
                }
                self.tell_what_is_left_alone();
                true
            }
            Err(error) => {
                self.parts.metrics.attempt_log_failed();
                (self.history_outdated, self.history_trouble) = (true, None);
                self.log_damage = damage_of(&error);
                if !std::mem::replace(&mut self.log_unwritable, true) {
                    tracing::error!(error = chain(&error), "the attempt log cannot be written: nothing acts until it can");
                }
                false
            }
        }
    }

    /// Remembers, across a crash too, when each ill server was last seen so: `server_lost_in_restart` turns on it.
    async fn remember_dead(&mut self, snapshot: &Snapshot, now: Timestamp) {
        if !snapshot.hangar.fresh {
            return;
        }
        let Some(read_at) = snapshot.hangar.read_at else { return };
        let ill = |id: &String| {
            let server = snapshot.servers.get(id)?;
            let seen = seen(&self.parts.policy, &snapshot.hangar, server, now);
            // Cold tells nothing of illness: that is what a restart leaves of every server.
            (!matches!(seen, Seen::Unknown | Seen::Healthy | Seen::Cold | Seen::Gone)).then(|| id.clone())
        };
        let ids: Vec<String> = self.history.open.keys().filter_map(ill).collect();
        let before = self.history.seen_dead.len();
        for id in ids {
            self.history.seen_dead.insert(id, read_at);
        }
        let due = self.seen_dead_saved.is_none_or(|at| now.duration_since(at) >= SEEN_DEAD_EVERY);
        let changed = before != self.history.seen_dead.len();
        if self.history.seen_dead.is_empty() || !(due || changed) {
            return;
        }
        match self.parts.checkpoints.put(SEEN_DEAD, json!(self.history.seen_dead)).await {
            Ok(()) => self.seen_dead_saved = Some(now),
            Err(error) => tracing::warn!(error = chain(&error), "when servers were last seen dead cannot be saved"),
        }
    }

    fn publish(&mut self, plan: &Plan, snapshot: &Snapshot) {
        self.tell_standings(plan);
        self.parts.metrics.set_attempt_log_writable(!self.log_unwritable);
        self.parts.metrics.set_storm(plan.storm);
        self.tell_canary(plan);
        let owners = &self.parts.policy.owners;
        self.parts.metrics.set_owners(self.board.known_ids().filter_map(|id| Some((id, owners.of(id)?))));
        let mut live = Live::new(plan, snapshot, &self.history, &self.board, self.disagreements.shown()).unwritable(
            self.log_unwritable,
            &self.unwritten,
            &self.history,
        );
        live.log_damage.clone_from(&self.log_damage);
        live.measure(&self.parts.metrics, &self.history);
        self.parts.live.set(live);
    }

    fn tell_canary(&mut self, plan: &Plan) {
        self.parts.metrics.set_canary_failed(plan.canary_failed);
        if plan.canary_failed && !std::mem::replace(&mut self.canary_failed, plan.canary_failed) {
            tracing::error!(event = "canary_failed", "many servers died at once and the canary could not be recovered: a shared cause");
        }
        self.canary_failed = plan.canary_failed;
    }

    /// Why nothing happens is data, and it is told when it changes.
    fn tell_standings(&mut self, plan: &Plan) {
        for (server, standing) in &plan.standings {
            let hold = standing.hold.map_or("", crate::policy::Hold::as_str);
            let words = format!("{} {hold}", standing.phase);
            if self.told_standing.get(server) == Some(&words) {
                continue;
            }
            self.told_standing.insert(server.clone(), words);
            if let Some(hold) = standing.hold {
                let until = standing.until.map(|at| at.to_string());
                tracing::info!(event = "held", mcp_server = %server, %hold, until, why = %standing.why);
            }
        }
        self.told_standing.retain(|server, _| self.history.open.contains_key(server));
    }
}

/// Without the permission for groups a server is simply no known member of one.
async fn groups(client: &HangarClient, wanted: bool) -> Option<Vec<Group>> {
    if wanted { client.groups().await.ok() } else { None }
}

fn damage_of(error: &LogError) -> Option<String> {
    error.is_damage().then(|| format!("{error}; start the daemon anew"))
}

fn opened(action: &Action) -> Body {
    Body::AttemptOpened {
        attempt_id: action.attempt_id.clone(),
        incident_id: action.incident_id.clone(),
        mcp_server: action.mcp_server.clone(),
        action: action.rung,
        why: action.why.clone(),
        slow_retry: action.slow_retry,
        process_start: action.process_start,
    }
}

fn read_result(error: &CallError) -> ReadResult {
    match &error.fault {
        Fault::Unreachable { .. } => ReadResult::Unreachable,
        Fault::Lost { .. } => ReadResult::Timeout,
        Fault::Auth(_) => ReadResult::Refused,
        Fault::Forbidden { .. } => ReadResult::Forbidden,
        Fault::NotFound { .. } | Fault::BadId { .. } => ReadResult::NotFound,
        Fault::RateLimited { .. } => ReadResult::RateLimited,
        Fault::Api { .. } | Fault::BadAnswer { .. } => ReadResult::Malformed,
    }
}
