//! One incident in three stages, for the tests of what is printed and served.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use crate::policy::{Body, Closed, History, Hold, Outcome, Provenance, Reason, Receipt, Record, Rung, Source, Symptom};
use crate::policy::{Phase, Standing};
use crate::server::views::{AttemptView, IncidentView};

/// A moment this many seconds into the story.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_796_052_000 + second).unwrap()
}

fn apply(history: &mut History, second: i64, body: Body) {
    let n = u64::try_from(second).unwrap();
    let (prev_hash, hash) = (format!("{:04x}", n.saturating_sub(1)), format!("{n:04x}"));
    history.apply(&Record { instance: "h:8000".into(), seq: n, at: at(second), actor: "hangar-medic".into(), body, prev_hash, hash });
}

fn attempt(history: &mut History, second: i64, n: u32, action: Rung, settled: Option<(Outcome, &str)>) {
    let incident_id = "api.1".to_owned();
    let attempt_id = format!("{incident_id}.{n}");
    let why = format!("{action} is next");
    let opened = Body::AttemptOpened {
        attempt_id: attempt_id.clone(),
        incident_id,
        mcp_server: "api".into(),
        action,
        why,
        slow_retry: false,
        process_start: None,
    };
    apply(history, second, opened);
    let mut evidence = BTreeMap::new();
    if action == Rung::CapabilityRefresh {
        evidence.insert("exposed_tools".to_owned(), json!(["read"]));
        evidence.insert("server_log".to_owned(), json!(["token=hunter2"]));
        evidence.insert("principal".to_owned(), json!("medic"));
    }
    let detail = "200 \u{1b}[31m".to_owned();
    apply(
        history,
        second + 1,
        Body::AttemptReceipt { attempt_id: attempt_id.clone(), receipt: Receipt::Accepted, outcome: None, detail, evidence },
    );
    if let Some((outcome, why)) = settled {
        apply(history, second + 2, Body::AttemptSettled { attempt_id, outcome, why: why.to_owned() });
    }
}

/// `api` crashed; two attempts are settled, the third is under way unless `closed`.
pub(crate) fn story(closed: bool) -> (IncidentView, Vec<AttemptView>) {
    let mut history = History::default();
    let provenance = Some(Provenance { source: Source::Log, at: at(0), file: "8:42".into(), offset: Some(1234), line_sha256: None });
    let opened = Body::IncidentOpened {
        incident_id: "api.1".into(),
        mcp_server: "api".into(),
        symptom: Symptom::ServerCrashed,
        reason: Reason::Crashed,
        provenance,
        since: at(0),
        reopens: None,
        floor_rank: 0,
        slow_retries: 0,
        stops: [].into(),
        process_start: None,
        group: None,
    };
    apply(&mut history, 1, opened);
    attempt(&mut history, 2, 1, Rung::ClientReconnect, Some((Outcome::Insufficient, "Hangar still says dead\nforged line")));
    attempt(&mut history, 5, 2, Rung::CapabilityRefresh, Some((Outcome::Insufficient, "no drift")));
    attempt(&mut history, 8, 3, Rung::SessionReconnect, closed.then_some((Outcome::Recovered, "ready, and still so after 10 s")));
    if closed {
        let why = "ready, and still so after 10 s".to_owned();
        apply(&mut history, 20, Body::IncidentClosed { incident_id: "api.1".into(), how: Closed::Recovered, why });
    }
    let incident = if closed { &history.closed["api"] } else { &history.open["api"] };
    let standing = Standing {
        phase: Phase::Held,
        hold: Some(Hold::Cooldown),
        until: Some(at(14)),
        why: "the pause after session_reconnect".into(),
        next_retry_at: None,
        approval: None,
    };
    (IncidentView::new(incident, Some(&standing)), incident.attempts.iter().map(AttemptView::from).collect())
}
