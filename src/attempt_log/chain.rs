//! The hash chain: its canonical form, its check, and its form on file.
//!
//! `hash` is the lower-case hex SHA-256 over seven netstrings (`<length in bytes>:<bytes>,`), in this order:
//! `hangar-medic/1`, `prev_hash`, `instance`, `seq` (decimal), `at` (RFC 3339, UTC, six digits of a second, `Z`), `actor`,
//! and the body's text exactly as stored. The first record of a chain has 64 zeros for `prev_hash`.
//!
//! The chain shows what was altered, left out or moved. Records taken off its end show only against a [`Head`] kept apart:
//! the `heads` table beside it, the file `medic.head`, or a copy that the operator keeps where the writer cannot reach.

use std::fmt;
use std::io::{self, BufRead, Read};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{Head, Progress};
use crate::policy::{Body, Record, hex};

/// `prev_hash` of the first record.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Bytes of one line of an export; what is longer is no record of ours.
const LINE_MAX: u64 = 64 << 20;
/// Chains of one export: instances that share a store.
const CHAINS_MAX: usize = 10_000;

/// How far from its place a moved record is looked for.
const MOVED_MAX: u64 = 100_000;

/// A record as stored, before anything in it is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub instance: String,
    pub seq: u64,
    pub at: String,
    pub actor: String,
    pub body: String,
    pub prev_hash: String,
    pub hash: String,
}

impl Stored {
    fn hash_as(&self, seq: u64) -> String {
        hash_of(&self.prev_hash, &self.instance, seq, &self.at, &self.actor, &self.body)
    }

    /// Whether the record is what was hashed.
    pub(super) fn is_intact(&self) -> bool {
        self.hash_as(self.seq) == self.hash
    }

    /// The record itself; fails for one of a newer version.
    pub(super) fn record(self) -> Result<Record, Box<dyn std::error::Error + Send + Sync>> {
        let body: Body = serde_json::from_str(&self.body)?;
        let at: Timestamp = self.at.parse()?;
        Ok(Record { instance: self.instance, seq: self.seq, at, actor: self.actor, body, prev_hash: self.prev_hash, hash: self.hash })
    }

    pub(super) fn altered(&self) -> Fault {
        Fault { seq: self.seq, kind: FaultKind::Altered, detail: "what it says is not what was hashed".to_owned() }
    }
}

/// The hash of a record (see the module's text for the canonical form).
#[must_use]
pub fn hash_of(prev_hash: &str, instance: &str, seq: u64, at: &str, actor: &str, body: &str) -> String {
    let mut hasher = Sha256::new();
    let seq = seq.to_string();
    for field in ["hangar-medic/1", prev_hash, instance, &seq, at, actor, body] {
        hasher.update(field.len().to_string());
        hasher.update(":");
        hasher.update(field);
        hasher.update(",");
    }
    hex(&hasher.finalize())
}

/// The text of a time that is hashed and stored: UTC, to the microsecond.
pub(super) fn canonical_time(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// What is wrong with a record of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Its content was changed, or another record was put in its place.
    Altered,
    Missing,
    /// It stands where another record belongs.
    Reordered,
    /// The file is damaged there.
    Unreadable,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Altered => "altered",
            Self::Missing => "missing",
            Self::Reordered => "out of order",
            Self::Unreadable => "unreadable",
        })
    }
}

/// The first record at which the chain does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub seq: u64,
    pub kind: FaultKind,
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} is {}: {}", self.seq, self.kind, self.detail)
    }
}

/// What a check of the chain found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    pub instance: String,
    /// Records that were checked and found good.
    pub records: u64,
    /// The first record there is; above 1 after retention.
    pub first_seq: Option<u64>,
    /// The last good record.
    pub head: Option<Head>,
    pub fault: Option<Fault>,
    /// How the index differs from the chain. Not a fault of the chain: the index can be rebuilt.
    pub index_fault: Option<String>,
}

impl VerifyReport {
    /// What a head noted earlier shows of the end of this chain.
    #[must_use]
    pub fn end_fault(&self, remembered: &Head) -> Option<Fault> {
        end_fault(self.head.as_ref(), remembered)
    }
}

/// Checks records as they come, in bounded memory, up to the first fault.
#[derive(Debug, Default)]
pub(super) struct Verifier {
    first: Option<(u64, String)>,
    head: Option<Head>,
    /// Of the latest anchor: records cut in all, and the hash of the last one cut.
    anchor: Option<(u64, String)>,
    records: u64,
    instance: String,
    fault: Option<Fault>,
}

impl Verifier {
    /// Starts the check of this instance's chain; empty = that of the first record.
    #[must_use]
    pub(super) fn new(instance: &str) -> Self {
        Self { instance: instance.to_owned(), ..Self::default() }
    }

    /// The seq that must come next; 0 before the first record, which may have any.
    pub(super) fn expected(&self) -> u64 {
        self.head.as_ref().map_or(0, |h| h.seq + 1)
    }

    pub(super) fn fail(&mut self, seq: u64, kind: FaultKind, detail: impl Into<String>) {
        self.fault.get_or_insert(Fault { seq, kind, detail: detail.into() });
    }

    /// `false` after the first fault: nothing behind it is looked at.
    pub(super) fn push(&mut self, row: &Stored) -> bool {
        if self.fault.is_none() {
            match self.judge(row) {
                Some(fault) => self.fault = Some(fault),
                None => self.accept(row),
            }
        }
        self.fault.is_none()
    }

    fn judge(&self, row: &Stored) -> Option<Fault> {
        let fault = |seq, kind, detail: String| Some(Fault { seq, kind, detail });
        let seq = row.seq;
        if !self.instance.is_empty() && row.instance != self.instance {
            return fault(seq, FaultKind::Altered, "it belongs to another instance".to_owned());
        }
        let expected = self.expected();
        if expected != 0 && seq > expected {
            return fault(expected, FaultKind::Missing, format!("record {seq} comes after record {}", expected - 1));
        }
        if seq < expected {
            return fault(seq, FaultKind::Reordered, format!("record {expected} was to come here"));
        }
        let prev = self.head.as_ref().map(|h| h.hash.as_str()).or((seq == 1).then_some(GENESIS));
        let follows = prev.is_none_or(|prev| prev == row.prev_hash);
        if !row.is_intact() {
            return match (!follows).then(|| belongs_at(row)).flatten() {
                Some(place) => fault(seq, FaultKind::Reordered, format!("what stands here is record {place}")),
                None => Some(row.altered()),
            };
        }
        if follows {
            return None;
        }
        match seq {
            1 => fault(1, FaultKind::Altered, "the first record does not begin a chain".to_owned()),
            _ => fault(seq - 1, FaultKind::Altered, format!("record {seq} was chained to another record {}", seq - 1)),
        }
    }

    fn accept(&mut self, row: &Stored) {
        self.first.get_or_insert_with(|| (row.seq, row.prev_hash.clone()));
        if self.instance.is_empty() {
            self.instance.clone_from(&row.instance);
        }
        // A cheap look first: anchors are rare.
        if row.body.contains("\"anchor\"")
            && let Ok(Body::Anchor { records, last_hash }) = serde_json::from_str(&row.body)
        {
            self.anchor = Some((records, last_hash));
        }
        self.records += 1;
        self.head = Some(Head { seq: row.seq, hash: row.hash.clone() });
    }

    /// The report, given the last record as it is remembered elsewhere, if it is.
    #[must_use]
    pub(super) fn finish(mut self, remembered: Option<&Head>) -> VerifyReport {
        if self.fault.is_none() {
            self.fault = self.start_fault().or_else(|| end_fault(self.head.as_ref(), remembered?));
        }
        VerifyReport {
            instance: self.instance,
            records: self.records,
            first_seq: self.first.map(|(seq, _)| seq),
            head: self.head,
            fault: self.fault,
            index_fault: None,
        }
    }

    fn start_fault(&self) -> Option<Fault> {
        let (first, prev) = self.first.as_ref().filter(|(seq, _)| *seq > 1)?;
        let accounted = self.anchor.as_ref().is_some_and(|(records, hash)| records + 1 == *first && hash == prev);
        let detail = || format!("the log begins at record {first} and no anchor accounts for what was before");
        (!accounted).then(|| Fault { seq: first - 1, kind: FaultKind::Missing, detail: detail() })
    }
}

fn end_fault(head: Option<&Head>, remembered: &Head) -> Option<Fault> {
    let last = head.map_or(0, |h| h.seq);
    if last < remembered.seq {
        let detail = format!("the log once reached record {}", remembered.seq);
        return Some(Fault { seq: last + 1, kind: FaultKind::Missing, detail });
    }
    // What came after the remembered record is checked by the chain itself.
    let differs = last == remembered.seq && head != Some(remembered);
    let detail = "it is not the record that was once last".to_owned();
    differs.then_some(Fault { seq: last, kind: FaultKind::Altered, detail })
}

/// The place that a record was hashed for, if it is near.
fn belongs_at(row: &Stored) -> Option<u64> {
    let near = |d: u64| [row.seq.checked_add(d), row.seq.checked_sub(d)];
    (1..=MOVED_MAX).flat_map(near).flatten().find(|&seq| row.hash_as(seq) == row.hash)
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    instance: std::borrow::Cow<'a, str>,
    seq: u64,
    #[serde(borrow)]
    at: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    actor: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    body: &'a RawValue,
    #[serde(borrow)]
    prev_hash: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    hash: std::borrow::Cow<'a, str>,
}

/// One line of an export, without the line's end; `None` if the body is no JSON on one line (it was altered).
pub(super) fn export_line(row: &Stored) -> Option<String> {
    let body: &RawValue = serde_json::from_str(&row.body).ok().filter(|_| !row.body.contains('\n'))?;
    let line = Line {
        instance: row.instance.as_str().into(),
        seq: row.seq,
        at: row.at.as_str().into(),
        actor: row.actor.as_str().into(),
        body,
        prev_hash: row.prev_hash.as_str().into(),
        hash: row.hash.as_str().into(),
    };
    serde_json::to_string(&line).ok()
}

/// Checks an export (JSON Lines), offline and in bounded memory: one report a chain, each whole before the next.
/// `remembered` is a head noted earlier, of the only chain that there is.
///
/// Fails only when `input` cannot be read; a line that is no record is a fault of the chain.
pub fn verify_export(
    mut input: impl BufRead,
    remembered: Option<&Head>,
    progress: &mut dyn FnMut(Progress),
) -> io::Result<Vec<VerifyReport>> {
    let (mut reports, mut chain): (Vec<VerifyReport>, Exported) = Default::default();
    let (mut text, mut lines) = (Vec::new(), 0_u64);
    loop {
        text.clear();
        if Read::by_ref(&mut input).take(LINE_MAX).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        let row = stored(&text);
        if let Some(row) = row.as_ref().filter(|row| chain.ends_before(row)) {
            let mut next = Exported { verifier: Verifier::new(&row.instance), ..Exported::default() };
            std::mem::swap(&mut next, &mut chain);
            reports.push(next.verifier.finish(None));
            if reports.iter().any(|report| report.instance == row.instance) {
                chain.verifier.fail(row.seq, FaultKind::Reordered, "this chain was there before another one already");
            }
            if reports.len() > CHAINS_MAX {
                return Err(io::Error::other(format!("more than {CHAINS_MAX} chains")));
            }
        }
        chain.line(row.as_ref());
        lines += 1;
        if lines.is_multiple_of(10_000) {
            progress(Progress { done: lines, total: 0 });
        }
    }
    let remembered = remembered.filter(|_| reports.is_empty());
    reports.push(chain.verifier.finish(remembered));
    Ok(reports)
}

/// One chain of an export, as far as it was read.
#[derive(Default)]
struct Exported {
    verifier: Verifier,
    /// The record that is missing. It may come later: then it is out of order.
    missing: Option<u64>,
    over: bool,
}

impl Exported {
    /// An intact record of another instance begins another chain; one that was altered is a fault of this one.
    fn ends_before(&self, row: &Stored) -> bool {
        !self.verifier.instance.is_empty() && row.instance != self.verifier.instance && row.is_intact()
    }

    fn line(&mut self, row: Option<&Stored>) {
        match (self.missing, row) {
            _ if self.over => {}
            (Some(seq), Some(row)) if row.seq == seq => {
                let detail = "it comes later in the file".to_owned();
                self.verifier.fault = Some(Fault { seq, kind: FaultKind::Reordered, detail });
                self.over = true;
            }
            (Some(_), _) => {}
            (None, None) => {
                self.verifier.fail(self.verifier.expected().max(1), FaultKind::Unreadable, "the line is no record");
                self.over = true;
            }
            (None, Some(row)) => {
                if !self.verifier.push(row) {
                    self.missing = self.verifier.fault.as_ref().filter(|f| f.kind == FaultKind::Missing).map(|f| f.seq);
                    self.over = self.missing.is_none();
                }
            }
        }
    }
}

fn stored(text: &[u8]) -> Option<Stored> {
    let line: Line<'_> = serde_json::from_slice(text.trim_ascii_end()).ok()?;
    Some(Stored {
        instance: line.instance.into_owned(),
        seq: line.seq,
        at: line.at.into_owned(),
        actor: line.actor.into_owned(),
        body: line.body.get().to_owned(),
        prev_hash: line.prev_hash.into_owned(),
        hash: line.hash.into_owned(),
    })
}
