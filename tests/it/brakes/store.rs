//! A store that cannot be trusted: the daemon does not begin, says why, and leaves it as it was.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::playbook::api::{OPERATOR, World};
use crate::support::medic::BINARY;
use crate::support::poll;
use crate::support::process::Running;

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

#[test]
fn on_a_damaged_store_the_daemon_does_not_begin_and_leaves_it_as_it_is() {
    let mut w = World::start(false, &json!({}));
    assert_eq!(w.medic.post_as(OPERATOR, "/api/v1/servers/api/hold", &json!({"reason": "r"})).status, 200);
    assert!(w.medic.sigterm().is_some());
    let data = w.medic.data();
    let whole = bytes(&data);
    let mut flipped = whole.clone();
    for file in flipped.iter_mut().filter(|f| !f.is_empty()) {
        let half = file.len() / 2;
        file[half..half + 64].iter_mut().for_each(|b| *b ^= 0xa5);
        file[20..84].iter_mut().for_each(|b| *b ^= 0x5a);
    }
    put(&data, &flipped);
    let (code, said) = begins(&w).expect("it must not run on it");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(data.join("medic.db").to_str().unwrap()), "it names the file: {said}");
    assert!(bytes(&data) == flipped, "nothing is overwritten");
    // Whole again, the hold still stands.
    put(&data, &whole);
    w.medic.start_again();
    let stands = poll(Duration::from_secs(15), || w.medic.hold_orders().contains_key("api").then_some(()));
    assert!(stands.is_some(), "{}", w.medic.log());
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
    assert!(bytes(&data) == before, "nothing is overwritten");
}
