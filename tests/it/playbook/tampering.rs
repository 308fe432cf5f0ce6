//! `attempts verify`, as an operator runs it, on stores and exports that were changed behind the log's back.

use std::fs;
use std::path::Path;

use hangar_medic::attempt_log::{AttemptLog, Store};
use hangar_medic::policy::{Body, HoldCause};
use sqlx::{ConnectOptions, Connection};

use super::{Ran, medic};

const RECORDS: i64 = 40;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// A closed store with forty records.
fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let store = Store::open(dir.path(), "h:8000").await.unwrap();
        for second in 0..RECORDS {
            let why = format!("order number {second}");
            let body = Body::HoldOrdered { mcp_server: format!("server{second}"), cause: HoldCause::Manual, why };
            let at = jiff::Timestamp::from_second(1_770_000_000 + second).unwrap();
            store.append(at, "hangar-medic", vec![body]).await.unwrap();
        }
        store.close().await;
    });
    dir
}

fn tamper(dir: &Path, statements: &'static str) {
    run(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(dir.join("medic.db"));
        let mut db = options.connect().await.unwrap();
        sqlx::raw_sql(statements).execute(&mut db).await.unwrap();
        db.close().await.unwrap();
    });
}

fn verify(dir: &Path) -> Ran {
    medic(&["attempts", "verify", "--storage.path", dir.to_str().unwrap()])
}

fn export(dir: &Path) -> Vec<String> {
    let (code, out, err) = medic(&["attempts", "export", "--storage.path", dir.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""));
    out.lines().map(ToOwned::to_owned).collect()
}

fn verify_lines(lines: &[String], head: Option<&str>) -> Ran {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), lines.join("\n")).unwrap();
    let mut args = vec!["attempts", "verify", "--file", file.path().to_str().unwrap()];
    args.extend(head.iter().flat_map(|head| ["--head", head]));
    medic(&args)
}

#[test]
fn a_store_that_was_changed_is_told_by_its_first_bad_record() {
    let dir = filled();
    let (code, out, err) = verify(dir.path());
    assert!(code == 0 && err.is_empty() && out.starts_with("h:8000: whole, 40 records\nhead 40:"), "{out}{err}");
    for (statements, begins) in [
        ("UPDATE records SET body = replace(body, 'number 6', 'number 7') WHERE seq = 7", "h:8000: record 7 is altered"),
        ("DELETE FROM records WHERE seq = 9", "h:8000: record 9 is missing"),
        (
            "UPDATE records SET seq = -1 WHERE seq = 7; UPDATE records SET seq = 7 WHERE seq = 15; UPDATE records SET seq = 15 WHERE seq = -1",
            "h:8000: record 7 is out of order",
        ),
        ("DELETE FROM records WHERE seq > 30", "h:8000: record 31 is missing"),
    ] {
        let dir = filled();
        tamper(dir.path(), statements);
        let (code, out, _) = verify(dir.path());
        assert!(code == 1 && out.starts_with(begins), "{statements}: {code} {out}");
    }
}

#[test]
fn a_file_with_one_flipped_byte_or_cut_short_is_told_by_its_first_bad_record() {
    let dir = filled();
    let path = dir.path().join("medic.db");
    let mut bytes = fs::read(&path).unwrap();
    let needle = b"order number 21";
    let place = bytes.windows(needle.len()).position(|w| w == needle).unwrap();
    bytes[place] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (code, out, _) = verify(dir.path());
    assert!(code == 1 && out.starts_with("h:8000: record 22 is altered"), "{out}");

    let whole = fs::metadata(filled().path().join("medic.db")).unwrap().len();
    for length in (0..whole).step_by(2048) {
        let dir = filled();
        fs::File::options().write(true).open(dir.path().join("medic.db")).unwrap().set_len(length).unwrap();
        let (code, out, err) = verify(dir.path());
        assert!(code == 1 && out.starts_with("h:8000: record "), "{length} of {whole} bytes: {out}{err}");
    }
}

#[test]
fn an_export_verifies_without_its_store_and_shows_what_was_done_to_it() {
    let lines = export(filled().path());
    assert_eq!(lines.len(), 40);
    let (code, out, _) = verify_lines(&lines, None);
    let head = out.lines().nth(1).unwrap().strip_prefix("head ").unwrap().to_owned();
    assert_eq!((code, out.lines().next().unwrap()), (0, "h:8000: whole, 40 records"));
    assert_eq!(verify_lines(&lines, Some(&head)).0, 0);

    let check = |change: &dyn Fn(&mut Vec<String>), head: Option<&str>, begins: &str| {
        let mut changed = lines.clone();
        change(&mut changed);
        let (code, out, err) = verify_lines(&changed, head);
        assert!(code == 1 && out.starts_with(begins), "{begins}: {code} {out}{err}");
    };
    check(&|l| l[4] = l[4].replace("number 4", "number 5"), None, "h:8000: record 5 is altered");
    check(&|l| drop(l.remove(4)), None, "h:8000: record 5 is missing");
    check(&|l| l.swap(4, 9), None, "h:8000: record 5 is out of order");
    check(&|l| l[4].truncate(60), None, "h:8000: record 5 is unreadable");
    check(&|l| l[0] = "{}".to_owned(), None, ": record 1 is unreadable");
    check(&|l| l.truncate(20), Some(&head), "h:8000: record 21 is missing");
    check(&|l| drop(l.drain(..3)), None, "h:8000: record 3 is missing");
}

#[test]
fn what_cannot_be_read_or_understood_is_a_fault_of_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = verify(dir.path());
    assert!(code == 1 && out.is_empty() && err.contains("there is no attempt log"), "{code} {err}");
    let (code, _, err) = medic(&["attempts", "verify", "--file", "/nonexistent"]);
    assert!(code == 1 && err.contains("/nonexistent cannot be read"), "{code} {err}");
    let (code, _, err) = medic(&["attempts", "verify", "--file", "x", "--head", "24"]);
    assert!(code == 2 && err.contains("SEQ:HASH"), "{code} {err}");
}
