//! Rungs 3 and 8 to 10: Hangar itself is reloaded or restarted, and every server that stood before is brought back.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use super::{Done, Executor, Job, SERVERS_BEFORE, config_file, held_back, named, refused};
use crate::attempt_log::fleet::{Acquired, LOCK};
use crate::clock;
use crate::execute::platform::Carried;
use crate::hangar::fault::chain;
use crate::policy::{BRING_BACK_MAX, LEASE_HELD_UNTIL, Outcome, Receipt};

/// A lock that cannot be asked for is asked for again after this.
const LOCK_RETRY: SignedDuration = SignedDuration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Tells the process that was to be restarted from its successor.
#[derive(Clone, Copy)]
struct Before {
    process: Option<Timestamp>,
    ordered_at: Timestamp,
}

impl Executor {
    /// Rung 3. Only a file that changed since Hangar read it, and that has every live server in it, is worth the danger.
    pub(super) async fn reload(&self, job: &Job) -> Done {
        let Some(path) = &self.broad.config_file else {
            return Done::new(Receipt::Refused, Some(Outcome::NotApplicable), "hangar.config_file is not set");
        };
        let file = match config_file::read(path).await {
            Ok(file) => file,
            Err(why) => return held_back(format!("not reloaded: Hangar's configuration file {why}")),
        };
        let (live, process_start) = match (self.hangar.list().await, self.hangar.metrics().await) {
            (Ok(list), Ok(metrics)) => (list, metrics.process_start),
            (Err(error), _) | (_, Err(error)) => return refused(&error),
        };
        let read_at = match &self.broad.log_file {
            Some(log) => config_file::last_reload(log).await.max(process_start),
            None => process_start,
        };
        let before: Vec<&String> = live.servers.keys().chain(live.unreadable.keys()).collect();
        let missing: Vec<&String> = before.iter().copied().filter(|id| !file.ids.contains(*id)).collect();
        let new = file.ids.iter().filter(|id| !before.contains(id));
        let mut done = Done::new(Receipt::Refused, Some(Outcome::Cancelled), "");
        done.evidence.insert(SERVERS_BEFORE.to_owned(), named(before.iter().copied()));
        done.evidence.insert("only_live".to_owned(), named(missing.iter().copied()));
        done.evidence.insert("only_in_file".to_owned(), named(new));
        if !missing.is_empty() || !live.skipped_ids.is_empty() {
            let one = missing.first().map_or("an id that Hangar itself would refuse", |id| id.as_str());
            let count = missing.len() + live.skipped_ids.len();
            return Done {
                detail: format!("not reloaded: {count} live servers are not in the file, {one} among them; Hangar would delete them"),
                ..done
            };
        }
        if file.changed_at.is_none() || file.changed_at <= read_at {
            return Done { detail: "not reloaded: the file is unchanged since Hangar read it".to_owned(), ..done };
        }
        if let Some(held) = self.locked(job).await {
            return held;
        }
        match self.hangar.reload_config().await {
            Ok(reloaded) => {
                for (key, ids) in [("added", &reloaded.added), ("removed", &reloaded.removed), ("updated", &reloaded.updated)] {
                    done.evidence.insert(key.to_owned(), named(ids));
                }
                Done { receipt: Receipt::Accepted, outcome: None, half: true, detail: "reloaded".to_owned(), ..done }
            }
            Err(error) => {
                let half = error.may_have_acted();
                if !half {
                    self.unlock().await;
                }
                let failed = refused(&error);
                // Hangar checks the whole file before it changes anything; a call without an answer may have changed it.
                Done { half, evidence: done.evidence.into_iter().chain(failed.evidence.clone()).collect(), ..failed }
            }
        }
    }

    /// Rungs 8 to 10, up to Hangar's first healthy answer.
    pub(super) async fn restart(&self, job: &Job) -> Done {
        let Some(carrier) = self.broad.restarts.get(&job.action) else {
            return Done::new(Receipt::Refused, Some(Outcome::NotApplicable), format!("no executor is configured for {}", job.action));
        };
        if let Some(held) = self.locked(job).await {
            return held;
        }
        let deadline = Instant::now() + self.broad.restart_within;
        // Where the old one cannot be read, only one that began after the order is another.
        let before = Before { process: self.hangar.metrics().await.ok().and_then(|m| m.process_start), ordered_at: clock::now() };
        // An open stream makes Hangar exit 1 on SIGTERM.
        let paused = self.broad.events.pause().await;
        let answer = tokio::time::timeout_at(deadline, carrier.carry_out(&self.order(job))).await;
        let done = match answer.unwrap_or_else(|_| Carried::Unknown("no result in time".to_owned())) {
            Carried::Refused(why) => Done::new(Receipt::Refused, Some(Outcome::Denied), why),
            Carried::Failed(why) if !self.is_another(before).await => Done::new(Receipt::Accepted, Some(Outcome::Failed), why),
            Carried::Failed(why) | Carried::Done(why) => self.up_again(before, deadline, why).await,
            Carried::Unknown(why) => Done { receipt: Receipt::Unknown, ..self.up_again(before, deadline, why).await },
        };
        drop(paused);
        if !done.half {
            self.unlock().await;
        }
        done
    }

    /// Waits for another process of Hangar's that is alive. HTTP 200 of the old one proves nothing.
    async fn up_again(&self, before: Before, deadline: Instant, why: String) -> Done {
        while Instant::now() < deadline {
            if self.is_another(before).await && self.hangar.live().await.is_ok() {
                // What we still hold leads to the old process.
                let _ = self.hangar.redial();
                return Done { half: true, ..Done::new(Receipt::Accepted, None, why) };
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Done::new(Receipt::Accepted, Some(Outcome::Timeout), format!("{why}; but no new healthy process of Hangar's was seen in time"))
    }

    async fn is_another(&self, before: Before) -> bool {
        let now = self.hangar.metrics().await.ok().and_then(|m| m.process_start);
        now.is_some_and(|now| before.process.map_or(now > before.ordered_at, |before| now != before))
    }

    /// The second half: what stood before and is down now is started, paced, but what was left out meanwhile.
    pub(super) async fn bring_back(&self, job: &Job) -> Done {
        // It is ours already, or the process that had it is gone and so is its deadline.
        if let Some(held) = self.locked(job).await {
            // The servers are down: they are brought back whoever restarts next.
            tracing::warn!(event = "fleet_lock", detail = held.detail, "bringing the servers back without the lock");
        }
        let Some(saved) = &job.saved else {
            return Done::new(Receipt::Unknown, Some(Outcome::Unresolved), "what stood before is not on record");
        };
        let ids = saved.ready.union(&saved.dead).cloned().collect();
        let (started, failed) = match self.start_down(&ids).await {
            Ok(outcomes) => outcomes,
            // Nothing was sent: it is begun again, a few times.
            Err(error) => return Done { half: true, ..refused(&error) },
        };
        let after = self.hangar.list().await.map_or(Value::Null, |list| named(list.servers.keys()));
        let detail = format!("{} servers started, {} could not be started", started.len(), failed.len());
        let mut done = Done::new(Receipt::Accepted, None, detail);
        done.evidence.insert("servers_after".to_owned(), after);
        done.evidence.insert("started".to_owned(), named(&started));
        done.evidence.insert("not_started".to_owned(), Value::Object(failed.into_iter().take(super::NAMED_MAX).collect()));
        done.evidence.insert("left_alone".to_owned(), named(&saved.left));
        self.unlock().await;
        done
    }

    /// Takes the fleet lock, or goes on with ours. `Some`: it is not ours, and nothing may be sent.
    async fn locked(&self, job: &Job) -> Option<Done> {
        let within = SignedDuration::try_from(self.broad.restart_within).unwrap_or(SignedDuration::MAX).saturating_add(BRING_BACK_MAX);
        let now = clock::now();
        let deadline = now.checked_add(within).unwrap_or(Timestamp::MAX);
        let (until, detail) = match self.broad.lock.acquire(LOCK, deadline).await {
            Ok(Acquired::Ours) => return None,
            Ok(Acquired::Held { by, until }) => (until, format!("{} waits: {by} holds the fleet lock until {until}", job.action)),
            Err(error) => (now.checked_add(LOCK_RETRY).unwrap_or(now), format!("the fleet lock cannot be asked for: {}", chain(&error))),
        };
        let mut done = Done::new(Receipt::Refused, Some(Outcome::NotApplicable), detail);
        done.evidence.insert(LEASE_HELD_UNTIL.to_owned(), Value::from(until.to_string()));
        Some(done)
    }

    async fn unlock(&self) {
        if let Err(error) = self.broad.lock.release(LOCK).await {
            tracing::warn!(event = "fleet_lock", error = chain(&error), "the fleet lock cannot be given back: it runs out by itself");
        }
    }
}
