//! Every integration test, in one binary since each one is linked anew. `tests/run.sh` makes what they need.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::cast_precision_loss,
    reason = "a test stops at its first surprise"
)]

mod attempt_log;
mod brakes;
mod broad;
mod config;
mod crash;
mod doctor;
mod e2e;
mod face;
mod first_words;
mod flood;
mod fuzz;
mod hangar;
mod log;
mod page;
mod playbook;
mod policy;
mod replicas;
mod seeing;
mod server;
mod support;
mod terminal;
mod tls;
