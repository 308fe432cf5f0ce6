//! The integration tests, in one binary since each one is linked anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test stops at its first surprise")]

mod attempt_log;
