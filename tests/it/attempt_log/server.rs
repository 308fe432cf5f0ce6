//! What only a server can do to the log: be gone, hang, be shared.

use std::time::{Duration, Instant};

use hangar_medic::attempt_log::fleet::{Acquired, FleetLock};
use hangar_medic::attempt_log::{LogError, Shared};
use hangar_medic::config::Postgres as Settings;

use super::homes::Server;
use super::*;

/// Within what anything must have ended that a server does not answer; the log itself allows less.
const BOUND: Duration = Duration::from_secs(30);

#[test]
fn a_second_medic_of_the_same_instance_is_refused_until_the_first_is_gone() {
    run(async {
        let home = Server::new();
        let first = home.open().await;
        first.append(at(0), "sidecar", vec![held("api")]).await.unwrap();
        let refused = home.try_open(INSTANCE).await.unwrap_err();
        assert!(matches!(&refused, LogError::Held { by: Some(by), .. } if by.starts_with("backend ")), "{refused}");
        assert!(refused.to_string().contains("hangar.instance"), "{refused}");
        // Beside it: another instance, and any reader.
        home.try_open("b").await.unwrap().append(at(0), "sidecar", vec![held("api")]).await.unwrap();
        let reader = home.read_only(Some(INSTANCE)).await.unwrap();
        assert!(matches!(reader.append(at(0), "cli", vec![held("x")]).await, Err(LogError::ReadOnly { .. })));
        first.close().await;
        assert_eq!(home.open().await.append(at(1), "sidecar", vec![held("db")]).await.unwrap()[0].seq, 2);
    });
}

#[test]
fn a_newer_store_is_refused_and_left_alone() {
    run(async {
        let home = Server::new();
        home.open().await.close().await;
        let version = "INSERT INTO hangar_medic._sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9, 'x', true, '\\x00', 0)";
        home.0.execute("fleet", version);
        let dump = || home.0.execute("fleet", "SELECT * FROM hangar_medic._sqlx_migrations ORDER BY version");
        let before = dump();
        for refused in [home.try_open(INSTANCE).await.unwrap_err(), home.read_only(Some(INSTANCE)).await.unwrap_err()] {
            assert!(matches!(refused, LogError::Newer { version: 9, .. }), "{refused}");
        }
        assert_eq!(dump(), before);
    });
}

#[test]
fn two_medics_may_make_the_tables_at_once_and_a_role_that_only_writes_finds_them_made() {
    run(async {
        let home = Server::new();
        assert!(matches!(home.read_only(None).await.unwrap_err(), LogError::Missing { .. }));
        let (a, b) = tokio::join!(home.try_open("a"), home.try_open("b"));
        for (store, seq) in [(&a, 1), (&b, 1)] {
            assert_eq!(store.as_ref().unwrap().append(at(0), "sidecar", vec![held("api")]).await.unwrap()[0].seq, seq);
        }
        home.0.execute(
            "fleet",
            "CREATE ROLE writer LOGIN; GRANT USAGE ON SCHEMA hangar_medic TO writer; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hangar_medic TO writer",
        );
        let url = home.0.url("fleet").replace("medic@", "writer@");
        let store = Shared::open(&Settings { url: Some(url), ..Settings::default() }, "c").await.unwrap();
        store.append(at(0), "sidecar", whole("api", 0)).await.unwrap();
        assert_eq!(store.instances().await.unwrap(), ["a", "b", "c"]);
    });
}

#[test]
fn a_stopped_server_takes_nothing_and_is_found_again() {
    run(async {
        let mut home = Server::new();
        let store = home.open().await;
        store.append(at(0), "sidecar", whole("api", 0)).await.unwrap();
        let before = store.head().await.unwrap();
        home.0.stop();
        for error in [
            store.append(at(1), "sidecar", vec![held("db")]).await.unwrap_err(),
            store.put("k", serde_json::json!(1)).await.unwrap_err(),
            store.history(&Policy::default(), at(1)).await.unwrap_err(),
            home.try_open("b").await.unwrap_err(),
        ] {
            assert!(error.may_pass() && !matches!(error, LogError::Held { .. }), "{error}");
        }
        home.0.resume();
        store.history(&Policy::default(), at(1)).await.unwrap();
        assert_eq!(store.head().await.unwrap(), before);
        assert_eq!(store.append(at(2), "sidecar", vec![held("db")]).await.unwrap()[0].seq, 9);
        assert_eq!(store.verify(&mut |_| {}).await.unwrap().fault, None);
    });
}

#[test]
fn a_server_that_hangs_is_given_up_on_and_what_it_wrote_all_the_same_is_not_written_again() {
    run(async {
        let home = Server::new();
        let store = home.open().await;
        store.append(at(0), "sidecar", whole("api", 0)).await.unwrap();
        store.history(&Policy::default(), at(0)).await.unwrap();
        home.0.freeze(true);
        let begun = Instant::now();
        let error = store.append(at(1), "sidecar", vec![held("db")]).await.unwrap_err();
        assert!(error.may_pass(), "{error}");
        assert!(store.append(at(1), "sidecar", vec![held("db")]).await.is_err());
        assert!(store.head().await.is_err());
        assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
        home.0.freeze(false);
        // Somebody writes before its history is read again: refused, since that was decided without knowing the end.
        home.tamper(
            "UPDATE heads SET seq = 9, hash = (SELECT hash FROM records WHERE seq = 8); \
             INSERT INTO records SELECT instance, 9, at, actor, body, hash, hash, at_us, kind, incident_id, mcp_server FROM records WHERE seq = 8",
        )
        .await;
        let mut refused = store.append(at(2), "sidecar", vec![held("db")]).await.unwrap_err();
        for _ in 0..100 {
            // The session that hung may still hold the chain for a moment.
            if !matches!(refused, LogError::Held { .. }) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            refused = store.append(at(2), "sidecar", vec![held("db")]).await.unwrap_err();
        }
        assert!(matches!(refused, LogError::Overtaken { seq: 9, .. }) && refused.may_pass(), "{refused}");
    });
}

#[test]
fn no_error_tells_a_password() {
    run(async {
        let mut home = Server::new();
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            Some(hangar_medic::config::SecretFile { path: dir.path().join(name) })
        };
        let whole = home.0.url("fleet").replace("medic@", "medic:hunter2@");
        let settings = [
            Settings { url_file: file("url", &whole), ..Settings::default() },
            Settings { url_file: file("bad", &format!("{whole}?passwrod=hunter2")), ..Settings::default() },
            Settings { password_file: file("password", "hunter2"), ..home.0.settings() },
            Settings { password_file: file("password", "hunter2"), url: Some(home.0.url("missing")), ..Settings::default() },
        ];
        home.0.stop();
        for (n, settings) in settings.iter().enumerate() {
            let error = Shared::open(settings, INSTANCE).await.unwrap_err();
            let chain = format!("{error} {error:?} {settings:?}");
            assert!(!chain.contains("hunter2"), "{n}: {chain}");
        }
        home.0.resume();
        Shared::open(&settings[0], INSTANCE).await.unwrap();
    });
}

fn in_seconds(seconds: i64) -> Timestamp {
    hangar_medic::clock::now() + SignedDuration::from_secs(seconds)
}

#[test]
fn the_fleet_lock_has_one_holder_and_a_dead_one_is_taken_over_after_its_deadline() {
    run(async {
        let home = Server::new();
        let (a, b) = (home.try_open("a").await.unwrap(), home.try_open("b").await.unwrap());
        let (mine, theirs) = (a.fleet(), b.fleet());
        assert_eq!(mine.acquire("hangar", in_seconds(60)).await.unwrap(), Acquired::Ours);
        let held = theirs.acquire("hangar", in_seconds(60)).await.unwrap();
        let Acquired::Held { by, until } = held else { panic!("two holders") };
        assert!(by == "a" && until > in_seconds(50) && until < in_seconds(70), "{by} {until}");
        // What is not theirs they cannot give back.
        theirs.release("hangar").await.unwrap();
        // Extended down to a second; late, but alive: nobody takes over.
        assert_eq!(mine.acquire("hangar", in_seconds(1)).await.unwrap(), Acquired::Ours);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let Acquired::Held { until, .. } = theirs.acquire("hangar", in_seconds(60)).await.unwrap() else { panic!("taken from the living") };
        assert!(until > in_seconds(0), "it is asked for again later");
        assert_eq!(mine.acquire("hangar", in_seconds(4)).await.unwrap(), Acquired::Ours);

        // Its session ends with it, and until its deadline what it began may be under way.
        drop(mine);
        let begun = Instant::now();
        while theirs.acquire("hangar", in_seconds(60)).await.unwrap() != Acquired::Ours {
            assert!(begun.elapsed() < BOUND, "never taken over");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() > Duration::from_millis(2500), "taken over before the deadline: {:?}", begun.elapsed());
        // Its next process finds that it was taken over.
        let again = a.fleet();
        assert!(matches!(again.acquire("hangar", in_seconds(60)).await.unwrap(), Acquired::Held { by, .. } if by == "b"));
        theirs.release("hangar").await.unwrap();
        assert_eq!(again.acquire("hangar", in_seconds(60)).await.unwrap(), Acquired::Ours);
        assert_eq!(home.0.execute("fleet", "SELECT target, holder, epoch FROM hangar_medic.fleet_lock"), "hangar|a|3");
    });
}

#[test]
fn the_next_process_of_the_holder_goes_on_with_its_lock() {
    run(async {
        let home = Server::new();
        let (a, b) = (home.try_open("a").await.unwrap(), home.try_open("b").await.unwrap());
        let first = a.fleet();
        assert_eq!(first.acquire("hangar", in_seconds(600)).await.unwrap(), Acquired::Ours);
        drop(first);
        let next = a.fleet();
        let begun = Instant::now();
        while next.acquire("hangar", in_seconds(600)).await.unwrap() != Acquired::Ours {
            assert!(begun.elapsed() < BOUND, "its own row keeps it out");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(matches!(b.fleet().acquire("hangar", in_seconds(60)).await.unwrap(), Acquired::Held { .. }));
    });
}

#[test]
fn of_many_that_ask_at_once_one_gets_the_lock_and_without_a_server_nobody_does() {
    run(async {
        let mut home = Server::new();
        let stores = futures_util::future::join_all((0..8).map(|n| {
            let home = &home;
            async move { home.try_open(&format!("h-{n}")).await.unwrap() }
        }))
        .await;
        let locks: Vec<_> = stores.iter().map(Shared::fleet).collect();
        let asked = locks.iter().map(|lock| lock.acquire("hangar", in_seconds(60)));
        let got = futures_util::future::join_all(asked).await;
        assert_eq!(got.iter().filter(|got| matches!(got, Ok(Acquired::Ours))).count(), 1);
        home.0.stop();
        for lock in &locks {
            assert!(lock.acquire("hangar", in_seconds(60)).await.is_err());
        }
    });
}

#[test]
fn others_see_when_the_lock_is_given_back_and_which_restarts_were_ordered() {
    run(async {
        let home = Server::new();
        let (a, b) = (home.try_open("a").await.unwrap(), home.try_open("b").await.unwrap());
        let (mine, theirs) = (a.fleet(), b.fleet());
        assert!(theirs.is_free("hangar").await.unwrap());
        assert_eq!(mine.acquire("hangar", in_seconds(1)).await.unwrap(), Acquired::Ours);
        assert!(!theirs.is_free("hangar").await.unwrap());
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert!(!theirs.is_free("hangar").await.unwrap(), "late, but alive");
        mine.release("hangar").await.unwrap();
        assert!(theirs.is_free("hangar").await.unwrap());

        let opened = |attempt: &str, action: &str| -> Body {
            serde_json::from_value(serde_json::json!({
                "kind": "attempt_opened", "attempt_id": attempt, "incident_id": "far.1", "mcp_server": "far", "action": action,
                "why": "w", "slow_retry": false,
            }))
            .unwrap()
        };
        let settled = |attempt: &str, outcome| Body::AttemptSettled { attempt_id: attempt.to_owned(), outcome, why: "w".to_owned() };
        for (second, body) in [
            (1, opened("far.1.1", "session_reconnect")),
            (2, settled("far.1.1", Outcome::Failed)),
            (3, opened("far.1.2", "rolling_mcp_restart")),
            (4, settled("far.1.2", Outcome::NotApplicable)),
            (5, opened("far.1.3", "rolling_mcp_restart")),
            (6, settled("far.1.3", Outcome::Insufficient)),
            (7, opened("far.1.4", "full_mcp_restart")),
        ] {
            a.append(at(second), "sidecar", vec![body]).await.unwrap();
        }
        let ordered = theirs.ordered(at(0)).await.unwrap();
        let told: Vec<_> = ordered.iter().map(|o| (o.instance.as_str(), o.attempt_id.as_str(), o.action, o.at, o.over_at)).collect();
        assert_eq!(
            told,
            [("a", "far.1.4", Rung::FullMcpRestart, at(7), None), ("a", "far.1.3", Rung::RollingMcpRestart, at(5), Some(at(6))),]
        );
        assert_eq!(mine.ordered(at(0)).await.unwrap(), [], "its own are in its own history");
        assert_eq!(theirs.ordered(at(6)).await.unwrap().len(), 1);
    });
}
