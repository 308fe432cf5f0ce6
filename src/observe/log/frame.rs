//! What stands around Hangar's lines: nothing, CRI (`<time> stderr F <line>`), docker's json-file, or journald's export
//! as JSON; recognised by itself, per source.
//!
//! In a console log an upstream can print a line of any other form, so one console line settles that a source is a
//! console log, and what its other lines say in other forms is nothing. The reverse cannot be: JSON escapes the escape.

use std::collections::VecDeque;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The longest line that is read; a longer one is skipped to its end and counted.
pub const LINE_MAX: usize = 1 << 20;

/// The form of Hangar's own line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    Json,
    Console,
}

/// How a source is to be read (`--format.input`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum InputFormat {
    /// Find out.
    #[default]
    Auto,
    /// Hangar's JSON lines (`--log-file`, or `--json-logs` on stderr).
    Json,
    /// Hangar's console.
    Console,
    /// Kubernetes' container log.
    Cri,
    /// Docker's `json-file` driver.
    Docker,
    /// `journalctl -o json`.
    Journald,
}

/// Input that nothing is known about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown input format {0:?}; known: auto, json, console, cri, docker, journald")]
pub struct UnknownFormat(String);

impl FromStr for InputFormat {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        <Self as clap::ValueEnum>::from_str(word, false).map_err(|_| UnknownFormat(word.to_owned()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wrap {
    Bare,
    Cri,
    Docker,
    Journald,
}

/// What the frames counted; none of it is silent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// Lines that are not of the source's form.
    pub unrecognised: u64,
    /// Lines put together from parts that grew beyond [`LINE_MAX`], or that journald gave no text of.
    pub lost: u64,
}

/// What was found out about a source; kept over a restart, since a forgery may be the first that is read then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recognised {
    wrap: Option<Wrap>,
    form: Option<Form>,
    /// Their outer lines are told, and so not read again.
    parts: VecDeque<Part>,
}

/// Unwraps the lines of one source, in order.
#[derive(Debug)]
pub struct Frames {
    wrap: Option<Wrap>,
    form: Option<Form>,
    /// Given by the caller, so not to be changed by what is read.
    fixed_wrap: bool,
    fixed_form: bool,
    /// Parts of lines still to be completed, by stream.
    parts: VecDeque<Part>,
    counts: FrameCounts,
    /// Hangar's JSON lines in a row, in what was a console log.
    json_run: u32,
    scratch: Vec<u8>,
}

/// So many of Hangar's JSON lines in a row are no upstream's text any more: Hangar runs with JSON logs now.
const JSON_RUN: u32 = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    stream: u64,
    offset: u64,
    bytes: Vec<u8>,
    too_long: bool,
}

/// Streams with an unfinished line at once: stdout and stderr of one container, a few processes of one unit.
const PARTS_MAX: usize = 8;

impl Frames {
    #[must_use]
    pub fn new(format: InputFormat) -> Self {
        let (wrap, form) = match format {
            InputFormat::Auto => (None, None),
            InputFormat::Json => (Some(Wrap::Bare), Some(Form::Json)),
            InputFormat::Console => (Some(Wrap::Bare), Some(Form::Console)),
            InputFormat::Cri => (Some(Wrap::Cri), None),
            InputFormat::Docker => (Some(Wrap::Docker), None),
            InputFormat::Journald => (Some(Wrap::Journald), None),
        };
        Self {
            wrap,
            form,
            fixed_wrap: wrap.is_some(),
            fixed_form: form.is_some(),
            parts: VecDeque::new(),
            counts: FrameCounts::default(),
            json_run: 0,
            scratch: Vec::new(),
        }
    }

    pub(super) fn restored_from(found: Recognised, format: InputFormat) -> Self {
        let new = Self::new(format);
        Self { wrap: new.wrap.or(found.wrap), form: new.form.or(found.form), parts: found.parts, ..new }
    }

    pub(super) fn save(&self) -> Recognised {
        Recognised { wrap: self.wrap, form: self.form, parts: self.parts.clone() }
    }

    /// What was counted so far.
    pub const fn counts(&self) -> FrameCounts {
        self.counts
    }

    /// Takes one outer line (without its newline) that began at `offset`; gives Hangar's line, if it is complete, with
    /// the offset of the first outer line of it.
    pub fn line(&mut self, outer: &[u8], offset: u64, tell: &mut dyn FnMut(Inner<'_>)) {
        let outer = outer.strip_suffix(b"\r").unwrap_or(outer);
        if !self.fixed_wrap && is_console(outer) && self.wrap != Some(Wrap::Bare) {
            self.wrap = Some(Wrap::Bare);
            self.parts.clear();
        }
        let Some(wrap) = self.wrap.or_else(|| self.recognise(outer)) else {
            self.counts.unrecognised += 1;
            return;
        };
        match wrap {
            Wrap::Bare => self.tell(outer, offset, tell),
            Wrap::Cri => match cri(outer) {
                // A whole line of one stream, as nearly all are.
                Some(piece) if piece.complete && self.parts.is_empty() => self.tell(piece.bytes, offset, tell),
                Some(piece) => self.piece(&piece, offset, tell),
                None => self.counts.unrecognised += 1,
            },
            Wrap::Docker | Wrap::Journald => self.wrapped(wrap, outer, offset, tell),
        }
    }

    fn recognise(&mut self, outer: &[u8]) -> Option<Wrap> {
        let wrap = if is_console(outer) || super::record::from_json(outer).is_some() {
            Wrap::Bare
        } else if cri(outer).is_some() {
            Wrap::Cri
        } else if docker(outer, &mut self.scratch).is_some() {
            Wrap::Docker
        } else if journald(outer, &mut self.scratch).is_some() {
            Wrap::Journald
        } else {
            return None;
        };
        self.wrap = Some(wrap);
        Some(wrap)
    }

    fn wrapped(&mut self, wrap: Wrap, outer: &[u8], offset: u64, tell: &mut dyn FnMut(Inner<'_>)) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let parsed = if wrap == Wrap::Docker { docker(outer, &mut scratch) } else { journald(outer, &mut scratch) };
        match parsed {
            Some((stream, complete)) => self.piece(&Piece { stream, complete, bytes: &scratch }, offset, tell),
            None => self.counts.unrecognised += 1,
        }
        scratch.clear();
        // One huge line must not be paid for ever after.
        scratch.shrink_to(64 * 1024);
        self.scratch = scratch;
    }

    fn piece(&mut self, piece: &Piece<'_>, offset: u64, tell: &mut dyn FnMut(Inner<'_>)) {
        let place = self.parts.iter().position(|part| part.stream == piece.stream);
        if place.is_none() && piece.complete {
            self.each(piece.bytes, offset, tell);
            return;
        }
        let mut part = place.and_then(|i| self.parts.remove(i)).unwrap_or_else(|| Part {
            stream: piece.stream,
            offset,
            bytes: Vec::new(),
            too_long: false,
        });
        if part.bytes.len() + piece.bytes.len() > LINE_MAX {
            (part.too_long, part.bytes) = (true, Vec::new());
        }
        if !part.too_long {
            part.bytes.extend_from_slice(piece.bytes);
        }
        if !piece.complete {
            if self.parts.len() >= PARTS_MAX {
                self.parts.pop_front();
                self.counts.lost += 1;
            }
            self.parts.push_back(part);
        } else if part.too_long {
            self.counts.lost += 1;
        } else {
            self.each(&part.bytes, part.offset, tell);
        }
    }

    /// One entry of docker or journald can hold several lines.
    fn each(&mut self, bytes: &[u8], offset: u64, tell: &mut dyn FnMut(Inner<'_>)) {
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', bytes).chain([bytes.len()]) {
            self.tell(bytes.get(begin..end).unwrap_or_default(), offset, tell);
            begin = end + 1;
        }
    }

    fn tell(&mut self, line: &[u8], offset: u64, tell: &mut dyn FnMut(Inner<'_>)) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !self.fixed_form && self.form != Some(Form::Console) && is_console(line) {
            let mistaken = self.form == Some(Form::Json);
            self.form = Some(Form::Console);
            if mistaken {
                tell(Inner::Mistaken);
            }
        }
        if self.form != Some(Form::Json) && !self.fixed_form {
            self.look_for_json(line);
        }
        match self.form {
            Some(form) => tell(Inner::Line { form, line, offset }),
            None => self.counts.unrecognised += 1,
        }
    }
}

impl Frames {
    fn look_for_json(&mut self, line: &[u8]) {
        if line.first() == Some(&b'{') && super::record::from_json(line).is_some() {
            self.json_run += 1;
            if self.form.is_none() || self.json_run >= JSON_RUN {
                self.form = Some(Form::Json);
            }
        } else {
            self.json_run = 0;
        }
    }
}

/// What [`Frames::line`] gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner<'a> {
    Line {
        form: Form,
        line: &'a [u8],
        offset: u64,
    },
    /// The source is a console log after all: what its JSON lines said were an upstream's words. Start over.
    Mistaken,
}

struct Piece<'a> {
    stream: u64,
    complete: bool,
    bytes: &'a [u8],
}

fn is_console(line: &[u8]) -> bool {
    line.starts_with(b"\x1b[2m2")
}

/// Up to the next space, and what follows it. None of the fields before a line is longer than a time.
fn field(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().take(41).position(|b| *b == b' ')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// `2026-11-30T15:20:53.435902123Z stderr F <line>`; the tag may have more after a colon.
fn cri(outer: &[u8]) -> Option<Piece<'_>> {
    let (time, rest) = field(outer)?;
    let (stream, rest) = field(rest)?;
    let (tag, bytes) = field(rest)?;
    let digit = |i: usize| time.get(i).is_some_and(u8::is_ascii_digit);
    let is_time = (20..=40).contains(&time.len()) && digit(0) && digit(3) && time.get(4) == Some(&b'-') && time.get(10) == Some(&b'T');
    let stream = match stream {
        b"stdout" => 1,
        b"stderr" => 2,
        _ => return None,
    };
    let complete = match tag.split(|b| *b == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    is_time.then_some(Piece { stream, complete, bytes })
}

/// `{"log":"<line>\n","stream":"stderr","time":"…"}`; a part of a long line has no newline. The line goes to `out`.
fn docker(outer: &[u8], out: &mut Vec<u8>) -> Option<(u64, bool)> {
    #[derive(Deserialize)]
    struct Entry<'a> {
        log: &'a RawValue,
        #[serde(borrow)]
        stream: std::borrow::Cow<'a, str>,
        #[serde(rename = "time", borrow)]
        _time: std::borrow::Cow<'a, str>,
    }
    let entry: Entry<'_> = serde_json::from_slice(outer).ok()?;
    out.clear();
    string_bytes(entry.log, out)?;
    let complete = out.last() == Some(&b'\n');
    if complete {
        out.pop();
    }
    let stream = match &*entry.stream {
        "stdout" => 1,
        "stderr" => 2,
        _ => return None,
    };
    Some((stream, complete))
}

/// `journalctl -o json`: `MESSAGE` is text, or an array of bytes where it is not printable (every console line), or
/// null where journald left it out for its size. `_LINE_BREAK` tells a line that journald cut.
fn journald(outer: &[u8], out: &mut Vec<u8>) -> Option<(u64, bool)> {
    #[derive(Deserialize)]
    struct Entry<'a> {
        #[serde(rename = "MESSAGE", borrow)]
        message: Option<&'a RawValue>,
        #[serde(rename = "__REALTIME_TIMESTAMP", borrow)]
        time: Option<&'a RawValue>,
        #[serde(rename = "_LINE_BREAK", borrow, default)]
        line_break: Option<std::borrow::Cow<'a, str>>,
        #[serde(rename = "_PID", borrow, default)]
        pid: Option<std::borrow::Cow<'a, str>>,
    }
    let entry: Entry<'_> = serde_json::from_slice(outer).ok()?;
    entry.time?;
    out.clear();
    let message = entry.message?;
    if message.get().starts_with('[') {
        *out = serde_json::from_str(message.get()).ok()?;
    } else {
        string_bytes(message, out)?;
    }
    let pid = entry.pid.and_then(|pid| pid.parse().ok()).unwrap_or_default();
    Some((pid, entry.line_break.as_deref() != Some("line-max")))
}

/// A JSON string's text. Docker writes lone surrogates and invalid UTF-8 as U+FFFD, so text is all there is.
fn string_bytes(raw: &RawValue, out: &mut Vec<u8>) -> Option<()> {
    let text: std::borrow::Cow<'_, str> = serde_json::from_str::<CowStr<'_>>(raw.get()).ok()?.0;
    out.extend_from_slice(text.as_bytes());
    Some(())
}

#[derive(Deserialize)]
struct CowStr<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);
