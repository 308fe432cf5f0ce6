//! What people ask for, through the API. The engine alone judges and writes it down, one at a time.

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::Engine;
use crate::clock;
use crate::hangar::fault::chain;
use crate::policy::{Body, GrantAsk, GrantVerdict, RequestAsk, RequestVerdict, grant, judge};

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the attempt log cannot be written: nothing is granted, requested or resumed until it can")]
    Unwritable,
    #[error("the daemon is stopping")]
    Stopping,
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    NothingToDo(String),
}

/// Where the answer goes. Nobody may be waiting any more.
pub type Reply<T> = oneshot::Sender<Result<T, CommandError>>;

/// What is to be resumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// The server of this open incident.
    Incident(String),
    Server(String),
}

/// Who resumes, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    pub held: Held,
    pub principal: String,
    pub role: String,
    pub reason: String,
}

/// One command. Ids in the asks are given here.
#[derive(Debug)]
pub enum Command {
    BreakGlass(GrantAsk, Reply<GrantVerdict>),
    /// Answers with the request's id too.
    Request(RequestAsk, Reply<(String, RequestVerdict)>),
    /// Answers with the server that is no longer held.
    Resume(Resume, Reply<String>),
    /// Retention took records away: what is computed from the log is computed anew.
    Recount,
}

impl Engine {
    pub(super) async fn obey(&mut self, command: Command) {
        match command {
            Command::BreakGlass(ask, reply) => {
                let answer = self.break_glass(ask).await;
                let _ = reply.send(answer);
            }
            Command::Request(ask, reply) => {
                let answer = self.request(ask).await;
                let _ = reply.send(answer);
            }
            Command::Resume(resume, reply) => {
                let answer = self.resume(resume).await;
                let _ = reply.send(answer);
            }
            Command::Recount => match self.parts.log.counts().await {
                Ok(counts) => self.parts.metrics.recount(&counts.settled),
                Err(error) => tracing::warn!(error = chain(&error), "the attempts cannot be counted anew"),
            },
        }
    }

    async fn break_glass(&mut self, mut ask: GrantAsk) -> Result<GrantVerdict, CommandError> {
        self.open_for_commands()?;
        let now = clock::now();
        ask.grant_id = self.new_id("grant", now);
        let verdict = grant(&self.parts.policy, &self.history, &ask, now);
        self.write_down(&ask.principal, vec![verdict.record.clone()]).await?;
        Ok(verdict)
    }

    async fn request(&mut self, mut ask: RequestAsk) -> Result<(String, RequestVerdict), CommandError> {
        self.open_for_commands()?;
        let now = clock::now();
        ask.request_id = self.new_id("request", now);
        let verdict = judge(&self.parts.policy, &self.history, &ask, now);
        self.write_down(&ask.principal, verdict.records.clone()).await?;
        Ok((ask.request_id, verdict))
    }

    async fn resume(&mut self, resume: Resume) -> Result<String, CommandError> {
        self.open_for_commands()?;
        let server = match resume.held {
            Held::Server(server) => server,
            Held::Incident(id) => {
                let incident = self.history.open.values().find(|i| i.incident_id == id);
                incident.ok_or_else(|| CommandError::NotFound("no open incident has this id".to_owned()))?.mcp_server.clone()
            }
        };
        if !self.history.orders.contains_key(&server) {
            return Err(CommandError::NothingToDo("no hold order stands for this server".to_owned()));
        }
        let why = format!("resumed by {} ({}): {}", resume.principal, resume.role, resume.reason);
        self.write_down(&resume.principal, vec![Body::HoldReleased { mcp_server: server.clone(), why }]).await?;
        Ok(server)
    }

    fn open_for_commands(&self) -> Result<(), CommandError> {
        if self.draining { Err(CommandError::Stopping) } else { Ok(()) }
    }

    async fn write_down(&mut self, actor: &str, bodies: Vec<Body>) -> Result<(), CommandError> {
        if self.append_as(actor, bodies).await { Ok(()) } else { Err(CommandError::Unwritable) }
    }

    /// Unique in this instance: never the same millisecond twice, not across a restart either.
    fn new_id(&mut self, kind: &str, now: Timestamp) -> String {
        self.last_id_ms = now.as_millisecond().max(self.last_id_ms + 1);
        format!("{kind}-{}", self.last_id_ms)
    }
}
