//! What we show to Prometheus and Alertmanager, and what Alertmanager shows to us; with the real ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hangar_medic::config::{HttpAccess, SecretFile};
use hangar_medic::observe::prometheus::{self, PrometheusSource, Unknown};
use hangar_medic::observe::silences;
use hangar_medic::supervise::Children;
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::hangar::stub::{Stub, json as reply};
use crate::support::monitoring::{Alertmanager, Prometheus};
use crate::support::pki::{authority, leaf};
use crate::support::process::free_port;
use crate::support::{Medic, Proxy, http, poll};

/// bcrypt of `right-password`.
const HASH: &str = "$2b$04$Q9p326XizygBqyQj48SloOvfDQLCp3IblAtP9uj7ZWuqAirgTesQ2";

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Every way to ask: with everything that is wanted, and each time with one thing wrong.
fn accesses(dir: &Path) -> Vec<(&'static str, HttpAccess)> {
    let (ca, ca_pem) = authority("ours");
    let (other, other_pem) = authority("theirs");
    let keep = |name: &str, (certificate, key): (String, String)| {
        (write(dir, &format!("{name}.pem"), &certificate), write(dir, &format!("{name}.key"), &key))
    };
    keep("server", leaf(&ca, "127.0.0.1", &["127.0.0.1"], 2090));
    let (cert_file, key_file) = keep("client", leaf(&ca, "medic", &[], 2090));
    let (foreign_cert, foreign_key) = keep("foreign", leaf(&other, "medic", &[], 2090));
    let (old_cert, old_key) = keep("old", leaf(&ca, "medic", &[], 2021));
    let right = HttpAccess {
        bearer_token_file: None,
        username: Some("medic".to_owned()),
        password_file: Some(SecretFile { path: write(dir, "password", "right-password\n") }),
        ca_file: Some(write(dir, "ca.pem", &ca_pem)),
        cert_file: Some(cert_file),
        key_file: Some(key_file),
    };
    let wrong = SecretFile { path: write(dir, "wrong", "wrong-password\n") };
    let other_ca = write(dir, "other-ca.pem", &other_pem);
    vec![
        ("another password", HttpAccess { password_file: Some(wrong.clone()), ..right.clone() }),
        ("a token instead", HttpAccess { bearer_token_file: Some(wrong), username: None, password_file: None, ..right.clone() }),
        ("no password file", HttpAccess { password_file: Some(SecretFile { path: dir.join("none") }), ..right.clone() }),
        ("another authority", HttpAccess { ca_file: Some(other_ca), ..right.clone() }),
        ("the system's authorities", HttpAccess { ca_file: None, ..right.clone() }),
        ("no certificate", HttpAccess { cert_file: None, key_file: None, ..right.clone() }),
        ("another authority's certificate", HttpAccess { cert_file: Some(foreign_cert), key_file: Some(foreign_key), ..right.clone() }),
        ("an expired certificate", HttpAccess { cert_file: Some(old_cert), key_file: Some(old_key), ..right.clone() }),
        ("everything", right),
    ]
}

fn wants_everything(dir: &Path) -> Value {
    json!({
        "tls_server_config": {
            "cert_file": dir.join("server.pem"), "key_file": dir.join("server.key"),
            "client_ca_file": dir.join("ca.pem"), "client_auth_type": "RequireAndVerifyClientCert",
        },
        "basic_auth_users": {"medic": HASH},
    })
}

fn prometheus_source(url: &str, http: HttpAccess) -> PrometheusSource {
    PrometheusSource::new(prometheus::Settings {
        url: url.parse().unwrap(),
        instance: "h:1".to_owned(),
        selector: None,
        http,
        timeout: Duration::from_secs(10),
        stale_after: SignedDuration::from_secs(60),
        max_body: 1 << 20,
    })
    .unwrap()
}

/// The first thing that is heard of silences.
async fn silences_once(url: &str, http: HttpAccess) -> silences::Update {
    let settings = silences::Settings {
        url: url.parse().unwrap(),
        instance: "h:1".to_owned(),
        poll_interval: Duration::from_mins(1),
        timeout: Duration::from_secs(10),
        http,
    };
    let ((tell, mut heard), stop, mut task) = (tokio::sync::mpsc::channel(1), CancellationToken::new(), Children::new());
    task.spawn((), silences::follow(settings, tell, stop.clone()));
    heard.recv().await.unwrap()
}

#[tokio::test]
async fn real_prometheus_and_alertmanager_let_us_in_with_exactly_what_they_ask_for() {
    let dir = tempfile::tempdir().unwrap();
    let all = accesses(dir.path());
    let web = wants_everything(dir.path());
    let alertmanager = Alertmanager::start_with(dir.path(), "am", free_port(), &json!({}), &web);
    let prometheus = Prometheus::asking(dir.path(), &web);
    let secure = |url: String| format!("{}/", url.replace("http://", "https://"));
    let (alertmanager, prometheus) = (secure(alertmanager.url()), secure(prometheus.url()));
    for (what, access) in all {
        let known = matches!(silences_once(&alertmanager, access.clone()).await, silences::Update::Known(_));
        let read = prometheus_source(&prometheus, access).read(hangar_medic::clock::now()).await;
        // It scrapes nothing that is there: whoever is let in sees that there is nothing.
        let in_ = matches!(read, Err(Unknown::Empty | Unknown::Down | Unknown::WrongInstance { .. }));
        assert_eq!((known, in_), (what == "everything", what == "everything"), "{what}: {read:?}");
        let told = format!("{read:?}");
        assert!(!told.contains("-password"), "{told}");
    }
}

#[tokio::test]
async fn a_bearer_token_is_read_afresh_for_each_request() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = json!({"status": "success", "data": {"resultType": "vector", "result": []}});
    let (prometheus, alertmanager) = (Stub::always(reply(200, &nothing)), Stub::always(reply(200, &json!([]))));
    let token = write(dir.path(), "token", "first-token\n");
    let access = HttpAccess { bearer_token_file: Some(SecretFile { path: token.clone() }), ..HttpAccess::default() };
    let mut source = prometheus_source(&format!("{}/", prometheus.url), access.clone());
    for word in ["first-token", "second-token"] {
        std::fs::write(&token, word).unwrap();
        let mark = (prometheus.seen().len(), alertmanager.seen().len());
        assert!(matches!(source.read(hangar_medic::clock::now()).await, Err(Unknown::Empty)));
        assert!(matches!(silences_once(&format!("{}/", alertmanager.url), access.clone()).await, silences::Update::Known(_)));
        let (queries, asked) = (prometheus.seen(), alertmanager.seen());
        let shown: Vec<_> = queries[mark.0..].iter().chain(&asked[mark.1..]).map(|request| request.authorization.clone()).collect();
        assert!(shown.len() >= 4 && shown.iter().all(|shown| *shown == Some(format!("Bearer {word}"))), "{shown:?}");
    }
}

/// Deliveries of one alert by a real Alertmanager that shows `http_config`: the statuses it got from a daemon that asks for
/// what `webhook` says, until one is 200 or `enough` were refused.
fn delivered(dir: &Path, webhook: &Value, http_config: &Value, enough: usize) -> Vec<u16> {
    let medic = Medic::start(&dir.join("medic"), &format!("http://127.0.0.1:{}", free_port()), &json!({"web": {"webhook": webhook}}));
    let proxy = Proxy::start(medic.port());
    let port = proxy.url().rsplit(':').next().unwrap().parse().unwrap();
    let alertmanager = Alertmanager::start_with(dir, "am", port, http_config, &json!({}));
    let alert = json!([{"labels": {"alertname": "MCPHangarProviderDead", "mcp_server": "api"}}]);
    assert!(http::post(alertmanager.port, "/api/v2/alerts", None, Some(&alert)).ok());
    // 0: not answered yet.
    let statuses = || proxy.seen().iter().map(|seen| seen.status).filter(|status| ![0, 503].contains(status)).collect::<Vec<_>>();
    let done = poll(Duration::from_secs(30), || {
        let statuses = statuses();
        (statuses.contains(&200) || statuses.len() >= enough).then_some(statuses)
    });
    done.unwrap_or_else(|| panic!("{:?}\n{}", statuses(), medic.log()))
}

#[test]
fn alertmanager_is_let_in_by_password_or_token_and_not_with_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let token = write(dir.path(), "token", "a-token-of-alertmanager\n");
    let cases = [
        (
            json!({"username": "am", "password_file": token}),
            json!({"basic_auth": {"username": "am", "password": "a-token-of-alertmanager"}}),
            200,
        ),
        (json!({"username": "am", "password_file": token}), json!({"basic_auth": {"username": "am", "password": "another"}}), 401),
        (json!({"bearer_token_file": token}), json!({"authorization": {"credentials": "a-token-of-alertmanager"}}), 200),
        (json!({"bearer_token_file": token}), json!({}), 401),
    ];
    for (i, (webhook, http_config, wanted)) in cases.iter().enumerate() {
        let dir = dir.path().join(i.to_string());
        std::fs::create_dir(&dir).unwrap();
        let statuses = delivered(&dir, webhook, http_config, 1);
        assert_eq!(statuses[0], *wanted, "{webhook} {http_config}: {statuses:?}");
    }
}
