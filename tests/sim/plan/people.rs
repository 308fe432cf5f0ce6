//! What people do in a world, drawn from a stream of chance of its own.

use std::num::NonZeroU32;

use hangar_medic::policy::{Mode, Policy, ServerRule};
use jiff::SignedDuration;

use super::super::check::people::Span;
use super::super::hangar::Upstream;
use super::super::rng::Rng;
use super::{Blow, Plan, minutes};

impl Plan {
    pub(super) fn people(&mut self, rng: &mut Rng, long: i64) {
        self.tended = rng.chance(60);
        if rng.chance(20) {
            self.policy.approval_lasts = SignedDuration::from_secs(rng.between(20, 300));
        }
        if rng.chance(12) {
            self.policy.servers = self.rules(rng);
        }
        if rng.chance(12) {
            self.windows = self.spans(rng);
        }
        self.judge_blocks(rng);
        if rng.chance(35) {
            for _ in 0..rng.between(1, 4) {
                let at = rng.between(1_000, long);
                self.hold_back(rng, at, long);
            }
        }
        if rng.chance(15) {
            for _ in 0..rng.between(1, 3) {
                let at = rng.between(2_000, long);
                let (policy, windows) = self.change(rng);
                self.blow(at, Blow::Reload(Box::new((policy, windows))));
            }
        }
    }

    fn any(&self, rng: &mut Rng) -> String {
        rng.pick(&self.servers).0.clone()
    }

    fn hold_back(&mut self, rng: &mut Rng, at: i64, long: i64) {
        let id = self.any(rng);
        let lasts = rng.between(1_000, minutes(20));
        match rng.below(6) {
            0 => self.blow(at, Blow::Pause(None, lasts)),
            1 => {
                self.blow(at, Blow::Pause(None, lasts));
                self.blow(at + rng.between(1_000, lasts), Blow::Unpause);
            }
            2 => self.blow(at, Blow::Pause(Some(id), lasts)),
            3 => {
                self.blow(at, Blow::Pause(Some(id.clone()), lasts));
                self.blow(at + rng.between(1_000, lasts), Blow::Resume(id));
            }
            4 => self.blow(at, Blow::Hold(id)),
            _ => {
                self.blow(at, Blow::Hold(id.clone()));
                self.blow(at + rng.between(1_000, long), Blow::Resume(id));
            }
        }
    }

    /// Somebody looks at what was blocked, and approves it, perhaps too late or after it changed.
    pub(super) fn judge_blocks(&mut self, rng: &mut Rng) {
        let drifts = |(at, blow): &(i64, Blow)| match blow {
            Blow::Upstream(id, Upstream::Drifts) => Some((*at, id.clone())),
            _ => None,
        };
        let blocked: Vec<(i64, String)> = self.blows.iter().filter_map(drifts).collect();
        for (at, id) in blocked {
            if rng.chance(30) {
                continue;
            }
            let looks = at + rng.between(5_000, 240_000);
            self.blow(looks, Blow::Look(id.clone()));
            if rng.chance(30) {
                self.blow(looks + rng.between(0, 60_000), Blow::DriftsOn(id.clone()));
            }
            if rng.chance(30) {
                self.blow(looks + rng.between(0, 30_000), Blow::Pause(Some(id.clone()), rng.between(1_000, 400_000)));
            }
            let role = *rng.pick(&["operator", "admin", "viewer", "operator"]);
            self.blow(looks + rng.delay(60_000), Blow::Approve(id, role));
        }
    }

    fn rules(&self, rng: &mut Rng) -> Vec<ServerRule> {
        let servers = self.any(rng).parse().expect("an id is a pattern");
        let left_alone = rng.chance(50);
        let mode = (!left_alone).then_some(if self.policy.mode == Mode::Act { Mode::Observe } else { Mode::Act });
        let starts_per_server = rng.chance(30).then_some(NonZeroU32::MIN);
        vec![ServerRule { servers, enabled: !left_alone, mode, rungs: None, starts_per_server }]
    }

    fn spans(&self, rng: &mut Rng) -> Vec<Span> {
        let server = rng.chance(60).then(|| self.any(rng));
        let span = Span { minute: rng.between(0, 59), lasts: rng.between(1, 20), server };
        vec![span]
    }

    /// What an operator may change while incidents are open.
    fn change(&self, rng: &mut Rng) -> (Policy, Vec<Span>) {
        let (mut policy, mut windows) = (self.policy.clone(), self.windows.clone());
        match rng.below(8) {
            0 => policy.mode = if policy.mode == Mode::Act { Mode::Observe } else { Mode::Act },
            1 => policy.servers = self.rules(rng),
            2 => policy.servers = Vec::new(),
            3 => windows = self.spans(rng),
            4 => policy.settle = SignedDuration::from_secs(rng.between(2, 40)),
            5 => {
                policy.budgets.starts_per_server = NonZeroU32::MIN.saturating_add(u32::try_from(rng.below(5)).unwrap_or(0));
                policy.budgets.in_flight = NonZeroU32::MIN.saturating_add(u32::try_from(rng.below(4)).unwrap_or(0));
            }
            6 => {
                policy.degraded_too_long_after = SignedDuration::from_secs(rng.between(60, 600));
                policy.stuck_starting_after = SignedDuration::from_secs(rng.between(60, 300));
            }
            _ => {
                policy.storm.servers = NonZeroU32::MIN.saturating_add(u32::try_from(rng.between(1, 7)).unwrap_or(1));
                policy.budgets.starts_window = SignedDuration::from_mins(rng.between(10, 120));
            }
        }
        (policy, windows)
    }
}
