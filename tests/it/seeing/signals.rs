//! Any interleaving, duplication or loss of signals ends in the same incidents as reading the final state once.

use std::collections::{BTreeMap, BTreeSet};

use hangar_medic::hangar::{AuthState, ServerDetail};
use hangar_medic::observe::board::Board;
use hangar_medic::observe::events::{Told, What};
use hangar_medic::observe::log::ServerState;
use hangar_medic::observe::log::tail::FileId;
use hangar_medic::observe::metrics_text::{MetricsReading, ServerSample};
use hangar_medic::policy::{
    Auth, Body, DeadBlock, History, Mode, Policy, Read, Reason, Record, RestReading, State, Step, StopReason, Symptom, plan,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

const SERVERS: [&str; 3] = ["a", "b", "c"];
/// When everything has happened and only signals are still under way.
const END: i64 = 1_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_796_052_000 + seconds).unwrap()
}

/// Something that happened to one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happened {
    Dead(Reason),
    Ready,
    Degraded,
    Cold,
}

/// What happened to each server, each at its second.
type World = BTreeMap<&'static str, Vec<(i64, Happened)>>;

/// A signal that may come, twice, out of order, or never.
#[derive(Debug, Clone)]
enum Signal {
    /// The event of the n-th thing that happened to a server.
    Event(&'static str, usize),
    EventsLost,
    /// The log, read up to that second.
    Log(i64),
    /// Hangar's list, metrics or one server were read for some other reason.
    List,
    Metrics,
    Server(&'static str),
}

fn last(world: &World, id: &str) -> (i64, Happened) {
    world[id].last().copied().unwrap_or((0, Happened::Cold))
}

fn sample(world: &World, id: &str) -> ServerSample {
    let happened = &world[id];
    let gauge = match last(world, id).1 {
        Happened::Dead(_) => State::Dead,
        Happened::Ready => State::Ready,
        Happened::Degraded => State::Degraded,
        Happened::Cold => State::Cold,
    };
    let healthy = happened.iter().rev().find(|(_, what)| *what == Happened::Ready).map(|(second, _)| at(*second));
    let given_up = happened.iter().filter(|(_, what)| *what == Happened::Dead(Reason::GivenUp)).count() as u64;
    ServerSample {
        gauge: Some(gauge),
        // A ready server is checked every minute.
        last_healthy: if gauge == State::Ready { Some(at(END - 30)) } else { healthy },
        stops: [(StopReason::MaxRetriesExceeded, given_up)].into(),
        starts_success: happened.len() as u64,
        ..ServerSample::default()
    }
}

fn rest(world: &World, id: &str, now: Timestamp) -> RestReading {
    let (second, what) = last(world, id);
    let (state, dead) = match what {
        Happened::Dead(reason) => {
            let block = DeadBlock { reason, since: Some(at(second)), retry_allowed_at: None, revived_by_call: true };
            (State::Dead, Some(block))
        }
        Happened::Ready => (State::Ready, None),
        Happened::Degraded => (State::Degraded, None),
        Happened::Cold => (State::Cold, None),
    };
    let alive = state == State::Ready;
    RestReading {
        took: SignedDuration::ZERO,
        at: now,
        state,
        alive,
        mode: "subprocess".to_owned(),
        dead,
        consecutive_failures: None,
        started_at: None,
        backoff_until: None,
    }
}

fn log(world: &World, until: i64) -> Vec<ServerState> {
    let told = |id: &&&str| {
        let (second, what) = world[**id].iter().rev().find(|(second, _)| *second <= until)?;
        let (dead, degraded) = match what {
            Happened::Dead(reason) => (Some(*reason), false),
            Happened::Degraded => (None, true),
            Happened::Ready | Happened::Cold => return None,
        };
        Some(ServerState {
            mcp_server: (**id).to_owned(),
            dead,
            degraded,
            at: at(*second),
            file: FileId::default(),
            offset: u64::try_from(*second).unwrap(),
            event: "",
            capability_blocked_since_start: dead == Some(Reason::CapabilityBlocked),
            undeclared_tools: Vec::new(),
        })
    };
    SERVERS.iter().filter_map(|id| told(&id)).collect()
}

/// The board and the history of one medic, in observe mode: nothing is ever sent.
struct Medic<'a> {
    world: &'a World,
    policy: Policy,
    board: Board,
    history: History,
    now: Timestamp,
}

impl<'a> Medic<'a> {
    fn new(world: &'a World) -> Self {
        let policy = Policy { mode: Mode::Observe, ..Policy::default() };
        let mut medic = Self { world, policy, board: Board::new(SignedDuration::from_hours(1)), history: History::default(), now: at(END) };
        medic.read(&Read::Metrics);
        medic
    }

    fn read(&mut self, read: &Read) {
        match read {
            Read::Metrics => {
                let servers = SERVERS.iter().map(|id| ((*id).to_owned(), sample(self.world, id))).collect();
                let reading = MetricsReading {
                    process_start: Some(at(-100)),
                    version: Some("2.34.4".to_owned()),
                    servers,
                    ..MetricsReading::default()
                };
                self.board.metrics(&self.policy, self.now, reading);
            }
            Read::Server(id) => {
                let reading = rest(self.world, id, self.now);
                self.board.server(id, ServerDetail { reading, tells_dead: true, tools: Vec::new() });
            }
        }
    }

    fn hear(&mut self, signal: &Signal) {
        match signal {
            Signal::Event(id, n) => {
                let Some((second, what)) = self.world[id].get(*n).copied() else { return };
                let what = match what {
                    Happened::Dead(reason) => What::Dead(reason),
                    Happened::Degraded => What::Degraded,
                    Happened::Ready => What::NotDead,
                    Happened::Cold => What::Stopped(StopReason::Idle),
                };
                if self.board.event(&Told { mcp_server: (*id).to_owned(), at: at(second), what }) {
                    self.hear(&Signal::List);
                }
            }
            Signal::EventsLost => self.board.events_lost(),
            Signal::Log(until) => {
                if !self.board.log(&log(self.world, *until), &|_| None).is_empty() {
                    self.hear(&Signal::List);
                }
            }
            Signal::List => {
                for id in SERVERS {
                    self.board.listed(id, rest(self.world, id, self.now), false);
                }
            }
            Signal::Metrics => self.read(&Read::Metrics),
            Signal::Server(id) => self.read(&Read::Server((*id).to_owned())),
        }
        self.turn();
    }

    /// Plans until there is nothing more to write down or to read.
    fn turn(&mut self) {
        for _ in 0..64 {
            self.now += SignedDuration::from_millis(10);
            let auth = AuthState { auth: Auth::Ok, until: None, consecutive_401: 0, why: None };
            let snapshot = self.board.snapshot(&auth, &self.history, self.now);
            let steps = plan(&self.policy, &snapshot, &self.history, self.now).steps;
            if steps.is_empty() {
                return;
            }
            for step in steps {
                match step {
                    Step::Record(body) => self.history.apply(&record(self.now, body)),
                    Step::Read(read) => self.read(&read),
                    Step::Act(action) => panic!("{action:?} in observe mode"),
                }
            }
        }
        panic!("it does not come to rest: {:?}", self.history.open);
    }

    /// Who is under an incident, and why.
    fn incidents(&self) -> BTreeSet<(String, Symptom, Reason)> {
        self.history.open.values().map(|i| (i.mcp_server.clone(), i.symptom(), i.reason)).collect()
    }
}

fn record(at: Timestamp, body: Body) -> Record {
    Record { instance: "test".to_owned(), seq: 0, at, actor: String::new(), body, prev_hash: String::new(), hash: String::new() }
}

fn happened() -> impl Strategy<Value = Vec<Happened>> {
    let one = prop_oneof![
        4 => proptest::sample::select(vec![Reason::Crashed, Reason::StartFailed, Reason::GivenUp, Reason::CapabilityBlocked]).prop_map(Happened::Dead),
        3 => Just(Happened::Ready),
        1 => Just(Happened::Degraded),
        1 => Just(Happened::Cold),
    ];
    proptest::collection::vec(one, 0..6).prop_map(|mut all| {
        // A capability block stands until a start completes, whatever is told after it: nothing else follows it here.
        let mut blocked = false;
        for what in &mut all {
            if blocked && *what != Happened::Dead(Reason::CapabilityBlocked) {
                *what = Happened::Ready;
            }
            blocked = *what == Happened::Dead(Reason::CapabilityBlocked);
        }
        all
    })
}

fn world() -> impl Strategy<Value = World> {
    proptest::collection::vec(happened(), SERVERS.len()).prop_map(|all| {
        let timed = |(n, what): (usize, Happened)| (10 + 20 * i64::try_from(n).unwrap(), what);
        SERVERS.iter().copied().zip(all.into_iter().map(|h| h.into_iter().enumerate().map(timed).collect())).collect()
    })
}

fn signals() -> impl Strategy<Value = Vec<Signal>> {
    let id = || proptest::sample::select(SERVERS.to_vec());
    let one = prop_oneof![
        8 => (id(), 0..6_usize).prop_map(|(id, n)| Signal::Event(id, n)),
        1 => Just(Signal::EventsLost),
        3 => (0..7_i64).prop_map(|n| Signal::Log(20 * n)),
        2 => Just(Signal::List),
        2 => Just(Signal::Metrics),
        2 => id().prop_map(Signal::Server),
    ];
    proptest::collection::vec(one, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_interleaving_duplication_or_loss_of_signals_ends_as_one_look_at_the_final_state(world in world(), signals in signals(), in_order in any::<bool>()) {
        // A log that is behind and tells a block is believed over everything, on purpose: here a block is always the last word.
        let mut world = world;
        for (_, happened) in world.values_mut().flat_map(|all| all.iter_mut().rev().skip(1)) {
            if matches!(happened, Happened::Dead(Reason::CapabilityBlocked)) {
                *happened = Happened::Dead(Reason::Crashed);
            }
        }
        let mut once = Medic::new(&world);
        once.hear(&Signal::List);

        let mut signals = signals;
        if in_order {
            // The log at least is read in its order.
            let mut logs: Vec<i64> = signals.iter().filter_map(|s| if let Signal::Log(n) = s { Some(*n) } else { None }).collect();
            logs.sort_by_key(|n| std::cmp::Reverse(*n));
            for signal in &mut signals {
                if let Signal::Log(n) = signal { *n = logs.pop().unwrap(); }
            }
        }
        let mut medic = Medic::new(&world);
        for signal in &signals {
            medic.hear(signal);
        }
        // Whatever was lost: the next poll and the next wake.
        medic.hear(&Signal::Metrics);
        medic.hear(&Signal::List);
        prop_assert_eq!(medic.incidents(), once.incidents());
    }
}
