//! Each medic repairs its own replica, and the store that they share shows the fleet.

use std::process::Command;

use serde_json::{Value, json};

use super::{Fleet, Replicas};
use crate::support::medic::BINARY;
use crate::support::{http, rest};

impl Fleet {
    fn worlds(&self) -> [&crate::support::world::World; 2] {
        [&self.a, &self.b]
    }
}

/// A command over the store of one medic's configuration.
fn asked(fleet: &Fleet, args: &[&str]) -> (Option<i32>, Value) {
    let config = fleet.a.dir().join("medic/hangar-medic.yaml");
    let out = Command::new(BINARY).args(args).args(["--format", "json", "--config.file"]).arg(config).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    (out.status.code(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[test]
fn an_upstream_that_dies_is_repaired_by_each_medic_on_its_own_replica() {
    let mut replicas = Replicas::start_checking(5);
    let far = replicas.far;
    replicas.a.hangar.start_upstream(far);
    replicas.a.hangar.bring_up(&["far"]);
    replicas.b.hangar.bring_up(&["far"]);
    let mut fleet = replicas.watch(&json!({}));
    fleet.a.hangar.stop_upstream();
    for world in fleet.worlds() {
        // Three checks that fail, then Hangar's own retries.
        world.wait("its medic sees it dead", 120, |w| w.medic.incident("far")["phase"] != Value::Null);
    }
    fleet.a.hangar.start_upstream(far);
    for world in fleet.worlds() {
        world.wait_closed("far", "recovered", 90);
        world.must("it is ready there", world.hangar.state("far") == "ready" && world.hangar.call("far"));
        world.must("up was left alone", world.proxy.starts("up").is_empty());
    }
    for (world, instance) in fleet.worlds().into_iter().zip(["a", "b"]) {
        let attempts = world.medic.attempts("far");
        world.must("it sees its own attempts only", !attempts.is_empty() && attempts.iter().all(|a| a["instance"] == instance));
        let count = http::sum(&world.medic.metrics(), "hangar_medic_recoveries_total", "");
        world.must("each counts its own recovery, so that they can be summed", (count - 1.0).abs() < f64::EPSILON);
    }
    the_store_shows_the_fleet(&fleet);
}

fn the_store_shows_the_fleet(fleet: &Fleet) {
    let instances = |listed: &Value| -> Vec<String> {
        let mut of: Vec<_> = listed["attempts"].as_array().unwrap().iter().map(|a| a["instance"].as_str().unwrap().to_owned()).collect();
        of.sort();
        of.dedup();
        of
    };
    assert_eq!(instances(&asked(fleet, &["attempts", "list"]).1), ["a"]);
    assert_eq!(instances(&asked(fleet, &["attempts", "list", "--instance", "b"]).1), ["b"]);
    assert_eq!(instances(&asked(fleet, &["attempts", "list", "--all-instances"]).1), ["a", "b"]);
    let own = asked(fleet, &["recovery-metrics"]).1;
    let all = asked(fleet, &["recovery-metrics", "--all-instances"]).1;
    assert_eq!((&own["successful_recoveries"], &all["successful_recoveries"]), (&json!(1), &json!(2)), "{own} {all}");
    assert_eq!(all["fraction_avoided_full_restart"], json!(1.0));
    assert_eq!(asked(fleet, &["attempts", "verify"]).0, Some(0));
    an_export_of_all_verifies_and_counts(fleet);
    fleet.postgres.execute("fleet", "UPDATE hangar_medic.records SET actor = 'nobody' WHERE instance = 'b' AND seq = 2");
    let (code, _) = asked(fleet, &["attempts", "verify", "--all-instances"]);
    assert_eq!(code, Some(1));
    let (code, report) = asked(fleet, &["attempts", "verify", "--instance", "b"]);
    assert_eq!((code, &report["fault"]["seq"], &report["fault"]["kind"]), (Some(1), &json!(2), &json!("altered")), "{report}");
    rest(0.1);
}

fn an_export_of_all_verifies_and_counts(fleet: &Fleet) {
    let config = fleet.a.dir().join("medic/hangar-medic.yaml");
    let run = |args: &[&str]| Command::new(BINARY).args(args).output().unwrap();
    let exported = run(&["attempts", "export", "--all-instances", "--config.file", config.to_str().unwrap()]);
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let file = fleet.a.dir().join("fleet.jsonl");
    std::fs::write(&file, &exported.stdout).unwrap();
    let file = file.to_str().unwrap();
    let verified = run(&["attempts", "verify", "--file", file]);
    let told = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(verified.status.success() && told.contains("a: whole") && told.contains("b: whole"), "{told}");
    let metrics = run(&["recovery-metrics", "--attempts", file, "--format", "json"]);
    let metrics: Value = serde_json::from_slice(&metrics.stdout).unwrap();
    assert_eq!(metrics["successful_recoveries"], 2, "{metrics}");
}
