//! The same logs as a container runtime or a journal wraps them: the same answers, at the offsets of the outer lines.

use std::fmt::Write as _;

use hangar_medic::observe::log::{Change, InputFormat, Reader, Splitter};
use serde_json::json;

use super::corpus::{Dead, dead, scenario, scenarios};

/// A wrapped log, and where each inner line's first outer line begins.
struct Wrapped {
    bytes: Vec<u8>,
    offsets: Vec<u64>,
}

fn lines(log: &[u8]) -> impl Iterator<Item = &[u8]> {
    log.split_inclusive(|b| *b == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

fn wrap(log: &[u8], mut each: impl FnMut(&[u8], &mut Vec<u8>)) -> Wrapped {
    let mut wrapped = Wrapped { bytes: Vec::new(), offsets: Vec::new() };
    for line in lines(log) {
        wrapped.offsets.push(wrapped.bytes.len() as u64);
        each(line, &mut wrapped.bytes);
    }
    wrapped
}

/// CRI, each line in parts of `part` bytes, stdout's lines in between.
fn cri(log: &[u8], part: usize) -> Wrapped {
    wrap(log, |line, out| {
        let last = line.len().saturating_sub(1) / part;
        for (i, piece) in line.chunks(part.max(1)).enumerate() {
            let tag = if i == last { "F" } else { "P" };
            out.extend_from_slice(format!("2026-11-30T15:20:53.{i:09}Z stderr {tag} ").as_bytes());
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\n2026-11-30T15:20:53.435902123Z stdout P {\"jsonrpc\":\n");
        }
        if line.is_empty() {
            out.extend_from_slice(b"2026-11-30T15:20:53.1+00:00 stderr F \n");
        }
    })
}

/// Docker's json-file, each line in parts of `part` characters.
fn docker(log: &[u8], part: usize) -> Wrapped {
    wrap(log, |line, out| {
        let text: Vec<char> = format!("{}\n", String::from_utf8_lossy(line)).chars().collect();
        for piece in text.chunks(part) {
            let log: String = piece.iter().collect();
            let entry = json!({"log": log, "stream": "stderr", "time": "2026-11-30T15:20:53.435902123Z"});
            out.extend_from_slice(format!("{entry}\n").as_bytes());
        }
    })
}

/// `journalctl -o json`: text where it is printable, else an array of its bytes.
fn journald(log: &[u8], part: usize) -> Wrapped {
    wrap(log, |line, out| {
        let pieces: Vec<&[u8]> = if line.is_empty() { vec![line] } else { line.chunks(part).collect() };
        for (i, piece) in pieces.iter().enumerate() {
            let printable = std::str::from_utf8(piece).ok().filter(|text| !text.chars().any(char::is_control));
            let message = printable.map_or_else(|| json!(piece), |text| json!(text));
            let mut entry =
                json!({"MESSAGE": message, "__REALTIME_TIMESTAMP": "1796052053435902", "_PID": "4711", "_SYSTEMD_UNIT": "hangar.service"});
            if i + 1 < pieces.len() {
                entry["_LINE_BREAK"] = json!("line-max");
            }
            out.extend_from_slice(format!("{entry}\n").as_bytes());
        }
    })
}

/// Everything that a log tells, as text, with `place` for its offsets.
fn told(log: &[u8], place: impl Fn(u64) -> u64) -> (String, Dead) {
    let (mut reader, mut splitter, mut all) = (Reader::new(InputFormat::Auto), Splitter::default(), String::new());
    splitter.feed(log, &mut |offset, line| {
        reader.line(line, offset, &mut |told| {
            assert_ne!(told.what, Change::Retracted);
            writeln!(all, "{} {:?} {} {}", place(told.offset), told.mcp_server, told.event, serde_json::to_string(&told.what).unwrap())
                .unwrap();
        });
    });
    (all, dead(&reader))
}

/// The outer line's offset for the inner line's.
fn outer(log: &[u8], wrapped: &Wrapped) -> impl Fn(u64) -> u64 {
    let mut starts = Vec::new();
    let mut at = 0_u64;
    for line in lines(log) {
        starts.push(at);
        at += line.len() as u64 + 1;
    }
    let offsets = wrapped.offsets.clone();
    move |inner| offsets[starts.binary_search(&inner).unwrap()]
}

fn same(name: &str, log: &[u8], wrapped: &Wrapped) {
    let bare = told(log, outer(log, wrapped));
    let inside = told(&wrapped.bytes, |offset| offset);
    assert!(bare == inside, "{name}: {:?} wrapped: {:?}", bare.1, inside.1);
}

#[test]
fn wrapped_logs_tell_the_same_at_the_offsets_of_their_outer_lines() {
    for scenario in scenarios() {
        for log in [&scenario.json, &scenario.console] {
            let name = &scenario.name;
            // The short parts take long to try; these two have all kinds of lines.
            let parts: &[usize] = if name.ends_with("forge") || name.ends_with("/capability") { &[16 * 1024, 97] } else { &[16 * 1024] };
            for part in parts.iter().copied() {
                same(name, log, &cri(log, part));
                same(name, log, &docker(log, part));
                same(name, log, &journald(log, part));
            }
        }
    }
}

#[test]
fn a_line_split_anywhere_is_the_same_line() {
    let scenario = scenario("2.34.4/capability");
    for log in [&scenario.json, &scenario.console] {
        let telling: Vec<u8> = lines(log)
            .filter(|line| memchr::memmem::find(line, b"drift").is_some())
            .take(2)
            .flat_map(|line| [line, b"\n"])
            .collect::<Vec<_>>()
            .concat();
        let longest = lines(&telling).map(<[u8]>::len).max().unwrap();
        for part in 1..=longest {
            same("cri", &telling, &cri(&telling, part));
            same("docker", &telling, &docker(&telling, part));
            same("journald", &telling, &journald(&telling, part));
        }
    }
}

#[test]
fn a_reader_that_starts_again_at_any_line_tells_the_same() {
    let everything = |log: &[u8], restarts: bool| {
        let (mut reader, mut splitter, mut all) = (Reader::new(InputFormat::Auto), Splitter::default(), Vec::new());
        splitter.feed(log, &mut |offset, line| {
            if restarts {
                let saved = serde_json::to_string(&reader.save()).unwrap();
                reader = Reader::restored_from(serde_json::from_str(&saved).unwrap(), InputFormat::Auto);
            }
            reader.line(line, offset, &mut |told| all.push(told));
        });
        (all, dead(&reader))
    };
    for name in ["2.34.4/forge", "2.20.0/forge", "2.20.0/given_up"] {
        let scenario = scenario(name);
        for log in [&scenario.json, &scenario.console, &cri(&scenario.console, 200).bytes] {
            assert!(everything(log, false) == everything(log, true), "{name}");
        }
    }
}
