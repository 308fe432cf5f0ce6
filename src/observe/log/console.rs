//! Hangar's console form: ANSI-coloured even when redirected, keys sorted, an upstream's text raw inside the event.
//!
//! A record can span lines, and a text inside it can hold perfect copies of other records. So a line is taken only
//! where its whole shape is Hangar's, and what could still be part of somebody's text is *doubted*: it may undo a death
//! but makes none before Hangar itself publishes a state change of that server. A true death may be missed so, a false
//! one is not believed. (Hangar 2.20.0 prints such text; later versions log its class only, but tracebacks remain.)

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::record::{self, Meaning, Prefilter, Record, Text};

/// Hangar cuts a logged text at this many characters (`LOG_FIELD_LENGTH_LIMIT`), so a forgery reaches no further.
const TEXT_CHARS_MAX: usize = 2048;

const STAMP: &str = "\x1b[2m";
const AFTER_STAMP: &str = "\x1b[0m [";
const BEFORE_EVENT: &str = "\x1b[0m] \x1b[1m";
const BEFORE_LOGGER: &str = "\x1b[0m [\x1b[0m\x1b[1m\x1b[34m";
const AFTER_LOGGER: &str = "\x1b[0m]\x1b[0m";

/// How far a record is to be taken at its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Trust {
    Believed,
    Doubted,
}

#[derive(Debug)]
pub(super) struct Read<'a> {
    pub(super) record: Record<'a>,
    pub(super) trust: Trust,
}

/// Whether this Hangar prints upstream text in its events, as far as its own records tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Prints {
    #[default]
    Unknown,
    Text,
    ClassOnly,
}

/// Reads console lines in order. Kept over a restart, which may fall into the middle of somebody's text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Console {
    prints: Prints,
    /// Characters that may still belong to the last text.
    doubt_left: usize,
    /// When the record with that text was logged; a forgery was written before.
    doubt_since: Option<Timestamp>,
    open: Option<Open>,
    record_offset: u64,
}

/// A record whose event goes on in the next line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    event: String,
    level: String,
    timestamp: String,
    offset: u64,
    trust: Trust,
}

impl Console {
    /// Where the record that was read last began; it can be some lines back.
    pub(super) const fn record_offset(&self) -> u64 {
        self.record_offset
    }

    pub(super) fn line<'a>(&mut self, line: &'a [u8], offset: u64, prefilter: &Prefilter, state_events: bool) -> Option<Read<'a>> {
        if self.doubt_left == 0
            && self.open.is_none()
            && let Some((event, logger)) = plain(line)
            && event != TEACHING_EVENT
            && !prefilter.logger_may_tell(logger, line, state_events)
        {
            return None;
        }
        let Ok(text) = std::str::from_utf8(line) else {
            self.raw(line);
            return None;
        };
        let Some(head) = Head::parse(text) else {
            let ended = self.ended_by(text);
            self.raw(line);
            return ended;
        };
        self.open = None;
        let trust = self.trust(&head, line);
        let left = if self.doubt_left == 0 { 0 } else { self.doubt_left.saturating_sub(chars(line) + 1) };
        let Some(record) = head.whole() else {
            self.opens(&head, offset, trust);
            return None;
        };
        self.record_offset = offset;
        let meaning = record::meaning(&record);
        if trust == Trust::Believed {
            self.learn(&record, meaning.as_ref());
        }
        if may_hold_text(&record.event, meaning.as_ref()) {
            // For a forgery to follow, all of this line but its head must be text, its logger and keys too.
            self.doubt_left = left.max(TEXT_CHARS_MAX.saturating_sub(chars(head.rest.as_bytes()) + 1));
            self.doubt_since = record.at();
        } else {
            self.doubt_left = left;
        }
        Some(Read { record, trust })
    }

    fn trust(&self, head: &Head<'_>, line: &[u8]) -> Trust {
        if self.doubt_left == 0 {
            return Trust::Believed;
        }
        // The end of a forged line may be the true end of the record around it; the rest has to fit into the text.
        let end = head.rest.rfind(BEFORE_LOGGER).map_or(0, |at| head.rest.len() - at);
        if self.doubt_left < chars(line.get(..line.len() - end).unwrap_or_default()) {
            return Trust::Believed;
        }
        // Where events hold no text only a traceback can be forged into, and that text is older than its record.
        let later = head.timestamp.parse::<Timestamp>().ok().zip(self.doubt_since).is_some_and(|(at, since)| at >= since);
        if self.prints == Prints::ClassOnly && later { Trust::Believed } else { Trust::Doubted }
    }

    /// A line that is no record's first: a traceback, or text that goes on.
    fn raw(&mut self, line: &[u8]) {
        if !line.is_empty() || self.doubt_left > 0 {
            self.doubt_left = TEXT_CHARS_MAX.max(self.doubt_left.saturating_sub(chars(line)));
        }
    }

    /// A record whose event has a newline in it: a text, or an id that ends with one.
    fn opens(&mut self, head: &Head<'_>, offset: u64, trust: Trust) {
        self.doubt_left = TEXT_CHARS_MAX;
        self.doubt_since = head.timestamp.parse().ok();
        let (event, level) = (head.rest.chars().take(TEXT_CHARS_MAX).collect(), head.level.to_owned());
        self.open = Some(Open { event, level, timestamp: head.timestamp.to_owned(), offset, trust });
    }

    /// The next line of the open record; its last one has the logger and the keys.
    fn ended_by<'a>(&mut self, text: &'a str) -> Option<Read<'a>> {
        let open = self.open.as_mut()?;
        let end = text.rfind(BEFORE_LOGGER).and_then(|at| Some((text.get(..at)?, tail(text.get(at + BEFORE_LOGGER.len()..)?)?)));
        let (more, tail) = end.map_or((text, None), |(more, tail)| (more, Some(tail)));
        let left = TEXT_CHARS_MAX.saturating_sub(open.event.len());
        open.event.push('\n');
        open.event.extend(more.trim_end_matches(' ').chars().take(left));
        let (logger, keys) = tail?;
        let Open { event, level, timestamp, offset, trust } = self.open.take()?;
        self.record_offset = offset;
        let record = record_of(event.into(), level.into(), timestamp.into(), logger, &keys)?;
        if trust == Trust::Believed && matches!(record::meaning(&record), Some(Meaning::StartFailedText(_))) {
            self.prints = Prints::Text;
        }
        Some(Read { record, trust })
    }

    fn learn(&mut self, record: &Record<'_>, meaning: Option<&Meaning<'_>>) {
        match meaning {
            Some(Meaning::HangarStarted) => self.prints = Prints::Unknown,
            Some(Meaning::StartFailedText(_)) => self.prints = Prints::Text,
            Some(Meaning::StartFailed { .. }) => self.prints = Prints::ClassOnly,
            _ => {
                let since_2_21 = matches!(
                    (&*record.logger, &*record.event),
                    ("mcp_hangar.domain.model.mcp_server", "mcp_server_initialize_refused")
                        | ("mcp_hangar.server.config", "log_buffer_attached_to_mcp_server")
                );
                if since_2_21 {
                    self.prints = Prints::ClassOnly;
                }
            }
        }
    }
}

/// Whether `event` can hold an upstream's own words. Single words and the sentences that are Hangar's own cannot; JSON
/// cannot break the line.
fn may_hold_text(event: &str, meaning: Option<&Meaning<'_>>) -> bool {
    match meaning {
        Some(Meaning::StartFailedText(_)) => return true,
        Some(_) => return false,
        None => {}
    }
    let text = event.split_once(": ").map(|(_, text)| text);
    let is_word = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let own_words = if event.starts_with("Member ") || event.starts_with("McpServer ") || event.starts_with("Group ") {
        text.is_none_or(is_word) || event.starts_with("Group ")
    } else {
        OWN_SENTENCES.iter().any(|own| event.starts_with(own)) || !event.contains([' ', ':'])
    };
    !own_words
}

/// How events begin that are sentences without anybody else's words in them.
const OWN_SENTENCES: [&str; 10] = [
    "ALERT [",
    "{\"security_event\"",
    "Launching subprocess: [",
    "Terminating session: ",
    "StreamableHTTP session manager ",
    "Added member ",
    "Removed member ",
    "Circuit breaker ",
    "health_check_failed: ",
    "mcp_server_process_exit_code: ",
];

/// What [`Console::learn`] learns from that has no meaning of its own and is a single word.
const TEACHING_EVENT: &[u8] = b"log_buffer_attached_to_mcp_server";

/// Event and logger of a whole record whose event is a single word: nothing to learn from but its meaning.
fn plain(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = line.strip_prefix(STAMP.as_bytes())?.get(27..)?.strip_prefix(AFTER_STAMP.as_bytes())?;
    let level = rest.get(..40)?.windows(BEFORE_EVENT.len()).position(|part| part == BEFORE_EVENT.as_bytes())?;
    let rest = rest.get(level + BEFORE_EVENT.len()..)?;
    let end = rest.iter().position(|b| !(b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_'))?;
    let (event, rest) = rest.split_at(end);
    let rest = rest.trim_ascii_start().strip_prefix(BEFORE_LOGGER.as_bytes())?;
    let logger = rest.get(..memchr::memchr(b'\x1b', rest)?)?;
    (!event.is_empty() && line.ends_with(b"\x1b[0m")).then_some((event, logger))
}

/// The beginning of a record, up to its event.
struct Head<'a> {
    timestamp: &'a str,
    level: &'a str,
    /// The event and all that follows.
    rest: &'a str,
}

impl<'a> Head<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (timestamp, rest) = line.strip_prefix(STAMP)?.split_once(AFTER_STAMP)?;
        let (level, rest) = skip_colours(rest).split_once(BEFORE_EVENT)?;
        let level = level.trim_end_matches(' ');
        let is_level = !level.is_empty() && level.bytes().all(|b| b.is_ascii_lowercase());
        (is_level && timestamp.len() <= 40).then_some(Self { timestamp, level, rest })
    }

    fn whole(&self) -> Option<Record<'a>> {
        let end = self.rest.rfind(BEFORE_LOGGER)?;
        let event = self.rest.get(..end)?.trim_end_matches(' ');
        let (logger, keys) = tail(self.rest.get(end + BEFORE_LOGGER.len()..)?)?;
        record_of(event.into(), self.level.into(), self.timestamp.into(), logger, &keys)
    }
}

/// The keys that are looked at, in the order of [`KEYS`].
type Keys<'a> = [Option<Cow<'a, str>>; 6];
const KEYS: [&str; 6] = ["enforcement_mode", "error_type", "event_type", "mcp_server_id", "service", "state"];

/// `<logger>…] key=value …` to the line's very end; keys must ascend, as structlog sorts them.
fn tail(text: &str) -> Option<(&str, (Keys<'_>, Option<&str>))> {
    let (logger, mut rest) = text.split_once(AFTER_LOGGER)?;
    let mut keys: Keys<'_> = Default::default();
    let (mut undeclared, mut last) = (None, "");
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix(" \x1b[36m")?.split_once("\x1b[0m=\x1b[35m")?;
        let (value, after) = after.split_once("\x1b[0m")?;
        if key <= last || logger.contains('\x1b') || key.contains('\x1b') {
            return None;
        }
        if key == "undeclared_tools" {
            undeclared = Some(value);
        }
        if let Some(place) = KEYS.iter().position(|k| *k == key).and_then(|i| keys.get_mut(i)) {
            *place = Some(unquote(value)?);
        }
        (rest, last) = (after, key);
    }
    Some((logger, (keys, undeclared)))
}

fn record_of<'a>(
    event: Cow<'a, str>,
    level: Cow<'a, str>,
    timestamp: Cow<'a, str>,
    logger: &'a str,
    keys: &(Keys<'a>, Option<&'a str>),
) -> Option<Record<'a>> {
    let ([enforcement_mode, error_type, event_type, mcp_server_id, service, state], undeclared_repr) = keys.clone();
    let service = service.filter(|service| service == "mcp-hangar")?;
    let [enforcement_mode, error_type, event_type, mcp_server_id, state] =
        [enforcement_mode, error_type, event_type, mcp_server_id, state].map(|value| value.map(Text));
    Some(Record {
        event,
        logger: logger.into(),
        level,
        timestamp,
        service,
        mcp_server_id,
        error_type,
        enforcement_mode,
        event_type,
        state,
        undeclared_tools: None,
        undeclared_repr,
    })
}

fn skip_colours(mut text: &str) -> &str {
    while let Some((code, rest)) = text.strip_prefix("\x1b[").and_then(|t| t.split_once('m')) {
        if !code.bytes().all(|b| b.is_ascii_digit() || b == b';') {
            break;
        }
        text = rest;
    }
    text
}

/// Characters as Python counted them, at least: an escape that the stream's encoding added is one of them.
fn chars(line: &[u8]) -> usize {
    let (mut count, mut rest) = (0, line);
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = match (byte, after.first()) {
            (b'\\', Some(b'x')) => 3,
            (b'\\', Some(b'u')) => 5,
            (b'\\', Some(b'U')) => 9,
            _ => 0,
        };
        count += usize::from(byte & 0xC0 != 0x80);
        rest = after.get(escaped..).unwrap_or_default();
    }
    count
}

/// A value as structlog writes it: bare, or Python's `repr` where it holds spaces or quotes.
fn unquote(value: &str) -> Option<Cow<'_, str>> {
    match value.as_bytes().first() {
        Some(b'\'' | b'"') => python_string(value).filter(|(_, rest)| rest.is_empty()).map(|(text, _)| Cow::Owned(text)),
        _ => Some(Cow::Borrowed(value)),
    }
}

/// The strings of a Python list's `repr`, up to what is kept of them; what is no such list gives those before it.
pub(super) fn python_strings(repr: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = repr.strip_prefix('[').unwrap_or_default();
    while let Some((name, after)) = python_string(rest) {
        names.push(name);
        if names.len() >= record::TOOLS_MAX {
            break;
        }
        rest = after.strip_prefix(", ").unwrap_or_default();
    }
    names
}

/// One quoted string at the start of `text`, and what follows it.
fn python_string(text: &str) -> Option<(String, &str)> {
    let mut walk = text.char_indices();
    let quote = walk.next().map(|(_, c)| c).filter(|c| matches!(c, '\'' | '"'))?;
    let mut out = String::new();
    while let Some((i, c)) = walk.next() {
        match c {
            _ if c == quote => return Some((out, text.get(i + 1..)?)),
            '\\' => match walk.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                escape @ ('x' | 'u' | 'U') => {
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let mut code = 0_u32;
                    for _ in 0..digits {
                        code = code.checked_mul(16)?.checked_add(walk.next()?.1.to_digit(16)?)?;
                    }
                    out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                other => out.push(other),
            },
            _ => out.push(c),
        }
    }
    None
}
