//! TLS on our own address: who gets in, with what, and what happens when the certificates change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hangar_medic::config::{HttpAccess, Principal, Proof, WebTls};
use hangar_medic::metrics::Metrics;
use hangar_medic::policy::Matrix;
use hangar_medic::server::{HEADER_TIMEOUT, Principals, Shared, Tls, bind};
use hangar_medic::supervise::Children;
use reqwest::{Certificate, Client, Identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::support::pki::{Ca, authority, leaf};

struct World {
    dir: tempfile::TempDir,
    ca: Ca,
    ca_pem: String,
    address: std::net::SocketAddr,
    stop: CancellationToken,
    server: Children<&'static str, ()>,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (ca, ca_pem) = authority("ours");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let (certificate, key) = leaf(&ca, "medic", &["127.0.0.1", "localhost"], 2090);
        write("cert.pem", &certificate);
        write("key.pem", &key);
        write("ca.pem", &ca_pem);
        let tls = Tls::load(&files(dir.path())).unwrap();
        let person =
            |name: &str| Principal { name: name.into(), role: "operator".into(), proof: Proof::Certificate(format!("{name}@example.org")) };
        let principals = Principals::new(&[person("alice"), person("bob")], Matrix::default());
        let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
        let shared = Shared::with_principals(metrics, principals);
        shared.set_webhook_access(HttpAccess::default());
        shared.set_webhook_certificate("alertmanager".to_owned());
        let bound = bind("127.0.0.1:0", false).await.unwrap().with_tls(Some(tls));
        let (address, stop) = (bound.address(), CancellationToken::new());
        let (mut server, stopped) = (Children::new(), stop.clone());
        server.spawn("server", async move { bound.serve(shared, stopped).await.unwrap() });
        Self { dir, ca, ca_pem, address, stop, server }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    fn client(&self, shows: Option<&(String, String)>) -> Client {
        let mut client = Client::builder().no_proxy().tls_certs_only([Certificate::from_pem(self.ca_pem.as_bytes()).unwrap()]);
        if let Some((certificate, key)) = shows {
            client = client.identity(Identity::from_pem(format!("{certificate}{key}").as_bytes()).unwrap());
        }
        client.build().unwrap()
    }

    /// The status of a POST without credentials but the certificate; `None`: the connection was refused.
    async fn post(&self, path: &str, shows: Option<&(String, String)>) -> Option<u16> {
        let sent = self.client(shows).post(self.url(path)).json(&serde_json::json!({})).send().await;
        sent.ok().map(|answer| answer.status().as_u16())
    }

    async fn end(mut self) {
        self.stop.cancel();
        assert_eq!(self.server.next().await, ("server", Ok(())));
    }
}

fn files(dir: &Path) -> WebTls {
    let path = |name: &str| -> PathBuf { dir.join(name) };
    WebTls { cert_file: path("cert.pem"), key_file: path("key.pem"), client_ca_file: Some(path("ca.pem")) }
}

const WEBHOOK: &str = "/api/v1/alertmanager";
/// Any route that changes something. Behind its door an empty request is answered 400; behind the webhook's the daemon of
/// these tests is still starting: 503.
const CHANGE: &str = "/api/v1/break-glass";

#[tokio::test]
async fn a_client_certificate_is_a_principal_or_alertmanager_and_nobody_else() {
    let w = World::new().await;
    let (foreign, _) = authority("theirs");
    let alice = leaf(&w.ca, "whoever", &["alice@example.org"], 2090);
    let bob = leaf(&w.ca, "bob@example.org", &[], 2090);
    let both = leaf(&w.ca, "bob@example.org", &["alice@example.org"], 2090);
    let alertmanager = leaf(&w.ca, "alertmanager", &[], 2090);
    let expired = leaf(&w.ca, "bob@example.org", &[], 2021);
    let wrong_ca = leaf(&foreign, "bob@example.org", &[], 2090);

    assert_eq!(w.client(None).get(w.url("/-/healthy")).send().await.unwrap().status(), 200, "no certificate is needed to look");
    let cases = [
        ("none", None, Some(401), Some(401)),
        ("alice", Some(&alice), Some(400), Some(401)),
        ("bob", Some(&bob), Some(400), Some(401)),
        ("two names, two principals", Some(&both), Some(401), Some(401)),
        ("Alertmanager", Some(&alertmanager), Some(401), Some(503)),
        ("expired", Some(&expired), None, None),
        ("another authority's", Some(&wrong_ca), None, None),
    ];
    for (who, shows, change, webhook) in cases {
        assert_eq!((w.post(CHANGE, shows).await, w.post(WEBHOOK, shows).await), (change, webhook), "{who}");
    }
    // A token that is no good is not mended by a certificate that is.
    let answer = w.client(Some(&bob)).post(w.url(CHANGE)).bearer_auth("no-token-of-anybody").send().await.unwrap();
    assert_eq!(answer.status(), 401);
    w.end().await;
}

/// The serial number that the server shows now.
async fn shown(w: &World) -> String {
    let client = Client::builder().no_proxy().tls_certs_only([Certificate::from_pem(w.ca_pem.as_bytes()).unwrap()]).tls_info(true);
    let answer = client.build().unwrap().get(w.url("/-/healthy")).send().await.unwrap();
    let info = answer.extensions().get::<reqwest::tls::TlsInfo>().unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(info.peer_certificate().unwrap()).unwrap();
    certificate.raw_serial_as_string()
}

async fn metric(w: &World) -> String {
    let page = w.client(None).get(w.url("/metrics")).send().await.unwrap().text().await.unwrap();
    page.lines().find_map(|line| line.strip_prefix("hangar_medic_web_tls_last_reload_successful ")).unwrap().to_owned()
}

async fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = holds().await {
            return value;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn new_certificates_are_used_without_a_restart_and_bad_ones_leave_the_old_in_use() {
    let w = World::new().await;
    let first = shown(&w).await;
    assert_eq!(metric(&w).await, "1");

    // A key that does not fit, as between the two writes of a careless renewal.
    let (certificate, key) = leaf(&w.ca, "medic", &["127.0.0.1"], 2090);
    std::fs::write(w.dir.path().join("key.pem"), &key).unwrap();
    until("the bad pair is told", async || (metric(&w).await == "0").then_some(())).await;
    assert_eq!(shown(&w).await, first);

    std::fs::write(w.dir.path().join("cert.pem"), &certificate).unwrap();
    until("the new certificate is shown", async || (shown(&w).await != first).then_some(())).await;
    assert_eq!(metric(&w).await, "1");
    for garbage in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(w.dir.path().join("ca.pem"), garbage).unwrap();
        until("it is told", async || (metric(&w).await == "0").then_some(())).await;
        std::fs::write(w.dir.path().join("ca.pem"), &w.ca_pem).unwrap();
        until("it is good again", async || (metric(&w).await == "1").then_some(())).await;
    }
    w.end().await;
}

#[tokio::test]
async fn what_is_no_tls_or_too_old_is_refused_and_a_client_stuck_in_the_handshake_is_dropped() {
    let w = World::new().await;
    let mut stuck = TcpStream::connect(w.address).await.unwrap();
    stuck.write_all(&[0x16, 0x03, 0x01]).await.unwrap();
    let begun = Instant::now();

    let mut plain = TcpStream::connect(w.address).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP") && begun.elapsed() < HEADER_TIMEOUT, "{answer:?}");

    // The same hello but for its version: 1.2 is answered with a handshake, 1.1 with a fatal alert.
    for (version, kind) in [(3, 0x16), (2, 0x15)] {
        let mut hello = vec![0x03, version];
        hello.extend([7; 32]);
        // No session; ECDHE-ECDSA-AES128-GCM; no compression; x25519 and P-256, uncompressed points, ECDSA with SHA-256.
        hello.extend([0x00, 0x00, 0x02, 0xc0, 0x2b, 0x01, 0x00, 0x00, 24]);
        hello.extend([0x00, 0x0a, 0x00, 0x06, 0x00, 0x04, 0x00, 0x1d, 0x00, 0x17, 0x00, 0x0b, 0x00, 0x02, 0x01, 0x00]);
        hello.extend([0x00, 0x0d, 0x00, 0x04, 0x00, 0x02, 0x04, 0x03]);
        let length = u8::try_from(hello.len()).unwrap();
        let mut record = vec![0x16, 0x03, 0x01, 0x00, length + 4, 0x01, 0x00, 0x00, length];
        record.extend(hello);
        let mut client = TcpStream::connect(w.address).await.unwrap();
        client.write_all(&record).await.unwrap();
        let mut first = [0; 1];
        client.read_exact(&mut first).await.unwrap();
        assert_eq!(first[0], kind, "3.{version}");
    }

    let dropped = stuck.read_to_end(&mut answer);
    tokio::time::timeout(HEADER_TIMEOUT + Duration::from_secs(20), dropped).await.expect("the stuck client is dropped").ok();
    assert!(begun.elapsed() >= HEADER_TIMEOUT, "after {:?}", begun.elapsed());
    w.end().await;
}
