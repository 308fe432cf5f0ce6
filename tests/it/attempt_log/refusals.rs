//! What the store does not start on, and that it leaves all of it as it was.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::homes::tamper;
use super::*;
use hangar_medic::attempt_log::{KEPT_MAX, LogError, hash_of, kept_aside};

/// Names and checksums of everything in the directory but the lock, SQLite's shared memory and empty files.
fn contents(dir: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // SQLite's own may go at any moment.
        let Ok(bytes) = fs::read(&path) else { continue };
        if !bytes.is_empty() && !path.ends_with("medic.lock") && !path.ends_with("medic.db-shm") {
            files.push((path.display().to_string(), hash_of("", "", 0, "", "", &format!("{bytes:?}"))));
        }
    }
    files.sort();
    files
}

/// The error of a start that must leave everything alone; it names the place and what to do.
async fn refused(dir: &Path) -> LogError {
    let before = contents(dir);
    let error = Store::open(dir, INSTANCE).await.unwrap_err();
    assert_eq!(contents(dir), before, "{error}");
    assert!(error.to_string().contains(dir.to_str().unwrap()), "{error}");
    error
}

#[test]
fn files_are_for_their_owner_only() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("made/here");
        let store = open(&data).await;
        store.append(at(0), "sidecar", vec![held("api")]).await.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&data), 0o700);
        for file in ["medic.db", "medic.db-wal", "medic.db-shm", "medic.lock", "medic.head"] {
            assert_eq!(mode(&data.join(file)), 0o600, "{file}");
        }
    });
}

#[test]
fn a_file_that_is_no_database_of_ours_is_left_alone() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("medic.db"), "not a database, but somebody's notes, and they are long enough to be read as a header of one, so that a careless program writes into them").unwrap();
        assert!(matches!(refused(dir.path()).await, LogError::Damaged { .. }));

        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).await.close().await;
        fs::remove_file(dir.path().join("medic.db")).unwrap();
        fs::write(dir.path().join("medic.db"), "").unwrap();
        tamper(dir.path(), "CREATE TABLE of_another_program (x)").await;
        let error = refused(dir.path()).await;
        assert!(error.to_string().contains("another program"), "{error}");
    });
}

#[test]
fn a_store_with_flipped_bytes_is_refused() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        for second in 0..50 {
            store.append(at(second), "sidecar", whole("api", second)).await.unwrap();
        }
        store.close().await;
        let path = dir.path().join("medic.db");
        let whole = fs::read(&path).unwrap();
        // The header of the file, and those of pages all over it.
        for place in [0, 100, 4096 * 5 + 1, whole.len() / 2 / 4096 * 4096 + 3, whole.len() - 4096 + 1] {
            let mut bytes = whole.clone();
            for byte in &mut bytes[place..place + 6] {
                *byte ^= 0xa5;
            }
            fs::write(&path, &bytes).unwrap();
            let error = refused(dir.path()).await;
            assert!(matches!(error, LogError::Damaged { .. }), "{place}: {error}");
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(open(dir.path()).await.head().await.unwrap().unwrap().seq, 400);
    });
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_one_without_tables_of_ours_is_not_newer() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).await.close().await;
        let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9, 'x', 1, x'00', 0)";
        tamper(dir.path(), newer).await;
        assert!(matches!(refused(dir.path()).await, LogError::Newer { version: 9, .. }));
        let read_only = Store::open_read_only(dir.path(), None).await.unwrap_err();
        assert!(matches!(read_only, LogError::Newer { version: 9, .. }), "{read_only}");
    });
}

#[test]
fn a_lost_database_beside_its_remains_is_not_begun_anew() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        store.append(at(0), "sidecar", vec![held("api")]).await.unwrap();
        store.close().await;
        fs::remove_file(dir.path().join("medic.db")).unwrap();
        assert!(matches!(refused(dir.path()).await, LogError::Damaged { .. }));
    });
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        symlink("/proc/hangar-medic", dir.path().join("proc")).unwrap();
        for place in ["file/data", "file", "proc/data"] {
            let place = dir.path().join(place);
            let error = Store::open(&place, INSTANCE).await.unwrap_err();
            assert!(matches!(error, LogError::Unwritable { .. }), "{error}");
            assert!(error.to_string().contains(place.to_str().unwrap()) && error.may_pass(), "{error}");
        }
        let missing = Store::open_read_only(&dir.path().join("none"), None).await.unwrap_err();
        assert!(matches!(missing, LogError::Missing { .. }), "{missing}");
    });
}

#[test]
fn a_log_that_was_removed_or_replaced_while_in_use_takes_no_more_records() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        store.append(at(0), "sidecar", vec![held("api")]).await.unwrap();
        let (path, aside) = (dir.path().join("medic.db"), dir.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        assert!(matches!(store.append(at(1), "sidecar", vec![held("db")]).await, Err(LogError::Unwritable { .. })));
        fs::write(&path, "").unwrap();
        assert!(matches!(store.append(at(1), "sidecar", vec![held("db")]).await, Err(LogError::Unwritable { .. })));
        fs::rename(&aside, &path).unwrap();
        assert_eq!(store.append(at(2), "sidecar", vec![held("db")]).await.unwrap()[0].seq, 2);
    });
}

async fn each_instance_has_its_own_chain_and_checkpoints<H: Home>() {
    let home = H::new();
    let first = home.open().await;
    first.append(at(0), "sidecar", vec![held("api")]).await.unwrap();
    first.put("log_position", serde_json::json!(1)).await.unwrap();
    H::close(first).await;
    let second = home.try_open("hangar-2").await.unwrap();
    assert_eq!(second.history(&Policy::default(), at(1)).await.unwrap(), History::default());
    assert_eq!(second.get("log_position").await.unwrap(), None);
    assert_eq!(second.append(at(1), "sidecar", vec![held("db")]).await.unwrap()[0].seq, 1);
    assert_eq!(second.verify(&mut |_| {}).await.unwrap().fault, None);
    let which = home.read_only(None).await.unwrap_err();
    assert!(matches!(&which, LogError::WhichInstance { instances, .. } if instances.len() == 2), "{which}");
    let reader = home.read_only(Some(INSTANCE)).await.unwrap();
    assert_eq!(reader.history(&Policy::default(), at(1)).await.unwrap().orders.keys().collect::<Vec<_>>(), ["api"]);
}

fn damage(dir: &Path) -> LogError {
    LogError::Damaged {
        place: hangar_medic::attempt_log::Place::File(dir.join("medic.db")),
        what: "a test said so".to_owned(),
        source: None,
    }
}

#[test]
fn what_is_kept_aside_is_never_overwritten_and_never_more_than_ten() {
    let dir = tempfile::tempdir().unwrap();
    let now = at(0);
    for n in 0..KEPT_MAX {
        for file in ["medic.db", "medic.db-wal", "medic.head"] {
            fs::write(dir.path().join(file), format!("{file} {n}")).unwrap();
        }
        let kept = Store::keep_aside(dir.path(), damage(dir.path()), now);
        assert!(matches!(&kept, LogError::KeptAside { why, .. } if why.contains("a test said so")), "{kept}");
    }
    let kept = kept_aside(dir.path());
    for (n, aside) in kept.iter().enumerate() {
        assert!(aside.file_name().unwrap().to_str().unwrap().starts_with("medic.db.damaged-20260202T024000Z"), "{aside:?}");
        for file in ["medic.db", "medic.db-wal", "medic.head"] {
            assert_eq!(fs::read_to_string(aside.join(file)).unwrap(), format!("{file} {n}"));
        }
        assert_eq!(fs::metadata(aside).unwrap().permissions().mode() & 0o777, 0o700);
    }
    // The eleventh stays where it is, and so does what a symbolic link leads to.
    fs::write(dir.path().join("medic.db"), "one more").unwrap();
    let stays = Store::keep_aside(dir.path(), damage(dir.path()), now);
    assert!(matches!(stays, LogError::Damaged { .. }) && kept_aside(dir.path()).len() == KEPT_MAX, "{stays}");
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("real"), "bytes").unwrap();
    symlink("real", other.path().join("medic.db")).unwrap();
    let stays = Store::keep_aside(other.path(), damage(other.path()), now);
    assert!(matches!(stays, LogError::Damaged { .. }) && kept_aside(other.path()).is_empty(), "{stays}");
}

#[test]
fn a_store_that_another_medic_holds_is_not_moved() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let _store = open(dir.path()).await;
        let held = Store::keep_aside(dir.path(), damage(dir.path()), at(0));
        assert!(matches!(held, LogError::Held { .. }) && dir.path().join("medic.db").exists(), "{held}");
        assert!(matches!(Store::begin_anew(dir.path()), Err(LogError::Held { .. })));
    });
}

#[test]
fn a_death_while_it_is_kept_aside_begins_nothing_and_loses_nothing() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        store.append(at(0), "sidecar", vec![held("api")]).await.unwrap();
        store.close().await;
        // Only the database was moved yet.
        let aside = dir.path().join("medic.db.damaged-20260101T000000Z");
        fs::create_dir(&aside).unwrap();
        fs::rename(dir.path().join("medic.db"), aside.join("medic.db")).unwrap();
        let refused = Store::open(dir.path(), INSTANCE).await.unwrap_err();
        assert!(matches!(refused, LogError::Damaged { .. }), "{refused}");
        let kept = Store::keep_aside(dir.path(), refused, at(0));
        assert!(matches!(kept, LogError::KeptAside { .. }) && kept_aside(dir.path()).len() == 2, "{kept}");
        let refused = Store::open(dir.path(), INSTANCE).await.unwrap_err();
        assert!(matches!(refused, LogError::KeptAside { .. }), "{refused}");
        // With everything put back it is as it was.
        fs::rename(aside.join("medic.db"), dir.path().join("medic.db")).unwrap();
        assert_eq!(open(dir.path()).await.head().await.unwrap().unwrap().seq, 1);
    });
}

on_both! {
    each_instance_has_its_own_chain_and_checkpoints,
}
