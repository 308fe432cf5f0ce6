//! The planner is total: whatever history and snapshot it is given, however absurd, it plans, and its bookkeeping comes to rest.

use std::collections::BTreeMap;

use hangar_medic::policy::{
    Body, Closed, DeadBlock, GroupReading, HangarReading, History, HoldCause, LogReading, Mode, Outcome, Part, Policy, Provenance, Reason,
    Receipt, Record, RestReading, Rung, ServerReading, Silenced, Snapshot, Source, State, Step, StopReason, Stops, Symptom, Unasked,
    attempt_id, incident_id, plan,
};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::engine::zero;
use super::properties::cases;

const IDS: [&str; 3] = ["api", "web", "a-b_9"];

/// Choices out of a list of random numbers; at its end, always the first.
struct Dice<'a>(std::slice::Iter<'a, u32>);

impl Dice<'_> {
    fn roll(&mut self) -> u32 {
        self.0.next().copied().unwrap_or(0)
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.roll() as usize % all.len()].clone()
    }

    fn coin(&mut self) -> bool {
        self.roll() % 2 == 1
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.coin() { Some(make(self)) } else { None }
    }

    fn instant(&mut self) -> Timestamp {
        match self.roll() % 12 {
            0 => Timestamp::MIN,
            1 => Timestamp::MAX,
            2 => Timestamp::UNIX_EPOCH,
            // Mostly this very moment, or else hardly anything would ever be young enough to act on.
            3..=8 => zero() + SignedDuration::from_millis(i64::from(self.roll() % 4_000)),
            _ => zero() + SignedDuration::from_millis(i64::from(self.roll() % 8_000_000) - 4_000_000),
        }
    }

    fn length(&mut self) -> SignedDuration {
        match self.roll() % 10 {
            0 => SignedDuration::MAX,
            1 => SignedDuration::MIN,
            2 => SignedDuration::ZERO,
            _ => SignedDuration::from_secs(i64::from(self.roll() % 2000)),
        }
    }

    fn stops(&mut self) -> Stops {
        let count = |dice: &mut Self| (dice.of(StopReason::ALL), if dice.coin() { u64::MAX } else { u64::from(dice.roll() % 3) });
        (0..self.roll() % 3).map(|_| count(self)).collect()
    }

    fn provenance(&mut self) -> Provenance {
        Provenance { source: self.of(Source::ALL), at: self.instant(), file: String::new(), offset: None, line_sha256: None }
    }

    fn policy(&mut self) -> Policy {
        let mut policy = Policy { mode: self.of(&[Mode::Act, Mode::Act, Mode::Act, Mode::Observe]), ..Policy::default() };
        for length in [
            &mut policy.settle,
            &mut policy.flap_window,
            &mut policy.not_seen_healthy_after,
            &mut policy.degraded_too_long_after,
            &mut policy.stuck_starting_after,
            &mut policy.lost_in_restart_within,
            &mut policy.took_hangar_down_within,
            &mut policy.exhausted_retry,
            &mut policy.exhausted_retry_max,
            &mut policy.neighbour_wait,
            &mut policy.group_recovery_pass,
            &mut policy.rejoin_after,
            &mut policy.budgets.starts_window,
            &mut policy.budgets.actions_window,
            &mut policy.storm.window,
        ] {
            if self.roll() % 16 == 15 {
                *length = self.length();
            }
        }
        if self.roll() % 4 != 3 {
            return policy;
        }
        policy.storm.share = self.of(&[0.3, 0.0, 1.0, f64::NAN, f64::INFINITY, -1.0]);
        let keep = self.roll();
        policy.rungs.retain(|r| keep & (1 << r.action.rank()) == 0);
        policy
    }

    fn body(&mut self, history: &History) -> Body {
        let server = self.of(&IDS).to_owned();
        let open: Vec<_> = history.open.values().collect();
        let incident =
            self.maybe(|dice| dice.of(&open.iter().map(|i| i.incident_id.clone()).chain(["web.0".to_owned()]).collect::<Vec<_>>()));
        let id = incident.unwrap_or_else(|| incident_id(&server, self.instant()));
        let made = history.open.values().find(|i| i.incident_id == id).map_or(0, |i| i.attempts.len());
        let attempt = attempt_id(&id, made.saturating_sub(self.roll() as usize % 2));
        match self.roll() % 20 {
            0..=4 => Body::IncidentOpened {
                incident_id: incident_id(&server, self.instant()),
                mcp_server: server,
                symptom: self.of(Symptom::ALL),
                reason: self.of(Reason::ALL),
                provenance: self.maybe(Self::provenance),
                since: self.instant(),
                reopens: self.maybe(|_| id.clone()),
                floor_rank: self.of(&[0, 0, 3, 6, 255]),
                slow_retries: self.of(&[0, 1, 40, u32::MAX]),
                stops: self.stops(),
                process_start: self.maybe(Self::instant),
                group: self.maybe(|_| "g".to_owned()),
            },
            5 => Body::IncidentUpdated {
                incident_id: id,
                symptom: self.of(Symptom::ALL),
                reason: self.of(Reason::ALL),
                provenance: self.maybe(Self::provenance),
            },
            6 => Body::IncidentClosed { incident_id: id, how: self.of(Closed::ALL), why: String::new() },
            7..=9 => Body::AttemptOpened {
                attempt_id: attempt_id(&id, made + 1),
                mcp_server: id.split('.').next().unwrap().to_owned(),
                incident_id: id,
                action: self.of(Rung::ALL),
                why: String::new(),
                slow_retry: self.coin(),
                process_start: None,
            },
            10 => Body::AttemptHalfDone { attempt_id: attempt, evidence: [].into() },
            11 | 12 => Body::AttemptReceipt {
                attempt_id: attempt,
                receipt: self.of(Receipt::ALL),
                outcome: self.maybe(|dice| dice.of(Outcome::ALL)),
                detail: String::new(),
                evidence: BTreeMap::new(),
            },
            13..=16 => Body::AttemptSettled { attempt_id: attempt, outcome: self.of(Outcome::ALL), why: String::new() },
            17 => Body::HoldOrdered { mcp_server: server, cause: self.of(HoldCause::ALL), why: String::new() },
            18 => self.of(&[
                Body::HoldReleased { mcp_server: server, why: String::new() },
                Body::Exhausted { incident_id: id.clone() },
                Body::WouldAct { incident_id: id, action: Rung::SessionReconnect },
            ]),
            _ => Body::HangarRestarted { process_start: self.instant() },
        }
    }

    fn rest(&mut self) -> RestReading {
        RestReading {
            took: self.of(&[SignedDuration::ZERO, SignedDuration::from_secs(3), SignedDuration::MAX]),
            at: self.instant(),
            state: self.of(State::ALL),
            alive: self.coin(),
            mode: self.of(&["subprocess", "remote", ""]).to_owned(),
            dead: self.maybe(|dice| DeadBlock {
                reason: dice.of(Reason::ALL),
                since: dice.maybe(Self::instant),
                retry_allowed_at: dice.maybe(Self::instant),
                revived_by_call: dice.coin(),
            }),
            consecutive_failures: self.maybe(Self::roll),
            started_at: self.maybe(Self::instant),
            backoff_until: self.maybe(Self::instant),
        }
    }

    fn server(&mut self) -> ServerReading {
        ServerReading {
            gauge: self.maybe(|dice| dice.of(State::ALL)),
            gauge_since: self.maybe(Self::instant),
            last_healthy: self.maybe(Self::instant),
            stops: self.stops(),
            starting: self.coin(),
            rest: self.maybe(Self::rest),
            initializing_since: None,
            rest_not_found: self.roll() % 8 == 7,
            rest_outdated: self.roll() % 4 == 3,
            rest_failed_at: self.maybe(Self::instant),
            events: self.maybe(|dice| (dice.of(Reason::ALL), dice.provenance())),
            given_up_at: self.maybe(Self::instant),
            not_cold_since: self.maybe(Self::instant),
            clock_stepped_at: self.maybe(Self::instant),
            cold_before_restart: self.coin(),
            silenced: if self.roll() % 6 == 5 { Some(Silenced { until: self.instant(), what: String::new() }) } else { None },
            log: self.maybe(|dice| LogReading {
                dead: dice.maybe(|dice| (dice.of(Reason::ALL), dice.provenance())),
                capability_blocked: dice.coin(),
                undeclared_tools: Vec::new(),
            }),
            group: self.maybe(|dice| GroupReading {
                at: dice.instant(),
                group: "g".to_owned(),
                in_rotation: dice.coin(),
                degraded_member: dice.coin(),
                in_rotation_count: dice.roll(),
            }),
        }
    }

    /// A reading of this very moment, as Hangar would give it.
    fn plausible(&mut self, now: Timestamp) -> ServerReading {
        let mut reading = self.server();
        reading.rest_not_found = false;
        reading.rest_outdated = false;
        let state = self.of(&[State::Dead, State::Dead, State::Dead, State::Cold, State::Ready, State::Degraded]);
        reading.gauge = Some(state);
        reading.rest = Some(RestReading { at: now, state, backoff_until: None, ..self.rest() });
        reading
    }

    fn snapshot(&mut self, history: &History, now: Timestamp) -> Snapshot {
        if self.coin() {
            let start = history.process_start;
            let hangar = HangarReading { read_at: Some(now), fresh: true, process_start: start, ..HangarReading::default() };
            let servers = IDS.iter().map(|id| ((*id).to_owned(), self.plausible(now))).collect();
            return Snapshot { known: 3, hangar, servers, ..Snapshot::default() };
        }
        let hangar = HangarReading {
            read_at: self.maybe(Self::instant),
            took: self.of(&[SignedDuration::ZERO, SignedDuration::from_secs(3), SignedDuration::MAX]),
            fresh: self.roll() % 4 != 3,
            process_start: self.maybe(|dice| dice.history_start(history)),
            lost_at: self.maybe(Self::instant),
            auth_refused_until: self.maybe(Self::instant),
            auth_refused: self.roll() % 6 == 5,
            read_forbidden: self.roll() % 6 == 5,
            silences_unknown: if self.roll() % 6 == 5 { Some(self.of(Unasked::ALL)) } else { None },
            version: self.maybe(|dice| dice.of(&[(2, 20, 0), (2, 34, 4)])),
        };
        let attempts: Vec<String> = history.open.values().flat_map(|i| &i.attempts).map(|a| a.attempt_id.clone()).collect();
        let odd = self.of(&["api", "no such id", "api\n", "\u{1f98a}"]);
        Snapshot {
            known: self.of(&[0, 3, usize::MAX]),
            hangar,
            servers: IDS.iter().copied().chain([odd]).map(|id| (id.to_owned(), self.server())).collect(),
            running: attempts.into_iter().filter(|_| self.roll() % 4 == 3).collect(),
            log_unwritable: self.roll() % 6 == 5,
            draining: self.roll() % 6 == 5,
            ..Snapshot::default()
        }
    }

    fn history_start(&mut self, history: &History) -> Timestamp {
        history.process_start.filter(|_| self.coin()).unwrap_or_else(|| self.instant())
    }
}

fn record(history: &mut History, seq: u64, at: Timestamp, body: Body) {
    let hash = seq.to_string();
    let record = Record { instance: "hangar".to_owned(), seq, at, actor: "medic".to_owned(), body, prev_hash: String::new(), hash };
    history.apply(&record);
}

fn check(numbers: &[u32]) {
    let mut dice = Dice(numbers.iter());
    let policy = dice.policy();
    let mut history = History::default();
    for seq in 0..dice.roll() % 40 {
        let body = dice.body(&history);
        let at = dice.instant();
        record(&mut history, u64::from(seq), at, body);
    }
    let now = if dice.roll() % 8 == 7 { dice.instant() } else { zero() + SignedDuration::from_secs(4) };
    if dice.coin() {
        history.prune(&policy, now);
    }
    let snapshot = dice.snapshot(&history, now);
    let bound = 20 * (1 + history.open.len() + IDS.len());
    for round in 0.. {
        let planned = plan(&policy, &snapshot, &history, now);
        assert_eq!(planned, plan(&policy, &snapshot, &history, now), "two plans of one view");
        assert!(planned.wake_at.is_none_or(|at| at > now), "wakes in the past");
        let records: Vec<Body> =
            planned.steps.iter().filter_map(|s| if let Step::Record(b) = s { Some(b.clone()) } else { None }).collect();
        if records.is_empty() {
            return sane(&policy, &snapshot, &history, &planned.steps);
        }
        assert_eq!(records.len(), planned.steps.len(), "records come alone");
        assert!(round < bound, "no rest after {round} rounds: {records:?}");
        for body in records {
            record(&mut history, 1000, now, body);
        }
    }
}

/// What holds of the actions of any plan.
fn sane(policy: &Policy, snapshot: &Snapshot, history: &History, steps: &[Step]) {
    let acts: Vec<_> = steps.iter().filter_map(|s| if let Step::Act(a) = s { Some(a) } else { None }).collect();
    let mut targets: Vec<&str> = acts.iter().map(|a| a.mcp_server.as_str()).collect();
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), acts.len(), "two actions on one target");
    for action in acts {
        assert!(snapshot.hangar.fresh && !snapshot.draining && !snapshot.log_unwritable && policy.mode == Mode::Act, "{action:?}");
        assert!(!snapshot.hangar.auth_refused && !snapshot.hangar.read_forbidden, "{action:?}");
        let incident = &history.open[&action.mcp_server];
        assert!(incident.open_attempt().is_none_or(|a| a.attempt_id == action.attempt_id && !snapshot.running.contains(&a.attempt_id)));
        assert!(policy.rung(action.rung).is_some() || incident.open_attempt().is_some(), "a rung that is not enabled: {action:?}");
        // What puts back reads for itself and leaves alone what must not be started.
        let puts_back = action.part == Part::Second && action.rung.puts_back();
        if !action.rung.only_looks() && !puts_back {
            assert!(incident.reason != Reason::CapabilityBlocked, "{action:?}");
            assert!(!history.orders.contains_key(&action.mcp_server), "{action:?}");
            let reading = &snapshot.servers[&action.mcp_server];
            assert!(!reading.rest_outdated && reading.rest.is_some(), "{action:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(4000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_and_any_snapshot_give_a_plan(numbers in prop::collection::vec(any::<u32>(), 100..900)) {
        check(&numbers);
    }
}
