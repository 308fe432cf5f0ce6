//! One test for each promise, against real Hangar.

mod bad_input;
mod config;
mod groups;
mod harness;
mod outage;
mod restraint;
mod revive;
mod stops;
