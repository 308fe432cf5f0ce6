//! What the loop hears from outside. Everything heard only wakes it, and informs the board's reason.

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Command, Engine, WAKE_READ_EVERY};
use crate::clock;
use crate::observe::log::Change;
use crate::observe::log::tail::Update;
use crate::observe::{events, line, processes, silences};
use crate::policy::{Read, Source, State, valid_server_id};

/// Servers that are read by themselves within [`WAKE_READ_EVERY`] because something named them.
const DIRECT_READS_MAX: usize = 4;

/// Something heard from outside the loop.
#[derive(Debug)]
pub enum Signal {
    Log(Box<Update>),
    Events(events::Update),
    /// A child of Hangar's process ended.
    ProcessEnded,
    /// Prometheus shows these servers dead, or fires an alert of them.
    Prometheus {
        dead: Vec<String>,
        at: Timestamp,
    },
    Silences(silences::Update),
    /// Somebody asks for something.
    Command(Box<Command>),
}

impl From<Update> for Signal {
    fn from(update: Update) -> Self {
        Self::Log(Box::new(update))
    }
}

impl From<events::Update> for Signal {
    fn from(update: events::Update) -> Self {
        Self::Events(update)
    }
}

impl From<processes::Ended> for Signal {
    fn from(_: processes::Ended) -> Self {
        Self::ProcessEnded
    }
}

impl From<silences::Update> for Signal {
    fn from(update: silences::Update) -> Self {
        Self::Silences(update)
    }
}

impl Engine {
    pub(super) async fn hear(&mut self, signal: Signal) {
        match signal {
            Signal::Command(command) => self.obey(*command).await,
            Signal::Log(update) => self.hear_log(*update),
            Signal::Events(update) => self.hear_events(update),
            Signal::ProcessEnded => self.process_ended(),
            Signal::Prometheus { dead, at } => {
                self.parts.metrics.heard(Source::Prometheus, at);
                let news = dead.iter().any(|id| self.board.gauge(id) != Some(State::Dead));
                // It only wakes, and only when it changes its mind: its samples are older than Hangar's own.
                if news && dead != self.prometheus_said {
                    self.want_list();
                }
                self.prometheus_said = dead;
            }
            Signal::Silences(update) => self.board.silences(update, clock::now()),
        }
    }

    fn hear_events(&mut self, update: events::Update) {
        self.parts.metrics.heard(Source::Events, clock::now());
        match update {
            events::Update::Open => {
                self.board.events_lost();
                self.want_list();
            }
            events::Update::Closed => self.board.events_lost(),
            events::Update::Told { told, missed } => {
                if missed > 0 {
                    tracing::warn!(event = "events_missed", missed, "events came faster than they were taken: reading everything again");
                    self.board.events_lost();
                    self.want_list();
                }
                for told in &told {
                    if self.board.event(told) {
                        self.maybe_dead(&told.mcp_server);
                    }
                }
            }
        }
    }

    fn hear_log(&mut self, update: Update) {
        let metrics = &self.parts.metrics;
        metrics.heard(Source::Log, clock::now());
        metrics.set_log_lag(update.counts.lag_bytes);
        (self.log_counts.gaps..update.counts.gaps).for_each(|_| metrics.log_gap());
        metrics.log_lines_skipped(update.counts.too_long.saturating_sub(self.log_counts.too_long));
        self.log_counts = update.counts;
        self.log_position.heard(update.checkpoint);
        if update.trouble != self.log_trouble {
            let trouble = update.trouble.as_deref();
            tracing::warn!(
                event = "log_source",
                trouble,
                "Hangar's log: reading {}",
                if trouble.is_some() { "fails and is tried again" } else { "goes on" }
            );
        }
        self.log_trouble = update.trouble;
        let path = self.parts.log_file.as_deref();
        let hash = |s: &crate::observe::log::ServerState| {
            let told = update.line_sha256.iter().find(|(offset, _)| *offset == s.offset).map(|(_, hash)| hash.clone());
            told.or_else(|| path.and_then(|path| line::sha256(path, s.file, s.offset)))
        };
        let died = self.board.log(&update.servers, &hash);
        // Before all is read, too: it may have ended while we were away, and Hangar has not looked yet.
        if update.told.iter().any(|t| matches!(t.what, Change::StdoutEof)) {
            self.process_ended();
        }
        self.log_caught_up |= update.caught_up || self.log_trouble.is_some();
        if !self.log_caught_up {
            return;
        }
        for id in &died {
            self.maybe_dead(id);
        }
    }

    /// Nobody says whose process it was.
    fn process_ended(&mut self) {
        self.process_ended = true;
        self.want_list();
    }

    /// A server that is watched already is read again when the planner wants it. Any other is read by itself, which needs not
    /// wait for the list's turn; where many are named at once the list tells of all.
    fn maybe_dead(&mut self, id: &str) {
        if self.history.open.contains_key(id) {
            self.board.news_of(id);
        } else if valid_server_id(id) && self.may_read_directly() {
            self.read(&Read::Metrics);
            self.read(&Read::Server(id.to_owned()));
        } else {
            self.want_list();
        }
    }

    fn may_read_directly(&mut self) -> bool {
        let now = Instant::now();
        self.read_directly.retain(|at| now.duration_since(*at) < WAKE_READ_EVERY);
        let may = self.read_directly.len() < DIRECT_READS_MAX;
        if may {
            self.read_directly.push(now);
        }
        may
    }
}
