//! The Kubernetes executor against an HTTP server that answers as the API server does.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hangar_medic::execute::kubernetes::{Kubernetes, Way};
use hangar_medic::execute::platform::{Carried, CarryOut, Order};
use hangar_medic::policy::Rung;
use serde_json::{Value, json};

use crate::hangar::stub::{Reply, Request, Stub, json as reply};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/mcp/deployments/hangar";
const WATCH: &str = "/apis/apps/v1/namespaces/mcp/deployments?";
const PODS: &str = "/api/v1/namespaces/mcp/pods";

/// One Deployment of three pods, and what is wrong with it.
#[derive(Default)]
pub struct Cluster {
    generation: i64,
    version: i64,
    /// New pods that are up; one more with each look once the controller is at work.
    up: i64,
    annotations: Value,
    pods: Vec<(String, String)>,
    conflicts: u32,
    refuse: Option<u16>,
    /// The controller never gets further than this.
    stuck_at: Option<i64>,
    deadline_exceeded: bool,
    watch_too_old: bool,
    patches: u32,
}

impl Cluster {
    pub fn new() -> Self {
        let pods = (0..3).map(|n| (format!("hangar-{n}"), format!("uid-{n}"))).collect();
        Self { generation: 4, version: 100, up: 3, pods, annotations: json!({}), ..Self::default() }
    }

    fn deployment(&self) -> Value {
        let reason = if self.deadline_exceeded { "ProgressDeadlineExceeded" } else { "ReplicaSetUpdated" };
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "hangar", "namespace": "mcp", "generation": self.generation, "resourceVersion": self.version.to_string()},
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"app": "hangar"}},
                "template": {"metadata": {"labels": {"app": "hangar"}, "annotations": self.annotations}, "spec": {"containers": []}},
            },
            "status": {
                "observedGeneration": self.generation, "replicas": 3, "updatedReplicas": self.up, "availableReplicas": self.up,
                "conditions": [{"type": "Progressing", "status": "True", "reason": reason}],
            },
        })
    }

    fn step(&mut self) {
        if self.up < self.stuck_at.unwrap_or(3) {
            self.up += 1;
            self.version += 1;
        }
    }

    fn pod(&self, n: usize) -> Value {
        let (name, uid) = &self.pods[n];
        json!({"apiVersion": "v1", "kind": "Pod",
               "metadata": {"name": name, "namespace": "mcp", "uid": uid, "resourceVersion": self.version.to_string(), "labels": {"app": "hangar"}}})
    }

    pub fn answer(&mut self, request: &Request) -> Reply {
        let (method, path) = request.line.split_once(' ').unwrap();
        if let Some(code) = self.refuse {
            return status(code, "Forbidden");
        }
        match method {
            "GET" if path == DEPLOYMENT => {
                self.step();
                reply(200, &self.deployment())
            }
            "PATCH" if path.starts_with(DEPLOYMENT) => self.patch(request),
            "GET" if path.starts_with(WATCH) => self.watch(),
            "GET" if path.starts_with(&format!("{PODS}?")) => {
                assert!(path.contains("labelSelector=app%3Dhangar"), "{path}");
                let items: Vec<Value> = (0..self.pods.len()).map(|n| self.pod(n)).collect();
                reply(200, &json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}))
            }
            "GET" | "DELETE" if path.starts_with(PODS) => self.one_pod(method, path, request),
            _ => panic!("{}", request.line),
        }
    }

    fn patch(&mut self, request: &Request) -> Reply {
        let patch: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], json!(self.version.to_string()), "{patch}");
        if self.conflicts > 0 {
            self.conflicts -= 1;
            self.version += 1;
            return status(409, "Conflict");
        }
        self.patches += 1;
        self.annotations = patch["spec"]["template"]["metadata"]["annotations"].clone();
        self.generation += 1;
        self.version += 1;
        self.up = 0;
        reply(200, &self.deployment())
    }

    /// One event, and the stream is cut: so a slow rollout is read again and again.
    fn watch(&mut self) -> Reply {
        if self.watch_too_old {
            self.watch_too_old = false;
            let gone =
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
            return lines(&[json!({"type": "ERROR", "object": gone})]);
        }
        self.step();
        lines(&[json!({"type": "MODIFIED", "object": self.deployment()})])
    }

    fn one_pod(&mut self, method: &str, path: &str, request: &Request) -> Reply {
        let name = path.trim_start_matches(PODS).trim_start_matches('/').split('?').next().unwrap().to_owned();
        let Some(n) = self.pods.iter().position(|(pod, _)| *pod == name) else { return status(404, "NotFound") };
        if method == "GET" {
            return reply(200, &self.pod(n));
        }
        let options: Value = serde_json::from_str(&request.body).unwrap();
        let wanted = json!({"uid": self.pods[n].1, "resourceVersion": self.version.to_string()});
        if self.conflicts > 0 || options["preconditions"] != wanted {
            self.conflicts = self.conflicts.saturating_sub(1);
            self.version += 1;
            return status(409, "Conflict");
        }
        let pod = self.pod(n);
        self.pods[n] = (format!("{name}-new"), format!("uid-{name}-new"));
        self.version += 1;
        self.up = 0;
        reply(200, &pod)
    }
}

fn status(code: u16, reason: &str) -> Reply {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "m"});
    reply(code, &body)
}

fn lines(events: &[Value]) -> Reply {
    let body = events.iter().flat_map(|e| [e.to_string(), "\n".to_owned()]).collect();
    Reply::Http { status: 200, headers: vec![("content-type", "application/json".to_owned())], body }
}

pub fn kubeconfig(dir: &Path, url: &str) -> std::path::PathBuf {
    let path = dir.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "mcp"}}],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// Carries one order out; also the requests that changed something.
async fn ordered(way: Way, seconds: f64, change: impl FnOnce(&mut Cluster)) -> (Carried, Arc<Mutex<Cluster>>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new();
    change(&mut cluster);
    let cluster = Arc::new(Mutex::new(cluster));
    let answering = Arc::clone(&cluster);
    let stub = Stub::new(move |r| answering.lock().unwrap().answer(r));
    let kubernetes = Kubernetes {
        namespace: "mcp".to_owned(),
        deployment: "hangar".to_owned(),
        kubeconfig: Some(kubeconfig(dir.path(), &stub.url)),
        way,
        timeout: Duration::from_secs_f64(seconds),
    };
    let order =
        Order { attempt_id: "api.1.4".to_owned(), action: Rung::RollingMcpRestart, instance: "h".to_owned(), mcp_server: "api".to_owned() };
    let carried = kubernetes.carry_out(&order).await;
    let changes = stub.lines().into_iter().filter(|l| !l.starts_with("GET ")).collect();
    (carried, cluster, changes)
}

#[tokio::test]
async fn a_rollout_is_restarted_by_its_annotation_and_followed_to_its_end() {
    let (carried, cluster, changes) = ordered(Way::Roll, 30.0, |_| {}).await;
    assert_eq!(carried, Carried::Done("3 of 3 pods are available".to_owned()));
    let cluster = cluster.lock().unwrap();
    assert_eq!((cluster.patches, changes.len()), (1, 1));
    assert_eq!(cluster.annotations["hangar-medic/attempt"], "api.1.4");
    let at = cluster.annotations["kubectl.kubernetes.io/restartedAt"].as_str().unwrap();
    assert!(at.parse::<jiff::Timestamp>().is_ok(), "{at}");
}

#[tokio::test]
async fn a_conflict_is_read_again_and_an_order_that_was_sent_before_is_not_sent_twice() {
    let (carried, cluster, changes) = ordered(Way::Roll, 30.0, |c| c.conflicts = 2).await;
    assert!(matches!(carried, Carried::Done(_)), "{carried:?}");
    assert_eq!((cluster.lock().unwrap().patches, changes.len()), (1, 3));
    let (carried, _, changes) = ordered(Way::Roll, 30.0, |c| c.conflicts = 99).await;
    assert!(matches!(&carried, Carried::Refused(why) if why.contains("409")), "{carried:?}");
    assert_eq!(changes.len(), 4);
    let before = |c: &mut Cluster| c.annotations = json!({"hangar-medic/attempt": "api.1.4"});
    let (carried, _, changes) = ordered(Way::Roll, 30.0, before).await;
    assert!(matches!(carried, Carried::Done(_)), "{carried:?}");
    assert!(changes.is_empty(), "{changes:?}");
}

#[tokio::test]
async fn what_the_api_server_refuses_was_not_begun() {
    for way in [Way::Roll, Way::DeletePods] {
        let (carried, _, changes) = ordered(way, 30.0, |c| c.refuse = Some(403)).await;
        assert!(matches!(&carried, Carried::Refused(why) if why.contains("403 Forbidden")), "{carried:?}");
        assert!(changes.is_empty());
    }
}

#[tokio::test]
async fn a_rollout_that_is_late_stuck_or_lost_sight_of_is_told_for_what_it_is() {
    let (carried, ..) = ordered(Way::Roll, 30.0, |c| c.watch_too_old = true).await;
    assert!(matches!(carried, Carried::Done(_)), "{carried:?}");
    let (carried, ..) = ordered(Way::Roll, 3.0, |c| c.stuck_at = Some(1)).await;
    assert!(matches!(&carried, Carried::Unknown(why) if why.contains("not rolled out within")), "{carried:?}");
    let (carried, ..) = ordered(Way::Roll, 30.0, |c| c.deadline_exceeded = true).await;
    assert!(matches!(&carried, Carried::Failed(why) if why.contains("progress deadline")), "{carried:?}");
}

#[tokio::test]
async fn pods_are_deleted_only_if_they_are_still_the_ones_that_were_listed() {
    let (carried, cluster, changes) = ordered(Way::DeletePods, 30.0, |c| c.conflicts = 1).await;
    assert!(matches!(carried, Carried::Done(_)), "{carried:?}");
    let cluster = cluster.lock().unwrap();
    assert!(cluster.pods.iter().all(|(name, _)| name.ends_with("-new") && !name.ends_with("-new-new")), "{:?}", cluster.pods);
    assert!(changes.iter().all(|l| l.starts_with("DELETE ")) && cluster.patches == 0, "{changes:?}");
}
