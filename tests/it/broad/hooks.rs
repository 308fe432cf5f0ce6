//! The hook executor against an automation that answers well, late, badly or by a callback.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use hangar_medic::clock;
use hangar_medic::config::SecretFile;
use hangar_medic::execute::hook::{Callbacks, Hook, NotTaken, sign};
use hangar_medic::execute::platform::{Carried, CarryOut, Order};
use hangar_medic::policy::Rung;
use serde_json::{Value, json};

use super::automation::{KEY, proved};
use crate::hangar::stub::{Reply, Request, Stub, json as reply, text};
use crate::support::pki::{authority, leaf, tls_before};

const CALLBACK: &str = "/api/v1/hook-results";

fn order() -> Order {
    Order { attempt_id: "api.1.4".to_owned(), action: Rung::FullMcpRestart, instance: "h".to_owned(), mcp_server: "api".to_owned() }
}

fn hook(dir: &std::path::Path, url: &str, seconds: f64) -> Hook {
    let path = dir.join("key");
    std::fs::write(&path, KEY).unwrap();
    Hook {
        url: url.parse().unwrap(),
        secret_file: SecretFile { path },
        ca_file: None,
        timeout: Duration::from_secs_f64(seconds),
        callbacks: Arc::default(),
    }
}

/// Every request must be signed.
async fn ordered(seconds: f64, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> (Carried, Vec<Request>) {
    let dir = tempfile::tempdir().unwrap();
    let stub = Stub::new(answer);
    let carried = hook(dir.path(), &format!("{}/x", stub.url), seconds).carry_out(&order()).await;
    let seen = stub.seen();
    assert!(seen.iter().all(proved), "{seen:?}");
    (carried, seen)
}

fn word(carried: &Carried) -> &'static str {
    match carried {
        Carried::Done(_) => "done",
        Carried::Refused(_) => "refused",
        Carried::Failed(_) => "failed",
        Carried::Unknown(_) => "unknown",
    }
}

#[tokio::test]
async fn an_answer_is_taken_for_what_it_proves() {
    let done = json!({"result": "done", "detail": "restarted \u{1b}[31m"});
    for (answer, want) in [
        (reply(200, &done), "done"),
        (reply(200, &json!({"result": "failed"})), "failed"),
        (reply(200, &json!({"result": "perhaps"})), "unknown"),
        (reply(200, &json!({})), "unknown"),
        (text(200, "OK"), "unknown"),
        (text(200, &"x".repeat(100_000)), "unknown"),
        (reply(403, &done), "refused"),
        (reply(404, &json!({"detail": "no such host"})), "refused"),
        (Reply::Http { status: 302, headers: vec![("location", "http://127.0.0.1:1/".to_owned())], body: String::new() }, "refused"),
        (reply(500, &done), "unknown"),
        (reply(202, &json!({"status_url": "http://elsewhere.example/jobs/1"})), "unknown"),
        (reply(202, &json!({})), "unknown"),
        (Reply::Hang(Duration::from_secs(9)), "unknown"),
        (Reply::Raw(String::new()), "unknown"),
    ] {
        let said = format!("{answer:?}").chars().take(90).collect::<String>();
        let (carried, seen) = ordered(0.4, move |_| answer.clone()).await;
        assert_eq!((word(&carried), seen.len()), (want, 1), "{said}: {carried:?}");
        assert!(!format!("{carried:?}").contains('\u{1b}'));
        let body: Value = serde_json::from_str(&seen[0].body).unwrap();
        assert_eq!((&body["attempt_id"], &body["action"]), (&json!("api.1.4"), &json!("full_mcp_restart")));
        assert_eq!(seen[0].header("idempotency-key").as_deref(), Some("api.1.4"));
    }
    let dir = tempfile::tempdir().unwrap();
    let nobody = hook(dir.path(), "http://127.0.0.1:9/", 2.0).carry_out(&order()).await;
    assert_eq!(word(&nobody), "refused", "{nobody:?}");
}

#[tokio::test]
async fn a_status_url_of_the_same_origin_is_asked_until_it_tells_the_result() {
    let polls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&polls);
    let (carried, seen) = ordered(20.0, move |r| {
        if r.line.starts_with("POST") {
            return reply(202, &json!({"status_url": "/jobs/7?x=1"}));
        }
        let mut polls = counted.lock().unwrap();
        *polls += 1;
        match *polls {
            1 => reply(200, &json!({"result": "running"})),
            2 => text(502, "bad gateway"),
            _ => reply(200, &json!({"result": "failed", "detail": "no quorum"})),
        }
    })
    .await;
    assert_eq!(carried, Carried::Failed("the hook says failed: no quorum".to_owned()));
    assert!(seen[1..].iter().all(|r| r.line == "GET /jobs/7?x=1"), "{seen:?}");
}

#[tokio::test]
async fn a_callback_counts_only_with_the_orders_key_and_while_the_order_is_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let stub = Stub::always(reply(202, &json!({})));
    let hook = Arc::new(hook(dir.path(), &stub.url, 20.0));
    let waiting = Arc::clone(&hook);
    #[allow(clippy::disallowed_methods, reason = "a test has no supervisor")]
    let running = tokio::spawn(async move { waiting.carry_out(&order()).await });
    while stub.seen().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let told = json!({"attempt_id": "api.1.4", "result": "done", "detail": "in 40 s"}).to_string();
    let take = |callbacks: &Callbacks, key: &[u8], path: &str, body: &str| {
        let (now, at) = (clock::now(), clock::now().as_second().to_string());
        let signature = format!("v1={}", sign(key, &at, "POST", path, body.as_bytes()));
        callbacks.take(&signature, &at, CALLBACK, body.as_bytes(), now)
    };
    let callbacks = &hook.callbacks;
    let other = json!({"attempt_id": "api.1.5", "result": "done"}).to_string();
    assert_eq!(take(callbacks, b"another key", CALLBACK, &told), Err(NotTaken::Unproved));
    assert_eq!(take(callbacks, KEY.as_bytes(), "/other", &told), Err(NotTaken::Unproved));
    assert_eq!(take(callbacks, KEY.as_bytes(), CALLBACK, &other), Err(NotTaken::Unproved));
    assert_eq!(take(callbacks, KEY.as_bytes(), CALLBACK, "{}"), Err(NotTaken::Malformed));
    let running_word = told.replace("done", "running");
    assert_eq!(take(callbacks, KEY.as_bytes(), CALLBACK, &running_word), Err(NotTaken::Malformed));
    assert_eq!(take(callbacks, KEY.as_bytes(), CALLBACK, &told), Ok(()));
    assert_eq!(running.await.unwrap(), Carried::Done("the hook says done: in 40 s".to_owned()));
    assert_eq!(take(callbacks, KEY.as_bytes(), CALLBACK, &told), Err(NotTaken::Unproved), "the order is over");
}

#[tokio::test]
async fn over_tls_only_the_automation_that_the_configured_authority_vouches_for_gets_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let ((ours, ours_pem), (other, other_pem)) = (authority("ours"), authority("other"));
    let file = |name: &str, pem: &str| {
        std::fs::write(dir.path().join(name), pem).unwrap();
        Some(dir.path().join(name))
    };
    let (ours_file, other_file) = (file("ours.pem", &ours_pem), file("other.pem", &other_pem));
    for (signed_by, name, ca_file, taken) in [
        (&ours, "127.0.0.1", &ours_file, true),
        (&ours, "127.0.0.1", &other_file, false),
        (&ours, "127.0.0.1", &None, false),
        (&other, "127.0.0.1", &ours_file, false),
        (&ours, "automation.example.org", &ours_file, false),
    ] {
        let stub = Stub::new(|r| match r.line.as_str() {
            "POST /x" => reply(202, &json!({"status_url": "/x/1"})),
            _ => reply(200, &json!({"result": "done", "detail": "restarted"})),
        });
        let (certificate, key) = leaf(signed_by, name, &[name], 2090);
        let port = tls_before(stub.url.trim_start_matches("http://"), &certificate, &key);
        let hook = Hook { ca_file: ca_file.clone(), ..hook(dir.path(), &format!("https://127.0.0.1:{port}/x"), 20.0) };
        let carried = hook.carry_out(&order()).await;
        if taken {
            assert_eq!(carried, Carried::Done("the hook says done: restarted".to_owned()));
            assert_eq!(stub.lines(), ["POST /x", "GET /x/1"]);
            assert!(stub.seen().iter().all(proved));
        } else {
            assert!(matches!(&carried, Carried::Refused(why) if why.contains("certificate")), "{name} {ca_file:?}: {carried:?}");
            assert_eq!(stub.lines(), [] as [&str; 0], "nobody else hears of it");
        }
    }
    let unreadable = Hook { ca_file: Some(dir.path().join("none.pem")), ..hook(dir.path(), "https://127.0.0.1:1/x", 5.0) };
    let carried = unreadable.carry_out(&order()).await;
    assert!(matches!(&carried, Carried::Refused(why) if why.contains("none.pem")), "{carried:?}");
}
