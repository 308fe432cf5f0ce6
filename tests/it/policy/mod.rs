//! The planner in a small deterministic world: Hangar and the engine in virtual time.

mod approvals;
mod engine;
mod executor;
mod hangar;
mod nonsense;
mod properties;
mod purity;
mod scenarios;
mod watch;
