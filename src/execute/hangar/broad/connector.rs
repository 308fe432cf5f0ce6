//! Rung 7: a definition is taken out of Hangar and put back. What is taken out is on record, or in the operator's file,
//! before; every process that finds it missing puts it back.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt;

use super::{Done, Executor, Job, held_back, refused};
use crate::hangar::{CallError, Fault};
use crate::policy::{Outcome, Receipt};

/// Larger files are no definition of one server.
const DEFINITION_MAX: u64 = 1024 * 1024;
/// Putting back is tried this often in a row, with a pause that doubles.
const PUT_BACK_TRIES: u32 = 5;
const PUT_BACK_PAUSE: Duration = Duration::from_millis(500);

impl Executor {
    /// The first half. Whatever could not be put back as it was is not taken out.
    pub(super) async fn take_out(&self, job: &Job) -> Done {
        let id = &job.mcp_server;
        match self.hangar.has_l7_policy(id).await {
            Ok(false) => {}
            Ok(true) => return held_back("not taken out: the server has an L7 egress policy and would serve ungoverned for a moment"),
            Err(error) => return held_back(format!("not taken out: whether the server has an L7 egress policy cannot be read: {error}")),
        }
        if let Some(member) = job.saved.as_ref().and_then(|s| s.member.as_ref()) {
            return half(self.hangar.remove_member(&member.group, id).await, &format!("taken out of {}", member.group));
        }
        let Some(path) = self.broad.definitions.get(id) else {
            return held_back("not taken out: its place in the group is not known, and there is no definition of it");
        };
        if let Err(why) = definition(path, id).await {
            return held_back(format!("not taken out: its definition could not be put back: {why}"));
        }
        match self.hangar.delete(id).await {
            Err(CallError { fault: Fault::Api { code, .. }, .. }) if code == "declared_in_config" => {
                held_back("not taken out: it is declared in Hangar's own configuration file (declared_in_config)")
            }
            other => half(other, "its definition is taken out"),
        }
    }

    /// The second half: as it was, then a start.
    pub(super) async fn put_back(&self, job: &Job) -> Done {
        let mut pause = PUT_BACK_PAUSE;
        let mut last = String::new();
        for n in 0..PUT_BACK_TRIES {
            if n > 0 {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            match self.put_back_once(job).await {
                Ok(()) if job.saved.as_ref().is_some_and(|s| s.left.contains(&job.mcp_server)) => {
                    let detail = "put back, and not started: that was forbidden meanwhile";
                    return Done::new(Receipt::Accepted, Some(Outcome::Unresolved), detail);
                }
                Ok(()) => return self.start_one_of_many(&job.mcp_server).await,
                Err(why) => last = why,
            }
        }
        tracing::error!(
            event = "definition_out",
            mcp_server = job.mcp_server,
            error = last,
            "what was taken out of Hangar cannot be put back yet"
        );
        // Still half done: it is tried again, a few times; then a person is needed.
        let mut done = Done { half: true, ..Done::new(Receipt::Refused, Some(Outcome::Failed), format!("cannot be put back: {last}")) };
        done.evidence.insert("definition_out".to_owned(), Value::from(true));
        done
    }

    async fn put_back_once(&self, job: &Job) -> Result<(), String> {
        let id = &job.mcp_server;
        if let Some(member) = job.saved.as_ref().and_then(|s| s.member.as_ref()) {
            let group = self.hangar.group(&member.group).await.map_err(|e| e.to_string())?;
            if group.members.iter().any(|m| m.id == *id) {
                return Ok(());
            }
            let added = self.hangar.add_member(&member.group, id, member.weight, member.priority).await;
            return added.map_err(|e| e.to_string());
        }
        match self.hangar.server(id).await {
            Ok(_) => return Ok(()),
            Err(CallError { fault: Fault::NotFound { .. }, .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        let path = self.broad.definitions.get(id).ok_or("platform.definitions no longer names it")?;
        let definition = definition(path, id).await?;
        self.hangar.create(&definition).await.map_err(|e| e.to_string())
    }
}

fn half(sent: Result<(), CallError>, detail: &str) -> Done {
    match sent {
        Ok(()) => Done { half: true, ..Done::new(Receipt::Accepted, None, detail) },
        // A lost answer may hide that it is out.
        Err(error) => Done { half: error.may_have_acted(), ..refused(&error) },
    }
}

/// The operator's file: the body of `POST /api/mcp_servers/`. Its text is never repeated: it holds secrets.
async fn definition(path: &Path, id: &str) -> Result<Value, String> {
    let told = |what: String| format!("{}: {what}", path.display());
    let file = tokio::fs::File::open(path).await.map_err(|e| told(e.to_string()))?;
    let mut text = Vec::new();
    file.take(DEFINITION_MAX + 1).read_to_end(&mut text).await.map_err(|e| told(e.to_string()))?;
    if text.len() as u64 > DEFINITION_MAX {
        return Err(told("too large".to_owned()));
    }
    let mut value: Value = serde_yaml::from_slice(&text).map_err(|_| told("is neither JSON nor YAML".to_owned()))?;
    let object = value.as_object_mut().ok_or_else(|| told("is no mapping".to_owned()))?;
    let named = object.entry("mcp_server_id").or_insert_with(|| Value::from(id));
    if named.as_str() != Some(id) {
        return Err(told("defines another server".to_owned()));
    }
    if !object.get("mode").is_some_and(Value::is_string) {
        return Err(told("has no mode".to_owned()));
    }
    Ok(value)
}
