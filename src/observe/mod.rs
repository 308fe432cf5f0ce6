//! What is seen: Hangar's metrics, REST answers, log, events and processes, Prometheus, Alertmanager.

pub mod board;
pub mod events;
pub mod http;
pub mod line;
pub mod log;
pub mod metrics_text;
pub mod processes;
pub mod prometheus;
pub mod silences;
pub mod webhook;
