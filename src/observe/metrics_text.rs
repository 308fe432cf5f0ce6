//! Hangar's `/metrics`, read as it streams in: a body of 30 MB (10,000 servers) is never held in memory.
//!
//! [`Parser`] takes chunks and gives samples of the few families that matter, with borrowed labels. [`Collector`] folds
//! them into a [`MetricsReading`]. A body that cannot be trusted as a whole is an error for the whole read.

mod line;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::policy::{State, StopReason, Stops, valid_server_id};

use line::Parsed;
pub use line::Sample;

/// Longest line accepted, in bytes. Hangar's own stay below 200.
const LINE_MAX: usize = 64 * 1024;
/// Most servers accepted: a hostile body must not fill the memory.
const SERVERS_MAX: usize = 100_000;
/// How many ids that Hangar itself would refuse are kept as examples.
const EXAMPLES_MAX: usize = 3;

/// Why a body is not a reading. The state of every server is unknown then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetricsFault {
    /// Garbage, or something that is not Prometheus text at all (an HTML page).
    #[error("line {line} is not Prometheus text: {what}: \"{excerpt}\"")]
    NotText { line: u64, what: &'static str, excerpt: String },
    /// A line of a family that matters is broken.
    #[error("line {line}: {what}: \"{excerpt}\"")]
    Garbage { line: u64, what: &'static str, excerpt: String },
    /// Longer than any honest line.
    #[error("line {line} is longer than {LINE_MAX} bytes")]
    LineTooLong { line: u64 },
    /// The body ends in the middle of a line.
    #[error("cut off in the middle of line {line}: \"{excerpt}\"")]
    Truncated { line: u64, excerpt: String },
    /// Text, but not Hangar's.
    #[error("no mcp_hangar metric in {bytes} bytes, {lines} lines")]
    NotHangar { bytes: u64, lines: u64 },
    /// More servers than are accepted.
    #[error("more than {SERVERS_MAX} servers")]
    TooManyServers,
}

/// Push parser: chunks in, samples out. Holds at most one line.
#[derive(Debug, Default)]
pub struct Parser {
    carry: Vec<u8>,
    lines: u64,
    bytes: u64,
    saw_hangar: bool,
    ended: bool,
}

impl Parser {
    /// Reads the next chunk; chunk borders may lie anywhere.
    ///
    /// `sink` may refuse a sample with a text saying why; that makes the line garbage.
    pub fn feed(&mut self, chunk: &[u8], mut sink: impl FnMut(Sample<'_>) -> Result<(), &'static str>) -> Result<(), MetricsFault> {
        self.bytes += chunk.len() as u64;
        let mut rest = chunk;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (line, tail) = rest.split_at(at);
            rest = tail.get(1..).unwrap_or_default();
            if self.carry.is_empty() {
                self.line(line, &mut sink)?;
            } else {
                self.keep(line)?;
                let whole = std::mem::take(&mut self.carry);
                self.line(&whole, &mut sink)?;
                // The buffer is reused, so that a chunk border costs no allocation.
                self.carry = whole;
                self.carry.clear();
            }
        }
        if rest.is_empty() { Ok(()) } else { self.keep(rest) }
    }

    /// The body is over. Says how many bytes it had.
    pub fn finish(self) -> Result<u64, MetricsFault> {
        if !self.saw_hangar {
            return Err(MetricsFault::NotHangar { bytes: self.bytes, lines: self.lines });
        }
        let whole = self.carry.is_empty() || self.ended || self.carry == b"# EOF";
        if !whole {
            return Err(MetricsFault::Truncated { line: self.lines + 1, excerpt: excerpt(&self.carry) });
        }
        Ok(self.bytes)
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), MetricsFault> {
        if self.carry.len() + part.len() > LINE_MAX {
            return Err(MetricsFault::LineTooLong { line: self.lines + 1 });
        }
        self.carry.extend_from_slice(part);
        Ok(())
    }

    fn line(&mut self, line: &[u8], sink: &mut impl FnMut(Sample<'_>) -> Result<(), &'static str>) -> Result<(), MetricsFault> {
        self.lines += 1;
        if line.len() > LINE_MAX {
            return Err(MetricsFault::LineTooLong { line: self.lines });
        }
        if self.ended {
            return Ok(());
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let taken = match line::parse(line) {
            Ok(Parsed::Ours(sample)) => {
                self.saw_hangar = true;
                sink(sample)
            }
            Ok(Parsed::Hangars) => {
                self.saw_hangar = true;
                Ok(())
            }
            Ok(Parsed::Eof) => {
                self.ended = true;
                Ok(())
            }
            Ok(Parsed::Other) => Ok(()),
            Err(line::Fault::NotText(what)) => {
                return Err(MetricsFault::NotText { line: self.lines, what, excerpt: excerpt(line) });
            }
            Err(line::Fault::Garbage(what)) => Err(what),
        };
        taken.map_err(|what| match what {
            TOO_MANY => MetricsFault::TooManyServers,
            what => MetricsFault::Garbage { line: self.lines, what, excerpt: excerpt(line) },
        })
    }
}

const TOO_MANY: &str = "too many servers";

/// A piece of a foreign line for a message: short, and safe to print.
fn excerpt(line: &[u8]) -> String {
    let cut = line.get(..80).unwrap_or(line);
    String::from_utf8_lossy(cut).escape_debug().to_string()
}

/// What one body says of one server. Every value is as exported; a family that has no series for it is `None` or zero.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ServerSample {
    /// `mcp_hangar_mcp_server_state`; `None` = no series, or `gauge_odd`.
    pub gauge: Option<State>,
    /// The series is there but tells no state (NaN, a fraction, 7, two series that differ): the state is unknown.
    pub gauge_odd: bool,
    /// `..._last_healthy_timestamp_seconds`; `None` = never healthy in this process, or not a time.
    pub last_healthy: Option<Timestamp>,
    /// `..._stops_total` by reason.
    pub stops: Stops,
    /// `..._starts_total{result="success"}`: a successful REST start counts 2.
    pub starts_success: u64,
    /// `..._starts_total{result="failure"}`.
    pub starts_failure: u64,
    /// `..._cold_start_in_progress` is not 0.
    pub starting: bool,
}

/// One good read of `/metrics`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MetricsReading {
    /// `mcp_hangar_process_start_time_seconds`, else `process_start_time_seconds`.
    pub process_start: Option<Timestamp>,
    /// `version` of `mcp_hangar_build_info`, as exported.
    pub version: Option<String>,
    pub servers: BTreeMap<String, ServerSample>,
    /// State series whose id Hangar itself would refuse (`"api\n"`, 65 characters): never acted on.
    pub skipped_ids: u64,
    /// The first few of them, cut and escaped, for the log.
    pub skipped_examples: Vec<String>,
    /// Size of the body.
    pub bytes: u64,
    /// How long it took from the request to the end of the body.
    pub took: SignedDuration,
}

/// Folds samples into a [`MetricsReading`].
#[derive(Debug, Default)]
pub struct Collector {
    parser: Parser,
    reading: MetricsReading,
    fallback_start: Option<Timestamp>,
}

impl Collector {
    /// Reads the next chunk of the body.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), MetricsFault> {
        let Self { parser, reading, fallback_start } = self;
        parser.feed(chunk, |sample| take(reading, fallback_start, &sample))
    }

    /// The body is over.
    pub fn finish(self) -> Result<MetricsReading, MetricsFault> {
        let Self { parser, mut reading, fallback_start } = self;
        reading.bytes = parser.finish()?;
        reading.process_start = reading.process_start.or(fallback_start);
        Ok(reading)
    }
}

/// Entry point for fuzzing: any bytes as a body, whole and in pieces; where the pieces end must change nothing.
///
/// # Panics
/// The pieces were read otherwise than the whole.
#[doc(hidden)]
pub fn fuzz_metrics(data: &[u8]) {
    let read = |size: usize| {
        let mut collector = Collector::default();
        data.chunks(size).try_for_each(|part| collector.feed(part)).and_then(|()| collector.finish())
    };
    assert_eq!(read(data.len().max(1)), read(7), "the borders of chunks changed what was read");
}

fn take(reading: &mut MetricsReading, fallback_start: &mut Option<Timestamp>, sample: &Sample<'_>) -> Result<(), &'static str> {
    match sample {
        Sample::ProcessStart { seconds, hangars: true } => reading.process_start = Some(time(*seconds).ok_or("not a time")?),
        Sample::ProcessStart { seconds, hangars: false } => *fallback_start = Some(time(*seconds).ok_or("not a time")?),
        Sample::BuildInfo { version } => reading.version = Some(version.chars().take(64).collect()),
        Sample::State { server, value } => {
            if !valid_server_id(server) {
                skip(reading, server);
                return Ok(());
            }
            let entry = server_entry(reading, server)?;
            let seen = State::from_gauge(*value);
            entry.gauge_odd |= seen.is_none() || entry.gauge.is_some_and(|before| Some(before) != seen);
            entry.gauge = if entry.gauge_odd { None } else { seen };
        }
        Sample::LastHealthy { server, seconds } if valid_server_id(server) => {
            server_entry(reading, server)?.last_healthy = time(*seconds);
        }
        Sample::Stops { server, reason, value } if valid_server_id(server) => {
            let n = count(*value).ok_or("not a count")?;
            let reason = reason.parse().unwrap_or(StopReason::Other);
            let stops = server_entry(reading, server)?.stops.entry(reason).or_insert(0);
            *stops = stops.saturating_add(n);
        }
        Sample::Starts { server, success, value } if valid_server_id(server) => {
            let n = count(*value).ok_or("not a count")?;
            let entry = server_entry(reading, server)?;
            let starts = if *success { &mut entry.starts_success } else { &mut entry.starts_failure };
            *starts = starts.saturating_add(n);
        }
        // Anything but a plain 0 holds: a start may be under way.
        Sample::Starting { server, value } if valid_server_id(server) => server_entry(reading, server)?.starting |= *value != 0.0,
        Sample::LastHealthy { .. } | Sample::Stops { .. } | Sample::Starts { .. } | Sample::Starting { .. } => {}
    }
    Ok(())
}

fn server_entry<'r>(reading: &'r mut MetricsReading, server: &str) -> Result<&'r mut ServerSample, &'static str> {
    if !reading.servers.contains_key(server) {
        if reading.servers.len() >= SERVERS_MAX {
            return Err(TOO_MANY);
        }
        reading.servers.insert(server.to_owned(), ServerSample::default());
    }
    reading.servers.get_mut(server).ok_or(TOO_MANY)
}

fn skip(reading: &mut MetricsReading, server: &str) {
    reading.skipped_ids += 1;
    if reading.skipped_examples.len() < EXAMPLES_MAX {
        reading.skipped_examples.push(server.chars().take(80).collect::<String>().escape_debug().to_string());
    }
}

/// Unix seconds to a time, to the microsecond; `None` for NaN, infinities, zero and what no calendar holds.
#[must_use]
pub fn time(seconds: f64) -> Option<Timestamp> {
    let micros = (seconds * 1e6).round();
    // Above this an f64 no longer tells microseconds apart (year 2255).
    if !(micros > 0.0 && micros < 9_007_199_254_740_992.0) {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, reason = "checked against 2^53 above")]
    Timestamp::from_microsecond(micros as i64).ok()
}

fn count(value: f64) -> Option<u64> {
    if !(0.0..9_007_199_254_740_992.0).contains(&value) {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked against 0 and 2^53 above")]
    Some(value as u64)
}

#[cfg(test)]
mod tests;
