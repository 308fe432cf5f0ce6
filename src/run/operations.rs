//! What the API has done, through the engine: it alone writes.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Asker, Command, CommandError, Held, Reply, Resume, Signal};
use crate::policy::{ApprovalAsk, Body, GrantAsk, GrantVerdict, RequestAsk, RequestVerdict};
use crate::server::Caller;
use crate::server::operations::{ApproveBody, GlassBody, Operations, PauseBody, RequestBody};

/// The engine's door.
pub struct ThroughEngine(pub mpsc::Sender<Signal>);

impl ThroughEngine {
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, CommandError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.0.send(Signal::Command(Box::new(command(reply)))).await;
        sent.map_err(|_| CommandError::Stopping)?;
        answer.await.unwrap_or(Err(CommandError::Stopping))
    }
}

impl Operations for ThroughEngine {
    fn break_glass(&self, caller: Caller, body: GlassBody) -> BoxFuture<'_, Result<GrantVerdict, CommandError>> {
        let GlassBody { action, target, reason, duration } = body;
        let Caller { name: principal, role } = caller;
        let ask = GrantAsk { grant_id: String::new(), action, target, principal, role, reason, duration };
        Box::pin(self.ask(|reply| Command::BreakGlass(ask, reply)))
    }

    fn request(&self, caller: Caller, body: RequestBody) -> BoxFuture<'_, Result<(String, RequestVerdict), CommandError>> {
        let RequestBody { restart_class, target, symptoms, reason, claimed, request_break_glass } = body;
        let Caller { name: principal, role } = caller;
        let request_id = String::new();
        let ask = RequestAsk { request_id, restart_class, target, symptoms, reason, principal, role, claimed, request_break_glass };
        Box::pin(self.ask(|reply| Command::Request(ask, reply)))
    }

    fn resume(&self, caller: Caller, held: Held, reason: String) -> BoxFuture<'_, Result<String, CommandError>> {
        let resume = Resume { held, principal: caller.name, role: caller.role, reason };
        Box::pin(self.ask(|reply| Command::Resume(resume, reply)))
    }

    fn approve(&self, caller: Caller, incident_id: String, body: ApproveBody) -> BoxFuture<'_, Result<Body, CommandError>> {
        let ApproveBody { action, evidence_sha256, reason } = body;
        let Caller { name: principal, role } = caller;
        let ask = ApprovalAsk { approval_id: String::new(), incident_id, action, evidence_sha256, principal, role, reason };
        Box::pin(self.ask(|reply| Command::Approve(ask, reply)))
    }

    fn hold(&self, caller: Caller, held: Held, reason: String) -> BoxFuture<'_, Result<String, CommandError>> {
        Box::pin(self.ask(|reply| Command::Hold(held, asker(caller, reason), reply)))
    }

    fn pause(&self, caller: Caller, body: PauseBody) -> BoxFuture<'_, Result<Timestamp, CommandError>> {
        let PauseBody { mcp_server, duration, reason } = body;
        Box::pin(self.ask(move |reply| Command::Pause(mcp_server, duration, asker(caller, reason), reply)))
    }

    fn unpause(&self, caller: Caller, reason: String) -> BoxFuture<'_, Result<(), CommandError>> {
        Box::pin(self.ask(|reply| Command::Unpause(asker(caller, reason), reply)))
    }
}

fn asker(caller: Caller, reason: String) -> Asker {
    Asker { principal: caller.name, role: caller.role, reason }
}
