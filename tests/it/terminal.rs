//! The command line as a person has it: colours, watching, completions, and errors that say what to do.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::playbook::{command, finish, medic};
use crate::support::medic::BINARY;
use crate::support::process::{Running, free_port, tail};
use crate::support::world::Unwatched;
use crate::support::{V2_34, poll};

/// What a terminal of its own shows of this command (util-linux' `script`).
fn on_a_terminal(line: &str, env: &[(&str, &str)]) -> String {
    let mut script = Command::new("script");
    script.args(["-qec", line, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm").envs(env.iter().copied());
    let out = script.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn colours_are_for_terminals_alone_and_only_until_somebody_says_no() {
    let dir = tempfile::tempdir().unwrap();
    let args = format!("doctor --hangar.url http://127.0.0.1:{} --storage.path {}", free_port(), dir.path().display());
    let line = format!("{BINARY} {args}");
    let coloured = on_a_terminal(&line, &[]);
    assert!(coloured.contains("\u{1b}[1m\u{1b}[31mFAIL\u{1b}[0m  hangar_reachable"), "{coloured:?}");
    for env in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = on_a_terminal(&line, &[env]);
        assert!(plain.contains("FAIL  hangar_reachable") && !plain.contains('\u{1b}'), "{env:?} {plain:?}");
    }
    let (code, piped, err) = medic(&args.split(' ').collect::<Vec<_>>());
    assert!(code == 1 && err.is_empty() && !piped.contains('\u{1b}'), "{piped:?} {err}");
    assert!(piped.lines().all(|l| l.chars().count() <= 80), "{piped}");
    assert!(piped.ends_with("failed: do what is said after ->, and run doctor again.\n"), "{piped}");
}

#[test]
fn every_shell_gets_completions_that_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, err) = medic(&["completions", shell]);
        assert_eq!((code, err.as_str()), (0, ""), "{shell}");
        for word in ["doctor", "incidents", "break-glass", "completions", "hangar.api-key-file"] {
            assert!(out.contains(word), "{shell}: no {word}");
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), medic(&["completions", "bash"]).1).unwrap();
    let checked = Command::new("bash").args(["-n", file.path().to_str().unwrap()]).status().unwrap();
    assert!(checked.success());
}

#[test]
fn what_cannot_be_asked_is_said_with_what_to_do() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let (code, out, err) = medic(&["incidents", "list", "--medic.url", &url]);
    assert!(code == 1 && out.is_empty() && err.contains("start it with `hangar-medic run`, or name its address with --medic.url"), "{err}");
    let (code, _, err) = medic(&["incidents", "list", "--medic.url", "nowhere"]);
    assert!(code == 1 && err.contains("--medic.url nowhere is no address"), "{err}");
}

#[test]
fn a_watched_incident_is_told_as_it_goes_and_the_watch_ends_with_it() {
    let w = Unwatched::start(V2_34, |h| h.server("api", "ok", &json!({})));
    w.hangar.bring_up(&["api"]);
    let w = w.watch(&json!({"policy": {"settle": "6s"}}));
    let (url, log) = (w.medic.url(), w.dir().join("list.out"));
    let mut list = command(&["incidents", "list", "--watch", "--medic.url", &url]);
    let list = Running::start(&mut list, &log);
    let shown = |words: &str| poll(Duration::from_secs(20), || tail(&log, usize::MAX).contains(words).then_some(())).is_some();
    assert!(shown("no incidents"));
    w.hangar.kill_child("api");
    w.wait("its incident is open", 20, |w| w.medic.incident("api")["incident_id"].is_string());
    let id = w.medic.incident("api")["incident_id"].as_str().unwrap().to_owned();

    let show = command(&["incidents", "show", &id, "--watch", "--medic.url", &url]).stdout(Stdio::piped()).spawn();
    let mut show = show.unwrap();
    let mut told = String::new();
    show.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    let ended = poll(Duration::from_secs(10), || show.try_wait().unwrap());
    assert!(ended.is_some_and(|s| s.success()), "{told}");
    let at = |words: &str| told.rfind(words).unwrap_or_else(|| panic!("not told: {words}\n{told}"));
    let order = [
        "seen     ",
        "decided  session_reconnect (rung 2)",
        "sent     session_reconnect",
        "proved   session_reconnect",
        "ended    The medic brought it back",
    ];
    assert!(order.map(at).is_sorted(), "{told}");
    assert!(told.lines().all(|l| l.chars().count() <= 80), "{told}");
    assert!(shown("recovered"), "{}", tail(&log, 50));
    drop(list);

    let (code, _, err) = finish(&mut command(&["incidents", "show", "none", "--medic.url", &url]));
    assert!(code == 1 && err.contains("404: no incident has this id; `hangar-medic incidents list` prints what there is"), "{err}");
}
