//! The configuration: a YAML file, the flags over it, every fault at once with its path.
//!
//! `settings.rs` is the one table of what can be set; reading, writing, comments and JSON Schema are four walks over it.

mod access;
mod live;
mod log;
mod place;
mod platform;
mod postgres;
#[cfg(test)]
mod properties;
mod raw;
mod read;
mod reference;
mod render;
mod secret;
mod servers;
mod settings;
#[cfg(test)]
mod tests;
mod validate;
mod value;
mod who;
mod yaml;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use reqwest::Url;

use crate::policy::{Mode, Policy, Unasked};

pub use access::{Events, HttpAccess, WebTls};
pub use live::needs_restart;
pub use log::{LogFormat, LogLevel};
pub use platform::{Executor, Platform};
pub use postgres::{Postgres, PostgresError};
pub use reference::reference;
pub use render::{Effective, effective, example, render, schema};
pub use secret::{Secret, SecretError, SecretFile};
pub use servers::Window;
pub use value::{parse_duration, show_duration, unsigned};

/// Largest configuration file, in bytes.
pub const MAX_FILE: usize = 1024 * 1024;

/// The configuration as the daemon obeys it.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub hangar: Hangar,
    pub prometheus: Prometheus,
    pub alertmanager: Alertmanager,
    pub storage: Storage,
    pub web: Web,
    pub log: Log,
    pub policy: Policy,
    pub maintenance: Vec<Window>,
    pub reload: Reload,
    pub platform: Platform,
    /// What is allowed but probably not meant, each as `path: text`.
    pub warnings: Vec<String>,
}

/// The Hangar that is watched and repaired. Durations are positive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hangar {
    /// Its path ends in `/`: `join` with a relative path keeps a proxy's base path.
    pub url: Url,
    /// Stable name of this Hangar in records and labels.
    pub instance: String,
    pub api_key: Option<SecretFile>,
    pub log_file: Option<PathBuf>,
    /// The systemd unit whose journal is read; never together with `log_file`.
    pub log_journal: Option<String>,
    pub events: Events,
    pub poll_interval: SignedDuration,
    /// Bound of one read.
    pub request_timeout: SignedDuration,
    /// Bound of one start.
    pub start_timeout: SignedDuration,
    /// Largest answer that is read, in bytes.
    pub max_body: u64,
    /// Polls without an answer until what was read counts as unknown.
    pub stale_after_polls: NonZeroU32,
    /// Hangar's own configuration file, for rung 3.
    pub config_file: Option<PathBuf>,
    /// Replicas of this Hangar.
    pub instances: NonZeroU32,
    /// The others of them, each with a path that ends in `/`; never more than there are.
    pub peers: Vec<Url>,
}

impl Config {
    /// Identifies the configuration: SHA-256 of its effective form, secrets by path only.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        use sha2::Digest;
        sha2::Sha256::digest(render(self)).into()
    }
}

impl Hangar {
    /// Whether Hangar's event stream is heard, and the ends of its processes are looked for.
    #[must_use]
    pub fn hears_events(&self) -> bool {
        match self.events {
            Events::Auto => !self.reads_log(),
            Events::On => true,
            Events::Off => false,
        }
    }

    /// Whether Hangar's log is read, from wherever.
    #[must_use]
    pub const fn reads_log(&self) -> bool {
        self.log_file.is_some() || self.log_journal.is_some()
    }

    /// Age at which a reading says nothing any more.
    #[must_use]
    pub fn stale_after(&self) -> SignedDuration {
        self.poll_interval.saturating_mul(i32::try_from(self.stale_after_polls.get()).unwrap_or(i32::MAX))
    }
}

/// The optional Prometheus source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prometheus {
    /// `None`: the source is off. Its path ends in `/`.
    pub url: Option<Url>,
    /// Matchers that every query gets besides `instance`, e.g. `job="hangar",cluster="eu"`.
    pub selector: Option<String>,
    pub poll_interval: SignedDuration,
    pub timeout: SignedDuration,
    pub http: HttpAccess,
}

impl Default for Prometheus {
    fn default() -> Self {
        Self {
            url: None,
            selector: None,
            poll_interval: SignedDuration::from_secs(15),
            timeout: SignedDuration::from_secs(5),
            http: HttpAccess::default(),
        }
    }
}

/// The optional Alertmanager, asked for silences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alertmanager {
    /// `None`: nobody is asked. Its path ends in `/`.
    pub url: Option<Url>,
    pub poll_interval: SignedDuration,
    pub timeout: SignedDuration,
    /// What may be done while it cannot be asked.
    pub on_unreachable: Unasked,
    pub http: HttpAccess,
}

impl Default for Alertmanager {
    fn default() -> Self {
        Self {
            url: None,
            poll_interval: SignedDuration::from_secs(5),
            timeout: SignedDuration::from_secs(3),
            on_unreachable: Unasked::Narrow,
            http: HttpAccess::default(),
        }
    }
}

/// Where the attempt log is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Directory; the store is `medic.db` in it, unless it is on a server.
    pub path: PathBuf,
    pub postgres: Postgres,
    pub retention: SignedDuration,
}

impl Default for Storage {
    fn default() -> Self {
        Self { path: PathBuf::from("./data"), postgres: Postgres::default(), retention: SignedDuration::from_hours(400 * 24) }
    }
}

/// The daemon's own HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Web {
    pub listen_address: SocketAddr,
    /// Whoever reaches an address off loopback may read, without credentials.
    pub unsafe_no_auth: bool,
    /// Empty: nobody may ask for a change.
    pub principals: Vec<Principal>,
    /// What Alertmanager must show to the webhook; the default is nothing.
    pub webhook: HttpAccess,
    /// The name on a client's certificate that does instead.
    pub webhook_certificate: Option<String>,
    /// `None`: plain HTTP.
    pub tls: Option<WebTls>,
}

/// Somebody who may ask for changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub name: String,
    pub role: String,
    pub proof: Proof,
}

/// What a principal is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// The bearer token in this file.
    Token(SecretFile),
    /// A verified client certificate with this common name or alternative name.
    Certificate(String),
}

impl Default for Web {
    fn default() -> Self {
        Self {
            listen_address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9923),
            unsafe_no_auth: false,
            principals: Vec::new(),
            webhook: HttpAccess::default(),
            webhook_certificate: None,
            tls: None,
        }
    }
}

/// How a changed file is noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// Zero: never; SIGHUP and `POST /-/reload` remain.
    pub watch_interval: SignedDuration,
}

impl Default for Reload {
    fn default() -> Self {
        Self { watch_interval: SignedDuration::from_secs(5) }
    }
}

/// The daemon's own log, on stderr.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    pub level: LogLevel,
    pub format: LogFormat,
}

/// What the command line says over the file. Texts are judged by [`load`], so that a bad flag is one fault among the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    pub hangar_url: Option<String>,
    pub hangar_instance: Option<String>,
    pub hangar_api_key_file: Option<PathBuf>,
    pub hangar_log_file: Option<PathBuf>,
    pub prometheus_url: Option<String>,
    pub web_listen_address: Option<String>,
    pub web_unsafe_no_auth: bool,
    pub storage_path: Option<PathBuf>,
    pub mode: Option<Mode>,
    pub log_level: Option<LogLevel>,
    pub log_format: Option<LogFormat>,
}

/// One fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// Where: `policy.rungs[2].attempts_max`, `--hangar.url` for a flag, empty for the file as a whole.
    pub path: String,
    /// What is wrong, in one line.
    pub text: String,
}

impl Invalid {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// The fault as a line about `file`; a flag's fault is not the file's.
    #[must_use]
    pub fn about(&self, file: Option<&Path>) -> String {
        match file {
            Some(file) if !self.path.starts_with("--") => format!("{}: {self}", file.display()),
            Some(_) | None => self.to_string(),
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.path, self.text) }
    }
}

/// Reads and judges the file (if one is named) with the flags over it.
///
/// Errors: every fault of the file and of the flags, in the order of the settings. The secret file is read once, to be
/// refused now and not at the first request.
pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Config, Vec<Invalid>> {
    match path {
        None => parse(b"", overrides),
        Some(path) => parse(&read_file(path).map_err(|fault| vec![fault])?, overrides),
    }
}

/// [`load`] of a text that is already in memory.
pub fn parse(yaml: &[u8], overrides: &Overrides) -> Result<Config, Vec<Invalid>> {
    let document = yaml::parse(yaml).map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    let mut raw = raw::Raw::default();
    read::read(&document, &mut raw, &mut faults);
    raw.override_with(overrides, &mut faults);
    raw.validate(faults)
}

fn read_file(path: &Path) -> Result<Vec<u8>, Invalid> {
    let failed = |e: std::io::Error| Invalid::new("", format!("cannot read the file: {e}"));
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The known word that `word` was probably meant to be.
fn near<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.chars().take(80).collect::<String>().to_ascii_lowercase().replace(['-', '.', ' '], "_");
    let distance = |k: &str| strsim::damerau_levenshtein(&word, k);
    let allowed = |k: &str| if k.starts_with(&word) && word.len() >= 3 { k.len() } else { (k.len() / 3).clamp(1, 3) };
    known.filter(|k| distance(k) <= allowed(k)).min_by_key(|k| distance(k))
}

/// Entry point for fuzzing: any bytes as a configuration file.
#[doc(hidden)]
pub fn fuzz_config(data: &[u8]) {
    if let Ok(config) = parse(data, &Overrides::default()) {
        let _ = config.sha256();
    }
}
