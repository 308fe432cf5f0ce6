//! The broad half of the ladder: what it refuses, what it sends, and that what stood before stands again.

pub mod automation;
mod connector;
mod gate;
mod hooks;
pub mod kubernetes;
mod others;
mod refusals;
mod reload;
mod restart;
mod runtime;
pub mod systemd;
mod verdicts;
