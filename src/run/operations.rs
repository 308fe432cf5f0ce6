//! What the API has done, through the engine: it alone writes.

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{Command, CommandError, Held, Reply, Resume, Signal};
use crate::policy::{GrantAsk, GrantVerdict, RequestAsk, RequestVerdict};
use crate::server::Caller;
use crate::server::operations::{GlassBody, Operations, RequestBody};

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
}
