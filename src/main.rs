//! Parses the command line and runs.

use std::io::{stderr, stdout};
use std::process::ExitCode;

use clap::Parser;
use hangar_medic::cli::{Cli, Command, check_config, ladder};

fn main() -> ExitCode {
    let code = match Cli::parse().command {
        Command::CheckConfig(args) => check_config::run(&args, &mut stdout().lock(), &mut stderr().lock()),
        Command::Ladder(args) => ladder::run(&args, &mut stdout().lock(), &mut stderr().lock()),
        Command::Run(_) | Command::Incidents(_) | Command::Attempts(_) => Ok(1),
    };
    ExitCode::from(code.unwrap_or(1))
}
