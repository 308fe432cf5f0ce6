//! The command line: what can be asked (`args`) and the commands that answer without a daemon.

pub mod args;
pub mod check_config;
pub mod ladder;
pub mod table;

pub use args::{Cli, Command};
