//! End-to-end tests: the built daemon against a real MCP Hangar. `tests/run.sh` makes what they need.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test stops at its first surprise"
)]

mod e2e;
mod support;
