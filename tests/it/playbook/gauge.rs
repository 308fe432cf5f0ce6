//! The gauge is the fold of the attempt log: while it runs, after a restart, and after a recovery that did not last.

use std::sync::Arc;

use hangar_medic::attempt_log::{AttemptLog, Store};
use hangar_medic::engine::tell;
use hangar_medic::metrics::{Metrics, Seed};
use hangar_medic::policy::{Body, Closed, History, Outcome, Policy, Reason, RecoveryFold, Rung, Symptom, attempt_id, incident_id};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::Dice;

struct World {
    store: Store,
    history: History,
    metrics: Arc<Metrics>,
    now: Timestamp,
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap())
}

impl World {
    /// As the engine does it.
    async fn append(&mut self, bodies: Vec<Body>) {
        for record in self.store.append(self.now, "hangar-medic", bodies).await.unwrap() {
            tell(&record, &self.history, &self.metrics);
            self.history.apply(&record);
        }
        self.history.prune(&Policy::default(), self.now);
    }

    async fn restart(&mut self) {
        let counts = self.store.counts().await.unwrap();
        self.metrics = metrics();
        self.metrics.seed(&Seed { attempts: counts.settled, recoveries: counts.recoveries, ..Seed::default() });
        self.history = self.store.history(&Policy::default(), self.now).await.unwrap();
    }

    /// Every attempt of the log, folded by itself.
    async fn check(&self) {
        let mut fold = RecoveryFold::default();
        for attempt in self.store.attempts(None, 1_000_000).await.unwrap() {
            attempt.outcome.into_iter().for_each(|outcome| fold.add(attempt.action, outcome));
        }
        assert_eq!(self.metrics.recovery_metrics(), fold.report());
        assert_eq!(self.metrics.fraction_avoided_full_restart(), fold.report().fraction_avoided_full_restart);
    }
}

/// One incident of a server: an attempt, and how it ended. Dead again soon after a recovery, that one did not last.
async fn incident(world: &mut World, dice: &mut Dice) {
    let server = ["api", "db", "web"][dice.roll(3)];
    let mut bodies = Vec::new();
    let before = world.history.closed.get(server).and_then(|i| i.attempts.last()).filter(|a| a.outcome == Some(Outcome::Recovered));
    bodies.extend(before.map(|a| Body::AttemptSettled {
        attempt_id: a.attempt_id.clone(),
        outcome: Outcome::Insufficient,
        why: "dead again".to_owned(),
    }));
    let id = incident_id(server, world.now);
    let opened = json!({"kind": "incident_opened", "incident_id": id, "mcp_server": server, "symptom": Symptom::ServerCrashed,
                        "reason": Reason::Crashed, "since": world.now, "stops": {}});
    let attempt = attempt_id(&id, 1);
    let action = dice.of(&[Rung::SessionReconnect, Rung::WorkerRestart, Rung::FullMcpRestart]);
    let tried = json!({"kind": "attempt_opened", "attempt_id": attempt, "incident_id": id, "mcp_server": server, "action": action,
                       "why": "w", "slow_retry": false});
    bodies.extend([opened, tried].map(|body| serde_json::from_value::<Body>(body).unwrap()));
    let outcome = dice.of(&[Outcome::Recovered, Outcome::Recovered, Outcome::Failed, Outcome::Cancelled]);
    bodies.push(Body::AttemptSettled { attempt_id: attempt, outcome, why: "w".to_owned() });
    let how = if outcome == Outcome::Recovered { Closed::Recovered } else { Closed::HealedByItself };
    bodies.push(Body::IncidentClosed { incident_id: id, how, why: "w".to_owned() });
    world.append(bodies).await;
}

#[test]
fn the_gauge_is_the_fold_of_the_log_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice::new(4);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let store = Store::open(dir.path(), "h").await.unwrap();
        let now = "2026-11-30T12:00:00Z".parse().unwrap();
        let mut world = World { store, history: History::default(), metrics: metrics(), now };
        world.check().await;
        let mut lowered = 0;
        for n in 0..120 {
            let before = world.metrics.recovery_metrics().successful_recoveries;
            incident(&mut world, &mut dice).await;
            lowered += usize::from(world.metrics.recovery_metrics().successful_recoveries < before);
            world.check().await;
            if n % 10 == 9 {
                world.restart().await;
                world.check().await;
            }
            world.now += SignedDuration::from_secs(200);
        }
        assert!(lowered > 0, "no recovery was taken back");
        let counted = world.metrics.recovery_metrics().attempts;
        let cut = world.store.cut(world.now - SignedDuration::from_secs(6000), world.now, "hangar-medic").await.unwrap();
        assert!(cut.removed > 0);
        world.metrics.recount(&world.store.counts().await.unwrap().settled);
        world.check().await;
        assert!(world.metrics.recovery_metrics().attempts < counted, "retention takes attempts out of the gauge");
    });
}
