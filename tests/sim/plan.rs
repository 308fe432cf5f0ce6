//! What a world is made of and what befalls it, drawn from its seed.

mod broad;
mod people;

use std::num::NonZeroU32;

use hangar_medic::policy::{Mode, Policy, Reason, State as ServerStateWord, StopReason};
use jiff::SignedDuration;

use super::check::people::Span;
use super::edges::Weather;
use super::fleet::Mood;
use super::hangar::Upstream;
use super::rng::Rng;

/// What befalls a world.
#[derive(Debug, Clone)]
pub enum Blow {
    Crash(String),
    Kill(String, Reason, u32),
    Upstream(String, Upstream),
    LoseSession(String),
    Stick(String, ServerStateWord),
    Stop(String, StopReason),
    Call(String),
    Edit(String),
    Remove(String),
    HangarDown(i64),
    Spend(i64),
    Refuse(bool),
    LockOut,
    Weather(Weather),
    DiskFull(bool),
    DiskSlow(i64),
    MedicCrash(u64),
    MedicKill,
    MedicTerm,
    /// Killed, and not back for so long.
    MedicGone(i64),
    Step(i64),
    LogLag(i64),
    DeafTo(bool),
    Noise,
    Silence(String, bool),
    /// A blocked server exposes yet another tool.
    DriftsOn(String),
    Pause(Option<String>, i64),
    Unpause,
    Hold(String),
    Resume(String),
    /// A person looks at what there is to approve, and later approves what was seen.
    Look(String),
    Approve(String, &'static str),
    /// How the platform is, and whether it takes the medic down with Hangar.
    Mood(Mood, bool),
    /// A new configuration.
    Reload(Box<(Policy, Vec<Span>)>),
}

/// What a world is made of.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts of a world")]
pub struct Plan {
    pub seed: u64,
    pub version: (u32, u32, u32),
    pub servers: Vec<(String, &'static str, Option<String>, bool)>,
    pub policy: Policy,
    pub poll: i64,
    pub reads_log: bool,
    pub hears_events: bool,
    pub asks_alertmanager: bool,
    pub windows: Vec<Span>,
    /// Somebody decides on what waits for a person, once all faults have ended.
    pub tended: bool,
    /// There is a platform.
    pub broad: bool,
    /// Another replica of the same Hangar, with a medic of its own. They share the platform and the fleet lock.
    pub peer: Option<Box<Self>>,
    pub blows: Vec<(i64, Blow)>,
    /// When the last fault has ended.
    pub mended: i64,
}

pub fn minutes(n: i64) -> i64 {
    n * 60_000
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let version = if rng.chance(30) { (2, 20, 0) } else { (2, 34, 4) };
        let many = rng.chance(10);
        let n = if many { rng.between(12, 30) } else { rng.between(2, 7) };
        let grouped = rng.chance(40);
        let remote = rng.below(100);
        let servers = (0..n)
            .map(|k| {
                let mode = if rng.chance(remote) { "remote" } else { "subprocess" };
                let group = (grouped && k > 0 && k < 4).then(|| "g".to_owned());
                (format!("s{k}"), mode, group, k == 0 || rng.chance(90))
            })
            .collect();
        let mut policy = Policy::default();
        if rng.chance(6) {
            policy.mode = Mode::Observe;
        }
        if rng.chance(20) {
            policy.budgets.starts_per_second = NonZeroU32::MIN.saturating_add(u32::try_from(rng.below(4)).unwrap_or(0));
            policy.settle = SignedDuration::from_secs(rng.between(2, 30));
        }
        let poll = *rng.pick(&[5_000, 5_000, 10_000, 15_000]);
        let reads_log = rng.chance(80);
        let hears_events = !reads_log || rng.chance(30);
        let asks_alertmanager = rng.chance(20);
        let long = minutes(*rng.pick(&[5, 10, 20, 40]));
        let mut plan = Self {
            seed,
            version,
            servers,
            policy,
            poll,
            reads_log,
            hears_events,
            asks_alertmanager,
            windows: Vec::new(),
            tended: false,
            broad: false,
            peer: None,
            blows: Vec::new(),
            mended: 0,
        };
        plan.befall(&mut rng, long);
        plan.people(&mut Rng::new(seed ^ 0x9e0b_1e00), long);
        let mut platform = Rng::new(seed ^ 0xb10a_d000);
        if platform.chance(25) {
            plan.broad(&mut platform, long);
            if platform.chance(40) {
                plan.replicate(&mut platform, long);
            }
        }
        let all = plan.blows.iter().chain(plan.peer.iter().flat_map(|peer| &peer.blows));
        plan.mended = all.map(|(at, _)| *at).max().unwrap_or(0).max(long) + 1_000;
        plan.blows.sort_by_key(|(at, _)| *at);
        if let Some(peer) = &mut plan.peer {
            peer.mended = plan.mended;
            peer.blows.sort_by_key(|(at, _)| *at);
        }
        plan
    }

    fn befall(&mut self, rng: &mut Rng, long: i64) {
        let ids: Vec<String> = self.servers.iter().skip(1).map(|(id, ..)| id.clone()).collect();
        let stepping = rng.chance(25);
        for _ in 0..rng.between(2, 14) {
            let at = rng.between(2_000, long);
            let id = rng.pick(&ids).clone();
            let lasts = rng.delay(long / 2).max(500);
            match rng.below(100) {
                0..=13 => self.blow(at, Blow::Crash(id)),
                14..=25 => self.dies(rng, at, id, lasts),
                26..=33 => {
                    let bad = *rng.pick(&[Upstream::Broken, Upstream::Broken, Upstream::Hangs]);
                    self.blow(at, Blow::Upstream(id.clone(), bad));
                    self.blow(at + 10, Blow::Crash(id.clone()));
                    self.blow(at + lasts, Blow::Upstream(id, Upstream::Works));
                }
                34..=39 => {
                    self.blow(at, Blow::Upstream(id.clone(), Upstream::Drifts));
                    self.blow(at + 5, Blow::Crash(id.clone()));
                    self.blow(at + rng.between(10, 3_000), Blow::Call(id.clone()));
                    self.blow(at + lasts, Blow::Upstream(id, Upstream::Works));
                }
                40 => {
                    self.blow(at, Blow::Upstream(id.clone(), Upstream::KillsHangar));
                    self.blow(at + 5, Blow::Kill(id.clone(), Reason::GivenUp, 6));
                    self.blow(at + lasts.max(120_000), Blow::Upstream(id, Upstream::Works));
                }
                41..=44 => self.blow(at, Blow::LoseSession(id)),
                45..=48 => {
                    let state = *rng.pick(&[ServerStateWord::Degraded, ServerStateWord::Initializing]);
                    self.blow(at, Blow::Stick(id, state));
                }
                49..=55 => {
                    let why =
                        [StopReason::Manual, StopReason::UserRequest, StopReason::DetectionBlock, StopReason::Shutdown, StopReason::Idle];
                    let why = *rng.pick(&why);
                    if rng.chance(60) {
                        self.blow(at, Blow::Kill(id.clone(), Reason::GivenUp, 4));
                    }
                    self.blow(at + rng.between(0, 20_000), Blow::Stop(id, why));
                }
                56..=61 => self.blow(at, Blow::Call(id)),
                62 => self.blow(at, Blow::Edit(id)),
                63 => self.blow(at, Blow::Remove(id)),
                64..=69 => self.blow(at, Blow::HangarDown(rng.between(2_000, 60_000))),
                70..=71 => self.blow(at, Blow::Spend(rng.between(1, 20))),
                72..=73 => {
                    self.blow(at, Blow::Refuse(true));
                    self.blow(at + lasts, Blow::Refuse(false));
                }
                74 => self.blow(at, Blow::LockOut),
                75..=82 => {
                    let bad = match rng.below(6) {
                        0 => Weather { unreachable: true, ..Weather::default() },
                        1 => Weather { lost: 30, delay: 500, ..Weather::default() },
                        2 => Weather { garbled: 40, ..Weather::default() },
                        3 => Weather { delay: 4_000, ..Weather::default() },
                        4 => Weather { metrics_gone: true, ..Weather::default() },
                        _ => Weather { forbidden: true, ..Weather::default() },
                    };
                    self.blow(at, Blow::Weather(bad));
                    self.blow(at + lasts, Blow::Weather(Weather::default()));
                }
                83..=84 => {
                    self.blow(at, Blow::DiskFull(true));
                    self.blow(at + lasts, Blow::DiskFull(false));
                }
                85 => self.blow(at, Blow::DiskSlow(rng.between(1, 400))),
                86..=91 => self.blow(at, Blow::MedicCrash(u64::try_from(rng.between(1, 12)).unwrap_or(1))),
                92 => self.blow(at, Blow::MedicKill),
                93 => self.blow(at, Blow::MedicTerm),
                94 => {
                    self.blow(at, Blow::LogLag(rng.between(1_000, 120_000)));
                    self.blow(at + lasts, Blow::LogLag(100));
                }
                95 => {
                    self.blow(at, Blow::DeafTo(true));
                    self.blow(at + lasts, Blow::DeafTo(false));
                }
                96 => {
                    for k in 0..rng.between(1, 40) {
                        self.blow(at + k * 37, Blow::Noise);
                    }
                }
                97 if self.asks_alertmanager => {
                    self.blow(at, Blow::Silence(id.clone(), true));
                    self.blow(at + lasts, Blow::Silence(id, false));
                }
                _ if stepping => {
                    let by = *rng.pick(&[3_600_000, -3_600_000, 40_000, -30_000, 5_000, -2_000, 900_000]);
                    self.blow(at, Blow::Step(by));
                }
                _ => self.storm(rng, at, lasts, &ids),
            }
        }
        if stepping {
            let by = *rng.pick(&[3_600_000, -3_600_000, 40_000, -30_000, 400, -600_000]);
            self.blow(rng.between(2_000, long), Blow::Step(by));
        }
    }

    fn dies(&mut self, rng: &mut Rng, at: i64, id: String, lasts: i64) {
        let (reason, failures) = *rng.pick(&[
            (Reason::Crashed, 0),
            (Reason::StartFailed, 1),
            (Reason::StartFailed, 2),
            (Reason::GivenUp, 4),
            (Reason::GivenUp, 7),
        ]);
        let bad = rng.chance(50);
        if bad {
            self.blow(at, Blow::Upstream(id.clone(), Upstream::Broken));
            self.blow(at + lasts, Blow::Upstream(id.clone(), Upstream::Works));
        }
        self.blow(at + 1, Blow::Kill(id, reason, failures));
    }

    /// Many at once, by one cause.
    fn storm(&mut self, rng: &mut Rng, at: i64, lasts: i64, ids: &[String]) {
        let bad = rng.chance(50);
        for id in ids {
            if rng.chance(85) {
                let when = at + rng.between(0, 3_000);
                if bad {
                    self.blow(when, Blow::Upstream(id.clone(), Upstream::Broken));
                    self.blow(at + lasts, Blow::Upstream(id.clone(), Upstream::Works));
                }
                self.blow(when + 1, Blow::Kill(id.clone(), *rng.pick(&[Reason::Crashed, Reason::GivenUp]), 4));
            }
        }
    }

    pub(super) fn blow(&mut self, at: i64, blow: Blow) {
        self.blows.push((at, blow));
    }

    /// By then everything is well, or a person has to decide: the slowest retry after the longest budget window, once for
    /// the canary of a storm and once for the rest, and the storm's release.
    pub fn bound(&self) -> i64 {
        let policy = &self.policy;
        let slow = policy.exhausted_retry_max.max(policy.exhausted_retry) + policy.budgets.starts_window + policy.not_seen_healthy_after;
        let steps: i64 = self.blows.iter().map(|(_, b)| if let Blow::Step(by) = b { by.abs() } else { 0 }).sum();
        let each = minutes(2) * i64::try_from(self.servers.len()).unwrap_or(100);
        // What people hold back ends by itself, and may then meet a window.
        let restarts = if self.broad { minutes(60) } else { 0 };
        let held = restarts + minutes(30) + 2 * self.windows.iter().map(|w| minutes(w.lasts)).sum::<i64>();
        2 * i64::try_from(slow.as_millis()).unwrap_or(0) + each + minutes(20) + steps + held
    }
}
