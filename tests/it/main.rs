//! Tests of the built binary and of the library's public face.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test stops at its first surprise"
)]

mod config;
