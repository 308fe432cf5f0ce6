//! What the templates show, in words. Every list is bounded.

use std::cmp::Reverse;

use askama::Template;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::policy::{Auth, Hold, LadderDocument, Mode, Phase, Rung};
use crate::server::story::{Event, Kind, Story, standing};
use crate::server::views::{IncidentView, StatusView};

/// Cards on the overview.
const CARDS_MAX: usize = 100;
/// Servers named on one rung.
const RUNG_MAX: usize = 8;
/// Deliberate stops named.
const ORDERS_MAX: usize = 50;
/// Steps of one incident.
const EVENTS_MAX: usize = 200;
/// Characters of one value of the evidence, and of one step.
const TEXT_MAX: usize = 2000;

/// The frame of every page.
pub(super) struct Top {
    /// Relative way to `/`, so that a proxy's base path is kept.
    pub root: &'static str,
    pub instance: String,
    pub version: String,
    pub mode: String,
    pub now: String,
    pub refresh: Option<Refresh>,
    /// What was just done.
    pub done: Option<&'static str>,
}

/// The page's own reloading, and how to end or begin it.
pub(super) struct Refresh {
    pub says: &'static str,
    pub link: &'static str,
    pub href: String,
}

impl Refresh {
    fn new(on: bool, path: &str) -> Self {
        if on {
            Self { says: "looks again every 5 s", link: "stop", href: format!("{path}?refresh=off") }
        } else {
            Self { says: "stands still", link: "look again every 5 s", href: path.to_owned() }
        }
    }
}

impl Top {
    fn new(root: &'static str, status: &StatusView, now: Timestamp, refresh: Option<Refresh>) -> Self {
        Self {
            root,
            instance: status.instance.clone(),
            version: status.version.clone(),
            mode: status.mode.to_string(),
            now: clock(now),
            refresh,
            done: None,
        }
    }

    /// With word of what was just done.
    pub(super) fn after(self, done: Option<&'static str>) -> Self {
        Self { done, ..self }
    }

    /// Of a page that never reloads itself; `root` is its way to `/`.
    pub(super) fn form(root: &'static str, status: &StatusView, now: Timestamp) -> Self {
        Self::new(root, status, now, None)
    }

    /// Of `/`.
    pub(super) fn overview(status: &StatusView, now: Timestamp, refresh: bool) -> Self {
        Self::new("./", status, now, Some(Refresh::new(refresh, "./")))
    }

    /// Of a page one level below. `incident`: whether it reloads itself, and its id.
    pub(super) fn below(status: &StatusView, now: Timestamp, incident: Option<(bool, &str)>) -> Self {
        Self::new("../", status, now, incident.map(|(on, id)| Refresh::new(on, id)))
    }

    /// Before the daemon can be asked.
    pub(super) fn bare(now: Timestamp) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { root: "/", instance: String::new(), version, mode: "-".to_owned(), now: clock(now), refresh: None, done: None }
    }
}

#[derive(Template)]
#[template(path = "message.html", config = "src/server/page/askama.toml")]
pub(super) struct Message {
    pub top: Top,
    pub tone: &'static str,
    pub title: String,
    pub text: String,
}

#[derive(Template)]
#[template(path = "index.html", config = "src/server/page/askama.toml")]
pub(super) struct Index {
    top: Top,
    headline: String,
    tone: &'static str,
    detail: Vec<String>,
    groups: Vec<Group>,
    more: Option<String>,
    rungs: Vec<RungRow>,
    orders: Vec<Order>,
    orders_total: usize,
    pauses: Vec<String>,
    closed: Vec<Closed>,
}

struct Group {
    title: &'static str,
    tone: &'static str,
    cards: Vec<Card>,
}

struct Card {
    id: String,
    server: String,
    what: &'static str,
    since: String,
    standing: String,
    until: Option<String>,
    reason: &'static str,
    phase: &'static str,
    hold: Option<&'static str>,
    rung: Option<&'static str>,
}

struct RungRow {
    rank: u8,
    action: Rung,
    what: &'static str,
    on: bool,
    why_not: Option<&'static str>,
    servers: Vec<OnRung>,
    more: usize,
}

struct OnRung {
    id: String,
    name: String,
}

struct Order {
    id: String,
    server: String,
    why: &'static str,
    since: String,
}

struct Closed {
    id: String,
    server: String,
    how: &'static str,
    took: String,
}

/// How much an incident needs a person; the order of the groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    Person,
    Busy,
    Waiting,
}

impl Urgency {
    const ALL: [(Self, &'static str, &'static str); 3] =
        [(Self::Person, "Needs a person", "bad"), (Self::Busy, "The medic is at work", "busy"), (Self::Waiting, "The medic waits", "warn")];

    fn of(i: &IncidentView) -> Self {
        match i.phase {
            Phase::Exhausted => Self::Person,
            Phase::Held if i.hold.is_some_and(Hold::needs_person) => Self::Person,
            Phase::Acting | Phase::Settling => Self::Busy,
            Phase::Held | Phase::Watching | Phase::Closed => Self::Waiting,
        }
    }
}

impl Index {
    pub(super) fn new(
        status: &StatusView,
        ladder: &LadderDocument,
        open: &[Story],
        closed: &[IncidentView],
        top: Top,
        now: Timestamp,
    ) -> Self {
        let mut sorted: Vec<&Story> = open.iter().collect();
        sorted.sort_by_key(|s| (Urgency::of(&s.incident), s.incident.opened_at));
        let person = sorted.iter().filter(|s| Urgency::of(&s.incident) == Urgency::Person).count();
        let total = status.incidents_open.max(open.len());
        let shown: Vec<&Story> = sorted.iter().copied().take(CARDS_MAX).collect();
        let group = |(urgency, title, tone): (Urgency, &'static str, &'static str)| {
            let cards = shown.iter().filter(|s| Urgency::of(&s.incident) == urgency).map(|s| card(s, now)).collect();
            Group { title, tone, cards }
        };
        let (headline, tone, detail) = headline(status, total, person);
        let mut newest: Vec<&IncidentView> = closed.iter().collect();
        newest.sort_by_key(|i| Reverse(i.closed_at));
        Self {
            top,
            headline,
            tone,
            detail,
            groups: Urgency::ALL.into_iter().map(group).filter(|g| !g.cards.is_empty()).collect(),
            more: (total > shown.len()).then(|| more(total, shown.len())),
            rungs: ladder.rungs.iter().rev().map(|row| rung(row, &sorted)).collect(),
            orders: status.hold_orders.iter().take(ORDERS_MAX).map(|o| order(o, now)).collect(),
            orders_total: status.hold_orders.len(),
            pauses: status.pauses.iter().take(ORDERS_MAX).map(|p| pause(p, now)).collect(),
            closed: newest.into_iter().map(over).collect(),
        }
    }
}

fn more(total: usize, shown: usize) -> String {
    format!(
        "{} more are open and not shown here. `hangar-medic incidents list --state open` and /api/v1/incidents?state=open list them.",
        total - shown
    )
}

/// What is so, in one line; how bad it is; and what else there is to know.
fn headline(status: &StatusView, open: usize, person: usize) -> (String, &'static str, Vec<String>) {
    let mut detail = Vec::new();
    let hangar = &status.hangar;
    if hangar.auth == Auth::Refused {
        detail.push(format!("{} {}", Hold::AuthRefused.sentence(), Hold::AuthRefused.advice()));
    }
    if status.mode == Mode::Observe {
        detail.push(Hold::ObserveOnly.sentence().to_owned());
    }
    detail.extend(hangar.cannot_see.iter().map(|spot| format!("{spot}.")));
    if !status.ready {
        let text = format!("Hangar at {} was not read yet.", hangar.url);
        detail.insert(0, text);
        return ("The medic knows nothing yet".to_owned(), "warn", detail);
    }
    if !hangar.reachable {
        let since = hangar.last_read_at.map_or_else(String::new, |at| format!(" since {} UTC", clock(at)));
        detail.insert(0, format!("What is shown below is what was known before. Nothing is done until {} answers.", hangar.url));
        return (format!("Hangar cannot be read{since}"), "bad", detail);
    }
    let known = status.known_servers;
    match (open, person) {
        (0, _) if known == 0 => ("No server was ever started here".to_owned(), "good", detail),
        (0, _) => (format!("No server is dead, of {known} that are known"), "good", detail),
        (n, 0) => (format!("{n} of {known} {} not working; the medic is at it", are(n)), "warn", detail),
        (n, p) => {
            (format!("{n} of {known} {} not working, and {p} {} a person", are(n), if p == 1 { "needs" } else { "need" }), "bad", detail)
        }
    }
}

const fn are(n: usize) -> &'static str {
    if n == 1 { "server is" } else { "servers are" }
}

fn card(story: &Story, now: Timestamp) -> Card {
    let i = &story.incident;
    Card {
        id: i.incident_id.clone(),
        server: i.mcp_server.clone(),
        what: i.reason.sentence(),
        since: ago(i.opened_at, now),
        standing: cut(&standing(i)),
        until: until(i, now),
        reason: i.reason.as_str(),
        phase: i.phase.as_str(),
        hold: i.hold.map(Hold::as_str),
        rung: story.rung().map(Rung::as_str),
    }
}

/// When it goes on, where that is known.
fn until(i: &IncidentView, now: Timestamp) -> Option<String> {
    let at = i.hold_until.or(i.next_retry_at).filter(|at| *at > now)?;
    Some(format!("Next look in {}.", span(at.duration_since(now))))
}

fn rung(row: &crate::policy::LadderRow, open: &[&Story]) -> RungRow {
    let here: Vec<&&Story> = open.iter().filter(|s| s.rung() == Some(row.action)).collect();
    let named = here.iter().take(RUNG_MAX);
    RungRow {
        rank: row.rank,
        action: row.action,
        what: row.what,
        on: row.configured,
        why_not: row.why_not,
        servers: named.map(|s| OnRung { id: s.incident.incident_id.clone(), name: s.incident.mcp_server.clone() }).collect(),
        more: here.len().saturating_sub(RUNG_MAX),
    }
}

fn order(order: &crate::server::views::HoldOrderView, now: Timestamp) -> Order {
    Order { id: order.mcp_server.clone(), server: order.mcp_server.clone(), why: order.cause.sentence(), since: ago(order.since, now) }
}

fn pause(p: &crate::server::views::PauseView, now: Timestamp) -> String {
    let what = p.mcp_server.as_deref().unwrap_or("Everything");
    cut(&format!("{what} is paused by {} for {} more: {}", p.principal, span(p.until.duration_since(now)), p.reason))
}

fn over(i: &IncidentView) -> Closed {
    let took = i.closed_at.map_or_else(String::new, |at| format!("{} UTC, after {}", clock(at), span(at.duration_since(i.opened_at))));
    Closed { id: i.incident_id.clone(), server: i.mcp_server.clone(), how: i.how.map_or("", |h| h.sentence()), took }
}

#[derive(Template)]
#[template(path = "incident.html", config = "src/server/page/askama.toml")]
pub(super) struct IncidentPage {
    top: Top,
    id: String,
    server: String,
    phase: Phase,
    tone: &'static str,
    what: &'static str,
    standing: String,
    until: Option<String>,
    skipped: usize,
    events: Vec<Step>,
    said: Vec<String>,
    evidence: Vec<Row>,
    facts: Vec<Row>,
    /// Ways to the forms, each with its name.
    actions: Vec<(String, &'static str)>,
}

struct Step {
    at: Option<At>,
    kind: &'static str,
    text: String,
}

struct At {
    iso: String,
    clock: String,
}

pub(super) struct Row {
    pub name: String,
    pub value: String,
}

#[derive(Template)]
#[template(path = "form.html", config = "src/server/page/askama.toml")]
pub(super) struct FormPage {
    pub top: Top,
    pub title: String,
    pub text: &'static str,
    pub button: &'static str,
    pub fault: Option<String>,
    /// Why the form cannot be filled in now.
    pub not_now: Option<String>,
    pub hidden: Vec<Row>,
    pub rows: Vec<Row>,
    pub fields: Vec<Field>,
}

/// One field of a form.
pub(super) struct Field {
    pub name: &'static str,
    pub label: &'static str,
    pub kind: &'static str,
    pub value: String,
    pub max: u32,
}

impl Field {
    pub(super) fn text(name: &'static str, label: &'static str, value: &str) -> Self {
        Self { name, label, kind: "text", value: value.to_owned(), max: 500 }
    }

    /// Never filled in by us.
    pub(super) const fn secret(name: &'static str, label: &'static str) -> Self {
        Self { name, label, kind: "password", value: String::new(), max: 4096 }
    }
}

impl IncidentPage {
    /// `story` without upstream text.
    pub(super) fn new(story: &Story, top: Top, now: Timestamp) -> Self {
        let i = &story.incident;
        let events = story.events();
        let skipped = events.len().saturating_sub(EVENTS_MAX);
        let standing = match (i.closed_at, i.how) {
            (Some(_), Some(how)) => format!("{}{}", how.sentence(), i.why.as_deref().map_or_else(String::new, |why| format!(" ({why})"))),
            _ => standing(i),
        };
        let said = i.sources_disagree.iter().map(|s| format!("{}: {} ({})", s.provenance.source.sentence(), s.reason.sentence(), s.reason));
        Self {
            top,
            id: i.incident_id.clone(),
            server: i.mcp_server.clone(),
            phase: i.phase,
            tone: tone(i),
            what: i.reason.sentence(),
            standing: cut(&standing),
            until: until(i, now),
            skipped,
            // Where it stands is said above.
            events: events.into_iter().skip(skipped).filter(|e| e.kind != Kind::Now).map(|e| step(e, now)).collect(),
            said: said.collect(),
            evidence: i.evidence.iter().flatten().map(|(name, value)| evidence(name, value)).collect(),
            facts: facts(story, now),
            actions: actions(i),
        }
    }
}

/// What a person can do about an open incident.
fn actions(i: &IncidentView) -> Vec<(String, &'static str)> {
    if i.closed_at.is_some() {
        return Vec::new();
    }
    let mut actions = Vec::new();
    if i.approval.is_some() {
        actions.push((format!("{}/approve", i.incident_id), "Approve the next step"));
    }
    let stopped = matches!(i.hold, Some(Hold::StoppedDeliberately | Hold::Paused | Hold::ApprovalNeeded)) && i.approval.is_none();
    if stopped {
        actions.push((format!("../servers/{}/resume", i.mcp_server), "Resume this server"));
    } else {
        actions.push((format!("../servers/{}/hold", i.mcp_server), "Hold this server"));
    }
    actions
}

fn tone(i: &IncidentView) -> &'static str {
    if i.closed_at.is_some() {
        return "good";
    }
    Urgency::ALL.into_iter().find(|(urgency, ..)| *urgency == Urgency::of(i)).map_or("warn", |(_, _, tone)| tone)
}

fn step(event: Event, now: Timestamp) -> Step {
    let Event { at, kind, text } = event;
    let day = |at: Timestamp| at.strftime("%Y-%m-%d").to_string();
    let short = |at: Timestamp| if day(at) == day(now) { at.strftime("%H:%M:%S").to_string() } else { clock(at) };
    let at = at.map(|at| At { iso: iso(at), clock: short(at) });
    Step { at, kind: kind.as_str(), text: cut(&text) }
}

pub(super) fn evidence(name: &str, value: &Value) -> Row {
    let text = match value {
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join("\n"),
        Value::Null => "not known".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => plain(value),
    };
    let name = match name {
        "withheld" => "shown only with credentials".to_owned(),
        other => other.replace('_', " "),
    };
    Row { name, value: cut(&text) }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn facts(story: &Story, now: Timestamp) -> Vec<Row> {
    let i = &story.incident;
    let row = |name: &str, value: String| Row { name: name.to_owned(), value };
    let symptoms: Vec<&str> = i.symptoms.iter().map(|s| s.as_str()).collect();
    let mut rows = vec![
        row("incident", i.incident_id.clone()),
        row("reason", i.reason.to_string()),
        row("symptoms", symptoms.join(", ")),
        row("phase", i.phase.to_string()),
        row("opened", format!("{} UTC, {}", clock(i.opened_at), ago(i.opened_at, now))),
        row("attempts", story.attempts.len().to_string()),
    ];
    rows.extend(i.hold.map(|hold| row("hold", hold.to_string())));
    rows.extend(i.closed_at.map(|at| row("closed", format!("{} UTC, after {}", clock(at), span(at.duration_since(i.opened_at))))));
    rows.extend(story.attempts.last().map(|a| row("last record", format!("{} {}", a.attempt_id, a.hash))));
    rows
}

fn cut(text: &str) -> String {
    crate::hangar::fault::clean_lines(text, TEXT_MAX)
}

fn clock(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn iso(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", span(now.duration_since(at)))
}

/// A length of time as a person says it; never below zero.
fn span(length: SignedDuration) -> String {
    let seconds = length.as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
