//! Any number of attempts, in memory that does not grow with it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hangar_medic::attempt_log::{AttemptLog, Store, hash_of};
use hangar_medic::policy::Body;

use super::{command, scale};
use crate::support::medic::BINARY;

/// What any input may need, however large it is.
const MOST_KIB: u64 = 32 * 1024;

/// Runs a command to its end; gives its output and the most memory that it had, in KiB.
fn peak(args: &[&str]) -> (String, u64) {
    let begun = Instant::now();
    let mut child = command(args).stdout(Stdio::piped()).spawn().unwrap();
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let now = text.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        most = most.max(now.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    eprintln!("{} {} in {:.1} s, at most {most} KiB", args[0], args[1], begun.elapsed().as_secs_f64());
    (String::from_utf8(out.stdout).unwrap(), most)
}

fn bounded(args: &[&str]) -> String {
    let (out, most) = peak(args);
    assert!(most > 0 && most < MOST_KIB, "{args:?}: {most} KiB");
    out
}

fn attempt(n: usize) -> String {
    let action = if n.is_multiple_of(4) { "full_mcp_restart" } else { "session_reconnect" };
    let outcome = ["recovered", "failed", "success"][n % 3];
    format!(
        r#"{{"action":"{action}","outcome":"{outcome}","reason":"attempt number {n}","actor":"hangar-medic","recorded_at":"2026-07-25T21:00:00Z"}}"#
    )
}

fn attempts(dir: &Path, name: &str, n: usize, array: bool) -> String {
    let path = dir.join(name);
    let mut out = BufWriter::new(File::create(&path).unwrap());
    let (open, between, close) = if array { ("[", ",\n", "]\n") } else { ("", "\n", "\n") };
    out.write_all(open.as_bytes()).unwrap();
    for i in 0..n {
        let end = if i + 1 < n { between } else { close };
        write!(out, "{}{end}", attempt(i)).unwrap();
    }
    out.flush().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn recovery_metrics_over_very_many_attempts_need_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let many = 100_000 * scale();
    for array in [true, false] {
        let file = attempts(dir.path(), "attempts", many, array);
        let out = bounded(&["recovery-metrics", "--attempts", &file, "--format", "json"]);
        let metrics: serde_json::Value = serde_json::from_str(&out).unwrap();
        let recovered = (0..many).filter(|n| n % 3 != 1).count();
        let full = (0..many).filter(|n| n % 3 != 1 && n % 4 == 0).count();
        assert_eq!((&metrics["attempts"], &metrics["successful_recoveries"]), (&many.into(), &recovered.into()));
        assert_eq!(metrics["avoided_full_restart"], recovered - full);
        let fraction = (recovered - full) as f64 / recovered as f64;
        assert_eq!(metrics["fraction_avoided_full_restart"], fraction);
    }
}

#[test]
fn recommend_over_very_many_attempts_needs_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = attempts(dir.path(), "attempts", 100_000 * scale(), false);
    let out = bounded(&["recommend", "--symptom", "stale_session", "--attempts", &file]);
    assert!(out.starts_with("next: configuration_reload\n"), "{out}");
}

#[test]
fn an_export_of_the_log_is_read_as_the_attempts_that_it_records() {
    let dir = tempfile::tempdir().unwrap();
    let many = 100_000 * scale();
    let (small, large) = (export(dir.path(), "small", 10), export(dir.path(), "large", many));
    let args = |file| ["recovery-metrics", "--attempts", file, "--format", "json"];
    let metrics: serde_json::Value = serde_json::from_str(&bounded(&args(&large))).unwrap();
    assert_eq!((&metrics["attempts"], &metrics["by_outcome"]["recovered"]), (&many.into(), &many.into()));
    // Settled again: it did not last.
    let mut text = std::fs::read_to_string(&small).unwrap();
    let again = text.lines().nth(2).unwrap().replace("\"recovered\"", "\"insufficient\"");
    text.push_str(&again);
    std::fs::write(&small, text).unwrap();
    let metrics: serde_json::Value = serde_json::from_str(&super::medic(&args(&small)).1).unwrap();
    assert_eq!((&metrics["by_outcome"]["recovered"], &metrics["by_outcome"]["insufficient"]), (&9.into(), &1.into()));
}

/// The three records of one attempt.
fn records(n: usize) -> [String; 3] {
    let id = format!("api.{}.1", 1_770_000_000_000 + n);
    [
        format!(
            r#"{{"kind":"attempt_opened","attempt_id":"{id}","incident_id":"api.{}","mcp_server":"api","action":"session_reconnect","why":"w","slow_retry":false}}"#,
            1_770_000_000_000 + n
        ),
        format!(r#"{{"kind":"attempt_receipt","attempt_id":"{id}","receipt":"accepted","detail":"200"}}"#),
        format!(r#"{{"kind":"attempt_settled","attempt_id":"{id}","outcome":"recovered","why":"ready"}}"#),
    ]
}

fn export(dir: &Path, name: &str, attempts: usize) -> String {
    let path = dir.join(name);
    let mut out = BufWriter::new(File::create(&path).unwrap());
    let (mut prev, at, actor) = ("0".repeat(64), "2026-02-02T02:40:00.000000Z", "hangar-medic");
    for (n, body) in (0..attempts).flat_map(records).enumerate() {
        let seq = n as u64 + 1;
        let hash = hash_of(&prev, "h:8000", seq, at, actor, &body);
        let begin = format!(r#"{{"instance":"h:8000","seq":{seq},"at":"{at}","actor":"{actor}""#);
        writeln!(out, r#"{begin},"body":{body},"prev_hash":"{prev}","hash":"{hash}"}}"#).unwrap();
        prev = hash;
    }
    out.flush().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_export_of_very_many_attempts_is_verified_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let many = 100_000 * scale();
    let out = bounded(&["attempts", "verify", "--file", &export(dir.path(), "export", many)]);
    assert!(out.starts_with(&format!("h:8000: whole, {} records\n", 3 * many)), "{out}");
}

fn store(dir: &Path, attempts: usize) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(dir, "h:8000").await.unwrap();
        let at = jiff::Timestamp::from_second(1_770_000_000).unwrap();
        let mut n = 0;
        while n < attempts {
            let next = (n + 2_000).min(attempts);
            let bodies: Vec<Body> = (n..next).flat_map(records).map(|body| serde_json::from_str(&body).unwrap()).collect();
            store.append(at, "hangar-medic", bodies).await.unwrap();
            n = next;
        }
        store.close().await;
    });
    dir.to_str().unwrap().to_owned()
}

#[test]
fn a_store_of_very_many_attempts_is_verified_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let many = 100_000 * scale();
    let out = bounded(&["attempts", "verify", "--storage.path", &store(dir.path(), many)]);
    assert!(out.starts_with(&format!("h:8000: whole, {} records\n", 3 * many)), "{out}");
}

/// Runs a command on a terminal of its own; gives what the terminal shows.
fn on_a_terminal(args: &[&str]) -> String {
    let line: Vec<String> = std::iter::once(BINARY).chain(args.iter().copied()).map(|a| format!("'{a}'")).collect();
    let out = Command::new("script").args(["-qec", &line.join(" "), "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "script (util-linux) is needed: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_person_sees_how_far_it_is_and_a_program_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (attempts(dir.path(), "attempts", 20_000, true), export(dir.path(), "export", 10_000));
    for (args, what) in
        [(["recovery-metrics", "--attempts", &file].as_slice(), "read"), (&["attempts", "verify", "--file", &log], "verified")]
    {
        let seen = on_a_terminal(args);
        assert!(seen.contains(&format!("\r{what} ")) && seen.contains(" %"), "{args:?}: {seen}");
        assert_eq!(super::medic(args).2, "", "{args:?}");
    }
}
