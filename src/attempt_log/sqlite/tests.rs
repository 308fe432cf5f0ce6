//! A full disk, which only SQLite itself can play without rights on the machine.

use jiff::Timestamp;

use super::super::{AttemptLog, Checkpoints, LogError};
use super::Store;
use crate::policy::{Body, HoldCause};

fn held(why: String) -> Vec<Body> {
    vec![Body::HoldOrdered { mcp_server: "api".to_owned(), cause: HoldCause::Person, why }]
}

#[tokio::test]
async fn a_full_disk_takes_nothing_and_loses_nothing_and_passes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), "a").await.unwrap();
    let at = Timestamp::UNIX_EPOCH;
    store.append(at, "sidecar", held(String::new())).await.unwrap();
    let before = store.head().await.unwrap();
    // Each larger than a page, so that every one of them needs room.
    let large = || held("x".repeat(20_000));
    for _ in 0..3 {
        store.fill_disk(true).await;
        let many = (0..5).flat_map(|_| large()).collect();
        let error = store.append(at, "sidecar", many).await.unwrap_err();
        assert!(matches!(&error, LogError::Unwritable { .. }) && error.may_pass(), "{error}");
        assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
        store.fill_disk(true).await;
        assert!(matches!(store.put("k", "x".repeat(20_000).into()).await, Err(LogError::Unwritable { .. })));
        assert_eq!(store.head().await.unwrap(), before);
        assert_eq!(store.verify(&mut |_| {}).await.unwrap().fault, None);
    }
    store.fill_disk(false).await;
    assert_eq!(store.append(at, "sidecar", large()).await.unwrap()[0].seq, 2);
    assert_eq!(store.verify(&mut |_| {}).await.unwrap().records, 2);
}
