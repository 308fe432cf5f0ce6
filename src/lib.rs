//! hangar-medic: brings dead MCP servers of an MCP Hangar back, proves it, and writes down how.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at its first surprise"))]

pub mod cli;
pub mod clock;
pub mod config;
pub mod execute;
pub mod hangar;
pub mod observe;
pub mod policy;
