//! The one table of everything that can be set: key, kind, bounds, and the reason in words.

use jiff::SignedDuration;

use super::access::RawTls;
use super::place::{FilePath, HttpUrl, HttpUrls, Listen, Name, SecretPath, Selector};
use super::platform;
use super::raw::{Raw, RawHangar, RawOwner, RawPrincipal, RawRole, RawRung};
use super::servers::{self, ENTRIES_MAX};
use super::value::{Duration, Kind, Nullable, Required, Share, Size, Switch, Word, Words, count, duration};
use super::{Alertmanager, Events, HttpAccess, Log, LogFormat, LogLevel, Postgres, Prometheus, Storage};
use crate::policy::{Budgets, Mode, Policy, Rung, StormLimits, Unasked};

/// Something that is done with every setting in turn: read it, write it, describe it.
pub(super) trait Walk {
    fn section(&mut self, key: &'static str, doc: &'static str, inside: impl FnOnce(&mut Self));
    fn setting<K: Kind>(&mut self, key: &'static str, kind: &K, value: &mut K::Value, doc: &'static str);
    fn list<T: Default>(
        &mut self,
        key: &'static str,
        bounds: (usize, usize),
        items: &mut Vec<T>,
        doc: &'static str,
        each: impl Fn(&mut Self, &mut T),
    );
}

const fn ms(n: i64) -> SignedDuration {
    SignedDuration::from_millis(n)
}

const fn secs(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

const fn mins(n: i64) -> SignedDuration {
    SignedDuration::from_mins(n)
}

const fn hours(n: i64) -> SignedDuration {
    SignedDuration::from_hours(n)
}

const fn days(n: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * n)
}

/// From a second to a day: what most waits of the policy may be.
const WAIT: Duration = duration(secs(1), days(1));

/// Replicas of one Hangar.
const INSTANCES_MAX: u32 = 100;

/// Visits every setting, in the order of the file.
pub(super) fn walk<W: Walk>(w: &mut W, raw: &mut Raw) {
    w.section("hangar", "The MCP Hangar that is watched and repaired.", |w| {
        hangar(w, &mut raw.hangar);
        hangar_fleet(w, &mut raw.hangar);
    });
    w.section("prometheus", "An optional second source; Hangar itself still confirms before every action.", |w| {
        prometheus(w, &mut raw.prometheus);
    });
    w.section(
        "alertmanager",
        "An optional Alertmanager: a silence on one of Hangar's alerts holds that server, since a person is at work.",
        |w| {
            alertmanager(w, &mut raw.alertmanager);
        },
    );
    w.section("storage", "The attempt log: every attempt is on disk before it is made.", |w| storage(w, &mut raw.storage));
    w.section("web", "The daemon's own metrics, health, API and webhook.", |w| {
        let doc = "IP address and port to listen on. Loopback, unless somebody else must read it.";
        w.setting("listen_address", &Listen, &mut raw.web.listen_address, doc);
        let doc = "true: listen_address may be off loopback, and whoever reaches it may read. Changes need a principal all the same.";
        w.setting("unsafe_no_auth", &Switch, &mut raw.web.unsafe_no_auth, doc);
        let doc = "Who may ask for changes (break-glass, restart requests, resume), each with its role in matrix.roles and a file \
                   that holds its bearer token, read again when it changes, or the name on its client certificate: \
                   [{name: alice, role: operator, token_file: /etc/hangar-medic/alice.token}]. None: every such route answers 403.";
        w.list("principals", (0, 64), &mut raw.web.principals, doc, principal);
        let doc = "What Alertmanager must show to POST /api/v1/alertmanager (its http_config). None: nothing; it only wakes.";
        w.section("webhook", doc, |w| {
            HttpAccess::walk_credentials(w, &mut raw.web.webhook);
            let doc = "Or: the common name or alternative name of a client certificate (web.tls.client_ca_file).";
            w.setting("certificate", &Nullable(Name), &mut raw.web.webhook_certificate, doc);
        });
        let doc = "TLS 1.2 or 1.3 on listen_address; the files are read again when they change.";
        w.section("tls", doc, |w| RawTls::walk(w, &mut raw.web.tls));
    });
    w.section("reload", "Taking over a changed file: all of it or nothing. Also on SIGHUP and POST /-/reload.", |w| {
        let doc = "How often the file is looked at; one that changed is read once it stays the same for that long. 0s: never.";
        w.setting("watch_interval", &duration(ms(100), hours(1)).or_zero(), &mut raw.reload.watch_interval, doc);
    });
    w.section("log", "The daemon's own log, on stderr.", |w| log(w, &mut raw.log));
    w.section("matrix", "The class matrix: which role may do which action. Nothing lifts it, break-glass included.", |w| {
        let doc = "One entry a role. A role that is not listed may do nothing. sidecar is the daemon's own and nobody else's.";
        w.list("roles", (1, 64), &mut raw.roles.0, doc, role);
    });
    w.section("requests", "Restart requests (POST /api/v1/restart-requests).", |w| {
        let doc = "true: an allowed request becomes a step, judged again when its turn comes. false: recorded and reported only.";
        w.setting("act", &Switch, &mut raw.policy.requests_act, doc);
    });
    w.section("policy", "What may be done, in which order, and how much of it.", |w| {
        w.setting("mode", &Word(Mode::ALL), &mut raw.policy.mode, "observe plans and records what it would do; act does it.");
        let doc = "The enabled rungs of the ladder, from the narrowest action to the broadest. One that is not listed is off.";
        w.list("rungs", (1, Rung::ALL.len()), &mut raw.rungs.0, doc, rung);
        policy(w, &mut raw.policy);
        let doc = "What applies to some servers instead; the first entry that matches a server counts, alone: \
                   [{match: \"db-*\", enabled: false}, {match: legacy, mode: observe}].";
        w.list("servers", (0, ENTRIES_MAX), &mut raw.servers, doc, servers::rule);
        let doc = "Times at which others work on servers; nothing is begun then (hold maintenance): \
                   [{name: patching, schedule: \"0 3 * * SUN\", time_zone: Europe/Berlin, duration: 2h, match: \"db-*\"}].";
        w.list("maintenance", (0, ENTRIES_MAX), &mut raw.maintenance, doc, servers::window);
        w.section("budgets", "Sliding windows that no incident can climb over. Rungs 0 and 1 only look and do not count.", |w| {
            budgets(w, &mut raw.policy.budgets);
            let doc = "How often one action may be done over all servers. By default each broad one once an hour.";
            w.list("per_rung", (0, Rung::ALL.len()), &mut raw.rung_budgets.0, doc, servers::rung_budget);
        });
        w.section("storm", "Many dead at once have one cause: one server goes first, the rest wait for its proof.", |w| {
            storm(w, &mut raw.policy.storm);
        });
        let doc = "Whom to tell about which servers: the owner label of server_info, for Alertmanager's routes; the first entry that fits \
                   counts: [{servers: pay-*, owner: payments}, {servers: \"*\", owner: platform}].";
        w.list("owners", (0, 1000), &mut raw.owners, doc, owner);
    });
    let doc = "What rungs 6 to 10 act with, behind the same gate as everything. Nothing here: they are off. A process is never killed.";
    w.section("platform", doc, |w| platform::walk(w, &mut raw.platform));
}

fn hangar_fleet<W: Walk>(w: &mut W, h: &mut RawHangar) {
    let doc = "Hangar's own configuration file as this process sees it: configuration_reload looks at it first. null: that rung is off.";
    w.setting("config_file", &Nullable(FilePath), &mut h.config_file, doc);
    let doc = "Replicas of this Hangar. From 2 on whatever touches a whole replica takes a lock that they share.";
    w.setting("instances", &count(1, INSTANCES_MAX), &mut h.instances, doc);
    let doc = "The other replicas' own addresses, no balancer's, reached with the same key and TLS as url: lease_recovery asks each who \
               holds the management lease. One that is not listed, or does not answer, may hold it.";
    w.setting("peers", &HttpUrls { max: INSTANCES_MAX as usize - 1 }, &mut h.peers, doc);
}

fn hangar<W: Walk>(w: &mut W, h: &mut RawHangar) {
    w.setting(
        "url",
        &Nullable(HttpUrl),
        &mut h.url,
        "Hangar's address, http or https; a proxy's base path is kept. Needed here or as --hangar.url.",
    );
    let doc = "Stable name in records and labels; null: host:port of the URL. Equals Prometheus' instance label.";
    w.setting("instance", &Nullable(Name), &mut h.instance, doc);
    let doc = "File with an API key that may read and start servers; read again when it changes. null: Hangar asks for none.";
    w.setting("api_key_file", &Nullable(SecretPath), &mut h.api_key_file, doc);
    let doc = "Hangar's --log-file (JSON lines): tells why a server died where REST cannot. null: not read.";
    w.setting("log_file", &Nullable(FilePath), &mut h.log_file, doc);
    let doc = "Instead of log_file: the systemd unit whose journal holds Hangar's log (mcp-hangar.service); journalctl must be on \
               PATH, and the daemon in the group systemd-journal.";
    w.setting("log_journal", &Nullable(Name), &mut h.log_journal, doc);
    let doc = "Hangar's event stream and, on its machine, the ends of its processes. auto: only where no log is read, since an open \
               stream makes Hangar exit 1 on SIGTERM.";
    w.setting("events", &Word(Events::ALL), &mut h.events, doc);
    let doc = "Pause between two reads of /metrics; a death is seen this late at most.";
    w.setting("poll_interval", &duration(ms(100), mins(5)), &mut h.poll_interval, doc);
    w.setting("request_timeout", &duration(ms(100), mins(2)), &mut h.request_timeout, "Bound of one read.");
    let doc = "Bound of one start. Hangar gives a hung upstream up to 30 s; after the bound the start may still have happened.";
    w.setting("start_timeout", &duration(secs(1), mins(10)), &mut h.start_timeout, doc);
    let doc = "Largest answer that is read. Hangar exports about 3 kB a server: 10,000 servers are 30 MB.";
    w.setting("max_body", &Size { min: 1024, max: 1 << 30 }, &mut h.max_body, doc);
    let doc = "Polls without an answer until what was read counts as unknown: nothing is opened, closed or started on it.";
    w.setting("stale_after_polls", &count(2, 100), &mut h.stale_after_polls, doc);
}

fn prometheus<W: Walk>(w: &mut W, p: &mut Prometheus) {
    w.setting("url", &Nullable(HttpUrl), &mut p.url, "Prometheus' address. null: the source is off.");
    let doc = "More label matchers for every query, e.g. job=\"hangar\",cluster=\"eu\". instance is always one of them.";
    w.setting("selector", &Nullable(Selector), &mut p.selector, doc);
    w.setting(
        "poll_interval",
        &duration(ms(100), mins(10)),
        &mut p.poll_interval,
        "Pause between two queries; its scrapes are no fresher.",
    );
    w.setting("timeout", &duration(ms(100), mins(2)), &mut p.timeout, "Bound of one query.");
    w.section("http", "How Prometheus lets us in.", |w| HttpAccess::walk(w, &mut p.http));
}

fn alertmanager<W: Walk>(w: &mut W, a: &mut Alertmanager) {
    w.setting("url", &Nullable(HttpUrl), &mut a.url, "Alertmanager's address. null: nobody is asked.");
    let doc = "Pause between two reads of its silences.";
    w.setting("poll_interval", &duration(ms(100), mins(10)), &mut a.poll_interval, doc);
    w.setting("timeout", &duration(ms(100), mins(2)), &mut a.timeout, "Bound of one read.");
    let doc = "While it cannot be asked: narrow does rungs 0 to 2 only, act everything, hold nothing but looking.";
    w.setting("on_unreachable", &Word(Unasked::ALL), &mut a.on_unreachable, doc);
    w.section("http", "How Alertmanager lets us in.", |w| HttpAccess::walk(w, &mut a.http));
}

fn storage<W: Walk>(w: &mut W, s: &mut Storage) {
    w.setting("path", &FilePath, &mut s.path, "Directory of medic.db; made when it is missing. Keep it across restarts.");
    w.section("postgres", "A PostgreSQL server that the medics of several replicas share, instead of medic.db.", |w| {
        Postgres::walk(w, &mut s.postgres);
    });
    let doc = "How long records are kept. Budgets and hold orders are rebuilt from them, so never shorter than a day.";
    w.setting("retention", &duration(days(1), days(3650)), &mut s.retention, doc);
}

fn log<W: Walk>(w: &mut W, l: &mut Log) {
    w.setting("level", &Word(LogLevel::ALL), &mut l.level, "Least severe line that is written.");
    w.setting("format", &Word(LogFormat::ALL), &mut l.format, "pretty is for a terminal, the others for a log store.");
}

fn principal<W: Walk>(w: &mut W, p: &mut RawPrincipal) {
    w.setting("name", &Required(Name), &mut p.name, "Who it is, in records and logs.");
    w.setting("role", &Required(Name), &mut p.role, "Its role: a row of matrix.roles.");
    let doc = "File with its bearer token; a token itself is never a setting. This or certificate.";
    w.setting("token_file", &Nullable(SecretPath), &mut p.token_file, doc);
    let doc = "Common name or alternative name of its client certificate (web.tls.client_ca_file).";
    w.setting("certificate", &Nullable(Name), &mut p.certificate, doc);
}

fn role<W: Walk>(w: &mut W, r: &mut RawRole) {
    w.setting("role", &Required(Name), &mut r.role, "The role's name.");
    w.setting("permitted", &Required(Words(Rung::ALL)), &mut r.permitted, "The actions it may do; [] for none.");
}

fn rung<W: Walk>(w: &mut W, r: &mut RawRung) {
    w.setting("action", &Required(Word(Rung::ALL)), &mut r.action, "The action. `hangar-medic ladder` lists them all.");
    let doc = "Attempts of it in one incident before the next rung.";
    w.setting("attempts_max", &Nullable(count(1, 10)), &mut r.attempts_max, doc);
    let doc = "Pause after an attempt of it before the next one. None where an action only looks.";
    w.setting("pause", &Nullable(duration(SignedDuration::ZERO, hours(1))), &mut r.pause, doc);
}

fn owner<W: Walk>(w: &mut W, o: &mut RawOwner) {
    w.setting("servers", &Required(Name), &mut o.servers, "A server's name, or a pattern: * stands for any text.");
    w.setting("owner", &Required(Name), &mut o.owner, "The owner, as a label.");
}

fn policy<W: Walk>(w: &mut W, p: &mut Policy) {
    let doc = "A recovery must hold this long to be proved. An answer of 200 proves nothing.";
    w.setting("settle", &duration(ms(100), mins(10)), &mut p.settle, doc);
    let doc = "A death this soon after a recovery reopens the incident on the next rung: that recovery did not last.";
    w.setting("flap_window", &WAIT, &mut p.flap_window, doc);
    let doc = "Not cold and nothing healthy seen for this long: dead, whatever the state says. Hangar checks health every 60 s.";
    w.setting("not_seen_healthy_after", &duration(secs(1), days(7)), &mut p.not_seen_healthy_after, doc);
    let doc = "Degraded this long without a start attempt seen: Hangar's own retries (up to 4 min) are over.";
    w.setting("degraded_too_long_after", &WAIT, &mut p.degraded_too_long_after, doc);
    w.setting("stuck_starting_after", &WAIT, &mut p.stuck_starting_after, "Initializing this long: the start hangs.");
    let doc = "Seen dead at most this long before Hangar restarted: lost in the restart, not idle.";
    w.setting("lost_in_restart_within", &WAIT, &mut p.lost_in_restart_within, doc);
    let doc = "Hangar gone this soon after our start of a server: that start did it; the server is held until a person resumes it.";
    w.setting("took_hangar_down_within", &duration(secs(1), hours(1)), &mut p.took_hangar_down_within, doc);
    let doc = "First slow retry of an exhausted incident, so that an upstream that comes back needs nobody. 0s: never.";
    w.setting("exhausted_retry", &duration(secs(1), days(7)).or_zero(), &mut p.exhausted_retry, doc);
    let doc = "The slow retry doubles up to this.";
    w.setting("exhausted_retry_max", &duration(secs(1), days(7)), &mut p.exhausted_retry_max, doc);
    let doc = "An incident that opens this soon after another waits this long, so that a storm is seen before two are touched.";
    w.setting("neighbour_wait", &duration(SignedDuration::ZERO, mins(1)), &mut p.neighbour_wait, doc);
    let doc = "What Hangar's own group recovery (every 30 s) gets for one pass before a member is started.";
    w.setting("group_recovery_pass", &duration(SignedDuration::ZERO, mins(30)), &mut p.group_recovery_pass, doc);
    let doc = "How long an approval may be used. It ends earlier when the evidence changes, and with its one use.";
    w.setting("approval_lasts", &duration(secs(1), hours(24)), &mut p.approval_lasts, doc);
    let doc = "A started member still out of rotation this long after ready may need a rebalance.";
    w.setting("rejoin_after", &duration(SignedDuration::ZERO, mins(30)), &mut p.rejoin_after, doc);
}

fn budgets<W: Walk>(w: &mut W, b: &mut Budgets) {
    w.setting("starts_per_server", &count(1, 100), &mut b.starts_per_server, "Starts of ours of one server within starts_window.");
    w.setting("starts_window", &duration(secs(1), days(7)), &mut b.starts_window, "The window of starts_per_server.");
    w.setting("actions", &count(1, 10_000), &mut b.actions, "Acting attempts over all servers within actions_window.");
    w.setting("actions_window", &WAIT, &mut b.actions_window, "The window of actions.");
    w.setting("in_flight", &count(1, 64), &mut b.in_flight, "Attempts under way at once; one for each server at most.");
    let doc = "Starts sent to Hangar per second. Its own bucket is 10/s for all callers, users too.";
    w.setting("starts_per_second", &count(1, 10), &mut b.starts_per_second, doc);
}

fn storm<W: Walk>(w: &mut W, s: &mut StormLimits) {
    w.setting("servers", &count(1, 100_000), &mut s.servers, "A storm is at least this many deaths within window ...");
    w.setting("share", &Share, &mut s.share, "... and at least this share of the known servers.");
    w.setting("window", &duration(secs(1), hours(1)), &mut s.window, "The window of both.");
}
