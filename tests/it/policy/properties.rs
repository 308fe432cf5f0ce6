//! Properties over random days of a modelled Hangar. `World` itself checks every action (see `engine.rs`).

use hangar_medic::policy::{Hold, Policy, Reason};
use proptest::prelude::*;

use super::engine::World;
use super::hangar::{Upstream, secs};
use super::scenarios::command;

const IDS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// One thing that happens, so long after the one before.
#[derive(Debug, Clone)]
struct Event {
    after_ms: i64,
    what: String,
}

fn of_a_server() -> impl Strategy<Value = String> {
    let what = prop_oneof![
        4 => Just("break"), 4 => Just("mend"), 2 => Just("drift"), 1 => Just("lie"), 1 => Just("hang"), 1 => Just("limit"),
        1 => Just("poison"), 4 => Just("call"), 3 => Just("crash"), 2 => Just("notice"), 2 => Just("revive"), 1 => Just("edit"),
        1 => Just("evict"),
        3 => Just("die reason=crashed"), 3 => Just("die reason=start_failed failures=1"),
        3 => Just("die reason=given_up failures=6"), 2 => Just("die reason=capability_blocked"),
        1 => Just("stop reason=manual"), 1 => Just("stop reason=user_request"), 1 => Just("stop reason=detection_enforcement:block"),
        1 => Just("stop reason=idle"), 1 => Just("stop reason=shutdown"), 1 => Just("stick state=degraded"),
        1 => Just("stick state=initializing"),
        3 => Just("approve"), 1 => Just("approve role=viewer"), 1 => Just("drifts_to x"), 1 => Just("pause for=40"), 1 => Just("pause for=4000"),
        1 => Just("unpause"), 1 => Just("hold"), 1 => Just("resume"),
    ];
    (what, 0..IDS.len()).prop_map(|(what, n)| {
        let (name, words) = what.split_once(' ').unwrap_or((what, ""));
        format!("{name} {} {words}", IDS[n])
    })
}

fn of_all() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => Just("hangar restart 3"), 1 => Just("hangar down"), 2 => Just("hangar up"),
        2 => Just("medic kill"), 3 => Just("medic start"),
        1 => Just("fault metrics on"), 2 => Just("fault metrics off"), 1 => Just("fault rest on"), 2 => Just("fault rest off"),
        1 => Just("fault disk on"), 2 => Just("fault disk off"), 1 => Just("fault send on"), 2 => Just("fault send off"),
        1 => Just("die reason=crashed a b c d e"), 1 => Just("pause all for=100"), 1 => Just("unpause all"),
    ]
    .prop_map(str::to_owned)
}

fn event() -> impl Strategy<Value = Event> {
    let when = prop_oneof![3 => 0..2_000_i64, 4 => 2_000..30_000_i64, 1 => 30_000..600_000_i64];
    (when, prop_oneof![4 => of_a_server().boxed(), 1 => of_all().boxed()]).prop_map(|(after_ms, what)| Event { after_ms, what })
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts of a model")]
#[derive(Debug, Clone)]
struct Day {
    version: &'static str,
    no_log: bool,
    remote: bool,
    grouped: bool,
    storm: bool,
    events: Vec<Event>,
}

fn day() -> impl Strategy<Value = Day> {
    let version = prop_oneof![2 => Just("2.34.4"), 1 => Just("2.20.0")];
    let events = prop::collection::vec(event(), 1..60);
    (version, prop::bool::weighted(0.2), any::<bool>(), any::<bool>(), any::<bool>(), events)
        .prop_map(|(version, no_log, remote, grouped, storm, events)| Day { version, no_log, remote, grouped, storm, events })
}

fn begin(day: &Day) -> World {
    let mut policy = Policy { not_seen_healthy_after: secs(120), ..Policy::default() };
    if !day.storm {
        policy.storm.servers = std::num::NonZeroU32::MAX;
    }
    let mut world = World::new(policy);
    command(&mut world, &format!("hangar version {}", day.version));
    command(&mut world, if day.remote { "server a b mode=remote" } else { "server a b" });
    command(&mut world, if day.grouped { "server c d group=g" } else { "server c d" });
    command(&mut world, "server e state=cold");
    world.watch.faults.no_log = day.no_log;
    world
}

fn live(world: &mut World, events: &[Event]) {
    for event in events {
        let until = world.now + jiff::SignedDuration::from_millis(event.after_ms.max(1));
        world.run_until(until);
        let of_a_server = IDS.iter().any(|id| event.what.split(' ').nth(1) == Some(*id)) || event.what.starts_with("die");
        let untouched = of_a_server && !world.hangar.up;
        if untouched || (event.what.starts_with("notice") && !world.medic_up) || (event.what == "hangar up" && world.hangar.up) {
            continue;
        }
        command(world, &event.what);
        world.turn();
    }
}

/// All faults end.
fn mend(world: &mut World) {
    for fault in ["metrics", "rest", "disk", "send"] {
        command(world, &format!("fault {fault} off"));
    }
    for server in world.hangar.servers.values_mut() {
        server.upstream = Upstream::Works;
    }
    if !world.hangar.up && world.hangar.back_at.is_none() {
        command(world, "hangar up");
    }
    // What was about to be sent and never was hangs for ever in a live executor: that is a crash.
    world.kill_medic();
    world.start_medic();
}

/// What a person has to decide.
fn needs_a_person(world: &World, id: &str) -> bool {
    let incident = &world.history.open[id];
    let undeterminable =
        world.standings.get(id).is_some_and(|s| s.hold == Some(Hold::Undeterminable)) && incident.reason == Reason::Unknown;
    world.history.orders.contains_key(id) || incident.reason == Reason::CapabilityBlocked || undeterminable
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(48), failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, nothing forbidden is done (checked at each action), and what can be repaired is repaired
    /// once the faults end: at the latest by the slowest retry after the longest budget window.
    #[test]
    fn random_days_do_no_harm_and_end_well(day in day()) {
        let mut world = begin(&day);
        live(&mut world, &day.events);
        mend(&mut world);
        let end = world.now + secs(3 * 3600);
        world.run_until(end);
        for id in world.history.open.keys() {
            prop_assert!(needs_a_person(&world, id), "{id} is still {:?}\n{}", world.standings.get(id), world.journal.join("\n"));
        }
    }

    /// A wall clock that jumps may delay, never break: no panic, no endless round, and still no two actions on one target.
    #[test]
    fn random_days_with_a_jumping_clock_do_no_harm(day in day(), jumps in prop::collection::vec((0..60_usize, -100_000..100_000_i64), 1..4)) {
        let mut world = begin(&day);
        let mut jumps = jumps;
        jumps.sort_unstable();
        let mut done = 0;
        for (at, by) in jumps {
            let at = at.min(day.events.len());
            live(&mut world, &day.events[done.min(at)..at]);
            done = done.max(at);
            world.step_clock(secs(by));
        }
        live(&mut world, &day.events[done..]);
        mend(&mut world);
        let end = world.now + secs(1800);
        world.run_until(end);
    }
}

/// `PROPTEST_CASES` asks for more.
pub fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}
