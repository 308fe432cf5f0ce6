//! Which servers: patterns, what applies to some instead of the rest, and the maintenance windows.

use std::num::NonZeroU32;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value as Json, json};

use super::Config;
use super::place::Name;
use super::settings::Walk;
use super::validate::{Checks, Doubt};
use super::value::{Kind, Nullable, Required, Switch, Word, Words, count, duration, quoted, wrong_type};
use super::yaml::Node;
use crate::policy::{Maintenance, Mode, Pattern, Rung, RungBudget, ServerRule};

/// Entries of each list.
pub(super) const ENTRIES_MAX: usize = 1000;
/// The shortest and the longest that a window may be open.
const OPEN_MIN: SignedDuration = SignedDuration::from_mins(1);
const OPEN_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A name or pattern of server ids.
pub(super) struct Servers;

impl Kind for Servers {
    type Value = Pattern;

    fn parse(&self, node: &Node) -> Result<Pattern, String> {
        let Node::Text(text) = node else { return Err(wrong_type("a name or pattern such as \"db-*\"", node)) };
        text.parse().map_err(|why| format!("{} {why}", quoted(text)))
    }

    fn show(&self, value: &Pattern) -> Node {
        Node::text(value.to_string())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "pattern": "^[A-Za-z0-9_*?-]{1,128}$"})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

/// One entry of `policy.servers`.
#[derive(Default)]
pub(super) struct RawServerRule {
    servers: Option<Pattern>,
    enabled: Enabled,
    mode: Option<Mode>,
    rungs: Option<Vec<Rung>>,
    starts_per_server: Option<NonZeroU32>,
}

struct Enabled(bool);

impl Default for Enabled {
    fn default() -> Self {
        Self(true)
    }
}

impl From<&ServerRule> for RawServerRule {
    fn from(rule: &ServerRule) -> Self {
        let ServerRule { servers, enabled, mode, rungs, starts_per_server } = rule.clone();
        Self { servers: Some(servers), enabled: Enabled(enabled), mode, rungs, starts_per_server }
    }
}

pub(super) fn rule<W: Walk>(w: &mut W, r: &mut RawServerRule) {
    w.setting("match", &Required(Servers), &mut r.servers, "Which servers: a name, or a pattern with * and ?.");
    w.setting("enabled", &Switch, &mut r.enabled.0, "false: they are watched and left alone (hold opted_out).");
    w.setting("mode", &Nullable(Word(Mode::ALL)), &mut r.mode, "observe: only recorded what would be done. null: as policy.mode.");
    let doc = "Of the enabled rungs only these. null: all of them.";
    w.setting("rungs", &Nullable(Words(Rung::ALL)), &mut r.rungs, doc);
    let doc = "In place of budgets.starts_per_server. null: that one.";
    w.setting("starts_per_server", &Nullable(count(1, 100)), &mut r.starts_per_server, doc);
}

/// One entry of `policy.budgets.per_rung`.
#[derive(Default)]
pub(super) struct RawRungBudget {
    action: Option<Rung>,
    actions: Option<NonZeroU32>,
    window: Option<SignedDuration>,
}

impl From<&RungBudget> for RawRungBudget {
    fn from(budget: &RungBudget) -> Self {
        Self { action: Some(budget.action), actions: Some(budget.actions), window: Some(budget.window) }
    }
}

pub(super) fn rung_budget<W: Walk>(w: &mut W, b: &mut RawRungBudget) {
    w.setting("action", &Required(Word(Rung::ALL)), &mut b.action, "The action; one that only looks is not counted.");
    w.setting("actions", &Required(count(1, 10_000)), &mut b.actions, "Attempts of it over all servers within window.");
    let window = duration(SignedDuration::from_secs(1), SignedDuration::from_hours(7 * 24));
    w.setting("window", &Required(window), &mut b.window, "The window.");
}

/// Times at which others work on servers: nothing is begun then.
#[derive(Debug, Clone)]
pub struct Window {
    pub name: String,
    pub servers: Pattern,
    /// When it opens: five fields of cron.
    pub schedule: String,
    pub time_zone: String,
    /// How long it stays open.
    pub duration: SignedDuration,
    opens: cronexpr::Crontab,
}

impl PartialEq for Window {
    fn eq(&self, other: &Self) -> bool {
        let key = |w: &Self| (w.name.clone(), w.servers.clone(), w.schedule.clone(), w.time_zone.clone(), w.duration);
        key(self) == key(other)
    }
}

impl Window {
    /// The window, if it is open at this moment. It opens at the full minute, and closes `duration` later.
    #[must_use]
    pub fn open_at(&self, now: Timestamp) -> Option<Maintenance> {
        let opening = |after: Timestamp| {
            let next = self.opens.find_next(cronexpr::MakeTimestamp::from_second(after.as_second()).ok()?).ok()?;
            Timestamp::from_second(next.timestamp().as_second()).ok()
        };
        // To the second: an opening at this very second counts, one that closes at this very second does not.
        let first = opening(now.checked_sub(self.duration).ok()?)?;
        let until = first.checked_add(self.duration).ok()?;
        let open = first <= now && now < until;
        open.then(|| Maintenance { name: self.name.clone(), servers: self.servers.clone(), until })
    }
}

/// One entry of `policy.maintenance`.
#[derive(Default)]
pub(super) struct RawWindow {
    name: Option<String>,
    schedule: Option<String>,
    time_zone: Zone,
    duration: Option<SignedDuration>,
    servers: All,
}

struct Zone(String);

impl Default for Zone {
    fn default() -> Self {
        Self("UTC".to_owned())
    }
}

struct All(Pattern);

impl Default for All {
    fn default() -> Self {
        Self(Pattern::all())
    }
}

impl From<&Window> for RawWindow {
    fn from(window: &Window) -> Self {
        let Window { name, servers, schedule, time_zone, duration, .. } = window.clone();
        Self { name: Some(name), schedule: Some(schedule), time_zone: Zone(time_zone), duration: Some(duration), servers: All(servers) }
    }
}

/// The five fields of cron: judged together with the time zone, by `Checks::maintenance`.
struct Cron;

impl Kind for Cron {
    type Value = String;

    fn parse(&self, node: &Node) -> Result<String, String> {
        let Node::Text(text) = node else { return Err(wrong_type("a cron schedule such as \"0 3 * * SUN\"", node)) };
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let plain = text.len() <= 200 && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        if fields.len() == 5 && plain {
            return Ok(fields.join(" "));
        }
        Err(format!("{} has not the five fields of cron: minute, hour, day of month, month, day of week", quoted(text)))
    }

    fn show(&self, value: &String) -> Node {
        Node::text(value.as_str())
    }

    fn schema(&self) -> Json {
        json!({"type": "string", "minLength": 9, "maxLength": 200})
    }

    fn hint(&self) -> String {
        String::new()
    }
}

pub(super) fn window<W: Walk>(w: &mut W, raw: &mut RawWindow) {
    w.setting("name", &Required(Name), &mut raw.name, "What it is called on the page and in the hold's words.");
    let doc = "When it opens: minute, hour, day of month, month, day of week, as cron has them.";
    w.setting("schedule", &Required(Cron), &mut raw.schedule, doc);
    w.setting("time_zone", &Name, &mut raw.time_zone.0, "The time zone of the schedule by its IANA name, such as Europe/Berlin.");
    w.setting("duration", &Required(duration(OPEN_MIN, OPEN_MAX)), &mut raw.duration, "How long it stays open.");
    w.setting("match", &Servers, &mut raw.servers.0, "Which servers: a name, or a pattern with * and ?.");
}

impl Checks {
    pub(super) fn server_rules(&mut self, raw: Vec<RawServerRule>) -> Vec<ServerRule> {
        let mut rules: Vec<ServerRule> = Vec::new();
        for (i, raw) in raw.into_iter().enumerate() {
            let entry = format!("policy.servers[{i}]");
            let RawServerRule { servers, enabled, mode, rungs, starts_per_server } = raw;
            let Some(servers) = servers else {
                self.missing(&entry, &[("match", false)]);
                continue;
            };
            if let Some(first) = rules.iter().position(|r| r.servers == servers) {
                self.fault(format!("{entry}.match"), format!("{servers} is named twice, first in policy.servers[{first}]"));
            } else if let Some(first) = rules.iter().position(|r| r.servers == Pattern::all()) {
                self.warn(&entry, format_args!("never reached: policy.servers[{first}] matches every server"));
            }
            rules.push(ServerRule { servers, enabled: enabled.0, mode, rungs, starts_per_server });
        }
        rules
    }

    pub(super) fn rung_budgets(&mut self, raw: Vec<RawRungBudget>) -> Vec<RungBudget> {
        let mut budgets: Vec<RungBudget> = Vec::new();
        for (i, raw) in raw.into_iter().enumerate() {
            let entry = format!("policy.budgets.per_rung[{i}]");
            let (Some(action), Some(actions), Some(window)) = (raw.action, raw.actions, raw.window) else {
                let given = [("action", raw.action.is_some()), ("actions", raw.actions.is_some()), ("window", raw.window.is_some())];
                self.missing(&entry, &given);
                continue;
            };
            if let Some(first) = budgets.iter().position(|b| b.action == action) {
                self.fault(format!("{entry}.action"), format!("{action} is named twice, first in policy.budgets.per_rung[{first}]"));
            }
            if action.only_looks() {
                self.fault(format!("{entry}.action"), format!("{action} only looks: it is in no budget"));
            }
            budgets.push(RungBudget { action, actions, window });
        }
        budgets
    }

    pub(super) fn maintenance(&mut self, raw: Vec<RawWindow>) -> Vec<Window> {
        let mut windows = Vec::new();
        for (i, raw) in raw.into_iter().enumerate() {
            let entry = format!("policy.maintenance[{i}]");
            let given = [("name", raw.name.is_some()), ("schedule", raw.schedule.is_some()), ("duration", raw.duration.is_some())];
            let time_zone = raw.time_zone.0;
            let zone = cronexpr::parse_crontab(&format!("* * * * * {time_zone}"));
            if zone.is_err() {
                let why = format!("{} is no time zone that this machine knows (IANA name, such as Europe/Berlin)", quoted(&time_zone));
                self.fault(format!("{entry}.time_zone"), why);
            }
            let (Some(name), Some(schedule), Some(duration)) = (raw.name, raw.schedule, raw.duration) else {
                self.missing(&entry, &given);
                continue;
            };
            match cronexpr::parse_crontab(&format!("{schedule} UTC")) {
                Err(error) => self.fault(format!("{entry}.schedule"), format!("{}: {}", quoted(&schedule), told(&error))),
                Ok(opens) if opens.find_next("2024-01-01T00:00:00Z").is_err() => {
                    self.fault(format!("{entry}.schedule"), format!("{} never comes", quoted(&schedule)));
                }
                Ok(_) => {}
            }
            if let Ok(opens) = cronexpr::parse_crontab(&format!("{schedule} {time_zone}")) {
                windows.push(Window { name, servers: raw.servers.0, schedule, time_zone, duration, opens });
            }
        }
        windows
    }
}

/// The library's reason alone, without its drawing of the place.
fn told(error: &cronexpr::Error) -> String {
    let text = error.to_string();
    let reason = text.rsplit_once("^ ").map_or(text.as_str(), |(_, reason)| reason);
    super::yaml::one_line(reason)
}

/// Warnings about rules that say less than they seem to.
pub(super) fn doubts(config: &Config) -> Vec<Doubt> {
    let policy = &config.policy;
    let off = |rung: &&Rung| policy.rung(**rung).is_none();
    let of_rule = |rule: &ServerRule| {
        let rungs: Vec<String> = rule.rungs.iter().flatten().filter(off).map(ToString::to_string).collect();
        let text = format!("match {}: {} is not in policy.rungs, so it stays off", rule.servers, rungs.join(", "));
        (!rungs.is_empty(), "policy.servers", text)
    };
    policy.servers.iter().map(of_rule).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{flags, valid};
    use super::super::{parse, render};

    fn faults(policy: &str) -> Vec<String> {
        let found = parse(format!("policy: {policy}").as_bytes(), &flags());
        found.expect_err(policy).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_fault_of_rules_budgets_and_windows_is_named() {
        let check = |policy: &str, wants: &[&str]| {
            let found = faults(policy);
            assert!(found.len() == wants.len() && found.iter().zip(wants).all(|(f, w)| f.starts_with(w)), "{policy}: {found:#?}");
        };
        check("{servers: [{enabled: false}]}", &["policy.servers[0].match: missing"]);
        check("{servers: [{match: 'a b'}]}", &["policy.servers[0].match: \"a b\" is no name or pattern"]);
        check("{servers: [{match: a}, {match: a}]}", &["policy.servers[1].match: a is named twice"]);
        check("{servers: [{match: a, mode: watch}]}", &["policy.servers[0].mode: \"watch\" is not known"]);
        check(
            "{budgets: {per_rung: [{action: client_reconnect, actions: 1, window: 1h}]}}",
            &["policy.budgets.per_rung[0].action: client_reconnect only looks"],
        );
        check(
            "{budgets: {per_rung: [{action: worker_restart}]}}",
            &["policy.budgets.per_rung[0].actions: missing", "policy.budgets.per_rung[0].window: missing"],
        );
        let window = |more: &str| format!("{{maintenance: [{{name: n, duration: 1h, {more}}}]}}");
        check(&window("schedule: '0 3 * *'"), &["policy.maintenance[0].schedule: \"0 3 * *\" has not the five fields"]);
        check(&window("schedule: '61 3 * * *'"), &["policy.maintenance[0].schedule: \"61 3 * * *\": "]);
        check(&window("schedule: '0 3 30 2 *'"), &["policy.maintenance[0].schedule: \"0 3 30 2 *\" never comes"]);
        check(&window("schedule: '0 3 * * *', time_zone: Europe/Nowhere"), &["policy.maintenance[0].time_zone: \"Europe/Nowhere\""]);
        check(
            "{maintenance: [{schedule: '0 3 * * *', duration: 8d}]}",
            &["policy.maintenance[0].duration: 8d is out of bounds", "policy.maintenance[0].name: missing"],
        );
    }

    #[test]
    fn rules_budgets_and_windows_are_shown_as_they_were_written() {
        let config = valid(
            "policy:\n  servers: [{match: 'db-*', enabled: false}, {match: x, mode: observe, rungs: [client_reconnect]}]\n  \
             maintenance: [{name: patching, schedule: '0 3 * * SUN', time_zone: Europe/Berlin, duration: 2h, match: 'db-*'}]\n  \
             budgets: {per_rung: [{action: worker_restart, actions: 3, window: 1h}]}",
        );
        assert_eq!(parse(render(&config).as_bytes(), &flags()).unwrap(), config);
        assert_eq!((config.policy.servers.len(), config.maintenance.len(), config.policy.budgets.rungs.len()), (2, 1, 1));
        let doubtful = valid("policy: {rungs: [{action: session_reconnect}], servers: [{match: x, rungs: [worker_restart]}, {match: y}]}");
        assert!(doubtful.warnings.iter().any(|w| w.contains("worker_restart is not in policy.rungs")), "{:?}", doubtful.warnings);
        let hidden = valid("policy: {servers: [{match: '*'}, {match: y}]}");
        assert_eq!(hidden.warnings, ["policy.servers[1]: never reached: policy.servers[0] matches every server"]);
    }

    #[test]
    fn a_window_is_open_from_its_minute_for_its_duration_by_the_clock_on_the_wall_there() {
        let open = |schedule: &str, zone: &str, duration: &str, at: &str| {
            let yaml = format!("policy: {{maintenance: [{{name: n, schedule: '{schedule}', time_zone: {zone}, duration: {duration}}}]}}");
            valid(&yaml).maintenance[0].open_at(at.parse().unwrap()).map(|m| m.until.to_string())
        };
        let sunday = |at: &str| open("0 3 * * SUN", "UTC", "2h", at);
        // 2026-11-29 is a Sunday.
        assert_eq!(sunday("2026-11-29T02:59:59Z"), None);
        assert_eq!(sunday("2026-11-29T03:00:00Z").as_deref(), Some("2026-11-29T05:00:00Z"));
        assert_eq!(sunday("2026-11-29T04:59:59.9Z").as_deref(), Some("2026-11-29T05:00:00Z"));
        assert_eq!(sunday("2026-11-29T05:00:00Z"), None);
        assert_eq!(sunday("2026-11-30T03:30:00Z"), None);
        // The same hour on the wall is another one in summer.
        let berlin = |at: &str| open("0 3 * * *", "Europe/Berlin", "1h", at).is_some();
        assert_eq!([berlin("2026-01-15T02:30:00Z"), berlin("2026-01-15T01:30:00Z")], [true, false]);
        assert_eq!([berlin("2026-07-15T02:30:00Z"), berlin("2026-07-15T01:30:00Z")], [false, true]);
        // Over midnight, and longer than its own pause: always open.
        assert!(open("0 23 * * *", "UTC", "3h", "2026-11-30T01:59:00Z").is_some());
        assert!(open("0 * * * *", "UTC", "90m", "2026-11-30T01:59:59Z").is_some());
    }
}
