//! Prior attempts from a file: one JSON array or JSON Lines (an export of the log too), read one record at a time so that any number fits.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use jiff::Timestamp;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::export_input::{ExportFold, is_export};
use super::progress::{Bytes, Counted, Meter};
use crate::policy::{AttemptFault, AttemptRecord, parse_attempt};

/// Bytes of one record.
const RECORD_MAX: u64 = 1 << 20;
/// Faults that are listed; the others are counted.
const FAULTS_MAX: usize = 100;

/// Why the whole input is refused.
#[derive(Debug, Default)]
pub struct Refused {
    /// As many as are listed.
    pub faults: Vec<AttemptFault>,
    more: usize,
}

impl Refused {
    fn push(&mut self, fault: AttemptFault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn one(path: &str, text: impl Into<String>) -> Self {
        Self { faults: vec![AttemptFault::new(path, text)], more: 0 }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))?;
        if self.more > 0 { write!(f, "\nand {} more faults", self.more) } else { Ok(()) }
    }
}

/// Reads `file` (`-`: stdin) and gives each attempt to `each`.
///
/// # Errors
/// Every fault of the input. What was given to `each` before is then worth nothing.
pub fn read_file(file: &Path, now: Timestamp, each: &mut dyn FnMut(AttemptRecord)) -> Result<(), Refused> {
    let bytes = Bytes::default();
    let unreadable = |e: io::Error| Refused::one(&file.display().to_string(), format!("cannot be read: {e}"));
    let (input, total): (Box<dyn Read>, u64) = if file == Path::new("-") {
        (Box::new(io::stdin()), 0)
    } else {
        let opened = File::open(file).map_err(unreadable)?;
        let meta = opened.metadata().map_err(unreadable)?;
        if meta.is_dir() {
            return Err(Refused::one(&file.display().to_string(), "is a directory"));
        }
        (Box::new(opened), meta.len())
    };
    let mut meter = Meter::new("read");
    let mut seen = 0_u64;
    let mut each = |attempt| {
        seen += 1;
        if seen.is_multiple_of(4096) {
            meter.at(bytes.get(), total);
        }
        each(attempt);
    };
    read(BufReader::with_capacity(1 << 16, Counted::new(input, bytes.clone())), now, &mut each)
}

/// Reads attempts out of a text.
///
/// # Errors
/// As [`read_file`].
pub fn read_text(text: &str, now: Timestamp) -> Result<Vec<AttemptRecord>, Refused> {
    let mut attempts = Vec::new();
    read(text.as_bytes(), now, &mut |attempt| attempts.push(attempt))?;
    Ok(attempts)
}

/// Entry point for fuzzing: any bytes as a file of attempts, and as an export of a chain.
#[doc(hidden)]
pub fn fuzz_attempts(data: &[u8]) {
    let now = Timestamp::UNIX_EPOCH;
    let _ = read(data, now, &mut |_| {});
    let _ = crate::attempt_log::verify_export(data, None, &mut |_| {});
}

fn read(mut input: impl BufRead, now: Timestamp, each: &mut dyn FnMut(AttemptRecord)) -> Result<(), Refused> {
    let mut records = Records { now, index: 0, refused: Refused::default(), each };
    match first_byte(&mut input) {
        Ok(Some(b'[')) => records.array(input),
        Ok(Some(_)) => records.lines(input),
        Ok(None) => {}
        Err(error) => records.fault(error.to_string()),
    }
    if records.refused.faults.is_empty() { Ok(()) } else { Err(records.refused) }
}

/// The first byte that is no white space, not taken out of the input.
fn first_byte(input: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        let buffer = input.fill_buf()?;
        let blank = buffer.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')).count();
        let (found, empty) = (buffer.get(blank).copied(), buffer.is_empty());
        if found.is_some() || empty {
            return Ok(found);
        }
        input.consume(blank);
    }
}

struct Records<'a> {
    now: Timestamp,
    index: usize,
    refused: Refused,
    each: &'a mut dyn FnMut(AttemptRecord),
}

impl Records<'_> {
    /// A fault of the input itself, at the record at hand.
    fn fault(&mut self, text: impl Into<String>) {
        let path = format!("attempts[{}]", self.index);
        self.refused.push(AttemptFault::new(path, text));
    }

    fn record(&mut self, text: &str) {
        match parse_attempt(text, self.index, self.now) {
            Ok(attempt) if self.refused.faults.is_empty() => (self.each)(attempt),
            Ok(_) => {}
            Err(faults) => faults.into_iter().for_each(|fault| self.refused.push(fault)),
        }
        self.index += 1;
    }

    fn array(&mut self, input: impl BufRead) {
        let of_record = Rc::new(Cell::new(0));
        let mut json = serde_json::Deserializer::from_reader(Bounded { inner: input, of_record: Rc::clone(&of_record) });
        let whole = Elements { records: self, of_record: &of_record }.deserialize(&mut json);
        match whole.and_then(|()| json.end()) {
            Ok(()) => {}
            Err(error) if error.is_io() => self.fault(format!("cannot be read: {error}")),
            Err(error) => self.fault(format!("is not valid JSON: {error}")),
        }
    }

    fn lines(&mut self, mut input: impl BufRead) {
        let mut line = Vec::new();
        let mut export: Option<ExportFold> = None;
        loop {
            line.clear();
            match input.by_ref().take(RECORD_MAX + 1).read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) if line.len() as u64 > RECORD_MAX => return self.fault(format!("is longer than {RECORD_MAX} bytes")),
                Ok(_) => {}
                Err(error) => return self.fault(format!("cannot be read: {error}")),
            }
            match std::str::from_utf8(&line) {
                Ok(text) if text.trim().is_empty() => {}
                Ok(text) if export.is_some() || (self.index == 0 && is_export(text)) => {
                    if let Err(fault) = export.get_or_insert_default().line(text, self.each) {
                        self.fault(fault);
                    }
                    self.index += 1;
                }
                Ok(text) => self.record(text.trim()),
                Err(_) => {
                    self.fault("is not UTF-8");
                    self.index += 1;
                }
            }
        }
        if let Some(export) = export.filter(|_| self.refused.faults.is_empty()) {
            export.finish(self.each);
        }
    }
}

/// The elements of a JSON array, one at a time.
struct Elements<'a, 'b> {
    records: &'a mut Records<'b>,
    of_record: &'a Cell<u64>,
}

impl<'de> DeserializeSeed<'de> for Elements<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of attempts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(text) = seq.next_element::<Box<RawValue>>()? {
            self.records.record(text.get());
            self.of_record.set(0);
        }
        Ok(())
    }
}

/// A reader that fails when one record is longer than any may be.
struct Bounded<R> {
    inner: R,
    /// Bytes read since the last record was done.
    of_record: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.of_record.get() > RECORD_MAX {
            return Err(io::Error::other(format!("longer than {RECORD_MAX} bytes")));
        }
        let n = self.inner.read(buf)?;
        self.of_record.set(self.of_record.get() + n as u64);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Outcome, Rung};

    const GOOD: &str = r#"{"action":"client_reconnect","outcome":"success","reason":"r","actor":"a","recorded_at":"2026-07-25T21:00:00Z"}"#;

    fn read(text: &str) -> Result<usize, String> {
        let read = read_text(text, "2026-11-30T12:00:00Z".parse().unwrap());
        read.map(|attempts| attempts.len()).map_err(|refused| refused.to_string())
    }

    #[test]
    fn an_array_and_json_lines_read_alike() {
        assert_eq!(read(&format!("[{GOOD},\n {GOOD}]\n")), Ok(2));
        assert_eq!(read(&format!("{GOOD}\n\n{GOOD}\r\n")), Ok(2));
        assert_eq!(read(&format!("  {GOOD}")), Ok(1));
        assert_eq!([read("[]"), read(""), read(" \n ")], [Ok(0), Ok(0), Ok(0)]);
        let attempts = read_text(GOOD, "2026-11-30T12:00:00Z".parse().unwrap()).unwrap();
        assert_eq!((attempts[0].action, attempts[0].outcome), (Rung::ClientReconnect, Outcome::Recovered));
    }

    #[test]
    fn trailing_garbage_and_anything_else_refuses_the_whole_input() {
        let bad = GOOD.replace("success", "meh");
        for (text, fault) in [
            (format!("[{GOOD}] x"), "attempts[1]: is not valid JSON: trailing characters at line 1"),
            (format!("[{GOOD}][{GOOD}]"), "attempts[1]: is not valid JSON: trailing characters at line 1"),
            (format!("[{GOOD}"), "attempts[1]: is not valid JSON: EOF while parsing a list"),
            (format!("[{GOOD},]"), "attempts[1]: is not valid JSON: trailing comma"),
            (format!("{GOOD} x"), "attempts[0]: is not valid JSON: trailing characters"),
            (format!("{GOOD}\nx"), "attempts[1]: is not valid JSON: expected value"),
            (format!("{GOOD}\n[{GOOD}]"), "attempts[1]: must be an object, not an array"),
            ("7".to_owned(), "attempts[0]: must be an object, not a number"),
            ("\u{feff}[]".to_owned(), "attempts[0]: is not valid JSON: expected value"),
            (format!("[{GOOD},{GOOD},{GOOD},{bad}]"), "attempts[3].outcome: unknown outcome \"meh\"; known: recovered"),
            (format!("{GOOD}\n{bad}\n"), "attempts[1].outcome: unknown outcome \"meh\"; known: recovered"),
        ] {
            let found = read(&text).unwrap_err();
            assert!(found.starts_with(fault), "{text}: {found}");
        }
    }

    #[test]
    fn every_fault_is_named_and_a_flood_of_them_is_counted() {
        assert_eq!(read("[{},{\"action\":\"x\"}]").unwrap_err().lines().count(), 10);
        let flood = read(&"{}\n".repeat(100)).unwrap_err();
        assert_eq!((flood.lines().count(), flood.lines().last()), (101, Some("and 400 more faults")));
    }

    #[test]
    fn one_record_has_its_bound() {
        let long = GOOD.replace("\"r\"", &format!("\"{}\"", "r".repeat(2 << 20)));
        assert!(read(&format!("[{long}]")).unwrap_err().contains("longer than 1048576 bytes"));
        assert!(read(&long).unwrap_err().contains("longer than 1048576 bytes"));
        let many = vec![GOOD; 20_000].join(",");
        assert_eq!(read(&format!("[{many}]")), Ok(20_000));
    }
}
