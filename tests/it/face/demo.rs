//! The demo, with the binary under test, and the incident that the README shows of it.

use std::path::PathBuf;

use super::{run, text};
use crate::support::V2_34;
use crate::support::medic::BINARY;
use crate::support::process::venv;

/// What happened, in order: `decided client_reconnect (rung 0)`. Times, and the words of a reason, differ from run to run.
fn steps(story: &str) -> Vec<String> {
    let told = story.lines().filter_map(|line| {
        let (stamp, rest) = line.split_at_checked(20)?;
        let is_time = stamp.starts_with("20") && stamp.ends_with('Z');
        let (kind, what) = rest.trim_start().split_once("  ").filter(|_| is_time)?;
        let what = what.trim_start();
        let end = what.find([',', ':']).unwrap_or(what.len());
        (kind != "seen").then(|| format!("{kind} {}", &what[..end]))
    });
    told.collect()
}

#[test]
fn the_demo_mends_what_the_readme_says_and_tells_it_so() {
    let hangar: PathBuf = venv(V2_34).join("bin/mcp-hangar");
    let python = venv(V2_34).join("bin/python3");
    let out = run(python.to_str().unwrap(), &["-B", "deploy/demo/demo.py", "--medic", BINARY, "--hangar", hangar.to_str().unwrap()]);
    let readme = text("README.md");
    let shown = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the README shows an incident");
    let told = out.split("$ hangar-medic incidents show ").nth(1).unwrap_or_else(|| panic!("no incident is told:\n{out}"));
    let steps_told = steps(told.split("\nIncidents\n").next().unwrap_or(told));
    assert!(steps(shown).len() >= 10, "{shown}");
    assert_eq!(steps_told, steps(shown), "{out}");
}
