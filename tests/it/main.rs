#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at its first surprise")]

mod hangar;
