//! What is seen: Hangar's metrics, REST answers and log, Prometheus, Alertmanager.

pub mod board;
pub mod log;
pub mod metrics_text;
pub mod prometheus;
pub mod webhook;
