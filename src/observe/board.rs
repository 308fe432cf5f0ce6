//! The board: the last thing that each source said of each server. No IO, no clock; the planner's `Snapshot` is cut from it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::log::classify::ServerState;
use super::metrics_text::{MetricsReading, ServerSample};
use super::{events, silences};
use crate::hangar::{AuthState, Group, ServerDetail, parse_version};
use crate::policy::{
    Auth, GroupReading, HangarReading, History, LogReading, Membership, Policy, Provenance, Reason, RestReading, ServerReading, Snapshot,
    Source, State, StopReason, Unasked, suspect,
};

/// What is kept of one server that any source has named.
#[derive(Debug, Clone, Default)]
struct Entry {
    sample: ServerSample,
    since: Option<Timestamp>,
    rest: Option<RestReading>,
    initializing_since: Option<Timestamp>,
    rest_not_found: bool,
    rest_outdated: bool,
    rest_failed_at: Option<Timestamp>,
    group: Option<GroupReading>,
    member: Option<Membership>,
    event: Option<Event>,
    given_up_at: Option<Timestamp>,
    not_cold_since: Option<Timestamp>,
}

/// What Hangar's events told last of a server.
#[derive(Debug, Clone, Copy)]
struct Event {
    at: Timestamp,
    /// Its death, and when that was.
    dead: Option<(Reason, Timestamp)>,
}

impl Entry {
    /// A REST answer, good or bad, is kept of it.
    const fn rest_says_something(&self) -> bool {
        self.rest.is_some() || self.rest_not_found || self.rest_failed_at.is_some()
    }

    /// Whether the new sample tells of anything that a REST answer from before it cannot know.
    fn moved(&self, new: &ServerSample) -> bool {
        let old = &self.sample;
        old.gauge != new.gauge
            || old.gauge_odd != new.gauge_odd
            || old.stops != new.stops
            || old.starts_failure != new.starts_failure
            || old.starts_success != new.starts_success
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Board {
    servers: BTreeMap<String, Entry>,
    /// Worth a judgement, as of the last metrics read.
    suspects: BTreeSet<String>,
    hangar: HangarReading,
    /// Servers whose gauge was cold when the Hangar process before this one was last read.
    cold_before: BTreeSet<String>,
    /// First failed read since the last good one.
    failed_since: Option<Timestamp>,
    /// What Hangar's log tells, where a log is read.
    log: Option<BTreeMap<String, LogReading>>,
    groups_read: bool,
    stale_after: SignedDuration,
    clock_stepped_at: Option<Timestamp>,
    /// The first good read of the metrics: whether the clock stepped before it nobody can tell.
    begun_at: Option<Timestamp>,
    silences: silences::Heard,
    /// Where Alertmanager is asked: what may be done while it cannot be, and the age at which its silences are unknown.
    asks_alertmanager: Option<(Unasked, SignedDuration)>,
}

impl Board {
    /// An empty board; what is older than `stale_after` is unknown.
    #[must_use]
    pub fn new(stale_after: SignedDuration) -> Self {
        Self { stale_after, ..Self::default() }
    }

    /// What is older than this is unknown from now on.
    pub fn set_stale_after(&mut self, stale_after: SignedDuration) {
        self.stale_after = stale_after;
    }

    /// With an Alertmanager: silences older than `stale_after` are unknown, and then only `unasked` is done.
    #[must_use]
    pub fn asking_alertmanager(self, unasked: Unasked, stale_after: SignedDuration) -> Self {
        Self { asks_alertmanager: Some((unasked, stale_after)), ..self }
    }

    /// A good read of Hangar's metrics. Returns whether its process is another one than before.
    pub fn metrics(&mut self, policy: &Policy, at: Timestamp, reading: MetricsReading) -> bool {
        let restarted = self.hangar.process_start.is_some() && self.hangar.process_start != reading.process_start;
        if restarted {
            self.hangar.lost_at = self.failed_since;
            let before = std::mem::take(&mut self.servers);
            self.cold_before = before.into_iter().filter(|(_, e)| e.sample.gauge == Some(State::Cold)).map(|(id, _)| id).collect();
            self.groups_read = false;
        }
        self.failed_since = None;
        self.begun_at.get_or_insert(at);
        // What it says may be as old as its request; what changed in it is news as of now.
        self.hangar.read_at = Some(at - reading.took);
        self.hangar.took = reading.took;
        self.hangar.process_start = reading.process_start;
        self.hangar.version = reading.version.as_deref().and_then(parse_version);
        self.suspects.clear();
        let mut named = reading.servers;
        // A series that vanished says nothing: it is not kept as if it still said the old value.
        for (id, entry) in &mut self.servers {
            if !named.contains_key(id) {
                entry.rest_outdated |= entry.moved(&ServerSample::default());
                entry.sample = ServerSample::default();
                entry.not_cold_since = None;
            }
        }
        // What was removed from Hangar is forgotten, or the share that makes a storm would never be reached again.
        self.servers.retain(|id, entry| named.contains_key(id) || entry.rest_says_something() || entry.group.is_some());
        while let Some((id, sample)) = named.pop_first() {
            let entry = self.servers.entry(id.clone()).or_default();
            let changed = entry.moved(&sample);
            let given_up = |sample: &ServerSample| sample.stops.get(&StopReason::MaxRetriesExceeded).copied().unwrap_or(0);
            if entry.since.is_some() && given_up(&sample) > given_up(&entry.sample) {
                entry.given_up_at = Some(at);
            }
            let cold = matches!(sample.gauge, None | Some(State::Cold));
            entry.not_cold_since = if cold { None } else { entry.not_cold_since.or(Some(at)) };
            if changed || entry.since.is_none() || sample.starting {
                entry.since = Some(at);
            }
            entry.rest_outdated |= changed && entry.rest.as_ref().is_some_and(|r| r.at < at);
            entry.rest_outdated |= changed && entry.rest_not_found;
            entry.sample = sample;
            let clock_stepped_at = self.clock_stepped_at.max(self.begun_at);
            let reading = ServerReading { clock_stepped_at, ..reading_of(entry, None) };
            if suspect(policy, &reading, at) || entry.sample.gauge_odd {
                self.suspects.insert(id);
            }
        }
        restarted
    }

    /// A read of Hangar's metrics that gave nothing to rely on: unknown from now on.
    pub fn metrics_failed(&mut self, at: Timestamp) {
        self.failed_since.get_or_insert(at);
    }

    /// The wall clock stepped by `by`, or the machine slept: how old anything is cannot be told any more, so nothing is known
    /// until it is read again. What we timed ourselves goes along.
    pub fn clock_stepped(&mut self, by: SignedDuration, now: Timestamp) {
        self.hangar.read_at = None;
        self.clock_stepped_at = Some(now);
        self.begun_at = self.begun_at.and_then(|at| at.checked_add(by).ok());
        for entry in self.servers.values_mut() {
            entry.rest_outdated |= entry.rest.is_some();
            for at in [&mut entry.since, &mut entry.initializing_since, &mut entry.given_up_at, &mut entry.not_cold_since] {
                *at = at.and_then(|at| at.checked_add(by).ok());
            }
        }
    }

    /// A REST answer for one server.
    pub fn server(&mut self, id: &str, detail: ServerDetail) {
        self.hangar.read_forbidden = false;
        self.rest(id, detail.reading);
    }

    /// One entry of the REST list.
    pub fn rest(&mut self, id: &str, reading: RestReading) {
        let entry = self.servers.entry(id.to_owned()).or_default();
        if is_down(&reading) || reading.state == State::Dead {
            self.suspects.insert(id.to_owned());
        }
        let starting = reading.state == State::Initializing;
        entry.initializing_since = starting.then(|| entry.initializing_since.unwrap_or(reading.at));
        let up = reading.state == State::Ready && reading.alive;
        entry.event = entry.event.filter(|event| !(up && reading.at > event.at));
        entry.rest = Some(reading);
        entry.rest_not_found = false;
        entry.rest_outdated = false;
        entry.rest_failed_at = None;
    }

    /// Hangar does not know this server.
    pub fn not_found(&mut self, id: &str) {
        self.hangar.read_forbidden = false;
        let entry = self.servers.entry(id.to_owned()).or_default();
        entry.rest = None;
        entry.rest_not_found = true;
        entry.rest_outdated = false;
        entry.rest_failed_at = None;
    }

    /// A REST read of this server failed.
    pub fn read_failed(&mut self, id: &str, at: Timestamp, forbidden: bool) {
        self.hangar.read_forbidden |= forbidden;
        self.servers.entry(id.to_owned()).or_default().rest_failed_at = Some(at);
    }

    /// Something was sent to this server, or is heard of it: what REST said before says nothing any more.
    pub fn news_of(&mut self, id: &str) {
        if let Some(entry) = self.servers.get_mut(id) {
            entry.rest_outdated = true;
        }
    }

    /// All groups, read at `at`.
    pub fn groups(&mut self, at: Timestamp, groups: &[Group]) {
        self.groups_read = true;
        for group in groups {
            for member in &group.members {
                let entry = self.servers.entry(member.id.clone()).or_default();
                entry.group = group.reading(&member.id, at);
                entry.member = member.place.map(|(weight, priority)| Membership { group: group.id.clone(), weight, priority });
            }
        }
    }

    /// One entry of the REST list: kept where it tells of trouble, or where the server is watched already or `asked` about.
    pub fn listed(&mut self, id: &str, mut reading: RestReading, asked: bool) {
        let Some(entry) = self.servers.get(id).filter(|entry| entry.rest.is_some() || entry.rest_not_found) else {
            // Of a suspect even that it looks well is news.
            if asked || self.suspects.contains(id) || !matches!(reading.state, State::Ready | State::Cold) || is_down(&reading) {
                self.rest(id, reading);
            }
            return;
        };
        // The list leaves out what only the detail says; nothing is done before the detail is read.
        if let Some(known) = entry.rest.as_ref().filter(|known| known.state == reading.state && known.dead == reading.dead) {
            reading.started_at = reading.started_at.or(known.started_at);
            reading.backoff_until = reading.backoff_until.or(known.backoff_until);
        }
        self.rest(id, reading);
    }

    /// One of Hangar's events. They come in any order, and late: an older one than the last says nothing.
    /// Returns whether it may be a new death.
    pub fn event(&mut self, told: &events::Told) -> bool {
        let entry = self.servers.entry(told.mcp_server.clone()).or_default();
        if entry.event.is_some_and(|last| told.at < last.at) {
            return false;
        }
        let dead = match told.what {
            events::What::Dead(reason) => Some((reason, told.at)),
            events::What::NotDead | events::What::Degraded => None,
            // It says neither how the server is now nor that it is any better.
            events::What::Stopped(_) | events::What::CheckFailed => entry.event.and_then(|last| last.dead),
        };
        entry.event = Some(Event { at: told.at, dead });
        // A REST answer from before the event cannot know of it.
        entry.rest_outdated |= entry.rest.as_ref().is_some_and(|rest| rest.at <= told.at);
        !matches!(told.what, events::What::NotDead | events::What::Degraded)
    }

    /// The event stream was interrupted, or dropped something: what it told may have been undone unheard.
    pub fn events_lost(&mut self) {
        for entry in self.servers.values_mut() {
            entry.event = None;
        }
    }

    /// What Alertmanager says of silences.
    pub fn silences(&mut self, update: silences::Update, now: Timestamp) {
        self.silences.hear(update, now);
    }

    /// What the log says against each server at its end; its silence about the others says something too from now on.
    /// `hash` gives the hash of a line. Returns the servers of which it tells a new death.
    pub fn log(&mut self, servers: &[ServerState], hash: &dyn Fn(&ServerState) -> Option<String>) -> Vec<String> {
        let before = self.log.take().unwrap_or_default();
        let reading = |s: &ServerState| log_reading(s, before.get(&s.mcp_server), hash);
        let now: BTreeMap<String, LogReading> = servers.iter().map(|s| (s.mcp_server.clone(), reading(s))).collect();
        let died =
            |(id, reading): &(&String, &LogReading)| reading.dead.is_some() && before.get(*id).is_none_or(|b| b.dead != reading.dead);
        let died = now.iter().filter(died).map(|(id, _)| id.clone()).collect();
        self.log = Some(now);
        died
    }

    /// What the log says of this server; `None` where no log is read.
    #[must_use]
    pub fn log_of(&self, id: &str) -> Option<LogReading> {
        self.log.as_ref().map(|log| log.get(id).cloned().unwrap_or_default())
    }

    /// Whether Hangar's groups were read from this process.
    #[must_use]
    pub fn groups_read(&self) -> bool {
        self.groups_read
    }

    /// The group of a server, as last read.
    #[must_use]
    pub fn group_of(&self, id: &str) -> Option<&GroupReading> {
        self.servers.get(id)?.group.as_ref()
    }

    /// Whether Hangar has a group of this name, as last read.
    #[must_use]
    pub fn is_group(&self, id: &str) -> bool {
        self.servers.values().any(|entry| entry.group.as_ref().is_some_and(|group| group.group == id))
    }

    /// A server's place in its group, where Hangar told it.
    #[must_use]
    pub fn member(&self, id: &str) -> Option<&Membership> {
        self.servers.get(id)?.member.as_ref()
    }

    /// The state gauge of every server that has one.
    pub fn gauges(&self) -> impl Iterator<Item = (&String, State)> {
        self.servers.iter().filter_map(|(id, entry)| Some((id, entry.sample.gauge?)))
    }

    /// Last good metrics read.
    #[must_use]
    pub fn read_at(&self) -> Option<Timestamp> {
        self.hangar.read_at
    }

    /// Version of Hangar, once read.
    #[must_use]
    pub fn version(&self) -> Option<(u32, u32, u32)> {
        self.hangar.version
    }

    /// `mcp_hangar_process_start_time_seconds`, once read.
    #[must_use]
    pub fn process_start(&self) -> Option<Timestamp> {
        self.hangar.process_start
    }

    /// Servers that Hangar's metrics or REST answers name.
    #[must_use]
    pub fn known(&self) -> usize {
        self.known_ids().count()
    }

    /// The names that [`Board::known`] counts.
    pub fn known_ids(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().filter(|(_, entry)| !entry.rest_not_found).map(|(id, _)| id.as_str())
    }

    /// Whether the metrics' gauge of this server stands at `state`.
    #[must_use]
    pub fn gauge(&self, id: &str) -> Option<State> {
        self.servers.get(id)?.sample.gauge
    }

    /// Stops of this server that Hangar has counted.
    #[must_use]
    pub fn stops(&self, id: &str) -> Option<&crate::policy::Stops> {
        self.servers.get(id).map(|entry| &entry.sample.stops)
    }

    /// What `plan` sees: suspects and the subjects of open incidents and hold orders only, however many servers there are.
    #[must_use]
    pub fn snapshot(&self, auth: &AuthState, history: &History, now: Timestamp) -> Snapshot {
        let mut hangar = self.hangar.clone();
        // A clock that stepped back makes a reading look new for ever: an age below zero is not fresh either.
        let age = hangar.read_at.map(|at| now.duration_since(at) - hangar.took);
        hangar.fresh =
            self.failed_since.is_none() && age.is_some_and(|age| age <= self.stale_after && age >= -SignedDuration::from_secs(1));
        // When the wait is over one try is made, and its answer decides again.
        hangar.auth_refused = auth.auth == Auth::Refused && auth.until.is_none_or(|until| now < until);
        hangar.auth_refused_until = auth.until;
        hangar.silences_unknown = self.asks_alertmanager.and_then(|(unasked, stale_after)| {
            // Before the first answer nobody knows whether a person is at work.
            let unasked = if self.silences.is_awaited() { Unasked::Hold } else { unasked };
            (!self.silences.is_known(stale_after, now)).then_some(unasked)
        });
        let ids: BTreeSet<&String> = self.suspects.iter().chain(history.subjects()).collect();
        let known = |id: &String| history.open.contains_key(id);
        let servers = ids.into_iter().map(|id| (id.clone(), self.reading(id, known(id), now))).collect();
        Snapshot { known: self.known(), hangar, servers, ..Snapshot::default() }
    }

    /// `ill`: an incident of it is open.
    fn reading(&self, id: &str, ill: bool, now: Timestamp) -> ServerReading {
        let log = self.log_of(id);
        let unnamed = || ServerReading { log: log.clone(), ..ServerReading::default() };
        let reading = self.servers.get(id).map_or_else(unnamed, |entry| reading_of(entry, log.clone()));
        let clock_stepped_at = if ill { self.clock_stepped_at } else { self.clock_stepped_at.max(self.begun_at) };
        let cold_before_restart = self.cold_before.contains(id);
        ServerReading { silenced: self.silences.of(id, now), clock_stepped_at, cold_before_restart, ..reading }
    }
}

/// Ready in Hangar's eyes, and its process is gone. Says nothing where Hangar is not the process' parent.
#[must_use]
pub fn is_down(reading: &RestReading) -> bool {
    reading.state == State::Ready && !reading.alive && reading.mode == "subprocess"
}

fn log_reading(state: &ServerState, before: Option<&LogReading>, hash: &dyn Fn(&ServerState) -> Option<String>) -> LogReading {
    let mut provenance = Provenance { file: state.file.to_string(), offset: Some(state.offset), ..Provenance::of(Source::Log, state.at) };
    let known = before.and_then(|b| b.dead.as_ref()).map(|(_, p)| p).filter(|p| p.file == provenance.file && p.offset == provenance.offset);
    provenance.line_sha256 = match known {
        Some(known) => known.line_sha256.clone(),
        None => state.dead.and_then(|_| hash(state)),
    };
    LogReading {
        dead: state.dead.map(|reason| (reason, provenance)),
        capability_blocked: state.capability_blocked_since_start,
        undeclared_tools: state.undeclared_tools.clone(),
    }
}

fn reading_of(entry: &Entry, log: Option<LogReading>) -> ServerReading {
    ServerReading {
        gauge: entry.sample.gauge,
        gauge_since: entry.since,
        last_healthy: entry.sample.last_healthy,
        stops: entry.sample.stops.clone(),
        starting: entry.sample.starting,
        rest: entry.rest.clone(),
        initializing_since: entry.initializing_since,
        rest_not_found: entry.rest_not_found,
        rest_outdated: entry.rest_outdated,
        rest_failed_at: entry.rest_failed_at,
        events: entry.event.and_then(|event| event.dead).map(|(reason, at)| (reason, Provenance::of(Source::Events, at))),
        given_up_at: entry.given_up_at,
        not_cold_since: entry.not_cold_since,
        log,
        group: entry.group.clone(),
        silenced: None,
        clock_stepped_at: None,
        cold_before_restart: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(board: &mut Board, second: i64, ids: &[&str]) {
        let sample = ServerSample { gauge: Some(State::Ready), ..ServerSample::default() };
        let servers = ids.iter().map(|id| ((*id).to_owned(), sample.clone())).collect();
        let at = Timestamp::from_second(second).unwrap();
        board.metrics(&Policy::default(), at, MetricsReading { servers, ..MetricsReading::default() });
    }

    #[test]
    fn a_server_that_hangar_no_longer_names_is_no_longer_known() {
        let mut board = Board::new(SignedDuration::from_secs(15));
        read(&mut board, 100, &["a", "b", "c"]);
        assert_eq!(board.known(), 3);
        board.not_found("b");
        read(&mut board, 105, &["a"]);
        assert_eq!(board.known(), 1);
    }

    #[test]
    fn what_metrics_say_is_as_old_as_their_request_and_fresh_from_their_answer() {
        let mut board = Board::new(SignedDuration::from_secs(2));
        let (asked, answered) = (Timestamp::from_second(100).unwrap(), Timestamp::from_second(103).unwrap());
        let reading = MetricsReading { took: SignedDuration::from_secs(3), ..MetricsReading::default() };
        board.metrics(&Policy::default(), answered, reading);
        let auth = AuthState { auth: Auth::Ok, until: None, consecutive_401: 0, why: None };
        let snapshot = board.snapshot(&auth, &History::default(), answered);
        assert_eq!((snapshot.hangar.read_at, snapshot.hangar.fresh), (Some(asked), true));
    }
}
