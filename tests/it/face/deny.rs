//! `tests/deny.sh` with a database of advisories to be had, and without one. The database is a git repository on this disk.

use std::path::Path;
use std::process::Command;

fn git(dir: &Path, args: &[&str]) {
    let done =
        Command::new("git").args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(args).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// A database with one advisory, about this crate.
fn database(dir: &Path, of: &str) {
    let crates = dir.join("crates").join(of);
    std::fs::create_dir_all(&crates).unwrap();
    let advisory = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2026-9001\"\npackage = \"{of}\"\ndate = \"2026-11-01\"\n\n[versions]\npatched = []\n```\n\n# A fault\n\nIt is one.\n"
    );
    std::fs::write(crates.join("RUSTSEC-2026-9001.md"), advisory).unwrap();
    git(dir, &["init", "-q", "-b", "main", "."]);
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-qm", "advisories"]);
}

/// The script's exit code and what it says, where the public database is `database`.
fn deny(dir: &Path, database: &Path) -> (i32, String) {
    let config = std::fs::read_to_string(".cargo/deny.toml").unwrap();
    let path = format!("[advisories]\ndb-path = \"{}\"\n", dir.join("cache").display());
    std::fs::write(dir.join("deny.toml"), config.replace("[advisories]\n", &path)).unwrap();
    let done = Command::new("tests/deny.sh")
        .env("HANGAR_MEDIC_DENY_CONFIG", dir.join("deny.toml"))
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", database.display()))
        .env("GIT_CONFIG_VALUE_0", "https://github.com/RustSec/advisory-db")
        .output()
        .unwrap();
    (done.status.code().unwrap_or(-1), format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)))
}

#[test]
fn advisories_are_judged_where_their_database_can_be_had_and_said_to_be_not_run_otherwise() {
    const NOT_RUN: &str = "advisories: not run";
    let dir = tempfile::tempdir().unwrap();
    for (what, of, code, says) in [("ours", "fail", 1, "RUSTSEC-2026-9001"), ("another", "no-crate-of-ours", 0, "")] {
        let own = dir.path().join(what);
        let files = own.join("db");
        database(&files, of);
        let (ended, said) = deny(&own, &files);
        assert!(said.contains(says) && !said.contains(NOT_RUN), "{what}: {said}");
        assert_eq!(ended == 0, code == 0, "{what}: {ended} {said}");
    }
    let (ended, said) = deny(dir.path(), &dir.path().join("nowhere"));
    assert!(ended == 0 && said.contains(NOT_RUN), "{ended} {said}");
}
