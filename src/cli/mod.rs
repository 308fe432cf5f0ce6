//! What the commands print. Each takes what was read and a format; reading it is the caller's.

pub mod attempts;
pub mod incidents;
pub mod ladder;
#[cfg(test)]
pub(crate) mod sample;
pub mod table;

use std::io::{self, Write};

use serde::Serialize;

/// `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

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
