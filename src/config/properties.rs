//! What holds for every file.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::tests::{flags, valid};
use super::yaml::Node;
use super::{Config, Effective, Invalid, Overrides, effective, example, parse, render, show_duration};
use crate::policy::Rung;

type Visit<'a> = &'a mut dyn FnMut(&str, &mut Vec<(Node, Node)>);

/// Visits every mapping of a document with its path.
fn mappings(node: &mut Node, path: &str, visit: Visit<'_>) {
    match node {
        Node::Map(entries) => {
            visit(path, entries);
            for (key, value) in entries {
                let Node::Text(key) = key else { continue };
                let dot = if path.is_empty() { "" } else { "." };
                mappings(value, &format!("{path}{dot}{key}"), visit);
            }
        }
        Node::List(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                mappings(item, &format!("{path}[{i}]"), visit);
            }
        }
        Node::Null | Node::Bool(_) | Node::Int(_) | Node::Float(_) | Node::Text(_) | Node::Tagged => (),
    }
}

/// The default document with one entry more, put into the `which`-th mapping at `at`; and the path of that mapping.
fn with_entry(which: usize, at: usize, entry: impl Fn(&[(Node, Node)]) -> (Node, Node)) -> (String, String) {
    let Effective(mut document) = effective(&valid(""));
    let (mut total, mut found) = (0, String::new());
    mappings(&mut document, "", &mut |_, _| total += 1);
    let mut i = 0;
    mappings(&mut document, "", &mut |path, entries| {
        if i == which % total {
            let entry = entry(entries);
            path.clone_into(&mut found);
            if let Node::Text(key) = &entry.0 {
                let dot = if found.is_empty() { "" } else { "." };
                found = format!("{found}{dot}{key}");
            }
            entries.insert(at % (entries.len() + 1), entry);
        }
        i += 1;
    });
    (found, serde_yaml::to_string(&document).unwrap())
}

fn has(faults: &Result<Config, Vec<Invalid>>, path: &str, text: &str) -> bool {
    faults.as_ref().is_err_and(|f| f.iter().any(|f| f.path == path && f.text.starts_with(text)))
}

/// Every fault is one printable line, whatever the file holds.
fn printable(result: &Result<Config, Vec<Invalid>>) -> bool {
    match result {
        Ok(config) => config.warnings.iter().all(|w| !w.chars().any(char::is_control)),
        Err(faults) => !faults.is_empty() && faults.iter().all(|f| !f.to_string().chars().any(char::is_control)),
    }
}

fn number(max: u32) -> impl Strategy<Value = u32> {
    1..=max
}

fn millis(max_secs: i64) -> impl Strategy<Value = String> {
    (1000..=max_secs * 1000).prop_map(|ms| show_duration(SignedDuration::from_millis(ms)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(printable(&parse(&bytes, &flags())));
    }

    #[test]
    fn arbitrary_pieces_of_yaml_are_read_or_refused(
        pieces in proptest::collection::vec(
            prop_oneof![
                "[-?:,\\[\\]{}#&*!|>'\"%@` \n\t~]{1,4}",
                "(hangar|policy|rungs|settle|url|action|<<|5s|null|1e99|0x1f|\\.nan)",
                "&a |\\*a |!!str |!x |--- |\\.\\.\\.\n",
                "\\PC{1,3}",
            ],
            0..40,
        )
    ) {
        prop_assert!(printable(&parse(pieces.concat().as_bytes(), &flags())));
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(at in any::<prop::sample::Index>(), cut in 0usize..8, put in "[\\PC\n]{0,3}") {
        let mut text: Vec<char> = example().chars().collect();
        let at = at.index(text.len());
        text.splice(at..(at + cut).min(text.len()), put.chars());
        prop_assert!(printable(&parse(text.into_iter().collect::<String>().as_bytes(), &flags())));
    }

    #[test]
    fn an_unknown_key_anywhere_is_refused_with_its_path(which in 0usize..40, at in 0usize..40, key in "[a-z]{1,4}_q[a-z_0-9]{0,8}") {
        let (path, yaml) = with_entry(which, at, |_| (Node::text(key.clone()), Node::Int(1)));
        prop_assert!(has(&parse(yaml.as_bytes(), &flags()), &path, "unknown key"), "{} in {}", path, yaml);
    }

    #[test]
    fn a_hostile_key_anywhere_is_refused(which in 0usize..40, at in 0usize..40, key in "\\PC{0,8}[^a-z]\\PC{0,8}") {
        let (_, yaml) = with_entry(which, at, |_| (Node::text(key.clone()), Node::Null));
        let result = parse(yaml.as_bytes(), &flags());
        prop_assert!(result.is_err() && printable(&result), "{}", yaml);
    }

    #[test]
    fn a_duplicate_key_anywhere_is_refused_with_its_path(which in 0usize..40, at in 0usize..40, twin in any::<prop::sample::Index>()) {
        let (path, yaml) = with_entry(which, at, |entries| entries[twin.index(entries.len())].clone());
        prop_assert!(has(&parse(yaml.as_bytes(), &flags()), &path, "duplicate key"), "{} in {}", path, yaml);
    }

    #[test]
    fn what_is_rendered_loads_as_the_same_configuration(
        instance in "[!-~]{1,40}",
        base in "(/[a-z0-9._~-]{1,8}){0,3}",
        path in "[^\\x00-\\x1f\\x7f-\\x9f\u{feff}\u{fffe}\u{ffff}]{1,30}",
        poll in millis(300), retry in millis(3600), flap in millis(86_400), settle in millis(1),
        actions in number(10_000), starts in number(100), share in 0.0f64..=1.0, body in 1024u64..=1 << 30,
        rungs in proptest::sample::subsequence(vec![0u8, 1, 2, 4, 5], 1..=5), attempts in number(10),
    ) {
        let rungs: Vec<Node> = rungs.into_iter().filter_map(Rung::from_rank).map(|r| Node::Map(vec![
            (Node::text("action"), Node::text(r.as_str())), (Node::text("attempts_max"), Node::Int(attempts.into())),
        ])).collect();
        let map = |entries: Vec<(&str, Node)>| Node::Map(entries.into_iter().map(|(k, v)| (Node::text(k), v)).collect());
        let document = map(vec![
            ("hangar", map(vec![
                ("url", Node::text(format!("http://h.example{base}"))),
                ("instance", Node::text(instance)),
                ("poll_interval", Node::text(poll)),
                ("max_body", Node::text(format!("{body}B"))),
            ])),
            ("storage", map(vec![("path", Node::text(format!("./{path}")))])),
            ("policy", map(vec![
                ("rungs", Node::List(rungs)), ("settle", Node::text(settle)), ("flap_window", Node::text(flap)),
                ("exhausted_retry", Node::text(retry)),
                ("budgets", map(vec![
                    ("actions", Node::Int(actions.into())), ("in_flight", Node::Int(1)), ("starts_per_server", Node::Int(starts.into())),
                ])),
                ("storm", map(vec![("share", Node::Float(share))])),
            ])),
        ]);
        let config = parse(serde_yaml::to_string(&document).unwrap().as_bytes(), &Overrides::default()).unwrap();
        prop_assert_eq!(&parse(render(&config).as_bytes(), &Overrides::default()).unwrap(), &config);
    }
}
