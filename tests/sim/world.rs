//! One world: a Hangar, a medic, and what befalls them, from one seed.

mod befall;
mod medic;
mod people;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use hangar_medic::attempt_log::{GENESIS, hash_of};

use super::check::Check;
use super::edges::{Shared, State};
use super::fleet::SharedFleet;
use super::hangar::Hangar;
use super::mutants::Mutant;
use super::plan::Plan;
use super::rng::Rng;
use super::time::{self, mono, until};
use medic::Medic;

pub struct World {
    plan: Plan,
    shared: Shared,
    fleet: SharedFleet,
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
    /// The evidence that a person last looked at, by server: the incident and the hash.
    looked: BTreeMap<String, (String, String)>,
    tend_due: i64,
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
    runtime.block_on(async move {
        time::begin();
        let fleet = SharedFleet::new(Rng::new(plan.seed ^ 0xf1ee_7000));
        let (mut plan, mut ends) = (plan, Vec::new());
        let Some(peer) = plan.peer.take() else { return World::new("sim", plan, mutant, fleet).run().await };
        let (one, other) = (World::new("sim-a", plan, mutant, fleet.clone()), World::new("sim-b", *peer, mutant, fleet));
        let (one, other) = tokio::join!(one.run(), other.run());
        ends.extend([("a", one), ("b", other)]);
        together(ends)
    })
}

/// One end of what happened side by side.
fn together(ends: Vec<(&str, End)>) -> End {
    let mut whole = End { violation: None, timeline: Vec::new(), virtual_ms: 0, healed_after_ms: 0, incidents: 0, acts: 0 };
    for (name, end) in ends {
        whole.violation = whole.violation.or(end.violation.map(|what| format!("replica {name}: {what}")));
        whole.timeline.extend(end.timeline.into_iter().map(|line| format!("{} {name}{}", &line[..10], &line[10..])));
        whole.virtual_ms = whole.virtual_ms.max(end.virtual_ms);
        whole.healed_after_ms = whole.healed_after_ms.max(end.healed_after_ms);
        whole.incidents += end.incidents;
        whole.acts += end.acts;
    }
    whole.timeline.sort_by(|a, b| a[..10].cmp(&b[..10]));
    whole
}

impl World {
    fn new(instance: &str, plan: Plan, mutant: Option<Mutant>, fleet: SharedFleet) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0xabcd);
        let mut hangar = Hangar::new(plan.version, Rng::new(rng.next()));
        for (id, mode, group, ready) in &plan.servers {
            hangar.add(id, mode, group.clone(), *ready);
        }
        let mut check = Check::new(plan.policy.clone(), plan.poll);
        check.known = plan.servers.len();
        check.people.windows.clone_from(&plan.windows);
        let state = State::new(instance.to_owned(), Rng::new(rng.next()), hangar, check, mutant);
        let shared = Shared(Arc::new(Mutex::new(state)));
        fleet.join(&shared);
        Self {
            shared,
            fleet,
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
            looked: BTreeMap::new(),
            tend_due: 0,
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
            if mending && self.plan.tended && now >= self.tend_due {
                self.tend_due = now + 20_000;
                self.tend();
            }
            let (violation, left, unsettled) = {
                let state = self.shared.lock();
                let left = if mending { state.check.left(&state.hangar, self.tells_reasons()) } else { Vec::new() };
                (state.check.violation.clone(), left, state.check.unsettled().len())
            };
            if violation.is_some() {
                return self.end(violation, now, now);
            }
            // Where the other replica has come to a bad end, this one tells no more.
            if self.fleet.get().broken {
                return self.end(None, now, now);
            }
            if mending && self.medic.is_some() && now >= mended + 45_000 {
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
                    let since = (now - mended) / 1000;
                    let stand = self.standings(&left);
                    let what = format!("not brought back within {since} s after the last fault: {left:?}, unsettled {unsettled}: {stand}");
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

    /// What the medic says of these servers.
    fn standings(&self, ids: &[String]) -> String {
        let Some(medic) = &self.medic else { return "no medic".to_owned() };
        let live = medic.live.get();
        let of = |id: &String| live.standings.get(id).map(|s| format!("{id} {} {:?} until {:?}: {}", s.phase, s.hold, s.until, s.why));
        ids.iter().filter_map(of).collect::<Vec<_>>().join("; ")
    }

    fn tells_reasons(&self) -> bool {
        self.plan.reads_log || self.plan.version >= (2, 21, 0)
    }

    fn end(self, violation: Option<String>, now: i64, healed: i64) -> End {
        self.fleet.get().broken |= violation.is_some();
        let state = self.shared.lock();
        let (incidents, acts) = state.check.counts();
        End { violation, timeline: state.timeline.clone(), virtual_ms: now, healed_after_ms: healed - self.plan.mended, incidents, acts }
    }

    /// What is on disk is one unbroken chain.
    fn chain(&self) -> Option<String> {
        let state = self.shared.lock();
        let (mut prev, mut seq) = (GENESIS.to_owned(), 0);
        for (record, text) in &state.disk.records {
            let hash = hash_of(&prev, &state.instance, seq + 1, &format!("{:.6}", record.at), &record.actor, text);
            if record.seq != seq + 1 || record.prev_hash != prev || record.hash != hash {
                return Some(format!("record {} does not fit the chain", record.seq));
            }
            (prev, seq) = (hash, record.seq);
        }
        None
    }
}
