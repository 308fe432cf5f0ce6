//! What the medics beside the replicas of one Hangar share: the platform that restarts it, and the fleet lock. Models both.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use futures_util::future::BoxFuture;
use hangar_medic::attempt_log::LogError;
use hangar_medic::attempt_log::fleet::{Acquired, FleetLock};
use hangar_medic::execute::platform::{Carried, CarryOut, Order};
use hangar_medic::policy::Rung;
use jiff::Timestamp;

use super::edges::{Shared, State, full};
use super::hangar::Restart;
use super::mutants::Mutant;
use super::rng::Rng;
use super::time::{mono, until, wait, wall};

/// How the operator's automation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    #[default]
    Works,
    Refuses,
    /// Says that it failed, and did nothing.
    FailsBefore,
    /// Says that it failed, and did it.
    FailsAfter,
    /// Never tells a result, and does nothing.
    Hangs,
    /// Never tells a result, and does it.
    Mute,
    /// Does it, this much later.
    Late(i64),
}

/// A result is waited for this long, ms.
const TIMEOUT: i64 = 120_000;

#[derive(Debug)]
pub struct Fleet {
    pub mood: Mood,
    /// A restart of Hangar takes the medic beside it down too.
    pub takes_medic: bool,
    /// A replica has come to a bad end.
    pub broken: bool,
    sites: Vec<Weak<Mutex<State>>>,
    lock: Option<(String, Timestamp)>,
    ordered: BTreeSet<String>,
    /// Until when Hangars go down and come up by an order.
    busy_until: i64,
    rng: Rng,
}

/// Handle on what is shared.
#[derive(Debug, Clone)]
pub struct SharedFleet(Arc<Mutex<Fleet>>);

impl SharedFleet {
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(Fleet {
            mood: Mood::Works,
            takes_medic: false,
            broken: false,
            sites: Vec::new(),
            lock: None,
            ordered: BTreeSet::new(),
            busy_until: 0,
            rng,
        })))
    }

    pub fn join(&self, site: &Shared) {
        self.get().sites.push(Arc::downgrade(&site.0));
    }

    pub fn get(&self) -> MutexGuard<'_, Fleet> {
        self.0.lock().expect("no panic before")
    }

    fn held_by_another(&self, instance: &str) -> Option<(String, Timestamp)> {
        self.get().lock.clone().filter(|(by, until)| by != instance && wall() < *until)
    }

    fn given_back(&self, instance: &str) -> bool {
        self.get().lock.take_if(|(holder, _)| holder == instance).is_some()
    }

    /// Books the restarts that an order asks for; answers when the last Hangar is up again.
    fn book(&self, action: Rung, late: i64, ordered_by: &Shared) -> i64 {
        let (mut at, sites, takes_medic, mut rng) = {
            let mut fleet = self.get();
            let next = Rng::new(fleet.rng.next());
            (mono() + late + fleet.rng.between(200, 4_000), fleet.sites.clone(), fleet.takes_medic, next)
        };
        let mut back = at;
        for site in sites.iter().filter_map(Weak::upgrade) {
            // A host is one replica's.
            if action == Rung::HostRestart && !Arc::ptr_eq(&site, &ordered_by.0) {
                continue;
            }
            let lasts = rng.between(2_000, 10_000);
            back = back.max(at + lasts);
            let ours = Arc::ptr_eq(&site, &ordered_by.0);
            let restart = Restart { at, lasts, takes_medic: takes_medic || action == Rung::HostRestart, ours };
            Shared(site).lock().hangar.restarts.push(restart);
            if action == Rung::RollingMcpRestart {
                at += lasts + rng.between(500, 5_000);
            }
        }
        let mut fleet = self.get();
        // What comes so late nobody waits for any more.
        if late == 0 {
            fleet.busy_until = fleet.busy_until.max(back);
        }
        back
    }
}

/// The operator's automation, as the medic of one replica reaches it.
pub struct Platform {
    pub site: Shared,
    pub fleet: SharedFleet,
}

impl CarryOut for Platform {
    fn carry_out<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Carried> {
        Box::pin(async move {
            self.site.edge(&format!("before the order {}", order.attempt_id)).await;
            let (mood, again, busy, ours) = {
                let mut fleet = self.fleet.get();
                let ours = fleet.lock.as_ref().is_some_and(|(holder, deadline)| *holder == order.instance && wall() < *deadline);
                (fleet.mood, !fleet.ordered.insert(order.attempt_id.clone()), mono() < fleet.busy_until, ours)
            };
            {
                let mut state = self.site.lock();
                state.say(format!("-> the platform: {} for {} ({mood:?})", order.action, order.attempt_id));
                state.check.ordered(order, again, busy, ours);
            }
            let done = || Carried::Done("done".to_owned());
            let book = |late| {
                if order.action == Rung::RoleRuntimeRestart {
                    self.site.lock().hangar.renew(&order.mcp_server);
                    mono() + late
                } else {
                    self.fleet.book(order.action, late, &self.site)
                }
            };
            let carried = match mood {
                Mood::Refuses => Carried::Refused("no".to_owned()),
                Mood::FailsBefore => {
                    wait(1_500).await;
                    Carried::Failed("it failed".to_owned())
                }
                Mood::FailsAfter => {
                    until(book(0) + 100).await;
                    Carried::Failed("it failed".to_owned())
                }
                Mood::Works => {
                    until(book(0) + 100).await;
                    done()
                }
                Mood::Hangs | Mood::Mute => {
                    if mood == Mood::Mute {
                        book(0);
                    }
                    wait(TIMEOUT).await;
                    Carried::Unknown("no result in time".to_owned())
                }
                Mood::Late(late) => {
                    let (given_up, back) = (mono() + TIMEOUT, book(late));
                    until(back.min(given_up)).await;
                    if back < given_up { done() } else { Carried::Unknown("no result in time".to_owned()) }
                }
            };
            self.site.edge(&format!("after the order {}", order.attempt_id)).await;
            self.site.lock().say(format!("<- the platform: {carried:?}"));
            carried
        })
    }
}

/// The lock in the shared store.
pub struct Lock {
    pub site: Shared,
    pub fleet: SharedFleet,
    pub instance: String,
}

impl FleetLock for Lock {
    fn acquire<'a>(&'a self, _target: &'a str, deadline: Timestamp) -> BoxFuture<'a, Result<Acquired, LogError>> {
        Box::pin(async move {
            self.site.edge("before the lock").await;
            wait(1).await;
            if self.site.lock().disk.full {
                return Err(full());
            }
            let blind = self.site.lock().mutant == Some(Mutant::BlindToTheLock);
            if let Some((by, until)) = self.fleet.held_by_another(&self.instance) {
                return Ok(if blind { Acquired::Ours } else { Acquired::Held { by, until } });
            }
            self.fleet.get().lock = Some((self.instance.clone(), deadline));
            self.site.lock().say("   takes the fleet lock");
            self.site.edge("after the lock").await;
            Ok(Acquired::Ours)
        })
    }

    fn release<'a>(&'a self, _target: &'a str) -> BoxFuture<'a, Result<(), LogError>> {
        Box::pin(async move {
            self.site.edge("before the lock is given back").await;
            wait(1).await;
            if self.site.lock().disk.full {
                return Err(full());
            }
            if self.fleet.given_back(&self.instance) {
                self.site.lock().say("   gives the fleet lock back");
            }
            Ok(())
        })
    }
}
