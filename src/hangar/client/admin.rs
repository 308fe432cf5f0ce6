//! Calls that change what Hangar knows: its configuration, a server's definition, a group's members.

use serde_json::Value;

use super::super::answers::{self, Reloaded};
use super::super::fault::{CallError, Fault};
use super::{Call, HangarClient, Method};

impl HangarClient {
    /// `POST /api/config/reload`. Deletes every live server that is not in the file.
    pub async fn reload_config(&self) -> Result<Reloaded, CallError> {
        // It waits up to 30 s for calls in flight before it stops a changed server.
        let call = Call {
            method: Method::POST,
            body: Some("{}".to_owned()),
            timeout: Some(self.settings.start_timeout),
            ..Call::get("api/config/reload")
        };
        self.change(["reload.unsent", "reload.answered"], call, answers::reloaded).await
    }

    /// `GET /api/mcp_servers/{id}/l7_policy`: whether the server has an L7 egress policy.
    ///
    /// Errors: whatever does not tell for sure, an older Hangar without this route too.
    pub async fn has_l7_policy(&self, id: &str) -> Result<bool, CallError> {
        match self.call(Call::get_of("api/mcp_servers", id, "/l7_policy"), answers::acknowledged).await {
            Ok(()) => Ok(true),
            Err(CallError { fault: Fault::Api { status: 404, code, .. }, .. }) if code == "no_l7_policy" => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// `DELETE /api/mcp_servers/{id}`: stops it and forgets its definition and its L7 policy.
    pub async fn delete(&self, id: &str) -> Result<(), CallError> {
        let call = Call { method: Method::DELETE, timeout: Some(self.settings.start_timeout), ..Call::get_of("api/mcp_servers", id, "") };
        self.change(["delete.unsent", "delete.answered"], call, answers::acknowledged).await
    }

    /// `POST /api/mcp_servers/` with a full definition. Starts nothing.
    pub async fn create(&self, definition: &Value) -> Result<(), CallError> {
        let call = Call { method: Method::POST, body: Some(definition.to_string()), ..Call::get("api/mcp_servers/") };
        self.change(["create.unsent", "create.answered"], call, answers::acknowledged).await
    }

    /// `DELETE /api/groups/{group}/members/{id}`.
    pub async fn remove_member(&self, group: &str, id: &str) -> Result<(), CallError> {
        let call = Call { method: Method::DELETE, ..Call::get_of("api/groups", group, &format!("/members/{id}")) };
        self.change(["remove_member.unsent", "remove_member.answered"], call, answers::acknowledged).await
    }

    /// `POST /api/groups/{group}/members`.
    pub async fn add_member(&self, group: &str, id: &str, weight: u32, priority: u32) -> Result<(), CallError> {
        let body = serde_json::json!({"member_id": id, "weight": weight, "priority": priority}).to_string();
        let call = Call { body: Some(body), ..Call::post("api/groups", group, "/members") };
        self.change(["add_member.unsent", "add_member.answered"], call, answers::acknowledged).await
    }
}
