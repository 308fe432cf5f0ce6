//! What people ask for, through the API. The engine alone judges and writes it down, one at a time.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;

use super::Engine;
use crate::clock;
use crate::config::Window;
use crate::hangar::fault::chain;
use crate::policy::{
    ApprovalAsk, ApprovalEvent, Body, GrantAsk, GrantVerdict, HoldCause, PAUSE_MAX, PAUSES_MAX, Policy, RequestAsk, RequestVerdict,
    approve, grant, judge, valid_server_id,
};

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
    #[error("the attempt log cannot be read")]
    Unreadable,
    /// Every reason why nothing changed.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    /// Judged, and refused by this name.
    #[error("{why}")]
    Refused { code: &'static str, why: String },
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

/// What the loop takes over of a new configuration.
#[derive(Debug, Clone)]
pub struct Reconfigure {
    pub policy: Policy,
    pub maintenance: Vec<Window>,
    pub poll_interval: Duration,
    pub stale_after: SignedDuration,
}

/// Who asks for a brake or its end, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
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
    /// Answers with the record of the approval.
    Approve(ApprovalAsk, Reply<Body>),
    /// Answers with the server that is held now.
    Hold(Held, Asker, Reply<String>),
    /// Pauses everything (`None`) or a server for this long; answers with the end.
    Pause(Option<String>, SignedDuration, Asker, Reply<Timestamp>),
    /// Ends the pause of everything.
    Unpause(Asker, Reply<()>),
    /// A new configuration: whole, or not at all.
    Reconfigure(Box<Reconfigure>, Reply<()>),
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
            Command::Approve(ask, reply) => {
                let answer = self.approve(ask).await;
                let _ = reply.send(answer);
            }
            Command::Hold(held, asker, reply) => {
                let answer = self.hold(held, asker).await;
                let _ = reply.send(answer);
            }
            Command::Pause(server, duration, asker, reply) => {
                let answer = self.pause(server, duration, asker).await;
                let _ = reply.send(answer);
            }
            Command::Unpause(asker, reply) => {
                let answer = self.unpause(asker).await;
                let _ = reply.send(answer);
            }
            Command::Reconfigure(new, reply) => {
                let answer = self.reconfigure(*new).await;
                let _ = reply.send(answer);
            }
            Command::Recount => match self.parts.log.counts().await {
                Ok(counts) => self.parts.metrics.recount(&counts.settled),
                Err(error) => tracing::warn!(error = chain(&error), "the attempts cannot be counted anew"),
            },
        }
    }

    async fn break_glass(&mut self, mut ask: GrantAsk) -> Result<GrantVerdict, CommandError> {
        self.open_for_commands().await?;
        let now = clock::now();
        ask.grant_id = self.new_id("grant", now);
        let verdict = grant(&self.parts.policy, &self.history, &ask, now);
        self.write_down(&ask.principal, vec![verdict.record.clone()]).await?;
        Ok(verdict)
    }

    async fn request(&mut self, mut ask: RequestAsk) -> Result<(String, RequestVerdict), CommandError> {
        self.open_for_commands().await?;
        let now = clock::now();
        ask.request_id = self.new_id("request", now);
        let verdict = judge(&self.parts.policy, &self.history, &ask, now);
        self.write_down(&ask.principal, verdict.records.clone()).await?;
        Ok((ask.request_id, verdict))
    }

    async fn approve(&mut self, mut ask: ApprovalAsk) -> Result<Body, CommandError> {
        self.open_for_commands().await?;
        let now = clock::now();
        ask.approval_id = self.new_id("approval", now);
        let snapshot = self.snapshot(now);
        let record = approve(&self.parts.policy, &snapshot, &self.history, &ask, now).map_err(|(code, why)| {
            self.parts.metrics.approval(ApprovalEvent::Refused);
            let ApprovalAsk { incident_id, action, principal, role, .. } = &ask;
            tracing::warn!(event = "approval_refused", incident_id, %action, principal, role, code = code.as_str(), why);
            CommandError::Refused { code: code.as_str(), why }
        })?;
        self.write_down(&ask.principal, vec![record.clone()]).await?;
        Ok(record)
    }

    /// The server that is meant. One that Hangar does not know (yet) can be held and paused all the same.
    fn server_of(&self, held: Held) -> Result<String, CommandError> {
        match held {
            Held::Server(server) if valid_server_id(&server) => Ok(server),
            Held::Server(_) => Err(CommandError::NotFound("no server of Hangar's can have this id".to_owned())),
            Held::Incident(id) => {
                let incident = self.history.open.values().find(|i| i.incident_id == id);
                Ok(incident.ok_or_else(|| CommandError::NotFound("no open incident has this id".to_owned()))?.mcp_server.clone())
            }
        }
    }

    async fn hold(&mut self, held: Held, by: Asker) -> Result<String, CommandError> {
        self.open_for_commands().await?;
        let mcp_server = self.server_of(held)?;
        if self.board.is_group(&mcp_server) {
            let why = format!("{mcp_server} is a group: hold its members one by one, or pause the group");
            return Err(CommandError::Refused { code: "is_a_group", why });
        }
        // What only a person ends stays as it is; a stop that was merely seen becomes a person's.
        let cause = self.history.orders.get(&mcp_server).map(|order| order.cause);
        if matches!(cause, Some(HoldCause::Person | HoldCause::TookHangarDown)) {
            return Err(CommandError::NothingToDo("this server is held already, until a person resumes it".to_owned()));
        }
        let why = format!("held by {} ({}): {}", by.principal, by.role, by.reason);
        let record = Body::HoldOrdered { mcp_server: mcp_server.clone(), cause: HoldCause::Person, why };
        self.write_down(&by.principal, vec![record]).await?;
        Ok(mcp_server)
    }

    async fn pause(&mut self, server: Option<String>, duration: SignedDuration, by: Asker) -> Result<Timestamp, CommandError> {
        self.open_for_commands().await?;
        let mcp_server = server.map(|server| self.server_of(Held::Server(server))).transpose()?;
        if self.history.pauses.len() >= PAUSES_MAX && !self.history.pauses.contains_key(&mcp_server) {
            let why = format!("{PAUSES_MAX} pauses stand already: pause everything instead");
            return Err(CommandError::Refused { code: "too_many_pauses", why });
        }
        let now = clock::now();
        let until = now.saturating_add(duration.clamp(SignedDuration::ZERO, PAUSE_MAX)).unwrap_or(now);
        let Asker { principal, role, reason } = by;
        let record = Body::Paused { mcp_server, until, principal: principal.clone(), role, reason };
        self.write_down(&principal, vec![record]).await?;
        Ok(until)
    }

    async fn unpause(&mut self, by: Asker) -> Result<(), CommandError> {
        self.open_for_commands().await?;
        if !self.history.pauses.contains_key(&None) {
            return Err(CommandError::NothingToDo("nothing pauses everything; a server's own pause ends by its name".to_owned()));
        }
        let why = format!("resumed by {} ({}): {}", by.principal, by.role, by.reason);
        self.write_down(&by.principal, vec![Body::Unpaused { mcp_server: None, why }]).await
    }

    /// Ends what people hold this server with: a hold order, its own pause, or both.
    async fn resume(&mut self, resume: Resume) -> Result<String, CommandError> {
        self.open_for_commands().await?;
        let server = self.server_of(resume.held)?;
        let why = format!("resumed by {} ({}): {}", resume.principal, resume.role, resume.reason);
        let mut records = Vec::new();
        if self.history.orders.contains_key(&server) {
            records.push(Body::HoldReleased { mcp_server: server.clone(), why: why.clone() });
        }
        if self.history.pauses.contains_key(&Some(server.clone())) {
            records.push(Body::Unpaused { mcp_server: Some(server.clone()), why });
        }
        if records.is_empty() {
            return Err(CommandError::NothingToDo("neither a hold order nor a pause stands for this server".to_owned()));
        }
        self.write_down(&resume.principal, records).await?;
        Ok(server)
    }

    /// The past is read again: a longer window reaches further back than what was kept.
    async fn reconfigure(&mut self, new: Reconfigure) -> Result<(), CommandError> {
        self.open_for_commands().await?;
        let history = self.parts.log.history(&new.policy, clock::now()).await.map_err(|error| {
            tracing::error!(error = chain(&error), "the attempt log cannot be read: the configuration in use stays");
            CommandError::Unreadable
        })?;
        let seen_dead = std::mem::take(&mut self.history.seen_dead);
        self.history = history;
        self.history.seen_dead = seen_dead;
        self.parts.policy = new.policy;
        self.maintenance = new.maintenance;
        self.parts.poll_interval = new.poll_interval;
        self.board.set_stale_after(new.stale_after);
        self.next_poll = self.next_poll.min(tokio::time::Instant::now() + new.poll_interval);
        Ok(())
    }

    async fn open_for_commands(&mut self) -> Result<(), CommandError> {
        if self.draining {
            return Err(CommandError::Stopping);
        }
        if self.history_is_whole().await { Ok(()) } else { Err(CommandError::Unwritable) }
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
