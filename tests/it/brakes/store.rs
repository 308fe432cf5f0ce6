//! A store that cannot be trusted: nothing acts, the daemon says why, nothing is overwritten, and what is damaged is kept aside.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hangar_medic::attempt_log::kept_aside;
use serde_json::json;

use crate::playbook::api::{OPERATOR, World, principals};
use crate::playbook::{command, finish};
use crate::support::medic::BINARY;
use crate::support::process::Running;
use crate::support::world::Unwatched;
use crate::support::{Medic, Postgres, V2_34, http, poll, rest};

/// How a daemon on this store ends, and what it says; `None` while it runs.
fn begins(w: &World) -> Option<(i32, String)> {
    let log = w.dir.path().join("try.log");
    std::fs::write(&log, "").unwrap();
    let mut command = Command::new(BINARY);
    command.arg("run").arg("--config.file").arg(w.medic.config_file()).args(["--web.listen-address", "127.0.0.1:0"]);
    let mut process = Running::start(&mut command, &log);
    let status = poll(Duration::from_secs(20), || process.exited())?;
    Some((status.code().unwrap_or(-1), std::fs::read_to_string(&log).unwrap()))
}

/// The store's files: what was written last may be in the write-ahead log alone.
const FILES: [&str; 2] = ["medic.db", "medic.db-wal"];

fn bytes(data: &Path) -> Vec<Vec<u8>> {
    FILES.iter().map(|file| std::fs::read(data.join(file)).unwrap_or_default()).collect()
}

fn put(data: &Path, all: &[Vec<u8>]) {
    for (file, bytes) in FILES.iter().zip(all) {
        std::fs::write(data.join(file), bytes).unwrap();
    }
}

/// Another program at the database.
fn sqlite(file: &Path, statement: &str) {
    let python = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall()";
    assert!(Command::new("python3").args(["-c", python]).arg(file).arg(statement).status().unwrap().success());
}

fn flipped(whole: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut all = whole.to_vec();
    for file in all.iter_mut().filter(|f| !f.is_empty()) {
        let half = file.len() / 2;
        file[half..half + 64].iter_mut().for_each(|b| *b ^= 0xa5);
        file[20..84].iter_mut().for_each(|b| *b ^= 0x5a);
    }
    all
}

/// The directory in which the daemon keeps a damaged store, once it says so at every place where somebody would look.
fn kept_and_named(medic: &Medic, nth: usize) -> PathBuf {
    let aside = poll(Duration::from_secs(15), || kept_aside(&medic.data()).get(nth - 1).cloned());
    let aside = aside.unwrap_or_else(|| panic!("nothing is kept aside\n{}", medic.log()));
    let name = aside.to_str().unwrap();
    let ready = poll(Duration::from_secs(10), || Some(http::get(medic.port(), "/-/ready", None)).filter(|a| a.body.contains(name)));
    assert_eq!(ready.expect("/-/ready names it").status, 503);
    for (path, status) in [("/", 503), ("/api/v1/status", 503), ("/-/healthy", 200)] {
        let answer = http::get(medic.port(), path, None);
        assert_eq!((answer.status, status == 200 || answer.body.contains(name)), (status, true), "{path}: {}", answer.body);
    }
    assert_eq!(http::sample(&medic.metrics(), "hangar_medic_attempt_log_writable"), Some(0.0), "what the alert turns on");
    assert!(medic.log().contains(name), "{}", medic.log());
    let (_, doctor, _) = finish(command(&["doctor", "--format", "json", "--config.file"]).arg(medic.config_file()));
    assert!(doctor.contains(name) && doctor.contains("begin-anew"), "{doctor}");
    assert!(!medic.data().join("medic.db").exists(), "nothing is begun in its place");
    aside
}

#[test]
fn a_store_with_flipped_bytes_is_kept_aside_and_named_and_nothing_acts_before_a_backup_is_put_there() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).server("other", "ok", &json!({})));
    w.hangar.bring_up(&["api", "other"]);
    let tokens = principals(&w.dir().join("tokens"));
    let mut w = w.watch(&json!({"web": {"principals": tokens}}));
    assert_eq!(w.medic.post_as(OPERATOR, "/api/v1/servers/api/hold", &json!({"reason": "r"})).status, 200);
    assert!(w.medic.sigterm().is_some());
    let data = w.medic.data();
    let whole = bytes(&data);
    let damaged = flipped(&whole);
    put(&data, &damaged);
    w.hangar.kill_child("api");
    w.hangar.kill_child("other");
    w.medic.start_again();
    let aside = kept_and_named(&w.medic, 1);
    assert!(bytes(&aside) == damaged, "it is there, byte by byte");
    // A start anew changes nothing of it: no empty history begins.
    w.medic.restart();
    assert_eq!(kept_and_named(&w.medic, 1), aside);
    rest(2.0);
    assert_eq!(w.proxy.starts("api").len() + w.proxy.starts("other").len(), 0, "nothing acts");
    // A backup, put there while it waits: the hold still stands, and the other server is brought back.
    put(&data, &whole);
    w.wait("it goes on with the backup", 20, |w| w.medic.hold_orders().contains_key("api"));
    w.wait("what is not held is brought back", 40, |w| w.medic.incident("other")["how"] == "recovered");
    assert_eq!(w.proxy.starts("api").len(), 0, "{}", w.medic.report());
    assert!(bytes(&aside) == damaged, "it stays");
}

#[test]
fn whatever_the_damage_is_the_store_is_kept_and_only_a_persons_word_begins_an_empty_one() {
    let mut w = World::start(false, &json!({}));
    assert_eq!(w.medic.post_as(OPERATOR, "/api/v1/servers/api/hold", &json!({"reason": "by-a-person"})).status, 200);
    assert_eq!(w.medic.post_as(OPERATOR, "/api/v1/servers/db/hold", &json!({"reason": "later"})).status, 200);
    assert!(w.medic.sigterm().is_some());
    let data = w.medic.data();
    // All of it in the one file.
    sqlite(&data.join("medic.db"), "PRAGMA wal_checkpoint(TRUNCATE)");
    let db = &std::fs::read(data.join("medic.db")).unwrap();
    let at = db.windows(11).position(|w| w == b"by-a-person").unwrap();
    let mut altered = db.clone();
    altered[at] ^= 1;
    let begin_anew = || finish(&mut command(&["attempts", "begin-anew", "--storage.path", data.to_str().unwrap()]));
    for (n, (what, damaged)) in
        [("cut short", db[..db.len() / 2].to_vec()), ("no database", b"notes ".repeat(500)), ("a byte of a record", altered)]
            .into_iter()
            .enumerate()
    {
        put(&data, &[damaged.clone(), Vec::new()]);
        w.medic.start_again();
        let aside = kept_and_named(&w.medic, n + 1);
        assert_eq!(std::fs::read(aside.join("medic.db")).unwrap(), damaged, "{what}");
        assert_eq!(kept_aside(&data).len(), n + 1, "{what}: none is overwritten");
        let (code, out, err) = begin_anew();
        assert!(code == 0 && out.contains(aside.to_str().unwrap()), "{what}: {out}{err}");
        let open = poll(Duration::from_secs(20), || (w.medic.status()["instance"] == "test").then_some(()));
        assert!(open.is_some(), "{what}: {}", w.medic.log());
        assert!(w.medic.hold_orders().is_empty(), "what was known is not known any more");
        assert!(w.medic.sigterm().is_some());
        let (code, _, err) = begin_anew();
        assert!(code == 1 && err.contains("there is one at that place"), "{err}");
    }
}

#[test]
fn what_only_cannot_be_read_or_written_is_not_moved() {
    let mut w = World::start(false, &json!({}));
    assert!(w.medic.sigterm().is_some());
    let data = w.medic.data();
    let before = bytes(&data);
    // Foreign: a database of another program. Unreadable: a directory where the file should be.
    let foreign = data.join("foreign.db");
    sqlite(&foreign, "CREATE TABLE x (y)");
    let other = std::fs::read(&foreign).unwrap();
    put(&data, &[other.clone(), Vec::new()]);
    let (code, said) = begins(&w).expect("it must not run on it");
    assert!(code == 1 && said.contains("another program"), "{code} {said}");
    assert!(std::fs::read(data.join("medic.db")).unwrap() == other && kept_aside(&data).is_empty());
    std::fs::remove_file(data.join("medic.db")).unwrap();
    std::fs::create_dir(data.join("medic.db")).unwrap();
    let (code, said) = begins(&w).expect("it must not run on it");
    assert!(code == 1 && said.contains(data.to_str().unwrap()), "{code} {said}");
    assert!(data.join("medic.db").is_dir() && kept_aside(&data).is_empty());
    std::fs::remove_dir(data.join("medic.db")).unwrap();
    put(&data, &before);
    w.medic.start_again();
}

#[test]
fn a_store_of_a_newer_version_is_not_touched() {
    let mut w = World::start(false, &json!({}));
    assert!(w.medic.sigterm().is_some());
    let data = w.medic.data();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        use sqlx::Connection;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(data.join("medic.db"));
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
        let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (99, 'x', 1, x'00', 0)";
        sqlx::query(newer).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
    let before = bytes(&data);
    let (code, said) = begins(&w).expect("it must not run on it");
    assert!(code == 1 && said.contains("newer"), "{code} {said}");
    assert!(bytes(&data) == before && kept_aside(&data).is_empty(), "nothing is overwritten or moved");
}

#[test]
fn a_store_that_is_damaged_while_in_use_holds_everything_and_is_kept_aside_by_a_start_anew() {
    let mut w = World::start(false, &json!({}));
    let hold = |w: &World, id: &str| w.medic.post_as(OPERATOR, &format!("/api/v1/servers/{id}/hold"), &json!({"reason": "r"})).status;
    assert_eq!(hold(&w, "api"), 200);
    let data = w.medic.data();
    sqlite(&data.join("medic.db"), "DROP TABLE records");
    assert_ne!(hold(&w, "db"), 200, "what cannot be written is not done");
    let named = poll(Duration::from_secs(15), || {
        let ready = http::get(w.medic.port(), "/-/ready", None).body;
        (ready.contains("is damaged") && ready.contains("medic.db") && ready.contains("start the daemon anew")).then_some(())
    });
    assert!(named.is_some(), "{}\n{}", http::get(w.medic.port(), "/-/ready", None).body, w.medic.log());
    assert_eq!(http::sample(&w.medic.metrics(), "hangar_medic_attempt_log_writable"), Some(0.0));
    w.medic.restart();
    kept_and_named(&w.medic, 1);
}

#[test]
fn a_damaged_store_on_a_server_is_named_and_left_as_it_is_and_nothing_acts() {
    let postgres = Postgres::start();
    let mut w = World::start(false, &json!({"storage": {"postgres": {"url": postgres.url("fleet")}}}));
    assert_eq!(w.medic.post_as(OPERATOR, "/api/v1/servers/api/hold", &json!({"reason": "r"})).status, 200);
    assert!(w.medic.sigterm().is_some());
    postgres.execute("fleet", "ALTER TABLE hangar_medic.records RENAME TO lost");
    w.medic.start_again();
    let named = poll(Duration::from_secs(20), || {
        let ready = http::get(w.medic.port(), "/-/ready", None).body;
        (ready.contains("nothing acts") && ready.contains("postgres://127.0.0.1") && ready.contains("its tables are gone")).then_some(())
    });
    assert!(named.is_some(), "{}\n{}", http::get(w.medic.port(), "/-/ready", None).body, w.medic.log());
    assert_eq!(http::get(w.medic.port(), "/api/v1/status", None).status, 503);
    // What a person put back is found, and the hold still stands.
    postgres.execute("fleet", "ALTER TABLE hangar_medic.lost RENAME TO records");
    let stands = poll(Duration::from_secs(30), || w.medic.hold_orders().contains_key("api").then_some(()));
    assert!(stands.is_some(), "{}", w.medic.log());
}
