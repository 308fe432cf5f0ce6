//! Break-glass and restart requests over random histories: an expired, used or wrongly scoped grant opens nothing.

use hangar_medic::attempt_log::{AttemptLog, Store};
use hangar_medic::policy::{Body, GrantAsk, History, Outcome, Policy, Record, RequestAsk, grant, judge, plan};
use jiff::{SignedDuration, Timestamp};

use super::gate::{LADDER, model, record};
use super::{Dice, scale};

const TARGETS: [&str; 2] = ["hangar", "host"];
/// Mostly what a grant is for, and who may.
const CLASSES: [&str; 5] = ["rolling_mcp_restart", "full_mcp_restart", "full_mcp_restart", "host_restart", "worker_restart"];
const ASKERS: [&str; 6] = ["admin", "admin", "admin", "operator", "sidecar", "root"];

/// The model's own notes of a grant.
struct Noted {
    action: &'static str,
    target: &'static str,
    until: Timestamp,
    used: bool,
}

struct World {
    policy: Policy,
    history: History,
    now: Timestamp,
    seq: u64,
    grants: Vec<Noted>,
}

impl World {
    fn new(authorised: bool) -> Self {
        let policy = Policy { break_glass_authorised: authorised, ..Policy::default() };
        let now = "2026-11-30T12:00:00Z".parse().unwrap();
        Self { policy, history: History::default(), now, seq: 0, grants: Vec::new() }
    }

    fn record(&mut self, body: Body) {
        self.seq += 1;
        let (prev_hash, hash) = (String::new(), String::new());
        let record = Record { instance: "h".into(), seq: self.seq, at: self.now, actor: "a".into(), body, prev_hash, hash };
        self.history.apply(&record);
    }

    fn ask_grant(&mut self, dice: &mut Dice) {
        let (action, target, role) = (dice.of(&CLASSES), dice.of(&TARGETS), dice.of(&ASKERS));
        let seconds = 1 + i64::try_from(dice.roll(900)).unwrap();
        let ask = GrantAsk {
            grant_id: format!("grant-{}", self.seq),
            action: action.parse().unwrap(),
            target: target.to_owned(),
            principal: "p".to_owned(),
            role: role.to_owned(),
            reason: "r".to_owned(),
            duration: SignedDuration::from_secs(seconds),
        };
        let verdict = grant(&self.policy, &self.history, &ask, self.now);
        let expected = self.policy.break_glass_authorised && model(action, role, &[], true);
        assert_eq!(verdict.refused.is_none(), expected, "{ask:?} {verdict:?}");
        self.record(verdict.record);
        if expected {
            self.grants.push(Noted { action, target, until: self.now + SignedDuration::from_secs(seconds), used: false });
        }
    }

    fn ask_restart(&mut self, dice: &mut Dice) -> bool {
        let (action, target, role, flag) = (dice.of(&CLASSES), dice.of(&TARGETS), dice.of(&ASKERS), dice.roll(4) > 0);
        let tried: Vec<(&str, &str)> = if dice.roll(4) == 0 { vec![(dice.of(&LADDER), "failed")] } else { Vec::new() };
        let ask = RequestAsk {
            request_id: format!("request-{}", self.seq),
            restart_class: action.parse().unwrap(),
            target: target.to_owned(),
            symptoms: Vec::new(),
            reason: "r".to_owned(),
            principal: "p".to_owned(),
            role: role.to_owned(),
            claimed: tried.iter().map(|(a, o)| record(a, o)).collect(),
            request_break_glass: flag,
        };
        let verdict = judge(&self.policy, &self.history, &ask, self.now);
        let live = |g: &Noted| !g.used && g.action == action && g.target == target && self.now < g.until;
        let glass = flag && self.policy.break_glass_authorised && self.grants.iter().any(live);
        assert_eq!(verdict.report.allowed, model(action, role, &tried, glass), "{ask:?} {verdict:?}");
        let used = verdict.records.iter().filter(|b| matches!(b, Body::GrantUsed { .. })).count();
        // Used only where nothing else opens the gate, and only once.
        let needed = verdict.report.allowed && !model(action, role, &tried, false);
        assert_eq!(used, usize::from(needed), "{ask:?} {verdict:?}");
        if needed {
            // Of several that would do, the one that ends first is used up.
            let alike = |g: &&mut Noted| !g.used && g.action == action && g.target == target && self.now < g.until;
            let taken = self.grants.iter_mut().filter(alike).min_by_key(|g| g.until);
            taken.unwrap().used = true;
        }
        verdict.records.into_iter().for_each(|body| self.record(body));
        needed
    }

    /// What the planner writes down by itself: grants that are over.
    fn keep_books(&mut self) {
        let plan = plan(&self.policy, &hangar_medic::policy::Snapshot::default(), &self.history, self.now);
        for step in plan.steps {
            if let hangar_medic::policy::Step::Record(body) = step {
                assert!(matches!(body, Body::GrantExpired { .. }), "{body:?}");
                self.record(body);
            }
        }
        assert!(self.history.grants.values().all(|g| self.now < g.expires_at));
    }
}

#[test]
fn a_grant_opens_its_action_on_its_target_once_and_in_time() {
    let mut dice = Dice::new(2);
    let mut used = 0;
    for _ in 0..2_000 * scale() {
        let mut world = World::new(dice.roll(8) > 0);
        for _ in 0..40 {
            match dice.roll(6) {
                0 | 1 => world.ask_grant(&mut dice),
                2..=4 => used += usize::from(world.ask_restart(&mut dice)),
                _ => {
                    world.now += SignedDuration::from_secs(i64::try_from(dice.roll(600)).unwrap());
                    if dice.coin() {
                        world.keep_books();
                    }
                }
            }
        }
    }
    assert!(used > 100 * scale(), "too few grants were used to show anything: {used}");
}

#[test]
fn what_opens_nothing() {
    let ask = |action: &str, target: &str, flag: bool| RequestAsk {
        request_id: "request-1".to_owned(),
        restart_class: action.parse().unwrap(),
        target: target.to_owned(),
        symptoms: Vec::new(),
        reason: "r".to_owned(),
        principal: "p".to_owned(),
        role: "admin".to_owned(),
        claimed: Vec::new(),
        request_break_glass: flag,
    };
    let granted = || {
        let mut world = World::new(true);
        let (action, until) = ("full_mcp_restart".parse().unwrap(), world.now + SignedDuration::from_mins(10));
        let (target, principal, role, reason) = ("hangar".to_owned(), "p".to_owned(), "admin".to_owned(), "r".to_owned());
        world.record(Body::Granted { grant_id: "g".to_owned(), action, target, principal, role, reason, expires_at: until });
        world
    };
    let allowed = |world: &World, request: &RequestAsk| judge(&world.policy, &world.history, request, world.now).report.allowed;
    let right = ask("full_mcp_restart", "hangar", true);
    assert!(allowed(&granted(), &right));
    for wrong in [
        ask("host_restart", "hangar", true),
        ask("rolling_mcp_restart", "hangar", true),
        ask("full_mcp_restart", "host", true),
        ask("full_mcp_restart", "hangar", false),
        RequestAsk { role: "operator".to_owned(), ..right.clone() },
        RequestAsk { role: "root".to_owned(), ..right.clone() },
    ] {
        assert!(!allowed(&granted(), &wrong), "{wrong:?}");
    }
    let spoil = |change: &dyn Fn(&mut World)| {
        let mut world = granted();
        change(&mut world);
        allowed(&world, &right)
    };
    assert!(!spoil(&|w| w.now += SignedDuration::from_mins(10)), "expired");
    assert!(!spoil(&|w| w.now -= SignedDuration::from_secs(1)), "from the future");
    assert!(!spoil(&|w| w.policy.break_glass_authorised = false), "no authorisation");
    assert!(!spoil(&|w| w.record(Body::GrantUsed { grant_id: "g".to_owned(), request_id: "request-0".to_owned() })), "used");
    assert!(!spoil(&|w| w.record(Body::GrantExpired { grant_id: "g".to_owned() })), "recorded as expired");
    // A narrower attempt that counts is another matter.
    let claimed = RequestAsk { claimed: vec![record("client_reconnect", Outcome::Failed.as_str())], ..ask("full_mcp_restart", "x", false) };
    assert!(allowed(&World::new(false), &claimed));
}

#[test]
fn live_grants_and_waiting_requests_outlive_a_restart_and_retention() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(true);
    world.policy.requests_act = true;
    let mut dice = Dice::new(3);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let store = Store::open(dir.path(), "h").await.unwrap();
        let mut written = Vec::new();
        for _ in 0..60 {
            let (action, target) = (dice.of(&CLASSES).parse().unwrap(), dice.of(&TARGETS).to_owned());
            let (principal, role, reason) = ("p".to_owned(), "admin".to_owned(), "r".to_owned());
            world.seq += 1;
            let id = world.seq;
            let bodies = if dice.coin() {
                let duration = SignedDuration::from_mins(15);
                let ask = GrantAsk { grant_id: format!("grant-{id}"), action, target, principal, role, reason, duration };
                vec![grant(&world.policy, &world.history, &ask, world.now).record]
            } else {
                let request_id = format!("request-{id}");
                let (symptoms, claimed) = (Vec::new(), Vec::new());
                let ask = RequestAsk {
                    request_id,
                    restart_class: action,
                    target,
                    symptoms,
                    reason,
                    principal,
                    role,
                    claimed,
                    request_break_glass: true,
                };
                judge(&world.policy, &world.history, &ask, world.now).records
            };
            for record in store.append(world.now, "p", bodies).await.unwrap() {
                world.history.apply(&record);
                written.push(record);
            }
            if world.history.requests.len() > 1 {
                let request_id = world.history.requests.keys().next().unwrap().clone();
                let how = hangar_medic::policy::RequestEnd::Expired;
                let body = Body::RequestEnded { request_id, how, why: "w".to_owned() };
                for record in store.append(world.now, "p", vec![body]).await.unwrap() {
                    world.history.apply(&record);
                }
            }
        }
        assert!(!world.history.grants.is_empty() && !world.history.requests.is_empty());
        let much_later = world.now + SignedDuration::from_hours(900);
        for rebuilt in [false, true] {
            if rebuilt {
                store.rebuild_index().await.unwrap();
            }
            let history = store.history(&world.policy, much_later).await.unwrap();
            assert_eq!((&history.grants, &history.requests), (&world.history.grants, &world.history.requests));
            let report = store.verify(&mut |_| {}).await.unwrap();
            assert_eq!((report.fault, report.index_fault), (None, None));
        }
        let cut = store.cut(much_later, much_later, "p").await.unwrap();
        let history = store.history(&world.policy, much_later).await.unwrap();
        assert_eq!((&history.grants, &history.requests), (&world.history.grants, &world.history.requests), "{cut:?}");
    });
}
