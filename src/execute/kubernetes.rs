//! Kubernetes: a rollout restart by the usual annotation, watched to its end; or the pods of one Deployment deleted, each
//! only if it is still the one that was listed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::platform::{Carried, CarryOut, Order};
use crate::clock;
use crate::crash;
use crate::hangar::fault::{chain, clean};

/// Marks who did it, as `kubectl rollout restart` marks itself.
const MANAGER: &str = "hangar-medic";
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
/// The attempt that it was restarted for: an order that is sent again is known again.
const ATTEMPT: &str = "hangar-medic/attempt";
/// A conflict is somebody else's change: the patch is sent again this often.
const CONFLICTS_MAX: usize = 3;
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const PODS_MAX: u32 = 500;

/// How it is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Roll,
    DeletePods,
}

/// `platform.*` with `executor: kubernetes`.
pub struct Kubernetes {
    pub namespace: String,
    pub deployment: String,
    /// `None`: the pod's own service account.
    pub kubeconfig: Option<PathBuf>,
    pub way: Way,
    /// Of the whole order.
    pub timeout: Duration,
}

impl CarryOut for Kubernetes {
    fn carry_out<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Carried> {
        Box::pin(async move {
            let client = match self.client().await {
                Ok(client) => client,
                Err(why) => return Carried::Refused(format!("the API server cannot be asked: {why}")),
            };
            let ordered = async {
                match self.way {
                    Way::Roll => self.roll(&client, order).await,
                    Way::DeletePods => self.delete_pods(&client).await,
                }
            };
            let late = || Carried::Unknown(format!("{} was not rolled out within {} s", self.deployment, self.timeout.as_secs()));
            tokio::time::timeout(self.timeout, ordered).await.unwrap_or_else(|_| late())
        })
    }
}

/// Whether a fault proves that nothing was changed.
fn refused(what: &str, error: &kube::Error) -> Carried {
    let text = format!("{what}: {}", told(error));
    let by_server = code(error).is_some_and(|code| (400..500).contains(&code));
    if by_server { Carried::Refused(text) } else { Carried::Unknown(text) }
}

fn told(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return clean(&format!("{} {}: {}", status.code, status.reason, status.message));
    }
    chain(error)
}

fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

impl Kubernetes {
    async fn client(&self) -> Result<Client, String> {
        let mut config = match &self.kubeconfig {
            None => Config::incluster().map_err(|e| chain(&e))?,
            Some(path) => {
                let text = tokio::fs::read_to_string(path).await.map_err(|e| format!("{}: {e}", path.display()))?;
                let parsed = Kubeconfig::from_yaml(&text).map_err(|e| chain(&e))?;
                Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await.map_err(|e| chain(&e))?
            }
        };
        config.connect_timeout = Some(Duration::from_secs(5));
        config.default_retry = false;
        Client::try_from(config).map_err(|e| chain(&e))
    }

    /// The annotation is a change of the template: the controller replaces the pods by its own rules.
    async fn roll(&self, client: &Client, order: &Order) -> Carried {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &self.namespace);
        let mut conflicts = 0;
        let patched = loop {
            let current = match deployments.get(&self.deployment).await {
                Ok(current) => current,
                Err(e) => return refused("reading the Deployment", &e),
            };
            let marks = current.spec.as_ref().and_then(|s| s.template.metadata.as_ref()).and_then(|m| m.annotations.as_ref());
            if marks.and_then(|m| m.get(ATTEMPT)).is_some_and(|id| *id == order.attempt_id) {
                break current;
            }
            let now = clock::now().to_string();
            let patch = serde_json::json!({
                "metadata": {"resourceVersion": current.metadata.resource_version},
                "spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: now, ATTEMPT: order.attempt_id}}}},
            });
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            crash::point("kubernetes.unsent");
            let answer = deployments.patch(&self.deployment, &params, &Patch::Strategic(&patch)).await;
            crash::point("kubernetes.answered");
            match answer {
                Ok(patched) => break patched,
                Err(e) if code(&e) == Some(409) && conflicts < CONFLICTS_MAX => conflicts += 1,
                Err(e) => return refused("restarting the rollout", &e),
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        self.rolled_out(&deployments, patched).await
    }

    /// Follows the Deployment until its new pods are up. A watch that is cut or too old (410) begins anew with a read.
    async fn rolled_out(&self, deployments: &Api<Deployment>, begun: Deployment) -> Carried {
        let wanted = begun.metadata.generation.unwrap_or_default();
        let mut current = begun;
        loop {
            if let Some(carried) = progress(&current, wanted) {
                return carried;
            }
            let params = WatchParams::default().fields(&format!("metadata.name={}", self.deployment)).timeout(60);
            let version = current.metadata.resource_version.clone().unwrap_or_default();
            if let Ok(stream) = deployments.watch(&params, &version).await {
                let mut stream = std::pin::pin!(stream);
                while let Ok(Some(event)) = stream.try_next().await {
                    match event {
                        WatchEvent::Added(d) | WatchEvent::Modified(d) => {
                            if let Some(carried) = progress(&d, wanted) {
                                return carried;
                            }
                        }
                        WatchEvent::Deleted(_) => return Carried::Failed("the Deployment was deleted meanwhile".to_owned()),
                        WatchEvent::Bookmark(_) => {}
                        WatchEvent::Error(_) => break,
                    }
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            match deployments.get(&self.deployment).await {
                Ok(read) => current = read,
                Err(e) if code(&e) == Some(404) => return Carried::Failed("the Deployment was deleted meanwhile".to_owned()),
                Err(_) => {}
            }
        }
    }

    /// Every pod that the Deployment's selector names, as listed: by uid and resource version, so that none of their
    /// successors is hit.
    async fn delete_pods(&self, client: &Client) -> Carried {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &self.namespace);
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        let deployment = match deployments.get(&self.deployment).await {
            Ok(deployment) => deployment,
            Err(e) => return refused("reading the Deployment", &e),
        };
        let labels = deployment.spec.as_ref().and_then(|s| s.selector.match_labels.clone()).unwrap_or_default();
        let expressions = deployment.spec.as_ref().is_some_and(|s| s.selector.match_expressions.as_ref().is_some_and(|e| !e.is_empty()));
        if labels.is_empty() || expressions {
            return Carried::Refused("the Deployment's selector is not a list of labels: which pods are its own cannot be told".to_owned());
        }
        let listed = match pods.list(&ListParams::default().labels(&selector(&labels)).limit(PODS_MAX)).await {
            Ok(listed) => listed,
            Err(e) => return refused("listing its pods", &e),
        };
        if listed.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty()) || listed.items.is_empty() {
            return Carried::Refused(format!("{} has none or more than {PODS_MAX} pods", self.deployment));
        }
        let mut deleted = 0;
        for pod in &listed.items {
            match delete(&pods, pod).await {
                Ok(true) => deleted += 1,
                Ok(false) => {}
                Err(e) if deleted == 0 => return refused("deleting a pod", &e),
                Err(e) => return Carried::Unknown(format!("{deleted} pods deleted, then: {}", told(&e))),
            }
        }
        self.replaced(&deployments, &pods, deployment, &listed.items).await
    }

    /// All pods are up, and none of the old ones is left: a status from before the deletion looks the same.
    async fn replaced(&self, deployments: &Api<Deployment>, pods: &Api<Pod>, mut current: Deployment, old: &[Pod]) -> Carried {
        let labels = current.spec.as_ref().and_then(|s| s.selector.match_labels.clone()).unwrap_or_default();
        current.status = None;
        loop {
            let carried = self.rolled_out(deployments, current.clone()).await;
            if !matches!(carried, Carried::Done(_)) {
                return carried;
            }
            let left = |now: &Pod| old.iter().any(|pod| pod.metadata.uid == now.metadata.uid);
            let listed = pods.list(&ListParams::default().labels(&selector(&labels)).limit(PODS_MAX)).await;
            if listed.is_ok_and(|listed| !listed.items.iter().any(left)) {
                return carried;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            if let Ok(read) = deployments.get(&self.deployment).await {
                current = read;
            }
        }
    }
}

/// True if it was deleted; false if it was gone or another one already.
async fn delete(pods: &Api<Pod>, pod: &Pod) -> Result<bool, kube::Error> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let mut version = pod.metadata.resource_version.clone();
    for _ in 0..=CONFLICTS_MAX {
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: version.clone() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        crash::point("kubernetes.unsent");
        let answer = pods.delete(name, &params).await;
        crash::point("kubernetes.answered");
        match answer {
            Ok(_) => return Ok(true),
            Err(e) if code(&e) == Some(404) => return Ok(false),
            Err(e) if code(&e) == Some(409) => match pods.get_opt(name).await? {
                // Its status moved on: the same pod is deleted as it is now.
                Some(now) if now.metadata.uid == pod.metadata.uid => version = now.metadata.resource_version,
                Some(_) | None => return Ok(false),
            },
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

fn selector(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// The rules of `kubectl rollout status`.
fn progress(deployment: &Deployment, wanted: i64) -> Option<Carried> {
    let status = deployment.status.as_ref()?;
    if status.observed_generation.unwrap_or_default() < wanted {
        return None;
    }
    let progressing = status.conditions.iter().flatten().find(|c| c.type_ == "Progressing");
    if progressing.is_some_and(|c| c.reason.as_deref() == Some("ProgressDeadlineExceeded")) {
        return Some(Carried::Failed("the rollout exceeded its progress deadline".to_owned()));
    }
    let replicas = deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
    let updated = status.updated_replicas.unwrap_or_default();
    let (total, available) = (status.replicas.unwrap_or_default(), status.available_replicas.unwrap_or_default());
    let done = updated >= replicas && total <= updated && available >= updated;
    done.then(|| Carried::Done(format!("{available} of {replicas} pods are available")))
}
