//! One test for each promise, against real Hangar.

mod harness;
