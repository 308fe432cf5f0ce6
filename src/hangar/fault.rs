//! Why a call to Hangar gave no answer to rely on.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// How many characters of foreign text a message carries at most.
const TEXT_MAX: usize = 300;

/// A call that gave no usable answer. `Display` names method and path, never the key.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{call}: {fault}")]
pub struct CallError {
    /// Method and path: `POST /api/mcp_servers/x/start`.
    pub call: String,
    pub fault: Fault,
}

/// What went wrong, told by what may have happened at Hangar.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Fault {
    /// Never sent: connection refused, no such host, TLS refused. It has not acted.
    #[error("never reached Hangar: {why}")]
    Unreachable { why: String },
    /// Sent, and no whole answer came: a time-out or a lost connection. It may have acted.
    #[error("no answer: {why}")]
    Lost { why: String },
    /// Not let in, or not tried. It has not acted.
    #[error(transparent)]
    Auth(AuthFault),
    /// The key is good but may not do this.
    #[error("forbidden: {code}: {message}")]
    Forbidden { code: String, message: String },
    /// Hangar says that it does not know this server or group.
    #[error("not found: {message}")]
    NotFound { message: String },
    /// Hangar's bucket, shared by all callers, is empty.
    #[error("rate limit: retry after {:.3} s", retry_after.as_secs_f64())]
    RateLimited { retry_after: SignedDuration },
    /// Any other refusal in Hangar's own form.
    #[error("{code}: {message}")]
    Api { status: u16, code: String, message: String, details: Value },
    /// Not an answer of Hangar's: an HTML page, broken JSON, an unknown word, too large.
    #[error("bad answer{}: {what}", status.map(|s| format!(" (HTTP {s})")).unwrap_or_default())]
    BadAnswer { status: Option<u16>, what: String },
    /// An id that Hangar itself would refuse; nothing was sent.
    #[error("not a valid id: \"{id}\"")]
    BadId { id: String },
}

/// Why no authenticated call was let through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthFault {
    /// Hangar answered 401 to this call.
    #[error("Hangar refused the credentials: {message}")]
    Refused { message: String },
    /// Hangar locked this address out; no call with credentials before then.
    #[error("Hangar locked this address out until {until}")]
    LockedOut { until: Timestamp },
    /// Two 401s in a row: nothing is sent before then, or before the key file changes.
    #[error("not sent: Hangar refused the credentials {consecutive_401} times in a row; next try at {until}, or when the key file changes")]
    Held { until: Timestamp, consecutive_401: u32 },
    /// The key file cannot be used; nothing is sent.
    #[error("not sent: the key file cannot be used: {why}")]
    KeyUnusable { why: String },
    /// What is known of earlier refusals can be neither read nor saved; nothing is sent, since a restart would forget this try.
    #[error("not sent: the memory of refused credentials cannot be used: {why}")]
    MemoryUnusable { why: String },
}

impl Fault {
    /// How long Hangar asks to wait, where only its rate limit stands in the way.
    #[must_use]
    pub const fn retry_after(&self) -> Option<SignedDuration> {
        if let Self::RateLimited { retry_after } = self { Some(*retry_after) } else { None }
    }
}

impl Fault {
    /// What an operator can do about it. `has_key`: an API key is configured.
    #[must_use]
    pub const fn advice(&self, has_key: bool) -> &'static str {
        match self {
            Self::Unreachable { .. } => {
                "start Hangar with --http, or correct hangar.url; in a container 127.0.0.1 is the container itself: take Hangar's service name"
            }
            Self::Lost { .. } => "Hangar hangs, or a firewall drops the packets; try curl on that address from this machine",
            Self::Auth(fault) => fault.advice(has_key),
            Self::Forbidden { .. } => "give the key's role the missing permission; `hangar-medic doctor` names it",
            Self::BadAnswer { .. } | Self::NotFound { .. } | Self::Api { status: 404 | 405, .. } => {
                "what answers there is not Hangar: is the port right, and is the base path of a proxy part of hangar.url?"
            }
            Self::RateLimited { .. } => {
                "Hangar's rate limit is shared by all callers: raise rate_limit in its configuration if it is met often"
            }
            Self::Api { .. } | Self::BadId { .. } => "look at Hangar's own log",
        }
    }
}

impl AuthFault {
    const fn advice(&self, has_key: bool) -> &'static str {
        match self {
            Self::Refused { .. } if !has_key => {
                "Hangar asks for a key: set hangar.api_key_file (--hangar.api-key-file) to a file that holds one API key and nothing else"
            }
            Self::Refused { .. } => {
                "put a valid key, alone, into hangar.api_key_file; about ten refused calls lock every key from this address out, so try no more than twice"
            }
            Self::LockedOut { .. } => {
                "wait until then, and correct the key first: every further try makes it longer, and users on this address are locked out too"
            }
            Self::Held { .. } if !has_key => "nothing is sent until then: set hangar.api_key_file to a file that holds one API key",
            Self::Held { .. } => "nothing is sent until then: put a valid key into hangar.api_key_file, which is tried at once",
            Self::KeyUnusable { .. } => "the file of hangar.api_key_file must hold one line: the key",
            Self::MemoryUnusable { .. } => "make the attempt log writable: free space and permissions of storage.path decide",
        }
    }
}

impl CallError {
    /// Hangar may have acted on this call.
    #[must_use]
    pub fn may_have_acted(&self) -> bool {
        match &self.fault {
            Fault::Lost { .. } | Fault::Api { .. } => true,
            Fault::BadAnswer { status, .. } => !status.is_some_and(refused_before_hangar),
            Fault::Unreachable { .. }
            | Fault::Auth(_)
            | Fault::Forbidden { .. }
            | Fault::NotFound { .. }
            | Fault::RateLimited { .. }
            | Fault::BadId { .. } => false,
        }
    }
}

/// Redirects and client errors without Hangar's envelope (a proxy's, the Host check's 400, a router's 404) were not
/// acted on. 408 and 499 are time-outs in disguise.
const fn refused_before_hangar(status: u16) -> bool {
    matches!(status, 300..=499) && !matches!(status, 408 | 499)
}

/// Foreign text, made fit for a log line: cut, and control characters escaped.
#[must_use]
pub fn clean(text: &str) -> String {
    clean_to(text, TEXT_MAX)
}

/// [`clean`] with another bound, in characters of the input.
#[must_use]
pub fn clean_to(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max));
    let mut chars = text.chars();
    for c in chars.by_ref().take(max) {
        // Bidirectional overrides reorder a terminal line; they count as control characters here.
        if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

/// [`clean_to`], but lines stay lines: for a page that shows them.
#[must_use]
pub fn clean_lines(text: &str, max: usize) -> String {
    let end = text.char_indices().nth(max).map_or(text.len(), |(at, _)| at);
    let kept = text.get(..end).unwrap_or(text);
    let mut out = kept.split('\n').map(|line| clean_to(line, max)).collect::<Vec<_>>().join("\n");
    if end < text.len() {
        out.push('…');
    }
    out
}

/// The whole chain of an error in one line, since `Fault` keeps text and not sources.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let next = e.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = e.source();
    }
    clean(&text)
}
