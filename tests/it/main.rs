//! Every integration test, in one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test stops at its first surprise")]

mod policy;
