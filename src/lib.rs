//! hangar-medic: brings dead MCP servers of an MCP Hangar back, proves it, and writes down how.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at its first surprise"))]

pub mod attempt_log;
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod execute;
pub mod hangar;
pub mod jitter;
pub mod metrics;
pub mod observe;
pub mod policy;
pub mod run;
pub mod server;
pub mod supervise;
pub mod telemetry;
