//! Parses the command line and runs.

use std::process::ExitCode;

use clap::Parser;
use hangar_medic::cli::{Cli, Command, check_config};

fn main() -> ExitCode {
    let code = match Cli::parse().command {
        Command::CheckConfig(args) => check_config::run(&args, &mut std::io::stdout().lock(), &mut std::io::stderr().lock()),
        Command::Run(_) | Command::Ladder(_) | Command::Incidents(_) | Command::Attempts(_) => Ok(1),
    };
    ExitCode::from(code.unwrap_or(1))
}
