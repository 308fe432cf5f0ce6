//! Retention cuts whole prefixes, never what is still needed, and the rest still verifies.

use super::*;
use hangar_medic::attempt_log::{Cut, FaultKind};

/// Cuts, then checks that the rest holds; gives what was cut and how many records are left.
async fn cut(store: &impl AttemptLog, before: i64) -> (Cut, usize) {
    let cut = store.cut(at(before), at(9_000_000), "retention").await.unwrap();
    let report = store.verify(&mut |_| {}).await.unwrap();
    assert_eq!((report.fault, report.index_fault), (None, None));
    (cut, all(store).await.len())
}

async fn a_prefix_goes_and_an_anchor_accounts_for_it<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    for second in [0, 1000, 2000] {
        store.append(at(second), "sidecar", whole("api", second)).await.unwrap();
    }
    assert_eq!(cut(&store, 0).await, (Cut { removed: 0, first_seq: 1 }, 24));
    assert_eq!(cut(&store, 1000).await, (Cut { removed: 8, first_seq: 9 }, 17));
    assert_eq!(cut(&store, 1000).await, (Cut { removed: 0, first_seq: 9 }, 17));
    let records = all(&store).await;
    let anchor = Body::Anchor { records: 8, last_hash: records[0].prev_hash.clone() };
    assert_eq!(records[16].body, anchor);
    assert_eq!(store.incidents(IncidentState::All, 9).await.unwrap().len(), 2);
    assert_eq!(store.counts().await.unwrap().closed[&Closed::Recovered], 2);
    // A second cut, anchor included in what may go later.
    assert_eq!(cut(&store, 5000).await, (Cut { removed: 16, first_seq: 25 }, 2));
    assert_eq!(cut(&store, 9_500_000).await, (Cut { removed: 2, first_seq: 27 }, 1));
    assert_eq!(cut(&store, 9_500_000).await, (Cut { removed: 0, first_seq: 27 }, 1));
    H::close(store).await;
    let store = home.open().await;
    assert_eq!(store.append(at(9_600_000), "sidecar", vec![held("api")]).await.unwrap()[0].seq, 28);
}

async fn what_is_open_or_stands_stays_with_everything_after_it<H: Home>() {
    // What begins at 100 and must stop the cut there, and what lets it go on.
    let restarted = || Body::HangarRestarted { process_start: at(100) };
    let released = Body::HoldReleased { mcp_server: "db".to_owned(), why: "seen ready".to_owned() };
    for (stands, ends) in [
        (opened("db", 100, Reason::CapabilityBlocked), closed("db", 100, Closed::Cancelled)),
        (held("db"), released),
        (restarted(), restarted()),
    ] {
        let home = H::new();
        let store = home.open().await;
        store.append(at(0), "sidecar", whole("api", 0)).await.unwrap();
        store.append(at(100), "sidecar", vec![stands]).await.unwrap();
        store.append(at(200), "sidecar", whole("web", 200)).await.unwrap();
        let history = store.history(&Policy::default(), at(9_000_000)).await.unwrap();
        assert_eq!(cut(&store, 1000).await.0, Cut { removed: 8, first_seq: 9 });
        assert_eq!(store.history(&Policy::default(), at(9_000_000)).await.unwrap(), history);
        store.append(at(2000), "sidecar", vec![ends]).await.unwrap();
        let after = cut(&store, 9_500_000).await.0;
        assert!(after.removed >= 9, "{after:?}");
    }
}

async fn an_incident_is_never_cut_in_two<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    let (first, mut second) = (whole("api", 0), whole("db", 50));
    let late = second.split_off(6);
    store.append(at(0), "sidecar", first).await.unwrap();
    store.append(at(50), "sidecar", second).await.unwrap();
    store.append(at(500), "sidecar", late).await.unwrap();
    store.append(at(600), "sidecar", whole("web", 600)).await.unwrap();
    assert_eq!(cut(&store, 100).await.0, Cut { removed: 8, first_seq: 9 });
    assert_eq!(store.incident(&incident_id("db", at(50))).await.unwrap().unwrap().attempts.len(), 2);
}

async fn a_long_prefix_goes_in_steps_also_across_one_long_incident<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    let tries = (1..6000).map(|n| settled("api", 0, n, Outcome::Failed));
    let long = std::iter::once(opened("api", 0, Reason::GivenUp)).chain(tries).chain([closed("api", 0, Closed::Cancelled)]);
    store.append(at(0), "sidecar", long.collect()).await.unwrap();
    store.append(at(100), "sidecar", whole("db", 100)).await.unwrap();
    store.append(at(5000), "sidecar", whole("web", 5000)).await.unwrap();
    let (cut, left) = cut(&store, 1000).await;
    assert_eq!((cut.removed, cut.first_seq), (6009, 6010));
    assert!((9..=10).contains(&left), "{left}");
}

async fn a_prefix_that_nobody_accounts_for_is_missing<H: Home>() {
    let home = H::new();
    let store = home.open().await;
    for second in [0, 1000, 2000] {
        store.append(at(second), "sidecar", whole("api", second)).await.unwrap();
    }
    cut(&store, 1000).await;
    H::close(store).await;
    home.tamper("DELETE FROM records WHERE seq < 17; DELETE FROM incidents WHERE opened_seq < 17").await;
    let fault = home.open().await.verify(&mut |_| {}).await.unwrap().fault.unwrap();
    assert_eq!((fault.seq, fault.kind), (16, FaultKind::Missing));
}

on_both! {
    a_prefix_goes_and_an_anchor_accounts_for_it,
    what_is_open_or_stands_stays_with_everything_after_it,
    an_incident_is_never_cut_in_two,
    a_long_prefix_goes_in_steps_also_across_one_long_incident,
    a_prefix_that_nobody_accounts_for_is_missing,
}
