//! The guard before every call that carries credentials.
//!
//! About 10 failed authentications from one address lock every credential from that address out (300 s, doubling), and a
//! sidecar shares 127.0.0.1 with Hangar's users. So: two 401s in a row and the key is not tried again until its file
//! changes, or once per 15 min; a lock-out is waited out. Restarts do not forget: a try is saved before it is made.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use reqwest::header::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::fault::{AuthFault, Fault, chain};
use crate::policy::{Auth, hex};

/// 401s in a row after which the key rests.
const REFUSALS_MAX: u32 = 2;
/// A resting key is tried once in this time.
const RETRY_EVERY: SignedDuration = SignedDuration::from_mins(15);
/// A key file longer than this is no key.
const KEY_MAX: usize = 64 * 1024;

/// The memory failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryError(pub String);

/// Where refusals outlive a restart: one value by name, durable when `put` returns.
pub trait AuthMemory: Send + Sync {
    /// The value of this name, if any was put.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Value>, MemoryError>>;
    /// Replaces the value of this name.
    fn put<'a>(&'a self, key: &'a str, value: Value) -> BoxFuture<'a, Result<(), MemoryError>>;
}

/// What is remembered of a key. `key_sha256` is empty when there is no key file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Remembered {
    pub consecutive_401: u32,
    pub refused_at: Option<Timestamp>,
    pub key_sha256: String,
    pub locked_until: Option<Timestamp>,
    /// A try is under way. Found set at start it counts as a 401: the process died before it could save the answer.
    #[serde(default)]
    pub trying: bool,
}

/// Whether Hangar takes our credentials, for the snapshot and the status page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthState {
    pub auth: Auth,
    /// While ahead, no authenticated call is made (an earlier change of the key file ends it, a lock-out excepted).
    pub until: Option<Timestamp>,
    pub consecutive_401: u32,
    /// What is wrong, for a person.
    pub why: Option<String>,
}

/// What an answer says about the credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Hangar let us in, whatever it answered then.
    LetIn,
    /// 401.
    Refused,
    /// The address is locked out until then.
    LockedOut(Timestamp),
    /// No answer, or not Hangar's.
    Unclear,
}

impl Verdict {
    /// The verdict of a call that gave no usable answer.
    #[must_use]
    pub const fn of(fault: &Fault) -> Self {
        match fault {
            Fault::Auth(AuthFault::Refused { .. }) => Self::Refused,
            Fault::Auth(AuthFault::LockedOut { until }) => Self::LockedOut(*until),
            Fault::Forbidden { .. } | Fault::NotFound { .. } | Fault::RateLimited { .. } | Fault::Api { .. } => Self::LetIn,
            Fault::Auth(AuthFault::Held { .. } | AuthFault::KeyUnusable { .. } | AuthFault::MemoryUnusable { .. })
            | Fault::Unreachable { .. }
            | Fault::Lost { .. }
            | Fault::BadAnswer { .. }
            | Fault::BadId { .. } => Self::Unclear,
        }
    }
}

/// The wall clock; a test brings its own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The guard. One per Hangar.
pub struct AuthGuard {
    key_file: Option<PathBuf>,
    memory: Arc<dyn AuthMemory>,
    memory_key: String,
    clock: Clock,
    /// Held for a moment by a proved key, for the whole call by any other: tries go one by one.
    gate: Arc<tokio::sync::Mutex<Gate>>,
    shown: Mutex<AuthState>,
}

#[derive(Default)]
struct Gate {
    loaded: bool,
    /// `kept` was changed and not saved yet.
    unsaved: bool,
    /// This key was let in by Hangar in this process, and not refused since.
    proved: bool,
    kept: Remembered,
}

/// Leave for one call. Give it back with [`AuthGuard::settle`].
pub struct Leave {
    /// Goes into `X-API-Key`; marked sensitive, so that no debug output shows it.
    pub key: Option<HeaderValue>,
    sha256: String,
    /// Held until settled while the key is not proved.
    alone: Option<tokio::sync::OwnedMutexGuard<Gate>>,
}

impl AuthGuard {
    /// `instance` names the memory; `key_file` is read again before every call.
    pub fn new(instance: &str, key_file: Option<PathBuf>, memory: Arc<dyn AuthMemory>, clock: Clock) -> Self {
        let shown = AuthState { auth: Auth::Unknown, until: None, consecutive_401: 0, why: None };
        Self { key_file, memory, memory_key: format!("hangar_auth:{instance}"), clock, gate: Arc::default(), shown: Mutex::new(shown) }
    }

    /// What the last call showed.
    pub fn state(&self) -> AuthState {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the memory and the key file without sending anything: true if a call would be let through now.
    pub async fn look(&self) -> bool {
        let Ok((_, sha256)) = self.read_key().await else { return false };
        let mut gate = self.gate.lock().await;
        self.prepare(&mut gate, &sha256).await.is_ok()
    }

    /// Lets a call through, or says why not. Waits for another try that is under way.
    pub async fn admit(&self) -> Result<Leave, AuthFault> {
        let (key, sha256) = self.read_key().await?;
        let mut gate = Arc::clone(&self.gate).lock_owned().await;
        self.prepare(&mut gate, &sha256).await?;
        if gate.proved && gate.kept.consecutive_401 == 0 {
            return Ok(Leave { key, sha256, alone: None });
        }
        gate.kept.trying = true;
        gate.unsaved = true;
        self.save(&mut gate).await.inspect_err(|fault| self.show(&gate, Some(fault.to_string())))?;
        Ok(Leave { key, sha256, alone: Some(gate) })
    }

    /// Takes the answer in. What it says against the key is saved before anybody else is let through.
    pub async fn settle(&self, leave: Leave, verdict: Verdict) {
        let Leave { sha256, alone, .. } = leave;
        let mut gate = match alone {
            Some(gate) => gate,
            // A proved key: nothing to note but trouble.
            None if matches!(verdict, Verdict::LetIn | Verdict::Unclear) => return,
            None => Arc::clone(&self.gate).lock_owned().await,
        };
        if gate.kept.key_sha256 != sha256 && verdict == Verdict::Refused {
            // The file changed while this call was under way; the new key is not to blame.
            return;
        }
        let before = std::mem::take(&mut gate.kept.trying);
        gate.unsaved |= before;
        match verdict {
            Verdict::LetIn => {
                gate.proved = true;
                gate.unsaved |= gate.kept.consecutive_401 != 0 || gate.kept.locked_until.is_some();
                gate.kept = Remembered { key_sha256: sha256, ..Remembered::default() };
            }
            Verdict::Refused => {
                gate.proved = false;
                gate.unsaved = true;
                gate.kept.consecutive_401 = gate.kept.consecutive_401.saturating_add(1);
                gate.kept.refused_at = Some((self.clock)());
            }
            Verdict::LockedOut(until) => {
                gate.proved = false;
                gate.unsaved = true;
                gate.kept.locked_until = Some(until);
            }
            Verdict::Unclear => {}
        }
        // A failure here is met again by the next call, which saves first or is not let through.
        let failed = self.save(&mut gate).await.err().map(|fault| fault.to_string());
        self.show(&gate, failed);
    }

    /// Loads, notices a changed key, saves what is unsaved, and applies the two rules.
    async fn prepare(&self, gate: &mut Gate, sha256: &str) -> Result<(), AuthFault> {
        let now = (self.clock)();
        let checked = self.check(gate, sha256, now).await;
        self.show(gate, checked.as_ref().err().map(ToString::to_string));
        checked
    }

    async fn check(&self, gate: &mut Gate, sha256: &str, now: Timestamp) -> Result<(), AuthFault> {
        self.load(gate, sha256, now).await?;
        if gate.kept.key_sha256 != sha256 {
            // A new key starts afresh; a lock-out is of the address, not of the key.
            gate.kept = Remembered { key_sha256: sha256.to_owned(), locked_until: gate.kept.locked_until, ..Remembered::default() };
            gate.proved = false;
            gate.unsaved = true;
        }
        // Left over from a call that was dropped: like a lost answer.
        gate.kept.trying = false;
        if gate.unsaved {
            self.save(gate).await?;
        }
        if let Some(until) = gate.kept.locked_until.filter(|until| now < *until) {
            return Err(AuthFault::LockedOut { until });
        }
        match held_until(&gate.kept, now) {
            Some(until) if now < until => Err(AuthFault::Held { until, consecutive_401: gate.kept.consecutive_401 }),
            _ => Ok(()),
        }
    }

    async fn load(&self, gate: &mut Gate, sha256: &str, now: Timestamp) -> Result<(), AuthFault> {
        if gate.loaded {
            return Ok(());
        }
        let value = self.memory.get(&self.memory_key).await.map_err(|e| AuthFault::MemoryUnusable { why: e.0 })?;
        let mut kept = match value {
            None => Remembered::default(),
            // What cannot be read may have been a refusal: fail closed, for one rest.
            Some(value) => serde_json::from_value(value).unwrap_or_else(|_| Remembered {
                consecutive_401: REFUSALS_MAX,
                refused_at: Some(now),
                key_sha256: sha256.to_owned(),
                ..Remembered::default()
            }),
        };
        if std::mem::take(&mut kept.trying) {
            kept.consecutive_401 = kept.consecutive_401.saturating_add(1);
            kept.refused_at = Some(now);
            gate.unsaved = true;
        }
        // The clock went back: no wait grows by that.
        if kept.refused_at.is_some_and(|at| at > now) {
            kept.refused_at = Some(now);
        }
        gate.kept = kept;
        gate.loaded = true;
        Ok(())
    }

    async fn save(&self, gate: &mut Gate) -> Result<(), AuthFault> {
        if !gate.unsaved {
            return Ok(());
        }
        let value = serde_json::to_value(&gate.kept).map_err(|e| AuthFault::MemoryUnusable { why: e.to_string() })?;
        self.memory.put(&self.memory_key, value).await.map_err(|e| AuthFault::MemoryUnusable { why: e.0 })?;
        gate.unsaved = false;
        Ok(())
    }

    async fn read_key(&self) -> Result<(Option<HeaderValue>, String), AuthFault> {
        let Some(path) = &self.key_file else { return Ok((None, String::new())) };
        let unusable = |why: String| {
            let fault = AuthFault::KeyUnusable { why };
            let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.auth = Auth::Refused;
            shown.why = Some(fault.to_string());
            fault
        };
        let bytes = tokio::fs::read(path).await.map_err(|e| unusable(format!("{}: {}", path.display(), chain(&e))))?;
        if bytes.len() > KEY_MAX {
            return Err(unusable(format!("{}: larger than {KEY_MAX} bytes", path.display())));
        }
        let key = bytes.trim_ascii();
        let mut header = match HeaderValue::from_bytes(key) {
            Ok(header) if !key.is_empty() && key.is_ascii() => header,
            _ => return Err(unusable(format!("{}: not one line of plain text", path.display()))),
        };
        header.set_sensitive(true);
        Ok((Some(header), hex(&Sha256::digest(key))))
    }

    fn show(&self, gate: &Gate, why: Option<String>) {
        let now = (self.clock)();
        let locked = gate.kept.locked_until.filter(|until| now < *until);
        let until = locked.max(held_until(&gate.kept, now));
        let auth = if gate.proved {
            Auth::Ok
        } else if until.is_some() || why.is_some() {
            Auth::Refused
        } else {
            Auth::Unknown
        };
        let state = AuthState { auth, until, consecutive_401: gate.kept.consecutive_401, why };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// When a resting key may be tried again; `None` while it does not rest.
fn held_until(kept: &Remembered, now: Timestamp) -> Option<Timestamp> {
    if kept.consecutive_401 < REFUSALS_MAX {
        return None;
    }
    let since = kept.refused_at.unwrap_or(now);
    Some(since.checked_add(RETRY_EVERY).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests;
