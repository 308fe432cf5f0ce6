//! The event stream while Hangar is restarted on purpose.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use hangar_medic::hangar::client::Settings;
use hangar_medic::hangar::{AuthMemory, HangarClient, MemoryError};
use hangar_medic::jitter::Jitter;
use hangar_medic::observe::events::{Gate, Update, follow};
use hangar_medic::supervise::Children;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use crate::support::{V2_34, world::Unwatched};

struct Forgetful;

impl AuthMemory for Forgetful {
    fn get<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Value>, MemoryError>> {
        Box::pin(async { Ok(None) })
    }

    fn put<'a>(&'a self, _: &'a str, _: Value) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(async { Ok(()) })
    }
}

async fn hears(updates: &mut Receiver<Update>, wanted: &Update) {
    let heard = async { while updates.recv().await.expect("the stream is followed") != *wanted {} };
    tokio::time::timeout(Duration::from_secs(40), heard).await.unwrap_or_else(|_| panic!("never heard: {wanted:?}"));
}

#[tokio::test]
async fn a_stream_that_is_paused_for_a_restart_lets_hangar_exit_0_and_is_opened_again_after_it() {
    let mut w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})).with_auth());
    let key = w.dir().join("key");
    std::fs::write(&key, w.hangar.key.clone().unwrap()).unwrap();
    let settings = Settings {
        url: format!("http://127.0.0.1:{}/", w.hangar.port),
        instance: "h".to_owned(),
        api_key_file: Some(key),
        request_timeout: Duration::from_secs(10),
        start_timeout: Duration::from_secs(10),
        max_body: 1 << 20,
    };
    let client = Arc::new(HangarClient::new(settings, Arc::new(Forgetful)).unwrap());
    let (gate, stop) = (Gate::new(), CancellationToken::new());
    let (tell, mut updates) = tokio::sync::mpsc::channel(64);
    let mut tasks = Children::new();
    tasks.spawn("events", follow(client, Jitter::new(), gate.clone(), tell, stop.clone()));

    hears(&mut updates, &Update::Open).await;
    let paused = gate.pause().await;
    assert!(paused.is_closed());
    assert_eq!(paused.hangar_lets_go_in(), Duration::ZERO, "where keys are checked Hangar is woken");
    hears(&mut updates, &Update::Closed).await;
    let begun = Instant::now();
    let mut w = tokio::task::spawn_blocking(move || {
        let status = w.hangar.stop().expect("Hangar ends on SIGTERM");
        assert_eq!((status.code(), begun.elapsed() < Duration::from_secs(15)), (Some(0), true), "after {:?}", begun.elapsed());
        w.hangar.start();
        w
    })
    .await
    .unwrap();
    assert!(updates.try_recv().is_err(), "it must stay closed as long as the pause lasts");
    drop(paused);
    hears(&mut updates, &Update::Open).await;

    // What the pause is for.
    let open = tokio::task::spawn_blocking(move || w.hangar.stop()).await.unwrap();
    assert_eq!(open.and_then(|status| status.code()), Some(1), "an open stream no longer makes Hangar exit 1: is the pause still needed?");
    stop.cancel();
    assert_eq!(tasks.next().await, ("events", Ok(())));
}
