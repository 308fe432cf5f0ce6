//! The command line: what can be asked (`args`), the commands, and what they print.

pub mod args;
pub mod assess;
pub mod attempt_input;
pub mod attempts;
pub mod brakes;
pub mod break_glass;
pub mod check_config;
pub mod classify;
pub mod client;
pub mod doctor;
pub mod export_input;
pub mod incidents;
pub mod ladder;
pub mod mcp;
pub mod paint;
pub mod playbook;
pub mod progress;
pub mod recommend;
pub mod recovery_metrics;
#[cfg(test)]
pub(crate) mod sample;
pub mod store;
pub mod table;
pub mod watch;

use std::io::{self, Write};

use serde::Serialize;

pub use args::{Cli, Command, Format};

fn print_json(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    writeln!(out)
}

/// To the second, as RFC 3339; `-` for none.
fn time(at: Option<jiff::Timestamp>) -> String {
    at.map_or_else(none, |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

fn none() -> String {
    "-".to_owned()
}
