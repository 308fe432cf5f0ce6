//! The planner is pure: its source names nothing that reads, writes, waits, logs or draws lots.

use std::path::Path;

/// Words that no line of code in `src/policy` may hold.
const FORBIDDEN: &[&str] = &[
    "async ",
    ".await",
    "tokio",
    "futures",
    "reqwest",
    "sqlx",
    "axum",
    "std::time",
    "Instant",
    "SystemTime",
    "Timestamp::now",
    "Zoned",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::io",
    "std::sync",
    "Mutex",
    "RwLock",
    "Atomic",
    "OnceLock",
    "LazyLock",
    "RefCell",
    "static ",
    "thread_local",
    "unsafe",
    "HashMap",
    "HashSet",
    "RandomState",
    "tracing",
    "log::",
    "println!",
    "eprintln!",
    "print!",
    "dbg!",
    "rand",
    "getrandom",
    "include_str!",
    "extern ",
];

/// What it may import, besides itself and `std`.
const CRATES: &[&str] = &["jiff", "serde", "serde_json", "sha2", "std", "super", "thiserror"];

fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/policy"), &mut found);
    assert!(found.len() >= 15, "the planner was moved: {} files", found.len());
    found
}

/// Lines of code, without comments and the lifetime `'static`.
fn code(text: &str) -> impl Iterator<Item = (usize, String)> {
    let code = |line: &str| line.split("//").next().unwrap_or_default().replace("'static ", "");
    text.lines().map(code).enumerate().map(|(n, line)| (n + 1, line)).collect::<Vec<_>>().into_iter()
}

#[test]
fn the_planner_does_nothing_but_think() {
    for (file, text) in sources() {
        for (line, code) in code(&text) {
            // Words in quotes are what people read.
            let outside: String = code.split('"').step_by(2).collect();
            if let Some(word) = FORBIDDEN.iter().find(|w| names(&outside, w)) {
                panic!("{file}:{line}: {word} in {code}");
            }
        }
    }
}

/// Whether `code` holds `word` as a word of its own.
fn names(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !word.starts_with(char::is_alphabetic) || before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

#[test]
fn the_planner_imports_nothing_from_the_rest() {
    for (file, text) in sources() {
        for (line, code) in code(&text) {
            let own = code.replace("crate::policy", "super");
            assert!(!own.contains("crate::"), "{file}:{line}: {code}");
            let imported = own.trim().strip_prefix("pub use ").or_else(|| own.trim().strip_prefix("use "));
            let Some(path) = imported else { continue };
            let root = path.split(&[':', ';', ' '][..]).next().unwrap_or_default();
            let own_file = sources().iter().any(|(f, _)| f.ends_with(&format!("/{root}.rs")));
            assert!(CRATES.contains(&root) || own_file || code.contains("pub(crate) use"), "{file}:{line}: imports {root}");
        }
    }
}

#[test]
fn the_scan_sees_what_it_looks_for() {
    assert!(names("let x = std::time::Instant::now();", "Instant"));
    assert!(names("    x.await;", ".await"));
    assert!(names("pub async fn f()", "async "));
    assert!(!names("operand", "rand"));
    assert!(!names("its_tokio", "tokio"));
}
