//! Each way to install it, judged by what would read it: compose, kustomize and Kubernetes' own types, systemd.

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{documents, file, files, run, text, tried, yaml};
use crate::support::medic::BINARY;

/// Where an object says something that its type does not know: a mistyped key is dropped on the way through the type.
fn dropped(given: &Value, kept: &Value, path: &str, out: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (key, value) in given {
                let path = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => dropped(value, kept, &path, out),
                    // What is empty need not be written again.
                    None if value.is_null() || *value == json!([]) || *value == json!({}) => {}
                    None => out.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) if given.len() == kept.len() => {
            for (i, (given, kept)) in given.iter().zip(kept).enumerate() {
                dropped(given, kept, &format!("{path}[{i}]"), out);
            }
        }
        (given, kept) if given == kept => {}
        _ => out.push(path.to_owned()),
    }
}

fn fits<T: DeserializeOwned + Serialize>(object: &Value) -> T {
    let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut out = Vec::new();
    dropped(object, &serde_json::to_value(&typed).unwrap(), "", &mut out);
    assert!(out.is_empty(), "{name}: Kubernetes knows no {out:?}");
    typed
}

/// What a customer's kustomization of these components gives.
fn built(components: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(file(""), dir.path().join("hangar-medic")).unwrap();
    std::fs::copy(file("tests/fixtures/kubernetes/hangar.yaml"), dir.path().join("hangar.yaml")).unwrap();
    let components: Vec<String> = components.iter().map(|c| format!("hangar-medic/deploy/kubernetes/{c}")).collect();
    let root = json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "mcp",
                      "resources": ["hangar.yaml"], "components": components});
    std::fs::write(dir.path().join("kustomization.yaml"), root.to_string()).unwrap();
    documents(&run("kubectl", &["kustomize", dir.path().to_str().unwrap()]))
}

fn of<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|o| o["kind"] == kind).collect()
}

#[test]
fn kubernetes_knows_every_key_of_what_the_components_make() {
    let objects = built(&["sidecar", "rbac-broad", "monitoring"]);
    for object in &objects {
        match object["kind"].as_str().unwrap() {
            "Deployment" => drop(fits::<Deployment>(object)),
            "ConfigMap" => drop(fits::<ConfigMap>(object)),
            "Service" => drop(fits::<Service>(object)),
            "PersistentVolumeClaim" => drop(fits::<PersistentVolumeClaim>(object)),
            "NetworkPolicy" => drop(fits::<NetworkPolicy>(object)),
            "Role" => drop(fits::<Role>(object)),
            "RoleBinding" => drop(fits::<RoleBinding>(object)),
            // The operator's kinds: their rules are the rule files, which promtool judged; the monitor is checked below.
            "PrometheusRule" | "ServiceMonitor" => assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1"),
            other => panic!("a {other} is not judged"),
        }
    }
    let mut broken = of(&objects, "Deployment")[0].clone();
    broken["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = json!({"tcpSocket": {"port": 1}});
    let judged = std::panic::catch_unwind(|| fits::<Deployment>(&broken));
    assert!(judged.is_err(), "a mistyped key is seen");
}

#[test]
fn the_sidecar_shares_hangar_s_log_and_nothing_else_of_it() {
    let objects = built(&["sidecar"]);
    let pod = &of(&objects, "Deployment")[0]["spec"]["template"]["spec"];
    let container = |name: &str| pod["containers"].as_array().unwrap().iter().find(|c| c["name"] == name).unwrap();
    let (hangar, medic) = (container("mcp-hangar"), container("hangar-medic"));
    let mounts =
        |c: &Value| c["volumeMounts"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let shared: Vec<String> = mounts(medic).into_iter().filter(|name| mounts(hangar).contains(name)).collect();
    assert_eq!(shared, ["hangar-log"]);
    let readonly = medic["volumeMounts"].as_array().unwrap().iter().find(|m| m["name"] == "hangar-log").unwrap();
    assert_eq!(readonly["readOnly"], true);
    let log = yaml("deploy/kubernetes/sidecar/hangar-medic.yaml")["hangar"]["log_file"].clone();
    let arguments = hangar["args"].as_array().unwrap();
    let at = arguments.iter().position(|a| a == "--log-file").unwrap();
    assert_eq!(arguments[at + 1], log);
    assert_eq!(hangar["image"], "ghcr.io/mcp-hangar/mcp-hangar:2.34.4", "the rest of Hangar is as its chart has it");
    assert_eq!([&pod["automountServiceAccountToken"], &medic["securityContext"]["readOnlyRootFilesystem"]], [&json!(false), &json!(true)]);
    assert!(of(&objects, "Role").is_empty(), "without the broad rungs it has no rights in the cluster");
    let volume = |name: &str| pod["volumes"].as_array().unwrap().iter().find(|v| v["name"] == name).unwrap();
    let configured =
        of(&objects, "ConfigMap").iter().any(|map| map["metadata"]["name"] == volume("hangar-medic-config")["configMap"]["name"]);
    assert!(configured, "the pod is made anew when the configuration changes");
}

#[test]
fn the_broad_flavour_may_restart_hangar_s_deployment_only_and_only_the_sidecar_has_its_token() {
    let objects = built(&["sidecar", "rbac-broad"]);
    let role = of(&objects, "Role")[0];
    assert_eq!(role["rules"][0]["resourceNames"], json!(["prod-mcp-hangar"]));
    let verbs: Vec<&str> =
        role["rules"].as_array().unwrap().iter().flat_map(|r| r["verbs"].as_array().unwrap()).map(|v| v.as_str().unwrap()).collect();
    assert!(!verbs.contains(&"*") && !verbs.contains(&"create") && !verbs.contains(&"update"), "{verbs:?}");
    assert_eq!(of(&objects, "RoleBinding")[0]["subjects"][0]["name"], "prod-mcp-hangar");
    for container in of(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"].as_array().unwrap() {
        let has = container["volumeMounts"].as_array().unwrap().iter().any(|m| m["name"] == "hangar-medic-token");
        assert_eq!(has, container["name"] == "hangar-medic");
    }
}

#[test]
fn the_rights_of_a_daemon_outside_of_the_pod_are_the_same() {
    let outside = documents(&text("deploy/platform/kubernetes-rbac.yaml"));
    fits::<Role>(&outside[0]);
    fits::<RoleBinding>(&outside[1]);
    let mut inside = documents(&text("deploy/kubernetes/rbac-broad/role.yaml")).remove(0)["rules"].clone();
    inside[0]["resourceNames"] = outside[0]["rules"][0]["resourceNames"].clone();
    assert_eq!(inside, outside[0]["rules"]);
}

#[test]
fn prometheus_finds_the_sidecar_through_its_service() {
    let objects = built(&["sidecar", "monitoring"]);
    let (service, monitor) = (of(&objects, "Service")[0], of(&objects, "ServiceMonitor")[0]);
    for (key, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(service["metadata"]["labels"][key], *value);
    }
    let endpoint = monitor["spec"]["endpoints"][0].as_object().unwrap();
    assert!(endpoint.keys().all(|key| ["port", "path", "interval"].contains(&key.as_str())), "{endpoint:?}");
    assert_eq!(service["spec"]["ports"][0]["name"], endpoint["port"]);
    for (path, object) in files("alerts", ".rules.yml").iter().zip(["hangar-medic", "mcp-hangar-dead"]) {
        let rule = of(&objects, "PrometheusRule").into_iter().find(|r| r["metadata"]["name"] == object).unwrap();
        assert_eq!(rule["spec"], yaml(path), "{path}");
    }
    for map in of(&objects, "ConfigMap").iter().filter(|m| m["metadata"]["labels"]["grafana_dashboard"] == "1") {
        let (name, board) = map["data"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(board.as_str().unwrap(), text(&format!("deploy/grafana/dashboards/{name}")));
    }
}

#[test]
fn compose_takes_its_file_and_finds_every_file_that_is_mounted() {
    run("docker-compose", &["--file", "deploy/docker-compose.yml", "config", "--quiet"]);
    let services = yaml("deploy/docker-compose.yml")["services"].as_object().unwrap().clone();
    assert_eq!(services.keys().map(String::as_str).collect::<Vec<_>>(), ["alertmanager", "grafana", "hangar", "medic", "prometheus"]);
    for (name, service) in &services {
        assert!(service["healthcheck"]["test"].is_array(), "{name} has no healthcheck");
        for port in service["ports"].as_array().unwrap() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name} is published on this machine only");
        }
        let mounts = service["volumes"].as_array().unwrap().iter().map(|v| v.as_str().unwrap().split(':').next().unwrap());
        for path in mounts.filter(|path| path.starts_with('.')) {
            assert!(file("deploy").join(path).exists(), "{name}: no {path}");
        }
        let build = &service["build"];
        if build.is_object() {
            let dockerfile = file("deploy").join(build["context"].as_str().unwrap()).join(build["dockerfile"].as_str().unwrap());
            assert!(dockerfile.exists(), "{name}: no {}", dockerfile.display());
        }
    }
    run("promtool", &["check", "config", "--syntax-only", "deploy/compose/prometheus.yml"]);
    run("amtool", &["check-config", "deploy/compose/alertmanager.yml"]);
    let dashboards = &services["grafana"]["volumes"][1];
    let provider = yaml("deploy/grafana/provisioning/dashboards/mcp-hangar.yaml")["providers"][0]["options"]["path"].clone();
    assert_eq!(dashboards.as_str().unwrap().split(':').nth(1), provider.as_str(), "Grafana looks where they are mounted");
}

/// A configuration of ours as `check-config` judges it, without the files of its machine.
fn configuration_is_valid(path: &str) {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("hangar.key");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let placed = text(path).replace("/etc/hangar-medic/secret/hangar.key", secret.to_str().unwrap());
    let copy = dir.path().join("hangar-medic.yaml");
    std::fs::write(&copy, placed).unwrap();
    run(BINARY, &["check-config", copy.to_str().unwrap()]);
}

#[test]
fn the_daemon_takes_the_configurations_that_are_shipped() {
    for path in ["deploy/compose/hangar-medic.yaml", "deploy/kubernetes/sidecar/hangar-medic.yaml"] {
        configuration_is_valid(path);
    }
}

#[test]
fn the_image_has_no_shell_is_not_root_and_is_built_from_files_that_are_there() {
    let dockerfile = text("deploy/Dockerfile");
    let last = dockerfile.rsplit("\nFROM ").next().unwrap();
    assert!(last.starts_with("gcr.io/distroless/"), "{last}");
    assert!(last.contains("\nUSER 65532:65532\n") && !last.contains("\nRUN "));
    let allowed: Vec<String> =
        text("deploy/Dockerfile.dockerignore").lines().filter_map(|l| l.strip_prefix('!')).map(str::to_owned).collect();
    for path in dockerfile.lines().filter(|l| l.starts_with("COPY ") && !l.contains("--from")).flat_map(|l| {
        let words: Vec<&str> = l.split(' ').skip(1).collect();
        words[..words.len() - 1].to_vec()
    }) {
        assert!(file(path).exists(), "COPY {path}");
        assert!(allowed.iter().any(|a| a == path), "{path} does not reach the build");
    }
    let toolchain =
        text("Cargo.toml").lines().find_map(|l| l.strip_prefix("rust-version = ").map(|v| v.trim_matches('"').to_owned())).unwrap();
    assert!(dockerfile.contains(&format!("rust:{toolchain}-")));
}

/// The unit with a binary that is there.
fn unit(dir: &Path) -> String {
    let path = dir.join("hangar-medic.service");
    std::fs::write(&path, text("deploy/systemd/hangar-medic.service").replace("/usr/local/bin/hangar-medic", BINARY)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn systemd_takes_the_unit_and_finds_it_as_closed_as_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let unit = unit(dir.path());
    let verified = tried("systemd-analyze", &["verify", &unit]);
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("hangar-medic")).collect();
    assert!(verified.status.success() && of_ours.is_empty(), "{said}");
    let judged = Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager", &unit]).output().unwrap();
    let judged = String::from_utf8_lossy(&judged.stdout).into_owned();
    let level = judged.lines().find_map(|l| l.split_once("Overall exposure level for hangar-medic.service: ")).map(|(_, level)| level);
    let score: f64 = level.and_then(|l| l.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no level:\n{judged}"));
    let stated = text("deploy/systemd/hangar-medic.service");
    let stated: f64 = stated.split("security says ").nth(1).and_then(|s| s.split(' ').next()?.parse().ok()).unwrap();
    assert!(score <= stated, "{score} is worse than the {stated} that the unit states");
    assert!(text("deploy/README.md").contains(&format!("`systemd-analyze security`: {stated}")));
}
