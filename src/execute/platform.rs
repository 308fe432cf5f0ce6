//! What restarts something for us: the operator's automation, systemd or Kubernetes. Nothing here kills a process itself.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::hook::{Callbacks, Hook};
use super::kubernetes::{Kubernetes, Way};
use super::systemd::Systemd;
use crate::config::{Executor as Setting, unsigned};
use crate::policy::Rung;

/// One order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Names the order for ever: whoever carries it out does it once.
    pub attempt_id: String,
    pub action: Rung,
    pub instance: String,
    pub mcp_server: String,
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carried {
    /// It says that it is done.
    Done(String),
    /// It was not begun.
    Refused(String),
    /// It was begun and went wrong.
    Failed(String),
    /// It may have been carried out, or may yet be.
    Unknown(String),
}

/// Carries orders out, each within its own bound.
pub trait CarryOut: Send + Sync {
    /// Ends within the configured time-out.
    fn carry_out<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Carried>;
}

/// Who carries orders of this setting out. Nothing is dialled before the first one.
#[must_use]
pub fn carrier(setting: &Setting, action: Rung, callbacks: &Arc<Callbacks>) -> Arc<dyn CarryOut> {
    match setting.clone() {
        Setting::Hook { url, secret_file, ca_file, timeout } => {
            Arc::new(Hook { url, secret_file, ca_file, timeout: unsigned(timeout), callbacks: Arc::clone(callbacks) })
        }
        Setting::Systemd { unit, bus_address, timeout } => Arc::new(Systemd { unit, bus_address, timeout: unsigned(timeout) }),
        Setting::Kubernetes { namespace, deployment, kubeconfig, timeout } => {
            // The pods of one replica set at once; everything else is rolled.
            let way = if action == Rung::FullMcpRestart { Way::DeletePods } else { Way::Roll };
            Arc::new(Kubernetes { namespace, deployment, kubeconfig, way, timeout: unsigned(timeout) })
        }
    }
}
