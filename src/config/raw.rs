//! The configuration as it was written: what has no default may still be absent.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroU32};
use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use reqwest::Url;

use super::access::RawTls;
use super::place::{FilePath, HttpUrl, Listen, Name};
use super::platform::RawPlatform;
use super::servers::{RawRungBudget, RawServerRule, RawWindow};
use super::{
    Alertmanager, Config, Events, HttpAccess, Invalid, Log, Overrides, Principal, Prometheus, Proof, Reload, SecretFile, Storage, Web,
};
use crate::policy::{Matrix, Owners, Policy, Rung, RungLimits};

/// Every setting, with its default until something is read over it.
#[derive(Default)]
pub(super) struct Raw {
    pub(super) hangar: RawHangar,
    pub(super) prometheus: Prometheus,
    pub(super) alertmanager: Alertmanager,
    pub(super) storage: Storage,
    pub(super) web: RawWeb,
    pub(super) log: Log,
    /// Without its rungs: they are in `rungs`.
    pub(super) policy: Policy,
    pub(super) rungs: RawRungs,
    pub(super) roles: RawRoles,
    pub(super) platform: RawPlatform,
    pub(super) owners: Vec<RawOwner>,
    pub(super) reload: Reload,
    pub(super) servers: Vec<RawServerRule>,
    pub(super) maintenance: Vec<RawWindow>,
    pub(super) rung_budgets: RawRungBudgets,
}

/// The budgets of single rungs in the order of the file.
pub(super) struct RawRungBudgets(pub(super) Vec<RawRungBudget>);

impl Default for RawRungBudgets {
    fn default() -> Self {
        Self(Policy::default().budgets.rungs.iter().map(RawRungBudget::from).collect())
    }
}

/// The rows of the class matrix in the order of the file.
pub(super) struct RawRoles(pub(super) Vec<RawRole>);

/// One row.
#[derive(Default)]
pub(super) struct RawRole {
    pub(super) role: Option<String>,
    pub(super) permitted: Option<Vec<Rung>>,
}

impl From<&Matrix> for RawRoles {
    fn from(matrix: &Matrix) -> Self {
        let row = |(role, permitted): (&str, &BTreeSet<Rung>)| RawRole {
            role: Some(role.to_owned()),
            permitted: Some(permitted.iter().copied().collect()),
        };
        // From the least to the most.
        let mut rows: Vec<_> = matrix.roles().collect();
        rows.sort_by_key(|(_, permitted)| permitted.len());
        Self(rows.into_iter().map(row).collect())
    }
}

impl Default for RawRoles {
    fn default() -> Self {
        Self::from(&Matrix::default())
    }
}

/// One entry of `policy.owners`.
#[derive(Default)]
pub(super) struct RawOwner {
    pub(super) servers: Option<String>,
    pub(super) owner: Option<String>,
}

impl RawOwner {
    fn all(owners: &Owners) -> Vec<Self> {
        owners.entries().map(|(servers, owner)| Self { servers: Some(servers.to_owned()), owner: Some(owner.to_owned()) }).collect()
    }
}

/// One entry of `web.principals`.
#[derive(Default)]
pub(super) struct RawPrincipal {
    pub(super) name: Option<String>,
    pub(super) role: Option<String>,
    pub(super) token_file: Option<SecretFile>,
    pub(super) certificate: Option<String>,
}

impl From<&Principal> for RawPrincipal {
    fn from(principal: &Principal) -> Self {
        let Principal { name, role, proof } = principal.clone();
        let (token_file, certificate) = match proof {
            Proof::Token(file) => (Some(file), None),
            Proof::Certificate(name) => (None, Some(name)),
        };
        Self { name: Some(name), role: Some(role), token_file, certificate }
    }
}

/// The `web:` section.
pub(super) struct RawWeb {
    pub(super) listen_address: SocketAddr,
    pub(super) unsafe_no_auth: bool,
    pub(super) principals: Vec<RawPrincipal>,
    pub(super) webhook: HttpAccess,
    pub(super) webhook_certificate: Option<String>,
    pub(super) tls: RawTls,
}

impl From<&Web> for RawWeb {
    fn from(web: &Web) -> Self {
        Self {
            listen_address: web.listen_address,
            unsafe_no_auth: web.unsafe_no_auth,
            principals: web.principals.iter().map(RawPrincipal::from).collect(),
            webhook: web.webhook.clone(),
            webhook_certificate: web.webhook_certificate.clone(),
            tls: RawTls::from(web.tls.as_ref()),
        }
    }
}

impl Default for RawWeb {
    fn default() -> Self {
        Self::from(&Web::default())
    }
}

/// The `hangar:` section.
pub(super) struct RawHangar {
    pub(super) url: Option<Url>,
    pub(super) instance: Option<String>,
    pub(super) api_key_file: Option<SecretFile>,
    pub(super) log_file: Option<PathBuf>,
    pub(super) log_journal: Option<String>,
    pub(super) events: Events,
    pub(super) poll_interval: SignedDuration,
    pub(super) request_timeout: SignedDuration,
    pub(super) start_timeout: SignedDuration,
    pub(super) max_body: u64,
    pub(super) stale_after_polls: NonZeroU32,
    pub(super) config_file: Option<PathBuf>,
    pub(super) instances: NonZeroU32,
    pub(super) peers: Vec<Url>,
}

impl Default for RawHangar {
    fn default() -> Self {
        Self {
            url: None,
            instance: None,
            api_key_file: None,
            log_file: None,
            log_journal: None,
            events: Events::Auto,
            poll_interval: SignedDuration::from_secs(5),
            request_timeout: SignedDuration::from_secs(10),
            start_timeout: SignedDuration::from_secs(60),
            max_body: 64 * 1024 * 1024,
            stale_after_polls: NonZeroU32::MIN.saturating_add(2),
            config_file: None,
            instances: NonZeroU32::MIN,
            peers: Vec::new(),
        }
    }
}

/// The listed rungs in the order of the file.
pub(super) struct RawRungs(pub(super) Vec<RawRung>);

impl Default for RawRungs {
    fn default() -> Self {
        Self(Policy::default().rungs.into_iter().map(RawRung::from).collect())
    }
}

/// One entry of `policy.rungs`; what is left out has the default of its action.
#[derive(Default)]
pub(super) struct RawRung {
    pub(super) action: Option<Rung>,
    pub(super) attempts_max: Option<NonZeroU8>,
    pub(super) pause: Option<SignedDuration>,
}

impl From<RungLimits> for RawRung {
    fn from(limits: RungLimits) -> Self {
        Self { action: Some(limits.action), attempts_max: Some(limits.attempts_max), pause: Some(limits.pause) }
    }
}

impl From<&Config> for Raw {
    fn from(config: &Config) -> Self {
        let hangar = config.hangar.clone();
        Self {
            hangar: RawHangar {
                url: Some(hangar.url),
                instance: Some(hangar.instance),
                api_key_file: hangar.api_key,
                log_file: hangar.log_file,
                log_journal: hangar.log_journal,
                events: hangar.events,
                poll_interval: hangar.poll_interval,
                request_timeout: hangar.request_timeout,
                start_timeout: hangar.start_timeout,
                max_body: hangar.max_body,
                stale_after_polls: hangar.stale_after_polls,
                config_file: hangar.config_file,
                instances: hangar.instances,
                peers: hangar.peers,
            },
            prometheus: config.prometheus.clone(),
            alertmanager: config.alertmanager.clone(),
            storage: config.storage.clone(),
            web: RawWeb::from(&config.web),
            log: config.log.clone(),
            rungs: RawRungs(config.policy.rungs.iter().cloned().map(RawRung::from).collect()),
            roles: RawRoles::from(&config.policy.matrix),
            reload: config.reload.clone(),
            servers: config.policy.servers.iter().map(RawServerRule::from).collect(),
            maintenance: config.maintenance.iter().map(RawWindow::from).collect(),
            rung_budgets: RawRungBudgets(config.policy.budgets.rungs.iter().map(RawRungBudget::from).collect()),
            owners: RawOwner::all(&config.policy.owners),
            policy: config.policy.clone(),
            platform: RawPlatform::from(&config.platform),
        }
    }
}

impl Raw {
    /// Lays the flags over what was read. A fault's path is the flag.
    pub(super) fn override_with(&mut self, flags: &Overrides, faults: &mut Vec<Invalid>) {
        let mut judged = Judged { faults };
        judged.over("--hangar.url", flags.hangar_url.as_deref(), HttpUrl::parse_text, |v| self.hangar.url = Some(v));
        judged.over("--hangar.instance", flags.hangar_instance.as_deref(), Name::parse_text, |v| self.hangar.instance = Some(v));
        judged.path("--hangar.api-key-file", flags.hangar_api_key_file.as_deref(), |path| {
            self.hangar.api_key_file = Some(SecretFile { path });
        });
        judged.path("--hangar.log-file", flags.hangar_log_file.as_deref(), |v| self.hangar.log_file = Some(v));
        judged.over("--prometheus.url", flags.prometheus_url.as_deref(), HttpUrl::parse_text, |v| self.prometheus.url = Some(v));
        judged.over("--web.listen-address", flags.web_listen_address.as_deref(), Listen::parse_text, |v| self.web.listen_address = v);
        self.web.unsafe_no_auth |= flags.web_unsafe_no_auth;
        judged.path("--storage.path", flags.storage_path.as_deref(), |v| self.storage.path = v);
        self.policy.mode = flags.mode.unwrap_or(self.policy.mode);
        self.log.level = flags.log_level.unwrap_or(self.log.level);
        self.log.format = flags.log_format.unwrap_or(self.log.format);
    }
}

struct Judged<'a> {
    faults: &'a mut Vec<Invalid>,
}

impl Judged<'_> {
    fn over<T>(&mut self, flag: &str, text: Option<&str>, parse: impl Fn(&str) -> Result<T, String>, set: impl FnOnce(T)) {
        match text.map(parse) {
            Some(Ok(value)) => set(value),
            Some(Err(text)) => self.faults.push(Invalid::new(flag, text)),
            None => (),
        }
    }

    fn path(&mut self, flag: &str, path: Option<&Path>, set: impl FnOnce(PathBuf)) {
        let Some(path) = path else { return };
        match path.to_str() {
            Some(text) => self.over(flag, Some(text), FilePath::parse_text, set),
            None => self.faults.push(Invalid::new(flag, "is not UTF-8")),
        }
    }
}
