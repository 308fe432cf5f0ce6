//! The executors of the broad half of the ladder, dry: whether each can be reached and would be let. Nothing is restarted.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use zbus::{Connection, OwnedObjectPath, connection};

use super::Check;
use crate::config::{Config, Executor};
use crate::hangar::fault::{chain, clean};
use crate::policy::{Mode, Rung};

const CHECK: &str = "executors";
/// Of one executor.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn examine(config: &Config, checks: &mut Vec<Check>) {
    checks.push(listed(config));
    let mut asked = BTreeSet::new();
    let restarts = config.platform.restarts.iter().map(|(rung, executor)| (rung.to_string(), executor, *rung == Rung::FullMcpRestart));
    let upstreams = config.platform.upstreams.iter().map(|(server, executor)| (format!("upstream {server}"), executor, false));
    for (what, executor, deletes) in restarts.chain(upstreams) {
        // Many upstreams may share one.
        if asked.insert(format!("{executor:?}")) {
            let judged = tokio::time::timeout(PATIENCE, dry(executor, deletes)).await;
            checks.push(match judged.unwrap_or_else(|_| Err(("no answer within 5 s".to_owned(), "is the address right?"))) {
                Ok(found) => Check::ok(CHECK, format!("{what}: {found}")),
                Err((found, advice)) => Check::fail(CHECK, format!("{what}: {found}"), advice),
            });
        }
    }
}

/// Whether every rung that is listed has what it needs.
fn listed(config: &Config) -> Check {
    let lacks = |rung: Rung| config.policy.why_not(rung).map(|why| format!("{rung}: {why}"));
    let lacking: Vec<String> = config.policy.rungs.iter().filter_map(|r| lacks(r.action)).collect();
    if !lacking.is_empty() {
        return Check::warn(CHECK, lacking.join("; "), "configure what each needs, or take it out of policy.rungs");
    }
    let mode = if config.policy.mode == Mode::Observe { "; mode observe sends nothing" } else { "" };
    let named: Vec<&str> = config.policy.rungs.iter().map(|r| r.action.as_str()).collect();
    Check::ok(CHECK, format!("each rung that is on has what it needs: {}{mode}", named.join(", ")))
}

/// What was found, and what to do.
type Judged = Result<String, (String, &'static str)>;

async fn dry(executor: &Executor, deletes: bool) -> Judged {
    match executor {
        Executor::Hook { url, secret_file, .. } => {
            let advice = "put the shared secret into its file: one line";
            secret_file.read().map_err(|e| (format!("platform secret_file: {}", e.explained()), advice))?;
            hook(url).await
        }
        Executor::Systemd { unit, bus_address, .. } => systemd(unit, bus_address.as_deref()).await,
        Executor::Kubernetes { namespace, deployment, kubeconfig, .. } => {
            kubernetes(namespace, deployment, kubeconfig.as_deref(), deletes).await
        }
    }
}

/// Whether somebody listens: a request would be an order.
async fn hook(url: &reqwest::Url) -> Judged {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or(443);
    let dialled = tokio::net::TcpStream::connect((host.as_str(), port)).await;
    let advice = "start the automation behind the hook, or correct its url";
    dialled.map(|_| format!("{host}:{port} listens; no order was sent")).map_err(|e| (format!("{host}:{port}: {e}"), advice))
}

async fn systemd(unit: &str, bus: Option<&str>) -> Judged {
    let load = async {
        let connection = match bus {
            Some(address) => connection::Builder::address(address).build().await?,
            None => Connection::system().await?,
        };
        let (name, manager) = ("org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager");
        let loaded = connection.call_method(Some(name), "/org/freedesktop/systemd1", Some(manager), "LoadUnit", &unit).await?;
        let path: OwnedObjectPath = loaded.body().deserialize()?;
        let asked = ("org.freedesktop.systemd1.Unit", "LoadState");
        let state = connection.call_method(Some(name), path, Some("org.freedesktop.DBus.Properties"), "Get", &asked).await?;
        let state: zbus::OwnedVariant = state.body().deserialize()?;
        Ok::<_, zbus::Error>(String::try_from(state).unwrap_or_default())
    };
    let advice = "mount the bus' socket, run on that host, and let the daemon's user manage the unit (a polkit rule)";
    match load.await {
        Ok(state) if state == "loaded" => Ok(format!("the unit {unit} is there; whether it may be restarted only polkit knows")),
        Ok(state) => Err((format!("the unit {unit} is {}", clean(&state)), "correct the unit's name")),
        Err(error) => Err((format!("systemd cannot be asked: {}", clean(&error.to_string())), advice)),
    }
}

async fn kubernetes(namespace: &str, deployment: &str, kubeconfig: Option<&Path>, deletes: bool) -> Judged {
    let advice = "run in the cluster with a service account (deploy/kubernetes), or give a kubeconfig";
    let client = client(kubeconfig).await.map_err(|why| (format!("no API server: {why}"), advice))?;
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut needed = vec![("get", "apps", "deployments"), ("patch", "apps", "deployments"), ("watch", "apps", "deployments")];
    if deletes {
        needed.extend([("list", "", "pods"), ("delete", "", "pods")]);
    }
    let mut missing = Vec::new();
    for (verb, group, resource) in needed {
        let attributes = ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..SelfSubjectAccessReviewSpec::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|s| s.allowed) => {}
            Ok(_) => missing.push(format!("{verb} {resource}")),
            Err(error) => return Err((format!("the API server does not say what we may: {}", clean(&chain(&error))), advice)),
        }
    }
    if !missing.is_empty() {
        let found = format!("the service account may not {} in {namespace}", missing.join(", "));
        return Err((found, "bind it to a role that may (deploy/kubernetes)"));
    }
    match Api::<Deployment>::namespaced(client, namespace).get(deployment).await {
        Ok(_) => Ok(format!("{namespace}/{deployment} is there, and may be rolled out")),
        Err(error) => Err((format!("{namespace}/{deployment}: {}", clean(&chain(&error))), "correct the Deployment's name and namespace")),
    }
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client, String> {
    let mut config = match kubeconfig {
        None => kube::Config::incluster().map_err(|e| chain(&e))?,
        Some(path) => {
            let text = tokio::fs::read_to_string(path).await.map_err(|e| format!("{}: {e}", path.display()))?;
            let parsed = Kubeconfig::from_yaml(&text).map_err(|e| chain(&e))?;
            kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await.map_err(|e| chain(&e))?
        }
    };
    config.connect_timeout = Some(PATIENCE);
    Client::try_from(config).map_err(|e| chain(&e))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use jiff::SignedDuration;

    use super::*;
    use crate::config::SecretFile;

    const TIMEOUT: SignedDuration = SignedDuration::from_secs(5);

    #[tokio::test]
    async fn a_hook_is_dialled_and_sent_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "shared-secret-of-the-hook").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url: reqwest::Url = format!("http://{}/restart", listener.local_addr().unwrap()).parse().unwrap();
        let hook = |path: std::path::PathBuf| Executor::Hook {
            url: url.clone(),
            secret_file: SecretFile { path },
            ca_file: None,
            timeout: TIMEOUT,
        };
        assert!(dry(&hook(path.clone()), false).await.unwrap().contains("no order was sent"));
        let mut heard = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"");
        assert!(dry(&hook(dir.path().join("none")), false).await.unwrap_err().0.contains("cannot read the secret file"));
        drop(listener);
        assert!(dry(&hook(path), false).await.unwrap_err().1.contains("start the automation"));
    }

    #[tokio::test]
    async fn a_bus_that_is_not_there_is_said() {
        let systemd =
            Executor::Systemd { unit: "hangar.service".into(), bus_address: Some("unix:path=/nowhere/bus".into()), timeout: TIMEOUT };
        assert!(dry(&systemd, false).await.unwrap_err().0.contains("systemd cannot be asked"));
    }

    /// An API server after the public specification: a service account that may do what is listed.
    fn api_server(allowed: &'static [&'static str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap_or(0) <= 2 {
                        break;
                    }
                    if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = n.trim().parse().unwrap();
                    }
                    head.push_str(&line);
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let asked: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                let attributes = &asked["spec"]["resourceAttributes"];
                let what = format!("{} {}", attributes["verb"].as_str().unwrap_or(""), attributes["resource"].as_str().unwrap_or(""));
                let answer = if head.starts_with("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews") {
                    serde_json::json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
                        "spec": {}, "status": {"allowed": allowed.contains(&what.as_str())}})
                } else {
                    serde_json::json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "hangar", "namespace": "mcp"}})
                };
                let text = answer.to_string();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    text.len()
                );
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
            }
        });
        format!("http://{address}")
    }

    async fn asked(allowed: &'static [&'static str], deletes: bool) -> Judged {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {"token": "t"}}],
            "clusters": [{"name": "k", "cluster": {"server": api_server(allowed)}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        kubernetes("mcp", "hangar", Some(&path), deletes).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_service_account_is_asked_what_it_may() {
        let roll = &["get deployments", "patch deployments", "watch deployments"];
        assert_eq!(asked(roll, false).await.unwrap(), "mcp/hangar is there, and may be rolled out");
        assert!(asked(roll, true).await.unwrap_err().0.contains("may not list pods, delete pods in mcp"));
        assert!(asked(&["get deployments"], false).await.unwrap_err().0.contains("may not patch deployments, watch deployments"));
    }
}
