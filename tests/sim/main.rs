//! The real engine and the real planner in simulated worlds: virtual time, a model of Hangar, faults and crashes by seed.
//!
//! `tests/sim.sh --seeds N [--seed S]` lives as many worlds as wanted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::unimplemented,
    clippy::wildcard_enum_match_arm,
    reason = "a test stops at its first surprise"
)]

mod check;
mod edges;
mod fleet;
mod found;
mod hangar;
mod mutants;
mod plan;
mod rng;
mod time;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use mutants::Mutant;
use plan::Plan;
use world::live;

/// Worlds of one run of the suite, in all shards together.
const WORLDS: u64 = 1000;
const SHARDS: u64 = 4;
/// Lines of a failed world's timeline that are shown.
const SHOWN: usize = 150;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().unwrap_or_else(|_| panic!("{name} is not a number: {n}")))
}

fn shard(shard: u64) {
    let (first, worlds) = (number("HANGAR_MEDIC_SIM_SEED").unwrap_or(1), number("HANGAR_MEDIC_SIM_WORLDS").unwrap_or(WORLDS));
    let begun = Instant::now();
    let (mut failed, mut hours, mut incidents, mut acts, mut slowest) = (Vec::new(), 0, 0, 0, (0, 0));
    for seed in (first..first + worlds).filter(|seed| seed % SHARDS == shard) {
        let lived = catch_unwind(AssertUnwindSafe(|| live(Plan::of(seed), None)));
        let Ok(end) = lived else {
            failed.push(format!("seed {seed} panicked\n  replay: tests/sim.sh --seed {seed} --seeds 1"));
            continue;
        };
        hours += end.virtual_ms;
        incidents += end.incidents;
        acts += end.acts;
        slowest = slowest.max((end.healed_after_ms, seed));
        if let Some(violation) = &end.violation {
            failed.push(format!(
                "seed {seed}: {violation}\n  replay: tests/sim.sh --seed {seed} --seeds 1\n{}",
                shortened(&end.timeline, worlds == 1)
            ));
        }
    }
    println!(
        "{} worlds, {} h of virtual time, {incidents} incidents, {acts} acting attempts in {:.1} s; the longest way back took {} min (seed {})",
        worlds / SHARDS.min(worlds),
        hours / 3_600_000,
        begun.elapsed().as_secs_f64(),
        slowest.0 / 60_000,
        slowest.1
    );
    assert!(failed.is_empty(), "{} worlds failed; the first:\n{}\nall: {}", failed.len(), failed[0], heads(&failed));
}

fn heads(failed: &[String]) -> String {
    let heads: Vec<&str> = failed.iter().map(|f| f.lines().next().unwrap_or_default()).collect();
    format!("\n{}", heads.join("\n"))
}

fn shortened(timeline: &[String], whole: bool) -> String {
    let skipped = if whole { 0 } else { timeline.len().saturating_sub(SHOWN) };
    let cut = |line: &String| line.chars().take(260).collect::<String>();
    let shown: Vec<String> = timeline.iter().skip(skipped).map(cut).collect();
    if skipped > 0 { format!("({skipped} lines before)\n{}", shown.join("\n")) } else { shown.join("\n") }
}

#[test]
fn worlds_do_no_harm_and_end_well_0() {
    shard(0);
}

#[test]
fn worlds_do_no_harm_and_end_well_1() {
    shard(1);
}

#[test]
fn worlds_do_no_harm_and_end_well_2() {
    shard(2);
}

#[test]
fn worlds_do_no_harm_and_end_well_3() {
    shard(3);
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in [3, 11, 17] {
        assert_eq!(live(Plan::of(seed), None).timeline, live(Plan::of(seed), None).timeline, "seed {seed}");
    }
}

#[test]
fn every_broken_medic_is_found_out() {
    let worlds = 400;
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let found = (1..=worlds).find_map(|seed| live(Plan::of(seed), Some(*mutant)).violation.map(|v| (seed, v)));
        match found {
            Some((seed, violation)) => println!("{mutant:?}: seed {seed}: {violation}"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "{missed:?} went unnoticed in {worlds} worlds");
}
