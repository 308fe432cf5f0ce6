//! The server that holds the log, over TLS: only the one that the configured authority vouches for is spoken to.

use hangar_medic::attempt_log::fleet::{Acquired, FleetLock};
use hangar_medic::attempt_log::{LogError, Shared};
use hangar_medic::config::Postgres as Settings;
use serde_json::json;

use super::*;
use crate::support::pki::{authority, leaf};
use crate::support::process::free_port;
use crate::support::{Medic, Postgres, http, poll};

const BOUND: std::time::Duration = std::time::Duration::from_secs(30);

/// The words of an error and of all that it came of.
fn words(error: &LogError) -> String {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        words = format!("{words}: {error}");
        source = error.source();
    }
    words
}

#[test]
fn only_a_server_with_the_right_certificate_gets_to_hear_anything() {
    let dir = tempfile::tempdir().unwrap();
    let ((ours, ours_pem), (_, other_pem)) = (authority("ours"), authority("other"));
    let file = |name: &str, pem: &str| {
        std::fs::write(dir.path().join(name), pem).unwrap();
        dir.path().join(name).display().to_string()
    };
    let (ours_file, other_file) = (file("ours.pem", &ours_pem), file("other.pem", &other_pem));
    let (certificate, key) = leaf(&ours, "database", &["localhost"], 2090);
    let server = Postgres::start_with_tls(&certificate, &key);
    // The certificate names localhost, not 127.0.0.1.
    let url = |host: &str, query: &str| format!("postgres://medic@{host}:{}/fleet?{query}", server.port);
    let settings = |host: &str, query: &str| Settings { url: Some(url(host, query)), ..Settings::default() };
    run(async {
        let good = settings("localhost", &format!("sslmode=verify-full&sslrootcert={ours_file}"));
        let store = Shared::open(&good, INSTANCE).await.unwrap();
        store.append(at(0), "sidecar", vec![held("api")]).await.unwrap();
        let lock = store.fleet();
        assert_eq!(lock.acquire("hangar", at(0)).await.unwrap(), Acquired::Ours);
        let sessions = "SELECT count(*), bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'hangar-medic'";
        let encrypted = server.execute("fleet", sessions);
        assert!(encrypted.ends_with("|t") && !encrypted.starts_with("0|"), "{encrypted}");
        assert_eq!(Shared::open_read_only(&good, Some(INSTANCE)).await.unwrap().verify(&mut |_| {}).await.unwrap().fault, None);
        store.close().await;

        for (host, query, why) in [
            ("localhost", format!("sslmode=verify-full&sslrootcert={other_file}"), "certificate"),
            ("localhost", format!("sslmode=verify-ca&sslrootcert={other_file}"), "certificate"),
            ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ours_file}"), "certificate"),
            ("localhost", "sslmode=disable".to_owned(), "no encryption"),
        ] {
            let refused = Shared::open(&settings(host, &query), INSTANCE).await.unwrap_err();
            let words = words(&refused);
            assert!(words.contains(why), "{host} {query}: {words}");
            assert!(words.contains(&format!("postgres://{host}:{}/fleet", server.port)), "it names the server: {words}");
        }
    });
    let missing = run(Shared::open(&settings("localhost", "sslmode=verify-full&sslrootcert=/nonexistent/ca.pem"), INSTANCE)).unwrap_err();
    assert!(words(&missing).contains("sslrootcert: /nonexistent/ca.pem cannot be read"), "{}", words(&missing));
    // The daemon stays up, says what is wrong, and does nothing.
    let wrong = url("localhost", &format!("sslmode=verify-full&sslrootcert={other_file}"));
    let hangar = format!("http://127.0.0.1:{}", free_port());
    let medic = Medic::start(&dir.path().join("medic"), &hangar, &json!({"storage": {"postgres": {"url": wrong}}}));
    let told = poll(BOUND, || medic.log().lines().any(|l| l.contains("cannot be opened") && l.contains("certificate")).then_some(()));
    assert!(told.is_some(), "{}", medic.log());
    assert_eq!((http::get(medic.port(), "/-/healthy", None).status, http::get(medic.port(), "/-/ready", None).status), (200, 503));
}

#[test]
fn a_server_without_tls_is_refused_where_it_was_asked_for() {
    let server = Postgres::start();
    let url = format!("{}?sslmode=verify-full", server.url("fleet"));
    let refused = run(async move { Shared::open(&Settings { url: Some(url), ..Settings::default() }, INSTANCE).await.unwrap_err() });
    assert!(words(&refused).to_lowercase().contains("tls"), "{}", words(&refused));
}
