//! One line of the Prometheus text format. Lines of other families cost one look at their name.

use std::borrow::Cow;

/// A sample of a family that matters.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample<'a> {
    /// `hangars` is false for the plain `process_start_time_seconds` of a Python process.
    ProcessStart {
        seconds: f64,
        hangars: bool,
    },
    BuildInfo {
        version: Cow<'a, str>,
    },
    State {
        server: Cow<'a, str>,
        value: f64,
    },
    LastHealthy {
        server: Cow<'a, str>,
        seconds: f64,
    },
    Stops {
        server: Cow<'a, str>,
        reason: Cow<'a, str>,
        value: f64,
    },
    Starts {
        server: Cow<'a, str>,
        success: bool,
        value: f64,
    },
    /// `mcp_hangar_mcp_server_cold_start_in_progress`.
    Starting {
        server: Cow<'a, str>,
        value: f64,
    },
}

/// What a line turned out to be.
pub(super) enum Parsed<'a> {
    Ours(Sample<'a>),
    /// Another family of Hangar's.
    Hangars,
    /// A comment, an empty line, another program's family.
    Other,
    /// OpenMetrics' end of the body.
    Eof,
}

pub(super) enum Fault {
    NotText(&'static str),
    Garbage(&'static str),
}

const PREFIX: &[u8] = b"mcp_hangar_";

/// Reads one line without its line end.
pub(super) fn parse(line: &[u8]) -> Result<Parsed<'_>, Fault> {
    let Some(&first) = line.first() else { return Ok(Parsed::Other) };
    if first == b'#' {
        return Ok(if line == b"# EOF" { Parsed::Eof } else { Parsed::Other });
    }
    if !(first.is_ascii_alphabetic() || first == b'_' || first == b':') {
        return if line.iter().all(u8::is_ascii_whitespace) { Ok(Parsed::Other) } else { Err(Fault::NotText("no metric name starts so")) };
    }
    let is_hangars = line.starts_with(PREFIX);
    if !is_hangars && !line.starts_with(b"process_start_time_seconds") {
        return Ok(Parsed::Other);
    }
    let end = memchr::memchr3(b'{', b' ', b'\t', line).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let family = match name.strip_prefix(PREFIX).unwrap_or(name) {
        b"process_start_time_seconds" => Family::ProcessStart,
        b"build_info" if is_hangars => Family::BuildInfo,
        b"mcp_server_state" if is_hangars => Family::State,
        b"mcp_server_last_healthy_timestamp_seconds" if is_hangars => Family::LastHealthy,
        b"mcp_server_stops_total" if is_hangars => Family::Stops,
        b"mcp_server_starts_total" if is_hangars => Family::Starts,
        b"mcp_server_cold_start_in_progress" if is_hangars => Family::Starting,
        _ if is_hangars => return Ok(Parsed::Hangars),
        _ => return Ok(Parsed::Other),
    };
    sample(family, is_hangars, rest).map_err(Fault::Garbage)
}

#[derive(Clone, Copy)]
enum Family {
    ProcessStart,
    BuildInfo,
    State,
    LastHealthy,
    Stops,
    Starts,
    Starting,
}

/// The labels that matter, of one sample.
#[derive(Default)]
struct Labels<'a> {
    server: Option<Cow<'a, str>>,
    /// `reason`, `result` or `version`.
    other: Option<Cow<'a, str>>,
}

fn sample(family: Family, hangars: bool, rest: &[u8]) -> Result<Parsed<'_>, &'static str> {
    let rest = std::str::from_utf8(rest).map_err(|_| "not UTF-8")?;
    let wanted = match family {
        Family::Stops => "reason",
        Family::Starts => "result",
        Family::BuildInfo => "version",
        Family::ProcessStart | Family::State | Family::LastHealthy | Family::Starting => "",
    };
    let (labels, rest) = labels(rest, wanted)?;
    let value = value(rest)?;
    let server = labels.server.ok_or("no mcp_server label");
    let other = labels.other.ok_or("a label is missing");
    Ok(Parsed::Ours(match family {
        Family::ProcessStart => Sample::ProcessStart { seconds: value, hangars },
        Family::BuildInfo => Sample::BuildInfo { version: other? },
        Family::State => Sample::State { server: server?, value },
        Family::LastHealthy => Sample::LastHealthy { server: server?, seconds: value },
        Family::Stops => Sample::Stops { server: server?, reason: other?, value },
        Family::Starting => Sample::Starting { server: server?, value },
        Family::Starts => match &*other? {
            "success" => Sample::Starts { server: server?, success: true, value },
            "failure" => Sample::Starts { server: server?, success: false, value },
            _ => return Ok(Parsed::Hangars),
        },
    }))
}

/// `{a="b",c="d"}` and what follows it; no braces means no labels.
fn labels<'a>(text: &'a str, wanted: &str) -> Result<(Labels<'a>, &'a str), &'static str> {
    let mut found = Labels::default();
    let Some(mut rest) = text.strip_prefix('{') else { return Ok((found, text)) };
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((found, after));
        }
        let (name, after) = rest.split_once('=').ok_or("a label without a value")?;
        let name = name.trim_matches([' ', '\t']);
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':') {
            return Err("not a label name");
        }
        let after = after.trim_start_matches([' ', '\t']).strip_prefix('"').ok_or("a label value without quotes")?;
        let (value, after) = quoted(after)?;
        if name == "mcp_server" {
            found.server = Some(value);
        } else if name == wanted {
            found.other = Some(value);
        }
        rest = after.trim_start_matches([' ', '\t']);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.starts_with('}') => {}
            None => return Err("labels run on"),
        }
    }
}

/// A label value up to its closing quote; borrowed unless it holds escapes.
fn quoted(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let end = memchr::memchr2(b'"', b'\\', text.as_bytes()).ok_or("a label value without an end")?;
    let (head, tail) = text.split_at(end);
    if let Some(after) = tail.strip_prefix('"') {
        return Ok((Cow::Borrowed(head), after));
    }
    let mut value = String::from(head);
    let mut chars = tail.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((Cow::Owned(value), tail.get(at + 1..).unwrap_or_default())),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                _ => return Err("an unknown escape"),
            },
            c => value.push(c),
        }
    }
    Err("a label value without an end")
}

/// The value; a time after it and an OpenMetrics exemplar are allowed and ignored.
fn value(text: &str) -> Result<f64, &'static str> {
    let text = text.split_once(" # ").map_or(text, |(before, _)| before);
    let mut words = text.split([' ', '\t']).filter(|w| !w.is_empty());
    let value = words.next().ok_or("no value")?;
    // Rust reads NaN, Inf, +Inf and -Inf as the format writes them.
    let value = value.parse::<f64>().map_err(|_| "not a number")?;
    if words.next().is_some_and(|time| time.parse::<f64>().is_err()) {
        return Err("not a time after the value");
    }
    if words.next().is_some() { Err("more after the value") } else { Ok(value) }
}
