//! Hangar over HTTP: one client for everything that is read from it and sent to it.
//!
//! `/metrics` and `/health/*` need no key; everything else goes through the [`auth`] guard, which stops before Hangar
//! locks the address (and with it every user on it) out.

pub mod answers;
pub mod auth;
pub mod client;
pub mod fault;

pub use answers::{Group, GroupMember, Lease, LogLine, Me, ServerDetail, ServerList, Started, System, parse_version};
pub use auth::{AuthMemory, AuthState, MemoryError};
pub use client::{HangarClient, Settings};
pub use fault::{AuthFault, CallError, Fault};
