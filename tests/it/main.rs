//! All integration tests: one binary, since each is linked anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a test stops at its first surprise"
)]
mod log;
