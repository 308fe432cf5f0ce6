//! hangar-medic: brings dead MCP servers of an MCP Hangar back, proves it, and writes down how.
//!
//! # The loop
//!
//! ```text
//! observe ─► Board ─► Snapshot ┐
//! attempt_log ─► History       ├─► policy::plan(.., now) ─► Plan { steps, wake_at }     pure
//! config ─► Policy             ┘          │
//!                                         ▼
//!            Record (written down, then planned again) · Read (asked of Hangar) · Act
//!                                         ▼ Act
//!       attempt_log.append (durable) ─► execute ─► receipt ─► attempt_log.append ─► the next plan proves it
//! ```
//!
//! `policy` decides and imports nothing else. `observe` and `execute` know its types and never each other; both talk
//! through `hangar`, the one HTTP client. `engine` is the loop, `run` the wiring; `server` and `cli` are faces.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | signal | one thing heard from a source; it only wakes |
//! | symptom | a named condition of one server |
//! | incident | the symptoms of one server, open until cleared; keyed by server, never by time or alert |
//! | reason | why the server is dead, with its provenance |
//! | rung | one of the eleven actions of the ladder, in rank order |
//! | hold | why nothing is done; the same word in logs, metrics and the API |
//! | hold order | a deliberate stop that is respected until the server is seen ready without us or a person resumes it |
//! | attempt | one recorded try: opened, receipt, settled |
//! | receipt | the target's answer; a time-out is `unknown`, since it may have acted |
//! | outcome | what verification made of it |
//!
//! # What is never done
//!
//! - An action without its durable record, or while the log cannot be written. A damaged log is kept aside, and none is begun
//!   in its place unless a person says so.
//! - An action on unknown: no fresh metrics, no fresh answer for that very server.
//! - A start of a capability-blocked server, or of one that a person or a rule stopped.
//! - A start inside Hangar's backoff or while Hangar itself retries.
//! - A recovery that was not proved, or that somebody else earned.
//! - A repeated action after a crash: what is open is settled by what is seen.
//! - A signal to a process.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at its first surprise"))]

pub mod attempt_log;
pub mod cli;
pub mod clock;
pub mod config;
pub mod crash;
pub mod engine;
pub mod execute;
pub mod hangar;
pub mod harden;
pub mod jitter;
pub mod metrics;
pub mod observe;
pub mod policy;
pub mod run;
pub mod server;
pub mod supervise;
pub mod telemetry;
