//! What befalls a world, and how all of it ends.

use hangar_medic::engine::Signal;
use hangar_medic::observe::events::Update as EventUpdate;
use hangar_medic::policy::{State as ServerStateWord, StopReason};
use jiff::SignedDuration;

use super::super::edges::{State, Weather};
use super::super::fleet::Mood;
use super::super::hangar::{Hangar, Upstream};
use super::super::plan::Blow;
use super::super::time::{self, mono};
use super::World;

impl World {
    #[allow(clippy::too_many_lines, reason = "one arm a kind of blow")]
    pub(super) fn strike(&mut self, blow: Blow) {
        self.shared.lock().say(format!("!! {blow:?}"));
        match blow {
            Blow::MedicKill => return self.kill_medic(),
            Blow::MedicGone(lasts) => {
                self.kill_medic();
                self.medic_back = Some(mono() + lasts);
                return;
            }
            Blow::MedicTerm => {
                if let Some(medic) = &self.medic {
                    medic.stop.cancel();
                }
                return;
            }
            Blow::Step(by) => {
                time::step(SignedDuration::from_millis(by));
                self.shared.lock().check.steps += 1;
                return;
            }
            Blow::LogLag(lag) => {
                self.log_lag = lag;
                return;
            }
            Blow::DeafTo(deaf) => {
                self.deaf = deaf;
                let update = if deaf { EventUpdate::Closed } else { EventUpdate::Open };
                if self.plan.hears_events {
                    self.signal(Signal::Events(update));
                }
                return;
            }
            Blow::Mood(mood, takes_medic) => {
                let mut fleet = self.fleet.get();
                (fleet.mood, fleet.takes_medic) = (mood, takes_medic);
                return;
            }
            Blow::Noise => {
                if let Some(medic) = &self.medic {
                    medic.wake.notify_one();
                }
                return;
            }
            Blow::Pause(..) | Blow::Unpause | Blow::Hold(_) | Blow::Resume(_) | Blow::Look(_) | Blow::Approve(..) | Blow::Reload(_) => {
                return self.person(blow);
            }
            Blow::Silence(id, on) => {
                if on {
                    self.silenced.insert(id);
                } else {
                    self.silenced.remove(&id);
                    self.shared.lock().check.silenced.clear();
                }
                self.silences_due = mono();
                return;
            }
            _ => {}
        }
        let mut state = self.shared.lock();
        let State { hangar, disk, weather, .. } = &mut *state;
        let up = hangar.up;
        let touched = |hangar: &mut Hangar, id: &str| {
            if let Some(server) = hangar.servers.get_mut(id) {
                server.broken = true;
            }
        };
        match blow {
            Blow::Crash(id) => {
                touched(hangar, &id);
                hangar.crash(&id);
            }
            Blow::Kill(id, reason, failures) => {
                touched(hangar, &id);
                hangar.kill(&id, failures, reason);
            }
            Blow::Upstream(id, upstream) => {
                touched(hangar, &id);
                if let Some(server) = hangar.servers.get_mut(&id) {
                    server.upstream = upstream;
                }
            }
            Blow::LoseSession(id) => {
                touched(hangar, &id);
                if let Some(server) = hangar.servers.get_mut(&id).filter(|s| up && s.state == ServerStateWord::Ready) {
                    server.session_lost = true;
                }
            }
            Blow::Stick(id, state) => {
                touched(hangar, &id);
                hangar.stick(&id, state);
            }
            Blow::Stop(id, reason) => {
                touched(hangar, &id);
                if reason == StopReason::Idle {
                    if hangar.servers.get(&id).is_some_and(|s| s.state == ServerStateWord::Ready) {
                        hangar.stop(&id, reason);
                    }
                } else {
                    hangar.stop_on_purpose(&id, reason);
                }
            }
            Blow::Call(id) => hangar.call(&id),
            Blow::Edit(id) => hangar.edit(&id),
            Blow::Remove(id) => {
                hangar.servers.remove(&id);
            }
            Blow::HangarDown(lasts) => {
                let back = hangar.now + lasts;
                if hangar.up {
                    hangar.down(back);
                }
            }
            #[allow(clippy::cast_precision_loss, reason = "at most 20")]
            Blow::Spend(n) => hangar.spend(n as f64),
            Blow::Refuse(on) => hangar.refuses = on,
            Blow::LockOut => hangar.locked_until = hangar.now + 300_000,
            Blow::Weather(bad) => *weather = bad,
            Blow::DiskFull(full) => disk.full = full,
            Blow::DiskSlow(slow) => disk.slow = slow,
            Blow::MedicCrash(edges) => state.arm(edges),
            Blow::DriftsOn(id) => hangar.drift_on(&id),
            Blow::Pause(..)
            | Blow::Unpause
            | Blow::Hold(_)
            | Blow::Resume(_)
            | Blow::Look(_)
            | Blow::Approve(..)
            | Blow::Reload(_)
            | Blow::Mood(..)
            | Blow::MedicKill
            | Blow::MedicTerm
            | Blow::MedicGone(_)
            | Blow::Step(_)
            | Blow::LogLag(_)
            | Blow::DeafTo(_)
            | Blow::Noise
            | Blow::Silence(..) => {}
        }
    }

    /// All faults end.
    pub(super) fn mend(&mut self) {
        self.log_lag = 100;
        self.deaf = false;
        self.silenced.clear();
        self.fleet.get().mood = Mood::Works;
        let mut state = self.shared.lock();
        state.say("!! all faults end");
        state.weather = Weather::default();
        state.disk.full = false;
        state.disk.slow = 0;
        state.fuse = None;
        state.check.silenced.clear();
        let State { hangar, .. } = &mut *state;
        hangar.refuses = false;
        hangar.locked_until = hangar.locked_until.min(hangar.now + 300_000);
        for server in hangar.servers.values_mut() {
            server.upstream = Upstream::Works;
        }
        if !hangar.up {
            hangar.back_at = Some(hangar.back_at.unwrap_or(hangar.now + 1).min(hangar.now + 10_000));
        }
        drop(state);
        self.silences_due = mono();
        if self.plan.hears_events {
            self.signal(Signal::Events(EventUpdate::Open));
        }
    }
}
