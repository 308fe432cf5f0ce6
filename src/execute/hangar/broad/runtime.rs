//! Rung 6: the upstream that serves a remote server, or the dead members of a group, one by one.

use serde_json::Value;

use super::{Done, Executor, Job, held_back, named, refused};
use crate::execute::platform::Carried;
use crate::policy::{Outcome, Reason, Receipt, State};

impl Executor {
    pub(super) async fn role_runtime(&self, job: &Job) -> Done {
        if let Some(carrier) = self.broad.upstreams.get(&job.mcp_server) {
            return match carrier.carry_out(&self.order(job)).await {
                Carried::Done(why) => Done { half: true, ..Done::new(Receipt::Accepted, None, why) },
                Carried::Refused(why) => Done::new(Receipt::Refused, Some(Outcome::Denied), why),
                Carried::Failed(why) => Done::new(Receipt::Accepted, Some(Outcome::Failed), why),
                // It may be up again: the start shows.
                Carried::Unknown(why) => Done { half: true, ..Done::new(Receipt::Unknown, None, why) },
            };
        }
        let Some(group) = &job.group else {
            return Done::new(Receipt::Refused, Some(Outcome::NotApplicable), "neither an upstream executor nor a group");
        };
        self.dead_members(job, group).await
    }

    /// Never the group as a whole: that would start its stopped and blocked members too.
    async fn dead_members(&self, job: &Job, group: &str) -> Done {
        let (group, list) = match (self.hangar.group(group).await, self.hangar.list().await) {
            (Ok(group), Ok(list)) => (group, list),
            (Err(error), _) | (_, Err(error)) => return refused(&error),
        };
        let left = job.saved.as_ref().map(|saved| &saved.left);
        let mut dead = Vec::new();
        for member in group.members.iter().filter(|m| m.state == State::Dead || m.id == job.mcp_server) {
            let reason = list.servers.get(&member.id).and_then(|r| r.dead.as_ref()).map(|d| d.reason);
            if reason == Some(Reason::CapabilityBlocked) {
                return held_back(format!("nothing started: {} of {} is capability_blocked", member.id, group.id));
            }
            if left.is_none_or(|left| !left.contains(&member.id)) {
                dead.push(member.id.clone());
            }
        }
        let (mut started, mut failed) = (Vec::new(), serde_json::Map::new());
        let mut own = None;
        for id in dead {
            let done = self.start_one_of_many(&id).await;
            if id == job.mcp_server {
                own = Some(done.clone());
            }
            if done.receipt == Receipt::Accepted {
                started.push(id);
            } else {
                failed.insert(id, Value::from(done.detail));
            }
        }
        // The attempt is judged on the member whose incident it is.
        let mut done = own.unwrap_or_else(|| held_back("the member is not in its group any more, or left alone"));
        done.evidence.insert("started".to_owned(), named(&started));
        done.evidence.insert("not_started".to_owned(), Value::Object(failed));
        done
    }
}
