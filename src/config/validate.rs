//! Raw to valid: what one setting alone cannot tell, and what is allowed but probably not meant.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use jiff::SignedDuration;

use super::place::Name;
use super::platform;
use super::raw::{Raw, RawRung, RawWeb};
use super::value::show_duration;
use super::{Config, Events, Hangar, Invalid, Web};
use super::{servers, who};
use crate::policy::{Policy, Rung, RungLimits};

/// How long a server may be believed alive after Hangar was last read.
const STALE_MAX: SignedDuration = SignedDuration::from_mins(15);

impl Raw {
    /// The valid configuration, or `faults` and every further fault.
    pub(super) fn validate(mut self, faults: Vec<Invalid>) -> Result<Config, Vec<Invalid>> {
        let mut checks = Checks { faults, warnings: Vec::new() };
        let rungs = checks.rungs(std::mem::take(&mut self.rungs.0));
        if let Some(rungs) = rungs {
            self.policy.rungs = rungs;
        }
        if let Some(matrix) = checks.matrix(std::mem::take(&mut self.roles.0)) {
            self.policy.matrix = matrix;
        }
        self.policy.servers = checks.server_rules(std::mem::take(&mut self.servers));
        self.policy.budgets.rungs = checks.rung_budgets(std::mem::take(&mut self.rung_budgets.0));
        let maintenance = checks.maintenance(std::mem::take(&mut self.maintenance));
        self.policy.owners = checks.owners(std::mem::take(&mut self.owners));
        let tls = std::mem::take(&mut self.web.tls).judged().unwrap_or_else(|(key, text)| {
            checks.fault(format!("web.tls.{key}"), text);
            None
        });
        let shown = tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
        let principals = checks.principals(std::mem::take(&mut self.web.principals), shown);
        checks.conflict(self.web.webhook_certificate.is_some() && !shown, &["web.webhook.certificate", "web.tls.cert_file"], || {
            who::NO_CLIENT_CA.to_owned()
        });
        let hangar = checks.hangar(&self);
        let platform = checks.platform(std::mem::take(&mut self.platform));
        self.policy.platform = platform.deciding(self.hangar.config_file.is_some(), self.hangar.instances, self.storage.postgres.is_set());
        checks.times(&self);
        checks.paths(&self);
        if !self.web.listen_address.ip().is_loopback() && !self.web.unsafe_no_auth {
            let text = "not on loopback: whoever reaches it could read what it shows; allow that with web.unsafe_no_auth";
            checks.fault("web.listen_address", text);
        }
        match hangar {
            Some(hangar) if checks.faults.is_empty() => {
                let Self { prometheus, alertmanager, storage, web, log, policy, reload, .. } = self;
                let RawWeb { listen_address, unsafe_no_auth, webhook, webhook_certificate, .. } = web;
                let web = Web { listen_address, unsafe_no_auth, principals, webhook, webhook_certificate, tls };
                let warnings = checks.warnings;
                let mut config =
                    Config { hangar, prometheus, alertmanager, storage, web, log, policy, maintenance, reload, platform, warnings };
                let more = doubts(&config);
                config.warnings.extend(more);
                Ok(config)
            }
            Some(_) | None => Err(checks.faults),
        }
    }
}

pub(super) struct Checks {
    faults: Vec<Invalid>,
    warnings: Vec<String>,
}

impl Checks {
    pub(super) fn fault(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.faults.push(Invalid::new(path, text));
    }

    pub(super) fn warn(&mut self, path: &str, text: impl std::fmt::Display) {
        self.warnings.push(format!("{path}: {text}"));
    }

    /// Whether nothing is wrong so far with any of these settings; a faulty one still has its default, which proves nothing.
    pub(super) fn sound(&self, paths: &[&str]) -> bool {
        !self.faults.iter().any(|f| paths.iter().any(|p| f.path == *p))
    }

    /// A fault at `path`, unless one of the settings it compares is faulty itself.
    fn conflict(&mut self, wrong: bool, paths: &[&str], text: impl FnOnce() -> String) {
        if let (true, true, Some(path)) = (wrong, self.sound(paths), paths.first()) {
            self.fault(*path, text());
        }
    }

    fn hangar(&mut self, raw: &Raw) -> Option<Hangar> {
        let h = &raw.hangar;
        let Some(url) = h.url.clone() else {
            if self.sound(&["", "hangar", "hangar.url", "--hangar.url"]) {
                let both = "missing; give it in a file (--config.file FILE) or on the command line (--hangar.url http://127.0.0.1:8000)";
                self.fault("hangar.url", both);
            }
            return None;
        };
        self.conflict(h.peers.contains(&url), &["hangar.peers", "hangar.url", "--hangar.url"], || {
            "names hangar.url itself; only the other replicas belong here".to_owned()
        });
        let others = h.instances.get() as usize - 1;
        self.conflict(h.peers.len() > others, &["hangar.peers", "hangar.instances"], || {
            format!("lists {} other replicas; by hangar.instances ({}) there are {others}", h.peers.len(), h.instances)
        });
        let instance = h.instance.clone().unwrap_or_else(|| host_and_port(&url));
        if Name::parse_text(&instance).is_err() {
            self.fault("hangar.instance", "the host of hangar.url does not do as a name; give one");
        }
        Some(Hangar {
            url,
            instance,
            api_key: h.api_key_file.clone(),
            log_file: h.log_file.clone(),
            log_journal: h.log_journal.clone(),
            events: h.events,
            poll_interval: h.poll_interval,
            request_timeout: h.request_timeout,
            start_timeout: h.start_timeout,
            max_body: h.max_body,
            stale_after_polls: h.stale_after_polls,
            config_file: h.config_file.clone(),
            instances: h.instances,
            peers: h.peers.clone(),
        })
    }

    /// The rungs in rank order; `None` when one of them is faulty.
    fn rungs(&mut self, raw: Vec<RawRung>) -> Option<Vec<RungLimits>> {
        let before = self.faults.len();
        if raw.is_empty() && self.sound(&["policy.rungs"]) {
            self.fault("policy.rungs", "lists no rung; to only watch, set policy.mode to observe");
        }
        let mut rungs: Vec<RungLimits> = Vec::new();
        let mut first_named: BTreeMap<Rung, usize> = BTreeMap::new();
        for (i, rung) in raw.into_iter().enumerate() {
            let (entry, path) = (format!("policy.rungs[{i}]"), format!("policy.rungs[{i}].action"));
            let Some(action) = rung.action else {
                if self.sound(&[&entry, &path]) {
                    self.fault(path, "missing; every entry names its action");
                }
                continue;
            };
            let first = *first_named.entry(action).or_insert(i);
            if first != i {
                self.fault(path, format!("{action} is named twice, first in policy.rungs[{first}]"));
            }
            rungs.push(limits(action, &rung));
        }
        if self.faults.len() > before {
            return None;
        }
        if !rungs.is_sorted_by_key(|r| r.action) {
            self.warn("policy.rungs", "not in rank order; they are climbed from the narrowest to the broadest all the same");
            rungs.sort_by_key(|r| r.action);
        }
        if !rungs.iter().any(|r| r.action == Rung::SessionReconnect) {
            self.warn("policy.rungs", "session_reconnect is off: no dead server is started");
        }
        Some(rungs)
    }

    /// Times and counts that contradict each other.
    fn times(&mut self, raw: &Raw) {
        let (h, p) = (&raw.hangar, &raw.policy);
        self.conflict(p.settle > p.flap_window, &["policy.settle", "policy.flap_window"], || {
            format!("{} is longer than policy.flap_window ({})", show_duration(p.settle), show_duration(p.flap_window))
        });
        let backwards = !p.exhausted_retry.is_zero() && p.exhausted_retry > p.exhausted_retry_max;
        self.conflict(backwards, &["policy.exhausted_retry", "policy.exhausted_retry_max"], || {
            format!(
                "{} is longer than policy.exhausted_retry_max ({})",
                show_duration(p.exhausted_retry),
                show_duration(p.exhausted_retry_max)
            )
        });
        self.conflict(p.neighbour_wait > p.storm.window, &["policy.neighbour_wait", "policy.storm.window"], || {
            format!("{} is longer than policy.storm.window ({})", show_duration(p.neighbour_wait), show_duration(p.storm.window))
        });
        self.conflict(p.budgets.in_flight > p.budgets.actions, &["policy.budgets.in_flight", "policy.budgets.actions"], || {
            format!("{} is more than policy.budgets.actions ({})", p.budgets.in_flight, p.budgets.actions)
        });
        let stale = h.poll_interval.saturating_mul(i32::try_from(h.stale_after_polls.get()).unwrap_or(i32::MAX));
        self.conflict(stale > STALE_MAX, &["hangar.stale_after_polls", "hangar.poll_interval"], || {
            format!(
                "{} polls of {} are {}: servers would count as alive for that long after Hangar was last read; at most {}",
                h.stale_after_polls,
                show_duration(h.poll_interval),
                show_duration(stale),
                show_duration(STALE_MAX)
            )
        });
        self.retention(raw);
    }

    /// Budgets are counted in the records: none may be cut while it still counts.
    fn retention(&mut self, raw: &Raw) {
        let (kept, p) = (raw.storage.retention, &raw.policy);
        let per_rung = p.budgets.rungs.iter().map(|r| r.window).max().unwrap_or(SignedDuration::ZERO);
        let windows = [
            ("policy.budgets.starts_window", p.budgets.starts_window),
            ("policy.budgets.per_rung", per_rung),
            ("policy.exhausted_retry_max", p.exhausted_retry_max),
            ("policy.not_seen_healthy_after", p.not_seen_healthy_after),
        ];
        for (path, window) in windows {
            self.conflict(window > kept, &["storage.retention", path], || {
                format!("{} is shorter than {path} ({})", show_duration(kept), show_duration(window))
            });
        }
    }

    /// What the file system says about the paths, now.
    fn paths(&mut self, raw: &Raw) {
        if let Some(secret) = &raw.hangar.api_key_file {
            match secret.read() {
                Err(e) => self.fault("hangar.api_key_file", e.explained()),
                Ok(_) if secret.world_readable() => {
                    self.warn("hangar.api_key_file", "the secret file can be read by every user of this machine");
                }
                Ok(_) => (),
            }
        }
        if let Some(log) = &raw.hangar.log_file {
            match fs::metadata(log) {
                Ok(found) if found.is_dir() => self.fault("hangar.log_file", format!("{} is a directory", log.display())),
                Ok(_) => (),
                Err(e) => self.warn("hangar.log_file", format_args!("{} cannot be read yet: {e}", log.display())),
            }
        }
        let both = raw.hangar.log_file.is_some() && raw.hangar.log_journal.is_some();
        self.conflict(both, &["hangar.log_journal", "hangar.log_file"], || "not together with hangar.log_file: one log is read".to_owned());
        for (section, access) in
            [("prometheus.http", &raw.prometheus.http), ("alertmanager.http", &raw.alertmanager.http), ("web.webhook", &raw.web.webhook)]
        {
            for (key, text) in access.faults() {
                self.fault(format!("{section}.{key}"), text);
            }
        }
        for (key, text) in raw.storage.postgres.faults() {
            self.fault(format!("storage.postgres.{key}"), text);
        }
        if fs::metadata(&raw.storage.path).is_ok_and(|m| !m.is_dir()) {
            self.fault("storage.path", format!("{} is not a directory", raw.storage.path.display()));
        }
    }
}

/// Host and port as Prometheus' `instance` label has them.
fn host_and_port(url: &reqwest::Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The limits of an entry; what it leaves out is the default of its action.
fn limits(action: Rung, raw: &RawRung) -> RungLimits {
    let known = Policy::default().rung(action).cloned();
    let default = known.unwrap_or(RungLimits { action, attempts_max: std::num::NonZeroU8::MIN, pause: SignedDuration::from_secs(5) });
    RungLimits { action, attempts_max: raw.attempts_max.unwrap_or(default.attempts_max), pause: raw.pause.unwrap_or(default.pause) }
}

/// Warnings of a valid configuration.
fn doubts(config: &Config) -> Vec<String> {
    let list = hangar_doubts(config).into_iter().chain(policy_doubts(config));
    let list = list.chain(who::doubts(config)).chain(platform::doubts(config)).chain(servers::doubts(config));
    list.filter(|(doubtful, ..)| *doubtful).map(|(_, path, text)| format!("{path}: {text}")).collect()
}

/// Whether it is doubtful, the setting, and why.
pub(super) type Doubt = (bool, &'static str, String);

/// The URL names this machine.
pub(super) fn on_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn hangar_doubts(config: &Config) -> [Doubt; 7] {
    let Config { hangar: h, .. } = config;
    let loopback = on_loopback(&h.url);
    let last_segment = h.url.path().trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let stale_after = show_duration(h.stale_after());
    [
        (
            matches!(last_segment, "metrics" | "api" | "mcp" | "health"),
            "hangar.url",
            format!("ends in /{last_segment}; give Hangar's own address, the rest is added"),
        ),
        (
            h.api_key.is_some() && h.url.scheme() == "http" && !loopback,
            "hangar.url",
            "the API key travels unencrypted to another machine; use https".to_owned(),
        ),
        (
            h.api_key.is_some() && h.peers.iter().any(|peer| peer.scheme() == "http" && !on_loopback(peer)),
            "hangar.peers",
            "the API key travels unencrypted to another machine; use https".to_owned(),
        ),
        (
            h.stale_after() < h.request_timeout,
            "hangar.request_timeout",
            format!("longer than {stale_after} (poll_interval x stale_after_polls): one slow answer makes everything unknown"),
        ),
        (
            h.start_timeout < SignedDuration::from_secs(30),
            "hangar.start_timeout",
            "below 30s, which Hangar gives a hung upstream: a start cut off earlier may still have happened".to_owned(),
        ),
        (
            h.events == Events::On && h.reads_log(),
            "hangar.events",
            "an open event stream makes Hangar exit 1 on SIGTERM, and the log tells more".to_owned(),
        ),
        (
            config.storage.postgres.open_to_others(),
            "storage.postgres",
            "on another machine without sslmode=verify-full: somebody in between could answer in its place".to_owned(),
        ),
    ]
}

fn policy_doubts(config: &Config) -> [Doubt; 6] {
    let Config { hangar: h, policy: p, .. } = config;
    let acting = p.rungs.iter().filter(|r| !r.action.only_looks());
    let starts: u32 = acting.map(|r| u32::from(r.attempts_max.get())).sum();
    let (poll, start) = (show_duration(h.poll_interval), show_duration(h.start_timeout));
    [
        (
            p.settle < h.poll_interval,
            "policy.settle",
            format!("shorter than hangar.poll_interval ({poll}): a recovery is proved by a single read"),
        ),
        (
            p.not_seen_healthy_after < SignedDuration::from_mins(2),
            "policy.not_seen_healthy_after",
            "below 2m: Hangar checks health every 60 s, so a healthy server may be restarted".to_owned(),
        ),
        (
            p.degraded_too_long_after < SignedDuration::from_mins(4),
            "policy.degraded_too_long_after",
            "below 4m: Hangar's own retries can take that long".to_owned(),
        ),
        (
            p.stuck_starting_after < h.start_timeout,
            "policy.stuck_starting_after",
            format!("shorter than hangar.start_timeout ({start}): a start of ours may be taken for a stuck one"),
        ),
        (
            p.budgets.starts_per_second.get() > 2,
            "policy.budgets.starts_per_second",
            "more than a fifth of Hangar's own bucket (10/s for all callers by default): users may be refused".to_owned(),
        ),
        (
            starts > p.budgets.starts_per_server.get(),
            "policy.budgets.starts_per_server",
            format!("the listed rungs make up to {starts} starts in one incident: the budget ends the climb before the ladder does"),
        ),
    ]
}
