//! The HTTP server over real sockets: what it answers, to whom, and what it refuses to wait for.

mod page;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hangar_medic::metrics::Metrics;
use hangar_medic::policy::{Auth, LadderDocument, Mode, Policy, RecoveryMetrics, ladder_document};
use hangar_medic::server::story::Story;
use hangar_medic::server::views::{AttemptView, HangarView, IncidentView, StatusView, ViewError, Views, Which};
use hangar_medic::server::{BODY_MAX, CONNECTIONS_MAX, HEADER_TIMEOUT, REQUEST_TIMEOUT, Shared, bind};
use hangar_medic::supervise::{GRACE, Supervisor};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Shows one incident and one attempt, counts wakes, and can fail.
#[derive(Default)]
struct Fake {
    wakes: AtomicUsize,
    broken: bool,
}

fn incident() -> IncidentView {
    serde_json::from_value(json!({
        "incident_id": "api.1", "instance": "h:8000", "mcp_server": "api", "symptoms": ["server_crashed"], "reason": "crashed",
        "provenance": {"source": "log", "at": "2026-11-30T15:18:05Z", "file": "8:42", "offset": 7}, "phase": "held",
        "hold": "cooldown", "hold_until": "2026-11-30T15:18:20Z", "why": "the pause", "opened_at": "2026-11-30T15:18:06Z",
        "closed_at": null, "how": null, "attempts": ["api.1.1"],
        "evidence": {"exposed_tools": ["read"], "server_log": ["password"]}, "next_retry_at": null
    }))
    .unwrap()
}

fn attempt() -> AttemptView {
    serde_json::from_value(json!({
        "action": "capability_refresh", "outcome": "insufficient", "reason": "no drift", "actor": "hangar-medic",
        "recorded_at": "2026-11-30T15:18:08Z", "attempt_id": "api.1.1", "incident_id": "api.1", "instance": "h:8000",
        "mcp_server": "api", "rank": 1, "started_at": "2026-11-30T15:18:06Z", "settled_at": "2026-11-30T15:18:08Z",
        "receipt": "accepted", "evidence": {"server_log": ["password"]}, "prev_hash": "00", "hash": "01"
    }))
    .unwrap()
}

impl Fake {
    fn rows<T: Send + 'static>(&self, rows: Vec<T>) -> BoxFuture<'static, Result<Vec<T>, ViewError>> {
        let broken = self.broken;
        async move { if broken { Err(ViewError::Log("/var/lib/secret/path".into())) } else { Ok(rows) } }.boxed()
    }
}

impl Views for Fake {
    fn status(&self) -> StatusView {
        StatusView {
            version: "0.1.0".into(),
            instance: "h:8000".into(),
            mode: Mode::Act,
            started_at: "2026-11-30T15:00:00Z".parse().unwrap(),
            ready: true,
            hangar: HangarView {
                cannot_see: Vec::new(),
                url: "http://h:8000".into(),
                version: Some("2.34.4".into()),
                reachable: true,
                last_read_at: None,
                process_start_time: None,
                auth: Auth::Ok,
            },
            known_servers: 3,
            incidents_open: 1,
            holds: [(hangar_medic::policy::Hold::Cooldown, 1)].into(),
            hold_orders: vec![],
            pauses: vec![],
            fraction_avoided_full_restart: None,
        }
    }

    fn ladder(&self) -> LadderDocument {
        let policy = Policy::default();
        ladder_document(|rung| policy.why_not(rung))
    }

    fn recovery_metrics(&self) -> RecoveryMetrics {
        RecoveryMetrics::default()
    }

    fn incidents(&self, which: Which, _limit: usize) -> BoxFuture<'_, Result<Vec<IncidentView>, ViewError>> {
        self.rows(if which == Which::Closed { vec![] } else { vec![incident()] })
    }

    fn incident<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<IncidentView>, ViewError>> {
        assert_ne!(incident_id, "bug");
        async move { Ok((incident_id == "api.1").then(incident)) }.boxed()
    }

    fn attempts<'a>(&'a self, incident_id: Option<&'a str>, limit: usize) -> BoxFuture<'a, Result<Vec<AttemptView>, ViewError>> {
        match incident_id {
            // More than one answer may hold.
            Some("many") => self.rows((0..limit).map(|n| AttemptView { attempt_id: n.to_string(), ..attempt() }).collect()),
            Some("api.1") | None => self.rows(vec![attempt()]),
            Some(_) => self.rows(vec![]),
        }
    }

    fn stories(&self, which: Which, _limit: usize) -> BoxFuture<'_, Result<Vec<Story>, ViewError>> {
        let story = Story { incident: incident(), attempts: vec![attempt()] };
        self.rows(if which == Which::Closed { vec![] } else { vec![story] })
    }

    fn story<'a>(&'a self, incident_id: &'a str) -> BoxFuture<'a, Result<Option<Story>, ViewError>> {
        let story = Story { incident: incident(), attempts: vec![attempt()] };
        async move { Ok((incident_id == "api.1").then_some(story)) }.boxed()
    }

    fn wake(&self, _n_alerts: usize) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }
}

struct Server {
    base: String,
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    fake: Arc<Fake>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<Result<(), hangar_medic::supervise::SuperviseError>>,
}

impl Server {
    /// Bound and answering, with nothing behind it yet.
    async fn bare(fake: Fake) -> Self {
        let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
        let bound = bind("127.0.0.1:0", false).await.unwrap();
        let (address, shared) = (bound.address(), Shared::new(metrics));
        let mut supervisor = Supervisor::new();
        let stop = supervisor.stop();
        supervisor.task("web", bound.serve(shared.clone(), stop.clone()));
        #[allow(clippy::disallowed_methods, reason = "the test's own task")]
        let running = tokio::spawn(supervisor.run(std::future::pending(), GRACE));
        Self { base: format!("http://{address}"), address, shared, fake: Arc::new(fake), stop, running }
    }

    async fn up() -> Self {
        let server = Self::bare(Fake::default()).await;
        server.shared.set_views(server.fake.clone());
        server.shared.set_ready();
        server
    }

    async fn get(&self, path: &str) -> (u16, String) {
        answer(client().get(format!("{}{path}", self.base))).await
    }

    async fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn post(&self, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let (status, body) = answer(client().post(format!("{}/api/v1/alertmanager", self.base)).body(body)).await;
        (status, serde_json::from_str(&body).unwrap())
    }

    async fn raw(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn metric(&self, series: &str) -> String {
        let page = self.get("/metrics").await.1;
        page.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' ').map(ToOwned::to_owned)).unwrap()
    }
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// What is left on the stream until the server closes it.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

fn delivery(alerts: &Value) -> String {
    json!({"version": "4", "status": "firing", "receiver": "medic", "truncatedAlerts": 2, "alerts": alerts}).to_string()
}

fn alert() -> Value {
    json!({"status": "firing", "startsAt": "2026-11-30T15:18:05Z", "endsAt": "0001-01-01T00:00:00Z", "labels": {"mcp_server": "api"}})
}

#[tokio::test]
async fn it_is_healthy_from_bind_and_ready_only_when_told_so() {
    let server = Server::bare(Fake::default()).await;
    assert_eq!(server.get("/-/healthy").await, (200, "healthy\n".into()));
    assert_eq!(server.get("/-/ready").await, (503, "not ready: starting\n".into()));
    assert_eq!(server.get("/api/v1/status").await.0, 503);
    assert_eq!(server.post(delivery(&json!([alert()]))).await.0, 503);
    assert_eq!(server.get("/metrics").await.0, 200);
    server.shared.set_views(server.fake.clone());
    server.shared.set_not_ready("Hangar was not read yet");
    assert_eq!(server.get("/-/ready").await, (503, "not ready: Hangar was not read yet\n".into()));
    server.shared.set_ready();
    assert_eq!(server.get("/-/ready").await, (200, "ready\n".into()));
    assert_eq!(server.get("/api/v1/status").await.0, 200);
}

#[tokio::test]
async fn the_api_answers_the_documents_of_the_contract_without_upstream_text() {
    let server = Server::up().await;
    let status = server.json("/api/v1/status").await;
    assert_eq!(
        (&status["holds"], &status["fraction_avoided_full_restart"], &status["mode"]),
        (&json!({"cooldown": 1}), &Value::Null, &json!("act"))
    );
    assert_eq!(server.json("/api/v1/ladder").await["rungs"].as_array().unwrap().len(), 11);
    let mut want = serde_json::to_value(incident()).unwrap();
    want["evidence"] = json!({"exposed_tools": ["read"], "withheld": ["server_log"]});
    assert_eq!(server.json("/api/v1/incidents").await, json!({"incidents": [want]}));
    assert_eq!(server.json("/api/v1/incidents?state=open").await, json!({"incidents": [want]}));
    assert_eq!(server.json("/api/v1/incidents?state=closed").await, json!({"incidents": []}));
    assert_eq!(server.json("/api/v1/incidents/api.1").await, want);
    let mut want = serde_json::to_value(attempt()).unwrap();
    want["evidence"] = json!({"withheld": ["server_log"]});
    assert_eq!(server.json("/api/v1/attempts").await, json!({"attempts": [want]}));
    assert_eq!(server.json("/api/v1/attempts?incident_id=api.1").await, json!({"attempts": [want]}));
    assert_eq!(server.json("/api/v1/attempts?incident_id=none").await, json!({"attempts": []}));
}

#[tokio::test]
async fn an_answer_is_bounded_and_says_so() {
    let server = Server::up().await;
    let answer = server.json("/api/v1/attempts?incident_id=many").await;
    let rows = answer["attempts"].as_array().unwrap();
    assert_eq!((rows.len(), &answer["truncated"]), (10_000, &json!(true)));
    assert_eq!((&rows[0]["attempt_id"], &rows[9_999]["attempt_id"]), (&json!("1"), &json!("10000")));
}

#[tokio::test]
async fn every_refusal_is_an_error_object_with_its_status() {
    let server = Server::up().await;
    for (path, status, code) in [
        ("/nothing", 404, "not_found"),
        ("/api/v1/nothing", 404, "not_found"),
        ("/api/v1/incidents/none", 404, "not_found"),
        ("/api/v1/incidents/%ff", 400, "bad_request"),
        ("/api/v1/incidents?state=dead", 400, "bad_request"),
        ("/api/v1/incidents?stat=open", 400, "bad_request"),
        ("/api/v1/attempts?incident=api.1", 400, "bad_request"),
        ("/api/v1/alertmanager", 405, "method_not_allowed"),
    ] {
        let (got, body) = server.get(path).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((got, &body["error"]["code"]), (status, &json!(code)), "{path}: {body}");
        assert!(body["error"]["message"].is_string());
    }
    for path in ["/-/healthy", "/metrics", "/api/v1/status", "/api/v1/incidents/api.1"] {
        let response = client().delete(format!("{}{path}", server.base)).send().await.unwrap();
        assert!(response.headers()["allow"].to_str().unwrap().contains("GET"), "{path}");
        assert_eq!(
            (response.status().as_u16(), response.json::<Value>().await.unwrap()["error"]["code"].clone()),
            (405, json!("method_not_allowed"))
        );
    }
}

#[tokio::test]
async fn an_unreadable_log_is_a_503_that_tells_no_path() {
    let server = Server::bare(Fake { broken: true, ..Fake::default() }).await;
    server.shared.set_views(server.fake.clone());
    let (status, body) = server.get("/api/v1/incidents").await;
    assert_eq!((status, body.as_str()), (503, r#"{"error":{"code":"log_unreadable","message":"the attempt log cannot be read"}}"#));
}

#[tokio::test]
async fn the_webhook_takes_what_is_valid_and_wakes() {
    let server = Server::up().await;
    let (status, body) = server.post(delivery(&json!([alert(), {"status": "odd"}]))).await;
    assert_eq!((status, &body["status"], &body["alerts"], &body["truncated_alerts"]), (200, &json!("ok"), &json!(1), &json!(2)));
    assert_eq!(body["dropped"].as_array().unwrap().len(), 2);
    assert_eq!(server.fake.wakes.load(Ordering::SeqCst), 1);
    assert_eq!(server.metric("hangar_medic_webhook_requests_total{code=\"200\"}").await, "1");
    assert_eq!(server.metric("hangar_medic_webhook_alerts_total").await, "1");
    assert_eq!(server.metric("hangar_medic_webhook_alerts_truncated_total").await, "2");
}

#[tokio::test]
async fn the_webhook_refuses_what_can_never_be_valid_and_wakes_nobody() {
    let server = Server::up().await;
    let (status, body) = server.post(r#"{"version":"3","alerts":{}}"#).await;
    assert_eq!((status, &body["error"]["code"]), (400, &json!("invalid_payload")));
    let faults = ["version: must be \"4\", is \"3\"", "status: is missing", "alerts: must be a list, is \"{}\""];
    assert_eq!(body["error"]["faults"], json!(faults));
    assert_eq!(server.post("<html>").await.0, 400);
    assert_eq!(server.post("x".repeat(BODY_MAX + 1)).await.0, 413);
    let chunks = futures_util::stream::iter((0..5).map(|_| Ok::<_, std::io::Error>("x".repeat(BODY_MAX / 4))));
    assert_eq!(server.post(reqwest::Body::wrap_stream(chunks)).await.0, 413);
    assert_eq!(server.fake.wakes.load(Ordering::SeqCst), 0);
    assert_eq!(server.metric("hangar_medic_webhook_requests_total{code=\"413\"}").await, "2");
    assert_eq!(server.metric("hangar_medic_webhook_requests_total{code=\"400\"}").await, "2");
}

#[tokio::test]
async fn a_page_whose_name_was_pointed_at_loopback_reads_nothing() {
    let server = Server::up().await;
    for (request, status) in [
        ("GET /api/v1/incidents HTTP/1.1\r\nHost: evil.example:9923\r\nConnection: close\r\n\r\n", "403"),
        ("GET http://evil.example/api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "403"),
        ("GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n", "403"),
        ("GET /api/v1/status HTTP/1.0\r\n\r\n", "403"),
        ("GET /api/v1/status HTTP/1.1\r\nHost: localhost:9923\r\nConnection: close\r\n\r\n", "200"),
        ("GET /-/healthy HTTP/1.1\r\nHost: kubelet\r\nConnection: close\r\n\r\n", "200"),
        ("GET /metrics HTTP/1.1\r\nHost: prometheus\r\nConnection: close\r\n\r\n", "200"),
    ] {
        let got = rest(&mut server.raw(request).await).await;
        assert!(got.contains(&format!(" {status} ")), "{request}: {got}");
    }
}

#[tokio::test]
async fn without_credentials_it_listens_on_loopback_only_unless_told_to() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let error = bind(address, false).await.unwrap_err().to_string();
        assert!(error.contains("--web.unsafe-no-auth"), "{error}");
    }
    assert!(bind("localhost:0", false).await.is_ok());
    assert!(bind("0.0.0.0:0", true).await.is_ok());
    let taken = bind("127.0.0.1:0", false).await.unwrap();
    let error = bind(&taken.address().to_string(), false).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {}", taken.address()));
    assert!(bind("no such host:1", false).await.unwrap_err().to_string().contains("cannot be resolved"));
}

#[tokio::test]
async fn a_head_that_never_ends_and_an_idle_connection_are_closed_in_time() {
    let server = Server::up().await;
    let begun = Instant::now();
    let mut silent = server.raw("").await;
    let mut slow = server.raw("GET /-/healthy HTTP/1.1\r\nHost: a\r\nX-Slow: ").await;
    let mut idle = server.raw("GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let drip = async {
        // A byte now and then does not buy more time.
        while slow.write_all(b"a").await.is_ok() && begun.elapsed() < HEADER_TIMEOUT * 3 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let (_, idle_said, ()) = tokio::join!(rest(&mut silent), rest(&mut idle), drip);
    assert!(idle_said.contains("healthy"));
    let took = begun.elapsed();
    assert!(took >= HEADER_TIMEOUT && took < HEADER_TIMEOUT + Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_body_that_never_ends_is_refused_in_time_and_counted() {
    let server = Server::up().await;
    let begun = Instant::now();
    let mut slow = server.raw("POST /api/v1/alertmanager HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{").await;
    let got = rest(&mut slow).await;
    assert!(got.starts_with("HTTP/1.1 503") && got.contains(r#"{"error":{"code":"timeout","message":"#), "{got}");
    let took = begun.elapsed();
    assert!(took >= REQUEST_TIMEOUT && took < REQUEST_TIMEOUT + Duration::from_secs(5), "{took:?}");
    assert_eq!(server.metric("hangar_medic_webhook_requests_total{code=\"503\"}").await, "1");
}

#[tokio::test]
async fn a_panic_behind_one_request_ends_that_connection_only() {
    let server = Server::up().await;
    assert!(client().get(format!("{}/api/v1/incidents/bug", server.base)).send().await.is_err());
    assert_eq!(server.get("/-/healthy").await.0, 200);
    assert!(!server.running.is_finished());
}

#[tokio::test]
async fn a_full_house_makes_others_wait_and_not_fail() {
    let server = Server::up().await;
    let mut guests = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        guests.push(server.raw("GET").await);
    }
    let late = server.get("/-/healthy");
    tokio::pin!(late);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut late).await.is_err());
    guests.truncate(CONNECTIONS_MAX / 2);
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), late).await.unwrap().0, 200);
}

#[tokio::test]
async fn a_stop_ends_idle_connections_at_once_and_frees_the_port() {
    let server = Server::up().await;
    let mut idle = server.raw("GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut buf = [0; 16];
    idle.read_exact(&mut buf).await.unwrap();
    let begun = Instant::now();
    server.stop.cancel();
    server.running.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(bind(&server.address.to_string(), false).await.is_ok());
}

#[tokio::test]
async fn a_flood_of_deliveries_is_answered_and_leaves_health_alone() {
    let server = Server::up().await;
    let body = delivery(&Value::Array(vec![alert(); 100]));
    let http = client();
    let url = format!("{}/api/v1/alertmanager", server.base);
    let posts = (0..64).map(|_| async {
        let mut good = 0;
        for _ in 0..10 {
            good += usize::from(answer(http.post(&url).body(body.clone())).await.0 == 200);
        }
        good
    });
    let (good, healthy) = tokio::join!(futures_util::future::join_all(posts), server.get("/-/healthy"));
    assert_eq!((good.iter().sum::<usize>(), healthy.0), (640, 200));
    assert_eq!(server.fake.wakes.load(Ordering::SeqCst), 640);
}
