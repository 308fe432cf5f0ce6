//! The documentation is run: its commands on a running daemon, its configurations by the programs that they are for.
//!
//! Fenced blocks, by their info string:
//! - `console`: each line after `$ ` is a command that must succeed; what follows is its output, where `…` stands for anything
//!   and a line of it alone for any lines. `console KIND` needs what no test has (root, a cluster, a container engine, a release
//!   build): its syntax is checked, and that the files it names are there.
//! - `promql`: one query a line; Prometheus takes it.
//! - `yaml NAME`: a configuration of that program.
//! - `text`: a drawing.

use std::path::Path;
use std::process::Command;

use super::{documents, file, files, text, tried};
use crate::support::medic::BINARY;
use crate::support::monitoring::Prometheus;
use crate::support::world::World;

/// Of the person who asks in the documentation; in the file `alice.token`.
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What a console block may need that no test has.
const ELSEWHERE: &[&str] = &["root", "cluster", "docker", "build"];

struct Block {
    at: String,
    info: String,
    body: Vec<String>,
}

fn pages() -> Vec<String> {
    let mut pages: Vec<String> = ["README.md", "alerts/README.md", "config/README.md", "deploy/README.md"].map(str::to_owned).to_vec();
    pages.extend(files("alerts/runbooks", ".md"));
    pages
}

fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for page in pages() {
        let mut open: Option<Block> = None;
        for (n, line) in text(&page).lines().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(info), None) => open = Some(Block { at: format!("{page}:{}", n + 1), info: info.to_owned(), body: Vec::new() }),
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.body.push(line.to_owned()),
                (None, None) => assert!(!line.starts_with("    "), "{page}:{}: an indented block is not run; fence it", n + 1),
            }
        }
        assert!(open.is_none(), "{page}: a block is not closed");
    }
    blocks
}

fn of_kind(info: &str) -> Vec<Block> {
    blocks().into_iter().filter(|block| block.info == info).collect()
}

/// Commands of a console block, each with the output that it is said to have.
fn commands(block: &Block) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for line in &block.body {
        match (line.strip_prefix("$ "), line.strip_prefix("> "), all.last_mut()) {
            (Some(command), _, _) => all.push((command.to_owned(), Vec::new())),
            (None, Some(more), Some((command, said))) if said.is_empty() => command.extend(["\n", more]),
            (None, _, Some((_, said))) => said.push(line.clone()),
            (None, _, None) => panic!("{}: begins with output: {line}", block.at),
        }
    }
    all
}

/// Whether `line` is what the documentation shows, `…` standing for anything.
fn like(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Whether the lines are what is shown, in order; a `…` alone stands for any lines.
fn all_like(shown: &[String], lines: &[&str]) -> bool {
    match (shown.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((first, more)), _) if first == "…" => {
            all_like(more, lines) || lines.split_first().is_some_and(|(_, rest)| all_like(shown, rest))
        }
        (Some((first, more)), Some((line, rest))) => like(first, line.trim_end()) && all_like(more, rest),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

#[test]
fn what_is_shown_of_an_output_is_compared() {
    let shown = |lines: &[&str]| lines.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
    assert!(all_like(&shown(&["a … c", "…", "z"]), &["a b c", "d", "e", "z"]));
    assert!(all_like(&shown(&["…"]), &[]));
    assert!(!all_like(&shown(&["a … c"]), &["a b d"]));
    assert!(!all_like(&shown(&["a"]), &["a", "b"]));
    assert!(!all_like(&shown(&["a", "b"]), &["a"]));
}

#[test]
fn every_block_says_how_it_is_checked() {
    for block in blocks() {
        let known = match block.info.split_once(' ') {
            Some(("console", kind)) => ELSEWHERE.contains(&kind),
            Some(("yaml", program)) => PROGRAMS.iter().any(|(name, _)| *name == program),
            Some(_) => false,
            None => ["console", "promql", "text"].contains(&block.info.as_str()),
        };
        assert!(known, "{}: a block of kind {:?} is not checked", block.at, block.info);
        assert!(!block.body.is_empty(), "{}: empty", block.at);
    }
}

/// What a file is given to, so that its program judges it.
type Judge = fn(&Path) -> std::process::Output;

const PROGRAMS: &[(&str, Judge)] = &[
    ("hangar-medic", |path| Command::new(BINARY).args(["check-config", path.to_str().unwrap()]).output().unwrap()),
    ("prometheus", |path| tried("promtool", &["check", "config", "--syntax-only", path.to_str().unwrap()])),
    ("alertmanager", |path| tried("amtool", &["check-config", path.to_str().unwrap()])),
    ("kustomization", |path| {
        // The checkout lies beside it, as the text says.
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(file(""), root.path().join("hangar-medic")).unwrap();
        std::fs::copy(path, root.path().join("kustomization.yaml")).unwrap();
        std::fs::copy(file("tests/fixtures/kubernetes/hangar.yaml"), root.path().join("hangar.yaml")).unwrap();
        tried("kubectl", &["kustomize", root.path().to_str().unwrap()])
    }),
];

#[test]
fn the_configurations_shown_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let mut judged = 0;
    for (program, judge) in PROGRAMS {
        for block in of_kind(&format!("yaml {program}")) {
            let body = block.body.join("\n");
            assert_eq!(documents(&body).len(), 1, "{}: one document", block.at);
            // Secrets that the shown configuration names.
            let here = format!("{}/", dir.path().display());
            let body = body.replace("/etc/hangar-medic/", &here).replace("/run/credentials/hangar-medic.service/", &here);
            for secret in ["hangar.key", "alice.token", "postgres.password"] {
                std::fs::write(dir.path().join(secret), "0123456789abcdef0123456789abcdef\n").unwrap();
            }
            let path = dir.path().join("shown.yaml");
            std::fs::write(&path, body).unwrap();
            let output = judge(&path);
            let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            assert!(output.status.success(), "{}: {}", block.at, said.join(""));
            judged += 1;
        }
    }
    assert!(judged >= 3, "{judged}");
}

#[test]
fn commands_that_need_another_machine_are_well_formed_and_name_files_that_exist() {
    for kind in ELSEWHERE {
        for block in of_kind(&format!("console {kind}")) {
            for (command, _) in commands(&block) {
                let parsed = tried("bash", &["-n", "-c", &command]);
                assert!(parsed.status.success(), "{}: {command}: {}", block.at, String::from_utf8_lossy(&parsed.stderr));
                for word in command.split_whitespace().map(|w| w.trim_end_matches(';')) {
                    let ours = ["deploy/", "config/", "alerts/", "tests/"].iter().any(|top| word.starts_with(top));
                    assert!(!ours || file(word).exists(), "{}: no {word}", block.at);
                }
            }
        }
    }
}

#[test]
fn every_page_and_file_that_is_linked_exists() {
    for page in pages() {
        let directory = file(&page).parent().unwrap().to_owned();
        let whole = text(&page);
        for link in whole.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            assert!(path.is_empty() || link.starts_with("http") || directory.join(path).exists(), "{page}: no {link}");
        }
    }
}

/// A directory that looks like a checkout, with the daemon on the path.
fn checkout(world: &World, at: &Path) {
    for entry in std::fs::read_dir(file("")).unwrap().flatten() {
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden && entry.file_name() != "target" {
            std::os::unix::fs::symlink(entry.path(), at.join(entry.file_name())).unwrap();
        }
    }
    let tried = r#"[{"action": "session_reconnect", "outcome": "failed", "reason": "no answer", "actor": "alice", "recorded_at": "2026-07-25T21:00:00+00:00"}]"#;
    std::fs::write(at.join("tried.json"), tried).unwrap();
    std::fs::create_dir(at.join("bin")).unwrap();
    let wrapper = format!(
        "#!/bin/sh\ncase \"$1 $2\" in incidents*|'attempts list'*|pause*|resume*) exec {BINARY} \"$@\" --medic.url {};; esac\nexec {BINARY} \"$@\"\n",
        world.medic.url()
    );
    std::fs::write(at.join("bin/hangar-medic"), wrapper).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(at.join("bin/hangar-medic"), mode).unwrap();
}

/// Runs every command of the documentation, and every query.
pub fn commands_work(world: &World, prometheus: &Prometheus) {
    let dir = tempfile::tempdir().unwrap();
    checkout(world, dir.path());
    let ports = [("127.0.0.1:9923", world.medic.port()), ("127.0.0.1:8000", world.hangar.port), ("127.0.0.1:9090", prometheus.port)];
    let placed = |text: &str| ports.iter().fold(text.to_owned(), |text, (shown, port)| text.replace(shown, &format!("127.0.0.1:{port}")));
    let path = format!("{}:{}", dir.path().join("bin").display(), std::env::var("PATH").unwrap());
    let incident = world.medic.incident("odd")["incident_id"].as_str().unwrap().to_owned();
    let mut ran = 0;
    for block in of_kind("console") {
        for (command, shown) in commands(&block) {
            let output = Command::new("bash")
                .args(["-c", &format!("set -e; {}", placed(&command))])
                .current_dir(dir.path())
                .env("PATH", &path)
                .envs([("TMPDIR", dir.path()), ("STORAGE", &world.medic.data())])
                .envs([("TOKEN", TOKEN), ("TOKEN_FILE", world.dir().join("alice.token").to_str().unwrap())])
                .envs([("SERVER", "api"), ("KEY", "none"), ("INCIDENT", &incident), ("LC_ALL", "C.UTF-8")])
                .output()
                .unwrap();
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{}: $ {command}: {}\n{out}{err}", block.at, output.status);
            let lines: Vec<&str> = out.lines().collect();
            assert!(shown.is_empty() || all_like(&shown, &lines), "{}: $ {command} prints\n{out}", block.at);
            ran += 1;
        }
    }
    assert!(ran > 20, "{ran}");
    for block in of_kind("promql") {
        for query in block.body.iter().filter(|line| !line.is_empty()) {
            prometheus.query(query).unwrap_or_else(|e| panic!("{}: {query}: {e}", block.at));
        }
    }
}
