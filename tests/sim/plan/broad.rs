//! Worlds in which the medic may have Hangar restarted, what is behind a server, or move a group's members.

use std::collections::BTreeSet;
use std::num::{NonZeroU8, NonZeroU32};

use hangar_medic::policy::{Matrix, OWN_ROLE, Reason, Rung, RungLimits};
use jiff::SignedDuration;

use super::super::fleet::Mood;
use super::super::hangar::Upstream;
use super::super::rng::Rng;
use super::{Blow, Plan, minutes};

impl Plan {
    /// Everything is off by default: here it is not.
    pub(super) fn broad(&mut self, rng: &mut Rng, long: i64) {
        let mut restarts: BTreeSet<Rung> =
            [Rung::RollingMcpRestart, Rung::FullMcpRestart, Rung::HostRestart].into_iter().filter(|_| rng.chance(50)).collect();
        if restarts.is_empty() {
            restarts.insert(Rung::FullMcpRestart);
        }
        self.policy.platform.upstreams = self.servers.iter().map(|(id, ..)| id.clone()).filter(|_| rng.chance(40)).collect();
        self.policy.platform.restart_within = SignedDuration::from_secs(rng.between(120, 600));
        self.allow(restarts);
        // A broad budget of an hour would leave one restart in a world.
        if rng.chance(50) {
            let window = SignedDuration::from_mins(rng.between(5, 30));
            self.policy.budgets.rungs.iter_mut().for_each(|budget| budget.window = window);
        }
        if rng.chance(30) {
            self.policy.budgets.starts_per_server = NonZeroU32::MIN.saturating_add(9);
        }
        let ids: Vec<String> = self.servers.iter().skip(1).map(|(id, ..)| id.clone()).collect();
        for _ in 0..rng.between(1, 2) {
            let (at, id) = (rng.between(2_000, long / 2), rng.pick(&ids).clone());
            let behind = *rng.pick(&[Upstream::NeedsHangar, Upstream::NeedsHangar, Upstream::NeedsRuntime, Upstream::Broken]);
            self.blow(at, Blow::Upstream(id.clone(), behind));
            let (reason, failures) = *rng.pick(&[(Reason::Crashed, 0), (Reason::GivenUp, 4)]);
            self.blow(at + 1, Blow::Kill(id.clone(), reason, failures));
            // What restarts finds is out of Hangar's hands, or goes on while it is at work.
            let then = at + rng.between(60_000, 400_000);
            match rng.below(5) {
                0 => self.blow(then, Blow::Hold(rng.pick(&ids).clone())),
                1 => self.blow(then, Blow::Pause(None, rng.between(1_000, minutes(5)))),
                2 => self.blow(then, Blow::Stop(rng.pick(&ids).clone(), hangar_medic::policy::StopReason::UserRequest)),
                3 => self.blow(then, Blow::MedicCrash(u64::try_from(rng.between(1, 30)).unwrap_or(1))),
                _ => {}
            }
        }
        for _ in 0..rng.between(1, 3) {
            let late = rng.between(5_000, 300_000);
            let moods =
                [Mood::Works, Mood::Works, Mood::Refuses, Mood::FailsBefore, Mood::FailsAfter, Mood::Hangs, Mood::Mute, Mood::Late(late)];
            let at = rng.between(0, long);
            self.blow(at, Blow::Mood(*rng.pick(&moods), rng.chance(40)));
        }
    }

    /// All rungs are enabled, the medic is permitted them, and these restarts have an executor.
    pub fn allow(&mut self, restarts: BTreeSet<Rung>) {
        self.broad = true;
        self.policy.platform.restarts = restarts;
        let of_all = |action| RungLimits { action, attempts_max: NonZeroU8::MIN, pause: SignedDuration::from_secs(5) };
        let more = [Rung::RoleRuntimeRestart, Rung::ConnectorRestart, Rung::RollingMcpRestart, Rung::FullMcpRestart, Rung::HostRestart];
        self.policy.rungs.extend(more.into_iter().map(of_all));
        let roles = Matrix::default();
        let own = (OWN_ROLE.to_owned(), Rung::ALL.iter().copied().collect());
        let others = roles.roles().filter(|(role, _)| *role != OWN_ROLE).map(|(role, may)| (role.to_owned(), may.clone()));
        self.policy.matrix = Matrix::new(others.chain([own]).collect::<Vec<_>>());
    }

    /// A second replica with the same servers and a fate of its own. What dies at both by one cause has both medics want a restart.
    pub(super) fn replicate(&mut self, rng: &mut Rng, long: i64) {
        self.policy.platform.instances = NonZeroU32::MIN.saturating_add(1);
        self.policy.platform.fleet_lock = true;
        let mut peer = Self { seed: rng.next(), blows: Vec::new(), windows: Vec::new(), ..self.clone() };
        peer.befall(rng, long);
        peer.judge_blocks(rng);
        let together = |(_, blow): &&(i64, Blow)| matches!(blow, Blow::Upstream(_, Upstream::NeedsHangar) | Blow::Kill(..));
        let shared: Vec<(i64, Blow)> = self.blows.iter().filter(together).cloned().collect();
        for (at, blow) in shared {
            peer.blow(at + rng.between(0, 3_000), blow);
        }
        // A holder that is gone for longer than its lock lasts.
        if rng.chance(30) {
            let at = rng.between(long / 4, long);
            let gone = rng.between(minutes(1), minutes(25));
            let of = if rng.chance(50) { &mut *self } else { &mut peer };
            of.blow(at, Blow::MedicGone(gone));
        }
        // Both live by one wall clock.
        self.blows.retain(|(_, blow)| !matches!(blow, Blow::Step(_)));
        peer.blows.retain(|(_, blow)| !matches!(blow, Blow::Step(_) | Blow::Reload(_)));
        self.peer = Some(Box::new(peer));
    }
}
