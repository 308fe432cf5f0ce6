//! What a person sees of a wrong configuration.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::medic::BINARY;
use crate::support::process::{Running, free_port};
use crate::support::{http, poll};

const FAULTY: &str = r"
hangar:
  url: http://127.0.0.1:8000
  api_key_file: /nonexistent/key
  colour: red
storage:
  path: ./data
  path: ./other
policy:
  settle: -5s
  rungs:
    - {action: client_reconnect, attempts_max: 1, pause: 0s}
    - {action: client_reconnect, attempts_max: 2, pause: 0s}
";

fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = Command::new(BINARY).args(args).current_dir(dir).output().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

#[test]
fn check_config_names_every_fault_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("faulty.yaml"), FAULTY).unwrap();
    let (code, said) = run(dir.path(), &["check-config", "faulty.yaml"]);
    assert_eq!(code, Some(1), "{said}");
    for path in ["hangar.colour", "hangar.api_key_file", "storage.path", "policy.settle", "policy.rungs[1]"] {
        assert!(said.contains(path), "{path} is not named:\n{said}");
    }
}

#[test]
fn run_refuses_a_faulty_configuration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("faulty.yaml"), FAULTY).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["run", "--config.file", "faulty.yaml", "--web.listen-address", &format!("127.0.0.1:{}", free_port())]);
    let mut daemon = Running::start(command.current_dir(dir.path()), &dir.path().join("log"));
    let ended = poll(Duration::from_secs(10), || daemon.exited()).expect("it refuses to start");
    assert!(!ended.success());
    let said = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(said.contains("policy.settle"), "{said}");
    assert!(!dir.path().join("data").exists() && !dir.path().join("other").exists(), "nothing was opened");
}

#[test]
fn run_works_with_no_file_at_all_and_stays_up_without_a_hangar() {
    let dir = tempfile::tempdir().unwrap();
    let (hangar, port) = (free_port(), free_port());
    let mut command = Command::new(BINARY);
    command.args(["run", "--hangar.url", &format!("http://127.0.0.1:{hangar}"), "--web.listen-address", &format!("127.0.0.1:{port}")]);
    let mut daemon = Running::start(command.current_dir(dir.path()), &dir.path().join("log"));
    let healthy = poll(Duration::from_secs(20), || http::get(port, "/-/healthy", None).ok().then_some(()));
    assert!(healthy.is_some(), "{}", std::fs::read_to_string(dir.path().join("log")).unwrap());
    assert!(!http::get(port, "/-/ready", None).ok(), "not ready before a first read");
    std::thread::sleep(Duration::from_secs(3));
    assert!(daemon.exited().is_none());
    assert!(daemon.terminate(Duration::from_secs(10)).is_some_and(|s| s.success()));
}

#[test]
fn the_shipped_configuration_is_valid_and_is_what_no_file_means() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/config/hangar-medic.yaml");
    let (code, said) = run(Path::new("."), &["check-config", shipped]);
    assert_eq!(code, Some(0), "{said}");
}
