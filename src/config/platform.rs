//! What rungs 3 and 6 to 10 act with: the operator's automation, a systemd unit or a Kubernetes Deployment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use jiff::SignedDuration;
use reqwest::Url;

use super::place::{FilePath, HookUrl, Name, SecretPath};
use super::settings::Walk;
use super::validate::{Checks, Doubt};
use super::value::{Nullable, Required, Word, duration};
use super::{Config, SecretFile};
use crate::policy::{Platform as Deciding, Rung, UnknownWord, valid_server_id};

/// The executors of the broad half of the ladder. Everything is off by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// Bound of one restart of Hangar, from the order to the first healthy answer.
    pub restart_within: SignedDuration,
    /// Of rungs 8 to 10.
    pub restarts: BTreeMap<Rung, Executor>,
    /// Of rung 6, by server.
    pub upstreams: BTreeMap<String, Executor>,
    /// Of rung 7, by server: a file with its full definition, as `POST /api/mcp_servers/` takes it.
    pub definitions: BTreeMap<String, PathBuf>,
}

impl Default for Platform {
    fn default() -> Self {
        Self {
            restart_within: Deciding::default().restart_within,
            restarts: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            definitions: BTreeMap::new(),
        }
    }
}

/// Who carries a restart out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Executor {
    /// The operator's automation, over HTTP.
    Hook {
        url: Url,
        secret_file: SecretFile,
        /// PEM, instead of the system's certificate authorities.
        ca_file: Option<PathBuf>,
        timeout: SignedDuration,
    },
    Systemd {
        unit: String,
        /// `None`: the system bus.
        bus_address: Option<String>,
        timeout: SignedDuration,
    },
    Kubernetes {
        namespace: String,
        deployment: String,
        /// `None`: the pod's own service account.
        kubeconfig: Option<PathBuf>,
        timeout: SignedDuration,
    },
}

/// The word for who carries a restart out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Hook,
    Systemd,
    Kubernetes,
}

impl Kind {
    /// Every word.
    pub const ALL: &'static [Self] = &[Self::Hook, Self::Systemd, Self::Kubernetes];

    /// The word in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hook => "hook",
            Self::Systemd => "systemd",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let found = Self::ALL.iter().copied().find(|e| e.as_str() == word);
        found.ok_or_else(|| UnknownWord::new("executor", word, Self::ALL.iter().map(|e| e.as_str())))
    }
}

/// The `platform:` section.
#[derive(Default)]
pub(super) struct RawPlatform {
    pub(super) restart_within: RestartWithin,
    pub(super) restarts: Vec<RawExecutor>,
    pub(super) upstreams: Vec<RawExecutor>,
    pub(super) definitions: Vec<RawDefinition>,
}

/// A duration with a default of its own.
pub(super) struct RestartWithin(pub(super) SignedDuration);

impl Default for RestartWithin {
    fn default() -> Self {
        Self(Platform::default().restart_within)
    }
}

/// One entry of `platform.restarts` or `platform.upstreams`; which keys it needs follows from `executor`.
pub(super) struct RawExecutor {
    action: Option<Rung>,
    mcp_server: Option<String>,
    executor: Option<Kind>,
    timeout: SignedDuration,
    url: Option<Url>,
    secret_file: Option<SecretFile>,
    ca_file: Option<PathBuf>,
    unit: Option<String>,
    bus_address: Option<String>,
    namespace: Option<String>,
    deployment: Option<String>,
    kubeconfig: Option<PathBuf>,
}

impl Default for RawExecutor {
    fn default() -> Self {
        Self {
            action: None,
            mcp_server: None,
            executor: None,
            timeout: SignedDuration::from_mins(5),
            url: None,
            secret_file: None,
            ca_file: None,
            unit: None,
            bus_address: None,
            namespace: None,
            deployment: None,
            kubeconfig: None,
        }
    }
}

/// One entry of `platform.definitions`.
#[derive(Default)]
pub(super) struct RawDefinition {
    mcp_server: Option<String>,
    file: Option<PathBuf>,
}

/// The actions that `platform.restarts` may name.
const RESTARTS: &[Rung] = &[Rung::RollingMcpRestart, Rung::FullMcpRestart, Rung::HostRestart];

pub(super) fn walk<W: Walk>(w: &mut W, p: &mut RawPlatform) {
    let doc = "Bound of one restart of Hangar, from the order to its first healthy answer.";
    w.setting("restart_within", &duration(SignedDuration::from_secs(5), SignedDuration::from_hours(2)), &mut p.restart_within.0, doc);
    let doc = "What restarts Hangar, one entry an action: [{action: full_mcp_restart, executor: systemd, unit: mcp-hangar.service}, \
               {action: host_restart, executor: hook, url: \"https://automation/hangar\", secret_file: /etc/hangar-medic/hook.key}]. \
               None: rungs 8 to 10 have nothing to act with.";
    w.list("restarts", (0, RESTARTS.len()), &mut p.restarts, doc, |w, e: &mut RawExecutor| {
        w.setting("action", &Required(Word(RESTARTS)), &mut e.action, "The action: rolling_mcp_restart, full_mcp_restart or host_restart.");
        executor(w, e);
    });
    let doc = "What restarts the upstream of a remote server (role_runtime_restart): \
               [{mcp_server: search, executor: kubernetes, namespace: mcp, deployment: search}].";
    w.list("upstreams", (0, 10_000), &mut p.upstreams, doc, |w, e: &mut RawExecutor| {
        w.setting("mcp_server", &Required(Name), &mut e.mcp_server, "The server in Hangar.");
        executor(w, e);
    });
    let doc = "Full definitions for connector_restart, since Hangar never shows a secret again: \
               [{mcp_server: search, file: /etc/hangar-medic/search.json}], as POST /api/mcp_servers/ takes them.";
    w.list("definitions", (0, 10_000), &mut p.definitions, doc, |w, d: &mut RawDefinition| {
        w.setting("mcp_server", &Required(Name), &mut d.mcp_server, "The server in Hangar.");
        w.setting("file", &Required(FilePath), &mut d.file, "JSON or YAML file with its definition; read again at each use.");
    });
}

fn executor<W: Walk>(w: &mut W, e: &mut RawExecutor) {
    w.setting("executor", &Required(Word(Kind::ALL)), &mut e.executor, "Who carries it out.");
    let doc = "How long it may take; after that what came of it is not known.";
    w.setting("timeout", &duration(SignedDuration::from_secs(1), SignedDuration::from_hours(1)), &mut e.timeout, doc);
    w.setting("url", &Nullable(HookUrl), &mut e.url, "hook: where the order is POSTed to.");
    w.setting("secret_file", &Nullable(SecretPath), &mut e.secret_file, "hook: file with the key that orders and results are signed with.");
    w.setting("ca_file", &Nullable(FilePath), &mut e.ca_file, "hook: PEM file of certificate authorities; null: the system's.");
    w.setting("unit", &Nullable(Name), &mut e.unit, "systemd: the unit, e.g. mcp-hangar.service.");
    w.setting("bus_address", &Nullable(Name), &mut e.bus_address, "systemd: D-Bus address; null: the system bus.");
    w.setting("namespace", &Nullable(Name), &mut e.namespace, "kubernetes: the Deployment's namespace.");
    w.setting("deployment", &Nullable(Name), &mut e.deployment, "kubernetes: the Deployment.");
    w.setting("kubeconfig", &Nullable(FilePath), &mut e.kubeconfig, "kubernetes: kubeconfig file; null: the pod's service account.");
}

impl RawExecutor {
    /// The keys that are given, by name.
    fn given(&self) -> Vec<&'static str> {
        let keys = [
            ("url", self.url.is_some()),
            ("secret_file", self.secret_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
            ("unit", self.unit.is_some()),
            ("bus_address", self.bus_address.is_some()),
            ("namespace", self.namespace.is_some()),
            ("deployment", self.deployment.is_some()),
            ("kubeconfig", self.kubeconfig.is_some()),
        ];
        keys.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect()
    }

    fn valid(self) -> Option<Executor> {
        let timeout = self.timeout;
        Some(match self.executor? {
            Kind::Hook => Executor::Hook { url: self.url?, secret_file: self.secret_file?, ca_file: self.ca_file, timeout },
            Kind::Systemd => Executor::Systemd { unit: self.unit?, bus_address: self.bus_address, timeout },
            Kind::Kubernetes => {
                Executor::Kubernetes { namespace: self.namespace?, deployment: self.deployment?, kubeconfig: self.kubeconfig, timeout }
            }
        })
    }
}

/// Keys that an executor needs, and those that it may have besides.
const fn keys(kind: Kind) -> (&'static [&'static str], &'static [&'static str]) {
    match kind {
        Kind::Hook => (&["url", "secret_file"], &["ca_file"]),
        Kind::Systemd => (&["unit"], &["bus_address"]),
        Kind::Kubernetes => (&["namespace", "deployment"], &["kubeconfig"]),
    }
}

impl From<&Executor> for RawExecutor {
    fn from(executor: &Executor) -> Self {
        match executor.clone() {
            Executor::Hook { url, secret_file, ca_file, timeout } => {
                Self { executor: Some(Kind::Hook), url: Some(url), secret_file: Some(secret_file), ca_file, timeout, ..Self::default() }
            }
            Executor::Systemd { unit, bus_address, timeout } => {
                Self { executor: Some(Kind::Systemd), unit: Some(unit), bus_address, timeout, ..Self::default() }
            }
            Executor::Kubernetes { namespace, deployment, kubeconfig, timeout } => Self {
                executor: Some(Kind::Kubernetes),
                namespace: Some(namespace),
                deployment: Some(deployment),
                kubeconfig,
                timeout,
                ..Self::default()
            },
        }
    }
}

impl From<&Platform> for RawPlatform {
    fn from(platform: &Platform) -> Self {
        let restart = |(action, e): (&Rung, &Executor)| RawExecutor { action: Some(*action), ..RawExecutor::from(e) };
        let upstream = |(id, e): (&String, &Executor)| RawExecutor { mcp_server: Some(id.clone()), ..RawExecutor::from(e) };
        let definition = |(id, file): (&String, &PathBuf)| RawDefinition { mcp_server: Some(id.clone()), file: Some(file.clone()) };
        Self {
            restart_within: RestartWithin(platform.restart_within),
            restarts: platform.restarts.iter().map(restart).collect(),
            upstreams: platform.upstreams.iter().map(upstream).collect(),
            definitions: platform.definitions.iter().map(definition).collect(),
        }
    }
}

impl Platform {
    /// What deciding needs to know of it.
    pub(super) fn deciding(&self, config_file: bool, instances: NonZeroU32, fleet_lock: bool) -> Deciding {
        Deciding {
            restarts: self.restarts.keys().copied().collect(),
            upstreams: self.upstreams.keys().cloned().collect(),
            definitions: self.definitions.keys().cloned().collect(),
            config_file,
            instances,
            fleet_lock,
            restart_within: self.restart_within,
        }
    }
}

impl Checks {
    /// Without faulty entries: then the configuration is refused anyway.
    pub(super) fn platform(&mut self, raw: RawPlatform) -> Platform {
        let mut platform = Platform { restart_within: raw.restart_within.0, ..Platform::default() };
        let mut named = BTreeSet::new();
        for (i, entry) in raw.restarts.into_iter().enumerate() {
            let path = format!("platform.restarts[{i}]");
            let action = entry.action;
            if action == Some(Rung::HostRestart) && entry.executor.is_some_and(|kind| kind != Kind::Hook) {
                self.fault(format!("{path}.executor"), "host_restart takes a hook only: the automation must outlive the host");
            }
            self.needed(&path, "action", action.is_some());
            let valid = self.executor(&path, entry);
            let Some(action) = action else { continue };
            if !RESTARTS.contains(&action) {
                self.fault(
                    format!("{path}.action"),
                    format!("{action} has no executor of its own; rolling_mcp_restart, full_mcp_restart and host_restart have"),
                );
            }
            if !named.insert(action) {
                self.fault(format!("{path}.action"), format!("{action} is named twice"));
            }
            platform.restarts.extend(valid.map(|e| (action, e)));
        }
        for (i, entry) in raw.upstreams.into_iter().enumerate() {
            let path = format!("platform.upstreams[{i}]");
            let id = self.server(&path, entry.mcp_server.clone(), |id| platform.upstreams.contains_key(id));
            let valid = self.executor(&path, entry);
            platform.upstreams.extend(id.zip(valid));
        }
        for (i, entry) in raw.definitions.into_iter().enumerate() {
            let path = format!("platform.definitions[{i}]");
            let id = self.server(&path, entry.mcp_server, |id| platform.definitions.contains_key(id));
            self.needed(&path, "file", entry.file.is_some());
            platform.definitions.extend(id.zip(entry.file));
        }
        platform
    }

    fn needed(&mut self, entry: &str, key: &str, given: bool) {
        let path = format!("{entry}.{key}");
        if !given && self.sound(&[entry, &path]) {
            self.fault(path, "missing");
        }
    }

    fn server(&mut self, entry: &str, id: Option<String>, known: impl Fn(&str) -> bool) -> Option<String> {
        self.needed(entry, "mcp_server", id.is_some());
        let id = id?;
        if !valid_server_id(&id) {
            self.fault(format!("{entry}.mcp_server"), "is no id that Hangar takes");
        } else if known(&id) {
            self.fault(format!("{entry}.mcp_server"), format!("{id} is named twice"));
        }
        Some(id)
    }

    fn executor(&mut self, entry: &str, raw: RawExecutor) -> Option<Executor> {
        self.needed(entry, "executor", raw.executor.is_some());
        let kind = raw.executor?;
        let (needs, takes) = keys(kind);
        let given = raw.given();
        for key in needs {
            self.needed(entry, key, given.contains(key));
        }
        for key in given.iter().filter(|key| !needs.contains(key) && !takes.contains(key)) {
            self.fault(format!("{entry}.{key}"), format!("a {kind} has no such key"));
        }
        if let Some(secret) = raw.secret_file.as_ref().filter(|_| kind == Kind::Hook) {
            let path = format!("{entry}.secret_file");
            match secret.read() {
                Err(e) => self.fault(path, e.explained()),
                Ok(_) if secret.world_readable() => self.warn(&path, "the secret file can be read by every user of this machine"),
                Ok(_) => (),
            }
        }
        raw.valid()
    }
}

/// Warnings about rungs that have nothing to act with, and executors that serve no rung.
pub(super) fn doubts(config: &Config) -> Vec<Doubt> {
    let (policy, platform) = (&config.policy, &config.platform);
    let idle = |rung: Rung| policy.rung(rung).is_none();
    let unused = platform.restarts.keys().filter(|rung| idle(**rung));
    let unused = unused.map(|rung| (true, "platform.restarts", format!("{rung} is not listed in policy.rungs: it is off")));
    let missing = policy.rungs.iter().filter_map(|r| policy.platform.missing(r.action).map(|why| (r.action, why)));
    let missing = missing.map(|(action, why)| (true, "policy.rungs", format!("{action} does nothing: {why}")));
    let plain = platform.restarts.values().chain(platform.upstreams.values()).filter(|e| match e {
        Executor::Hook { url, .. } => url.scheme() == "http" && !super::validate::on_loopback(url),
        Executor::Systemd { .. } | Executor::Kubernetes { .. } => false,
    });
    let plain = plain.map(|_| (true, "platform", "a hook on another machine is asked without encryption; use https".to_owned()));
    let others = [
        (
            !platform.upstreams.is_empty() && idle(Rung::RoleRuntimeRestart),
            "platform.upstreams",
            "role_runtime_restart is not listed in policy.rungs: it is off".to_owned(),
        ),
        (
            !platform.definitions.is_empty() && idle(Rung::ConnectorRestart),
            "platform.definitions",
            "connector_restart is not listed in policy.rungs: it is off".to_owned(),
        ),
    ];
    unused.chain(missing).chain(plain).chain(others).collect()
}
