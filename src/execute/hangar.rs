//! The rungs. Those that are calls to Hangar itself are here: 0, 1, 2, 4 and 5; the others are in `broad`.
//!
//! An executor sends, and says what Hangar answered. HTTP 200 proves nothing, a time-out may have acted: whether the
//! server came back is decided by the planner from re-read state.

mod broad;
mod evidence;
mod lease;
mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::hangar::{CallError, Fault, HangarClient, Started};
use crate::policy::{Outcome, Part, Reason, Receipt, RestReading, Rung, Saved, State};
pub use broad::{Broad, Peer, SERVERS_BEFORE, named};
use pace::Pacer;

/// How often a start that met the rate limit is sent again.
const RATE_LIMIT_RETRIES: u32 = 3;
/// A longer wait than this is a refusal; the planner comes back later.
const RATE_LIMIT_WAIT_MAX: SignedDuration = SignedDuration::from_secs(5);
const RATE_LIMIT_WAIT_MIN: Duration = Duration::from_millis(50);

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub attempt_id: String,
    pub incident_id: String,
    pub mcp_server: String,
    pub action: Rung,
    pub part: Part,
    /// The group of `mcp_server`, for `lease_recovery`.
    pub group: Option<String>,
    /// What stood before, less what must be left alone by now; of rungs that save first.
    pub saved: Option<Saved>,
}

/// What came of it, as far as Hangar's answers tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub receipt: Receipt,
    /// Set when nothing is left to verify.
    pub outcome: Option<Outcome>,
    /// The first half is done, or may be: the second must follow.
    pub half: bool,
    /// Hangar's words, or what was found, for a person.
    pub detail: String,
    pub evidence: BTreeMap<String, Value>,
    /// The reason that Hangar's refusal gave away.
    pub told: Option<Reason>,
    /// The server's state, where this job read it.
    pub reading: Option<RestReading>,
    /// Hangar does not know this server.
    pub not_found: bool,
    /// The Hangar process, where this job read it.
    pub process_start: Option<Timestamp>,
}

impl Done {
    fn new(receipt: Receipt, outcome: Option<Outcome>, detail: impl Into<String>) -> Self {
        Self {
            receipt,
            outcome,
            half: false,
            detail: detail.into(),
            evidence: BTreeMap::new(),
            told: None,
            reading: None,
            not_found: false,
            process_start: None,
        }
    }
}

/// Carries out jobs. Dropping a running job's future drops its call; what that call did is unknown then.
pub struct Executor {
    hangar: Arc<HangarClient>,
    pacer: Pacer,
    broad: Broad,
    /// Servers that must not be started, whatever a job that brings many back was told when it began.
    left_alone: Mutex<BTreeSet<String>>,
}

impl Executor {
    /// `starts_per_second` holds over all that is sent to change something, retries included.
    pub fn new(hangar: Arc<HangarClient>, starts_per_second: NonZeroU32) -> Self {
        Self { hangar, pacer: Pacer::new(starts_per_second), broad: Broad::default(), left_alone: Mutex::default() }
    }

    /// So many starts a second from now on.
    pub fn set_pace(&self, starts_per_second: NonZeroU32) {
        self.pacer.set(starts_per_second);
    }

    /// These must not be started from now on by a job that brings many back.
    pub fn leave_alone(&self, servers: BTreeSet<String>) {
        *self.left_alone.lock().unwrap_or_else(PoisonError::into_inner) = servers;
    }

    /// Does the job. Every way it can end is a [`Done`].
    pub async fn run(&self, job: &Job) -> Done {
        match (job.action, job.part) {
            (Rung::ClientReconnect, _) => self.client_reconnect(&job.mcp_server).await,
            (Rung::CapabilityRefresh, _) => evidence::capability_refresh(&self.hangar, &job.mcp_server).await,
            (Rung::SessionReconnect, _) | (Rung::WorkerRestart, Part::Second) => self.start(&job.mcp_server).await,
            (Rung::WorkerRestart, Part::First) => self.stop(&job.mcp_server).await,
            (Rung::LeaseRecovery, Part::First) if job.group.is_none() => self.wait_out_lease().await,
            (Rung::LeaseRecovery, Part::First) => {
                let told = self.leases_told().await;
                let mut done = self.start(&job.mcp_server).await;
                done.evidence.extend(told);
                Done { half: done.receipt == Receipt::Accepted, ..done }
            }
            (Rung::LeaseRecovery, Part::Second) if job.group.is_none() => self.start(&job.mcp_server).await,
            (Rung::LeaseRecovery, Part::Second) => self.rebalance(&job.mcp_server, job.group.as_deref()).await,
            (
                Rung::ConfigurationReload
                | Rung::RoleRuntimeRestart
                | Rung::ConnectorRestart
                | Rung::RollingMcpRestart
                | Rung::FullMcpRestart
                | Rung::HostRestart,
                _,
            ) => Box::pin(self.broad(job)).await,
        }
    }

    /// Rung 0: every connection anew, and the server read afresh over them.
    async fn client_reconnect(&self, server: &str) -> Done {
        if let Err(e) = self.hangar.redial() {
            return Done::new(Receipt::Unknown, Some(Outcome::Error), e.to_string());
        }
        if let Err(e) = self.hangar.live().await {
            return looked_in_vain(&e);
        }
        let metrics = match self.hangar.metrics().await {
            Ok(metrics) => metrics,
            Err(e) => return looked_in_vain(&e),
        };
        let sample = metrics.servers.get(server);
        let gauge = sample.and_then(|s| s.gauge).map(|s| Value::from(s.as_str()));
        let done = match self.hangar.server(server).await {
            Ok(detail) => looked(detail.reading),
            Err(e) => looked_in_vain(&e),
        };
        let evidence = BTreeMap::from([("gauge".to_owned(), gauge.unwrap_or(Value::Null))]);
        Done { process_start: metrics.process_start, evidence, ..done }
    }

    /// Rung 2, and the starting half of 4 and 5.
    async fn start(&self, server: &str) -> Done {
        self.start_unless(server, |_| false).await
    }

    /// One of many: not where it was forbidden since the job began.
    async fn start_one_of_many(&self, server: &str) -> Done {
        self.start_unless(server, |server| self.left_alone.lock().unwrap_or_else(PoisonError::into_inner).contains(server)).await
    }

    async fn start_unless(&self, server: &str, forbidden: impl Fn(&str) -> bool) -> Done {
        let mut patience = Patience::default();
        loop {
            self.pacer.slot().await;
            if forbidden(server) {
                return Done::new(Receipt::Refused, Some(Outcome::Cancelled), "not started: that was forbidden meanwhile");
            }
            match self.hangar.start(server).await {
                Ok(started) => return accepted(&started),
                Err(error) if patience.waited(&error).await => {}
                Err(error) => return refused_start(&error),
            }
        }
    }

    /// The stopping half of rung 5. What may have been stopped must be started.
    async fn stop(&self, server: &str) -> Done {
        let mut patience = Patience::default();
        loop {
            self.pacer.slot().await;
            match self.hangar.stop(server, "manual").await {
                Ok(()) => return Done { half: true, ..Done::new(Receipt::Accepted, None, "stopped") },
                Err(error) if patience.waited(&error).await => {}
                Err(error) => return Done { half: error.may_have_acted(), ..refused(&error) },
            }
        }
    }

    /// The second half of rung 4. The group is read first: a rebalance would evict a degraded member.
    async fn rebalance(&self, server: &str, group: Option<&str>) -> Done {
        let Some(group) = group else {
            return Done::new(Receipt::Refused, Some(Outcome::NotApplicable), "not a group member");
        };
        let now = crate::clock::now();
        let reading = match self.hangar.group(group).await {
            Ok(read) => read.reading(server, now),
            Err(error) => return refused(&error),
        };
        let Some(reading) = reading else {
            return Done::new(Receipt::Refused, Some(Outcome::NotApplicable), format!("no longer a member of {group}"));
        };
        if reading.in_rotation {
            return Done::new(Receipt::Accepted, None, format!("back in the rotation of {group} by itself; nothing sent"));
        }
        if reading.degraded_member {
            let detail = format!("not sent: a rebalance of {group} would evict a degraded member");
            return Done::new(Receipt::Refused, Some(Outcome::Insufficient), detail);
        }
        self.pacer.slot().await;
        match self.hangar.rebalance(group).await {
            Ok(()) => Done::new(Receipt::Accepted, None, format!("{group} rebalanced")),
            Err(error) => refused(&error),
        }
    }
}

fn accepted(started: &Started) -> Done {
    let mut done = Done::new(Receipt::Accepted, None, format!("start answered: {}", started.state));
    done.evidence.insert("exposed_tools".to_owned(), evidence::names(&started.tools));
    done
}

/// What met only the rate limit is sent again, after the wait that Hangar asks for, but not for ever.
#[derive(Default)]
struct Patience {
    waits: u32,
}

impl Patience {
    /// True after a wait: the call may be sent again.
    async fn waited(&mut self, error: &CallError) -> bool {
        let Some(wait) = error.fault.retry_after().filter(|wait| *wait <= RATE_LIMIT_WAIT_MAX) else { return false };
        self.waits += 1;
        if self.waits > RATE_LIMIT_RETRIES {
            return false;
        }
        // Never at once, whatever Hangar rounds to.
        tokio::time::sleep(Duration::try_from(wait).unwrap_or_default().max(RATE_LIMIT_WAIT_MIN)).await;
        true
    }
}

/// A start that did not answer 200, decided by `error.code`.
fn refused_start(error: &CallError) -> Done {
    let Fault::Api { code, .. } = &error.fault else { return refused(error) };
    let (receipt, outcome) = match code.as_str() {
        // The start ran, and failed.
        "McpServerStartError" | "CapabilityBlockedError" => (Receipt::Refused, Some(Outcome::Failed)),
        "CannotStartMcpServerError" | "McpServerNotHereError" | "McpServerNotReadyError" | "McpServerDegradedError" => {
            (Receipt::Refused, Some(Outcome::Denied))
        }
        "ValidationError" => (Receipt::Refused, Some(Outcome::Error)),
        // `InternalServerError` and whatever comes: it may have started half-way.
        _ => (Receipt::Unknown, None),
    };
    let told = (code == "CapabilityBlockedError").then_some(Reason::CapabilityBlocked);
    with_details(Done { told, ..Done::new(receipt, outcome, error.to_string()) }, error)
}

/// Any other call that changes something and did not answer 200.
fn refused(error: &CallError) -> Done {
    let (receipt, outcome) = match &error.fault {
        Fault::Auth(_) | Fault::Forbidden { .. } | Fault::RateLimited { .. } => (Receipt::Refused, Some(Outcome::Denied)),
        Fault::Lost { .. } | Fault::Api { .. } => (Receipt::Unknown, None),
        Fault::BadAnswer { .. } if error.may_have_acted() => (Receipt::Unknown, None),
        Fault::NotFound { .. } | Fault::Unreachable { .. } | Fault::BadId { .. } | Fault::BadAnswer { .. } => {
            (Receipt::Refused, Some(Outcome::Error))
        }
    };
    let done = Done { not_found: matches!(error.fault, Fault::NotFound { .. }), ..Done::new(receipt, outcome, error.to_string()) };
    with_details(done, error)
}

fn with_details(mut done: Done, error: &CallError) -> Done {
    if let Fault::Forbidden { code, .. } = &error.fault {
        done.evidence.insert("error_code".to_owned(), Value::from(code.as_str()));
        done.evidence.insert("forbidden".to_owned(), Value::from(true));
    }
    if let Fault::Api { status, code, details, .. } = &error.fault {
        done.evidence.insert("http_status".to_owned(), Value::from(*status));
        done.evidence.insert("error_code".to_owned(), Value::from(code.as_str()));
        done.evidence.insert("error_details".to_owned(), evidence::bounded(details));
    }
    done
}

/// What a rung that only looks found. It heals nothing: a server found healthy is credited to nobody.
fn looked(reading: RestReading) -> Done {
    let (outcome, detail) = match (reading.state, reading.alive) {
        (State::Ready, true) => (Outcome::Cancelled, "found healthy".to_owned()),
        (State::Ready, false) => (Outcome::Insufficient, "still dead: ready, but its process is gone".to_owned()),
        (State::Dead, _) => {
            let reason = reading.dead.as_ref().map(|d| format!(" ({})", d.reason)).unwrap_or_default();
            (Outcome::Insufficient, format!("still dead{reason}"))
        }
        (state @ (State::Cold | State::Initializing | State::Degraded), _) => (Outcome::Insufficient, format!("still dead: {state}")),
    };
    Done { reading: Some(reading), ..Done::new(Receipt::Accepted, Some(outcome), detail) }
}

/// A rung that only looks, and saw nothing.
fn looked_in_vain(error: &CallError) -> Done {
    let (receipt, outcome) = match &error.fault {
        Fault::Auth(_) | Fault::Forbidden { .. } | Fault::RateLimited { .. } => (Receipt::Refused, Outcome::Denied),
        Fault::NotFound { .. } | Fault::BadId { .. } => (Receipt::Refused, Outcome::Error),
        Fault::Unreachable { .. } | Fault::Lost { .. } | Fault::Api { .. } | Fault::BadAnswer { .. } => (Receipt::Unknown, Outcome::Error),
    };
    Done { not_found: matches!(error.fault, Fault::NotFound { .. }), ..Done::new(receipt, Some(outcome), error.to_string()) }
}
