//! The broad half of the ladder: what it refuses, what it sends, and that what stood before stands again.

pub mod automation;
mod connector;
mod gate;
mod hooks;
mod kubernetes;
mod others;
mod refusals;
mod reload;
mod restart;
mod runtime;
mod systemd;
mod verdicts;
