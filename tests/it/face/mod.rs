//! What a person sees and installs: alerts, dashboards, deployment and documentation, each judged by the tool that reads it.

mod alerts;
mod dashboards;
mod demo;
mod deny;
mod deploy;
mod docs;
mod live;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A path of the repository.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every document of a YAML (or JSON) text.
fn documents(yaml: &str) -> Vec<Value> {
    use serde::Deserialize;
    serde_yaml::Deserializer::from_str(yaml).map(|document| Value::deserialize(document).unwrap()).filter(|v| !v.is_null()).collect()
}

fn yaml(path: &str) -> Value {
    documents(&text(path)).remove(0)
}

/// The files of a directory of the repository that end so, sorted.
fn files(directory: &str, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(file(directory)).unwrap_or_else(|e| panic!("{directory}: {e}"));
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).filter(|n| n.ends_with(ending)).collect();
    names.sort();
    assert!(!names.is_empty(), "{directory} has no {ending}");
    names.into_iter().map(|name| format!("{directory}/{name}")).collect()
}

/// Runs a program in the repository; what it printed, if it was content.
#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = tried(program, arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

fn tried(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).current_dir(file("")).output();
    output.unwrap_or_else(|e| panic!("no {program} ({e}): run tests/run.sh once, it installs what it can and names the rest"))
}

/// What is generated is what the generator makes of its sources now.
#[test]
fn generated_files_are_up_to_date() {
    run("python3", &["-B", "deploy/generate.py", "--check"]);
}
