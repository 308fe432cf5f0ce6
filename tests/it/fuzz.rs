//! The seeds of the fuzzer, and whatever once made it stop, go through its entry points without its instruments.

use std::path::Path;

type Entry = fn(&[u8]);

const TARGETS: &[(&str, Entry)] = &[
    ("webhook", hangar_medic::observe::webhook::fuzz_webhook),
    ("log", hangar_medic::observe::log::fuzz_log),
    ("classify", hangar_medic::observe::log::fuzz_classify),
    ("metrics", hangar_medic::observe::metrics_text::fuzz_metrics),
    ("config", hangar_medic::config::fuzz_config),
    ("attempts", hangar_medic::cli::attempt_input::fuzz_attempts),
    ("answers", hangar_medic::hangar::answers::fuzz_answers),
    ("events", hangar_medic::observe::events::fuzz_events),
    ("silences", hangar_medic::observe::silences::fuzz_silences),
];

fn dir(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(name)
}

#[test]
fn every_seed_of_every_fuzz_target_is_read_or_refused() {
    for (name, entry) in TARGETS {
        let seeds: Vec<Vec<u8>> =
            std::fs::read_dir(dir("corpus").join(name)).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(!seeds.is_empty(), "{name} has no seed");
        for seed in seeds {
            entry(&seed);
            // Cut anywhere, and with one byte turned.
            for at in (0..seed.len()).step_by(seed.len() / 16 + 1) {
                entry(&seed[..at]);
                let mut turned = seed.clone();
                turned[at] ^= 0x55;
                entry(&turned);
            }
        }
    }
}

#[test]
fn every_fuzz_target_is_replayed() {
    let mut targets: Vec<String> = std::fs::read_dir(dir("fuzz_targets"))
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    targets.sort();
    let mut replayed: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    replayed.sort_unstable();
    assert_eq!(targets, replayed);
}
