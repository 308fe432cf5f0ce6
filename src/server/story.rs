//! One incident as a story: what was seen, decided, sent and proved, in order. The page and the command line tell the same.

use jiff::Timestamp;
use serde::Serialize;

use super::views::{AttemptView, IncidentView};
use crate::policy::{Phase, Provenance, Rung};

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Seen,
    Decided,
    Sent,
    Proved,
    Ended,
    /// Where it stands; told last, without a time.
    Now,
}

impl Kind {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Decided => "decided",
            Self::Sent => "sent",
            Self::Proved => "proved",
            Self::Ended => "ended",
            Self::Now => "now",
        }
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    pub at: Option<Timestamp>,
    pub kind: Kind,
    pub text: String,
}

impl Event {
    fn new(at: Timestamp, kind: Kind, text: impl Into<String>) -> Self {
        Self { at: Some(at), kind, text: text.into() }
    }
}

/// An incident with its attempts, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    pub incident: IncidentView,
    pub attempts: Vec<AttemptView>,
}

impl Story {
    /// Leaves out what only a reader with credentials may see.
    #[must_use]
    pub fn without_upstream_text(self) -> Self {
        Self {
            incident: self.incident.without_upstream_text(),
            attempts: self.attempts.into_iter().map(AttemptView::without_upstream_text).collect(),
        }
    }

    /// The rung that it stands on: the one under way, else the last that was tried.
    #[must_use]
    pub fn rung(&self) -> Option<Rung> {
        self.attempts.last().map(|a| a.action)
    }

    /// Everything that happened, in order, and last where it stands.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let i = &self.incident;
        let mut events = vec![Event::new(i.opened_at, Kind::Seen, opened(i))];
        if let Some(provenance) = &i.provenance {
            events.push(Event::new(provenance.at, Kind::Seen, told(i, provenance)));
        }
        self.attempts.iter().for_each(|attempt| tried(attempt, &mut events));
        if let (Some(at), Some(how)) = (i.closed_at, i.how) {
            events.push(Event::new(at, Kind::Ended, with_why(how.sentence(), i.why.as_deref())));
        }
        // What has one time keeps the order in which it follows from one another.
        events.sort_by_key(|e| e.at);
        events.extend(now(i));
        events
    }
}

fn opened(i: &IncidentView) -> String {
    let symptoms: Vec<&str> = i.symptoms.iter().map(|s| s.as_str()).collect();
    format!("{} is not working ({}). {}", i.mcp_server, symptoms.join(", "), i.reason.sentence())
}

fn told(i: &IncidentView, p: &Provenance) -> String {
    let place = match (p.file.as_str(), p.offset) {
        ("", _) => String::new(),
        (file, offset) => format!(" (file {file}, byte {})", offset.unwrap_or(0)),
    };
    format!("{} says: {}{place}", p.source.sentence(), i.reason)
}

fn tried(a: &AttemptView, events: &mut Vec<Event>) {
    let why = a.why.as_deref().unwrap_or(&a.reason);
    events.push(Event::new(a.started_at, Kind::Decided, format!("{} (rung {}): {why}", a.action, a.rank)));
    if let Some(at) = a.half_done_at {
        events.push(Event::new(at, Kind::Sent, format!("{}: the stop is done, the start comes next", a.action)));
    }
    if let (Some(at), Some(receipt)) = (a.answered_at, a.receipt) {
        events.push(Event::new(at, Kind::Sent, format!("{}: {} ({receipt})", a.action, receipt.sentence())));
    }
    if let (Some(at), Some(outcome)) = (a.settled_at, a.outcome) {
        let text = format!("{}: {} ({outcome})", a.action, outcome.sentence());
        events.push(Event::new(at, Kind::Proved, with_why(&text, Some(a.reason.as_str()).filter(|r| Some(*r) != a.why.as_deref()))));
    }
}

fn with_why(text: &str, why: Option<&str>) -> String {
    match why.filter(|w| !w.is_empty()) {
        Some(why) => format!("{}: {why}", text.trim_end_matches('.')),
        None => text.to_owned(),
    }
}

/// Where an open incident stands, and what a person can do.
fn now(i: &IncidentView) -> Option<Event> {
    if i.phase == Phase::Closed {
        return None;
    }
    Some(Event { at: None, kind: Kind::Now, text: standing(i) })
}

/// Where an open incident stands, in whole sentences.
#[must_use]
pub fn standing(i: &IncidentView) -> String {
    let why = i.why.as_deref().filter(|why| !why.is_empty());
    let why = why.map_or_else(String::new, |why| format!(" In detail: {}.", why.trim_end_matches('.')));
    match i.hold {
        Some(hold) => format!("{}{why} {}", hold.sentence(), hold.advice()),
        None => format!("{}{why}", i.phase.sentence()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample::story;

    #[test]
    fn a_story_is_told_in_the_order_in_which_it_happened() {
        for closed in [false, true] {
            let (incident, attempts) = story(closed);
            let events = Story { incident, attempts }.events();
            let times: Vec<_> = events.iter().filter_map(|e| e.at).collect();
            assert!(times.is_sorted());
            assert_eq!(events.first().map(|e| e.kind), Some(Kind::Seen));
            let last = if closed { Kind::Ended } else { Kind::Now };
            assert_eq!(events.last().map(|e| e.kind), Some(last), "{events:?}");
        }
    }
}
