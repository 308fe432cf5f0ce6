//! Whatever is changed in the log behind its back is found and named.

use std::fs;
use std::io::{Seek, SeekFrom, Write};

use super::*;
use hangar_medic::attempt_log::{FaultKind, Head, LogError, VerifyReport, hash_of, verify_export};

async fn verify(dir: &Path) -> VerifyReport {
    Store::open_to_verify(dir, None).await.unwrap().verify(&mut |_| {}).await.unwrap()
}

async fn verified(home: &impl Home, instance: &str) -> VerifyReport {
    home.to_verify(instance).await.verify(&mut |_| {}).await.unwrap()
}

/// A chain of 24 records, closed.
async fn fill<H: Home>(home: &H, instance: &str) {
    let store = home.try_open(instance).await.unwrap();
    for second in [0, 100, 200] {
        store.append(at(second), "sidecar", whole("api", second)).await.unwrap();
    }
    H::close(store).await;
}

async fn filled<H: Home>() -> H {
    let home = H::new();
    fill(&home, INSTANCE).await;
    home
}

async fn a_whole_chain_is_reported_whole<H: Home>() {
    let report = verified(&filled::<H>().await, INSTANCE).await;
    let last = report.head.clone().unwrap();
    let expected = VerifyReport {
        instance: INSTANCE.to_owned(),
        records: 24,
        first_seq: Some(1),
        head: Some(Head { seq: 24, hash: last.hash }),
        fault: None,
        index_fault: None,
    };
    assert_eq!(report, expected);
}

async fn the_first_altered_missing_or_moved_record_is_named<H: Home>() {
    let altered = |seq| (seq, FaultKind::Altered);
    let missing = |seq| (seq, FaultKind::Missing);
    let moved = |seq| (seq, FaultKind::Reordered);
    let swap =
        "UPDATE records SET seq = -1 WHERE seq = 7; UPDATE records SET seq = 7 WHERE seq = 15; UPDATE records SET seq = 15 WHERE seq = -1;";
    let close_the_gap =
        "DELETE FROM records WHERE seq = 9; UPDATE records SET seq = -seq WHERE seq > 9; UPDATE records SET seq = -seq - 1 WHERE seq < 0;";
    let home = H::new();
    for (n, (statements, expected)) in [
        ("UPDATE records SET body = replace(body, 'ready', 'Ready') WHERE seq = 16", altered(16)),
        ("UPDATE records SET at = replace(at, '.000000Z', '.000001Z') WHERE seq = 3", altered(3)),
        ("UPDATE records SET actor = 'nobody' WHERE seq = 1", altered(1)),
        ("UPDATE records SET hash = upper(hash) WHERE seq = 24", altered(24)),
        ("DELETE FROM records WHERE seq = 1", missing(1)),
        ("DELETE FROM records WHERE seq = 9", missing(9)),
        ("DELETE FROM records WHERE seq = 24", missing(24)),
        ("DELETE FROM records", missing(1)),
        (swap, moved(7)),
        (close_the_gap, moved(9)),
    ]
    .into_iter()
    .enumerate()
    {
        // A chain for each: what was done to those before does not matter to it.
        let instance = format!("h-{n}");
        fill(&home, &instance).await;
        home.tamper(statements).await;
        let fault = verified(&home, &instance).await.fault.unwrap();
        assert_eq!((fault.seq, fault.kind), expected, "{statements}");
    }
}

#[test]
fn text_that_is_no_utf_8_is_found() {
    run(async {
        let home = filled::<homes::File>().await;
        home.tamper("UPDATE records SET body = CAST(x'7bff7d' AS TEXT) WHERE seq = 5").await;
        let fault = verify(home.0.path()).await.fault.unwrap();
        assert_eq!((fault.seq, fault.kind), (5, FaultKind::Altered));
    });
}

async fn a_record_forged_with_a_fitting_hash_breaks_the_next_one<H: Home>() {
    let home = filled::<H>().await;
    let records = {
        let store = home.open().await;
        let records = all(&store).await;
        H::close(store).await;
        records
    };
    let body = serde_json::to_string(&held("api")).unwrap();
    let forged = &records[11];
    let at = format!("{:.6}", forged.at);
    let hash = hash_of(&forged.prev_hash, INSTANCE, 12, &at, &forged.actor, &body);
    home.tamper(&format!("UPDATE records SET body = '{body}', hash = '{hash}' WHERE seq = 12")).await;
    let fault = verified(&home, INSTANCE).await.fault.unwrap();
    assert_eq!((fault.seq, fault.kind), (12, FaultKind::Altered));
}

#[test]
fn an_end_that_was_taken_off_is_found_by_what_is_remembered_beside_it() {
    run(async {
        // With the heads table made to agree, medic.head still remembers.
        let agree = "DELETE FROM records WHERE seq > 20; \
                     UPDATE heads SET seq = 20, hash = (SELECT hash FROM records WHERE seq = 20);";
        let home = filled::<homes::File>().await;
        let dir = &home.0;
        home.tamper(agree).await;
        let fault = verify(dir.path()).await.fault.unwrap();
        assert_eq!((fault.seq, fault.kind), (21, FaultKind::Missing));
        let refused = Store::open(dir.path(), INSTANCE).await.unwrap_err();
        assert!(matches!(&refused, LogError::Broken { fault, .. } if fault.seq == 21), "{refused}");
        // The operator says that it is meant: only a head kept elsewhere could tell now.
        fs::remove_file(dir.path().join("medic.head")).unwrap();
        assert_eq!(open(dir.path()).await.head().await.unwrap().unwrap().seq, 20);
    });
}

#[test]
fn a_deleted_write_ahead_log_is_noticed_at_the_next_start() {
    run(async {
        let home = filled::<homes::File>().await;
        let dir = &home.0;
        let store = open(dir.path()).await;
        store.append(at(300), "sidecar", whole("api", 300)).await.unwrap();
        // As a kill leaves it: the last records are in the write-ahead log only.
        let copy = tempfile::tempdir().unwrap();
        for file in ["medic.db", "medic.head"] {
            fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let refused = Store::open(copy.path(), INSTANCE).await.unwrap_err();
        assert!(matches!(&refused, LogError::Broken { fault, .. } if fault.seq == 25), "{refused}");
        fs::copy(dir.path().join("medic.db-wal"), copy.path().join("medic.db-wal")).unwrap();
        assert_eq!(open(copy.path()).await.head().await.unwrap().unwrap().seq, 32);
    });
}

#[test]
fn a_flipped_byte_of_the_file_is_found_in_the_record_it_hit() {
    run(async {
        let home = filled::<homes::File>().await;
        let dir = &home.0;
        let path = dir.path().join("medic.db");
        let bytes = fs::read(&path).unwrap();
        // The body of one record, found by the incident that only it closes.
        let needle = format!(r#"{{"kind":"incident_closed","incident_id":"{}""#, incident_id("api", at(100)));
        let place = bytes.windows(needle.len()).position(|w| w == needle.as_bytes()).unwrap();
        let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(place as u64 + 60)).unwrap();
        file.write_all(&[bytes[place + 60] ^ 1]).unwrap();
        drop(file);
        let fault = verify(dir.path()).await.fault.unwrap();
        assert_eq!((fault.seq, fault.kind), (16, FaultKind::Altered));
    });
}

#[test]
fn of_a_file_that_was_cut_short_the_first_lost_record_is_named_and_nothing_starts_on_it() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        for second in 0..100 {
            store.append(at(second), "sidecar", whole("api", second)).await.unwrap();
        }
        store.close().await;
        let path = dir.path().join("medic.db");
        let length = fs::metadata(&path).unwrap().len();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length / 2 / 4096 * 4096).unwrap();
        let before = fs::read(&path).unwrap();
        let report = verify(dir.path()).await;
        let fault = report.fault.unwrap();
        assert!((1..=800).contains(&fault.seq) && fault.seq == report.records + 1, "{fault}");
        let refused = Store::open(dir.path(), INSTANCE).await.unwrap_err();
        assert!(matches!(refused, LogError::Damaged { .. }), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), before);
    });
}

async fn a_record_that_was_altered_is_never_acted_on<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    store.append(at(0), "sidecar", vec![held("api"), held("db")]).await.unwrap();
    H::close(store).await;
    home.tamper("UPDATE records SET body = replace(body, '\"api\"', '\"web\"') WHERE seq = 1").await;
    let store = home.open().await;
    let refused = store.history(&Policy::default(), at(1)).await.unwrap_err();
    assert!(matches!(&refused, LogError::Broken { fault, .. } if fault.seq == 1), "{refused}");
}

async fn an_index_that_hides_an_order_is_found_and_built_anew<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    store.append(at(0), "sidecar", vec![held("api"), opened("db", 0, Reason::Crashed)]).await.unwrap();
    H::close(store).await;
    for (statement, what) in [
        ("DELETE FROM standing", "hold orders"),
        ("UPDATE incidents SET ended_seq = 2", "open incidents"),
        ("UPDATE records SET kind = 'hold_released' WHERE seq = 1", "record 1"),
        ("UPDATE records SET incident_id = NULL WHERE seq = 2", "record 2"),
    ] {
        home.tamper(statement).await;
        let store = home.open().await;
        let report = store.verify(&mut |_| {}).await.unwrap();
        assert_eq!(report.fault, None);
        assert!(report.index_fault.unwrap().contains(what), "{statement}");
        H::rebuild_index(&store).await;
        assert_eq!(store.verify(&mut |_| {}).await.unwrap().index_fault, None);
        let history = store.history(&Policy::default(), at(90_000)).await.unwrap();
        assert_eq!((history.orders.len(), history.open.len()), (1, 1));
        H::close(store).await;
    }
}

async fn kinds_of_a_newer_version_verify_and_export_but_are_not_passed_over<H: Home>() {
    let home = filled::<H>().await;
    let store = home.open().await;
    let head = store.head().await.unwrap().unwrap();
    H::close(store).await;
    let (body, at_text) = (r#"{"kind":"approval_granted","incident_id":"api.1","n":1e3}"#, "2026-02-02T02:45:00.000000Z");
    let hash = hash_of(&head.hash, INSTANCE, 25, at_text, "admin", body);
    home.tamper(&format!(
        "INSERT INTO records (instance, seq, at, actor, body, prev_hash, hash, at_us, kind, incident_id) VALUES \
             ('{INSTANCE}', 25, '{at_text}', 'admin', '{body}', '{}', '{hash}', 1770000300000000, 'approval_granted', 'api.1'); \
             UPDATE heads SET seq = 25, hash = '{hash}';",
        head.hash
    ))
    .await;

    let store = home.open().await;
    assert_eq!(store.verify(&mut |_| {}).await.unwrap().fault, None);
    let mut lines = Vec::new();
    assert_eq!(store.export(&mut lines).await.unwrap(), 25);
    assert_eq!(verify_export(lines.as_slice(), None, &mut |_| {}).unwrap()[0].fault, None);
    assert_eq!(store.incidents(IncidentState::All, 9).await.unwrap().len(), 3);
    let refused = store.history(&Policy::default(), at(301)).await.unwrap_err();
    assert!(matches!(refused, LogError::UnknownRecord { seq: 25, .. }), "{refused}");
}

async fn an_export_verifies_offline_and_shows_what_was_done_to_it<H: Home>() {
    let home = filled::<H>().await;
    let store = home.open().await;
    let mut out = Vec::new();
    store.export(&mut out).await.unwrap();
    let head = store.head().await.unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let check = |lines: &[&str], head: Option<&Head>| {
        verify_export(lines.join("\n").as_bytes(), head, &mut |_| {}).unwrap().remove(0).fault.map(|fault| (fault.seq, fault.kind))
    };
    assert_eq!(check(&lines, head.as_ref()), None);
    let altered = lines[4].replace("sidecar", "nobody");
    let mut changed = lines.clone();
    changed[4] = &altered;
    assert_eq!(check(&changed, None), Some((5, FaultKind::Altered)));
    changed.clone_from(&lines);
    changed.remove(4);
    assert_eq!(check(&changed, None), Some((5, FaultKind::Missing)));
    changed.insert(9, lines[4]);
    assert_eq!(check(&changed, None), Some((5, FaultKind::Reordered)));
    changed.clone_from(&lines);
    changed[7] = "{}";
    assert_eq!(check(&changed, None), Some((8, FaultKind::Unreadable)));
    assert_eq!(check(&lines[..20], None), None);
    assert_eq!(check(&lines[..20], head.as_ref()), Some((21, FaultKind::Missing)));
    assert_eq!(check(&lines[3..], None), Some((3, FaultKind::Missing)));
}

async fn an_export_of_several_chains_verifies_each_by_itself<H: Home>() {
    let home = H::new();
    let mut out = Vec::new();
    for instance in ["a", "b"] {
        let store = home.try_open(instance).await.unwrap();
        for second in 0..3 {
            store.append(at(second), "sidecar", vec![held("api")]).await.unwrap();
        }
        store.export(&mut out).await.unwrap();
        H::close(store).await;
    }
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let check = |lines: &[&str]| {
        let reports = verify_export(lines.join("\n").as_bytes(), None, &mut |_| {}).unwrap();
        let fault = |report: VerifyReport| (report.instance, report.records, report.fault.map(|fault| (fault.seq, fault.kind)));
        reports.into_iter().map(fault).collect::<Vec<_>>()
    };
    let whole = |instance: &str| (instance.to_owned(), 3, None);
    assert_eq!(check(&lines), [whole("a"), whole("b")]);
    // Each fault is one of its own chain, and hides nothing of the other.
    let altered = lines[1].replace("sidecar", "nobody");
    let mut changed = lines.clone();
    changed[1] = &altered;
    assert_eq!(check(&changed), [("a".to_owned(), 1, Some((2, FaultKind::Altered))), whole("b")]);
    let moved = lines[4].replace("\"instance\":\"b\"", "\"instance\":\"a\"");
    changed.clone_from(&lines);
    changed[4] = &moved;
    assert_eq!(check(&changed), [whole("a"), ("b".to_owned(), 1, Some((2, FaultKind::Altered)))]);
    changed.clone_from(&lines);
    changed.remove(4);
    assert_eq!(check(&changed), [whole("a"), ("b".to_owned(), 1, Some((2, FaultKind::Missing)))]);
    // A chain that is torn apart.
    changed.clone_from(&lines);
    changed.swap(2, 3);
    let torn = check(&changed);
    assert!(torn.iter().any(|(instance, _, fault)| instance == "a" && *fault == Some((3, FaultKind::Reordered))), "{torn:?}");
}

#[test]
fn the_canonical_form_is_the_documented_one() {
    // Computed with sha256sum from the module's text, so that anybody's tool can check a chain.
    let body = r#"{"kind":"hold_released","mcp_server":"api","why":"é"}"#;
    let hash = hash_of(&"0".repeat(64), "127.0.0.1:8000", 1, "2026-02-02T02:40:00.000000Z", "sidecar", body);
    assert_eq!(hash, "ce323d9db8aafd5165223d329d5fffd1e4b1b5003f3170f1e4a034b781839bd7");
}

on_both! {
    a_whole_chain_is_reported_whole,
    the_first_altered_missing_or_moved_record_is_named,
    a_record_forged_with_a_fitting_hash_breaks_the_next_one,
    a_record_that_was_altered_is_never_acted_on,
    an_index_that_hides_an_order_is_found_and_built_anew,
    kinds_of_a_newer_version_verify_and_export_but_are_not_passed_over,
    an_export_verifies_offline_and_shows_what_was_done_to_it,
    an_export_of_several_chains_verifies_each_by_itself,
}
