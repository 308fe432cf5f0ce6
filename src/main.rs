//! Parses the command line and runs.
fn main() {}
