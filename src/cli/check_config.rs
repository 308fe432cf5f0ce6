//! `check-config`: the effective configuration, or every fault.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::args::{CheckConfigArgs, Format, INVALID, OK};
use super::print_json;
use crate::config::{self, Config, Effective, Invalid, Overrides};

/// The answer of `--format json`.
#[derive(Serialize)]
struct Report<'a> {
    valid: bool,
    errors: Vec<Fault<'a>>,
    warnings: &'a [String],
    /// Absent while the file is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    effective: Option<Effective>,
}

#[derive(Serialize)]
struct Fault<'a> {
    path: &'a str,
    message: &'a str,
}

/// Judges the file and prints. Returns the exit code: 0 valid, 1 invalid.
///
/// Errors: stdout or stderr cannot be written.
pub fn run(args: &CheckConfigArgs, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.schema {
        return print_json(out, &config::schema()).map(|()| OK);
    }
    if args.reference {
        return out.write_all(config::reference().as_bytes()).map(|()| OK);
    }
    if args.example {
        return out.write_all(config::example().as_bytes()).map(|()| OK);
    }
    let file = args.file.as_deref();
    let found = config::load(file, &Overrides::from(args.overrides.clone()));
    match args.format.format {
        Format::Table => print_text(file, &found, out, err)?,
        Format::Json => print_json(out, &report(&found))?,
    }
    Ok(if found.is_ok() { OK } else { INVALID })
}

fn print_text(file: Option<&Path>, found: &Result<Config, Vec<Invalid>>, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
    match found {
        Ok(config) => {
            for warning in &config.warnings {
                writeln!(err, "warning: {warning}")?;
            }
            out.write_all(config::render(config).as_bytes())
        }
        Err(faults) => faults.iter().try_for_each(|fault| writeln!(err, "{}", fault.about(file))),
    }
}

fn report(found: &Result<Config, Vec<Invalid>>) -> Report<'_> {
    match found {
        Ok(config) => Report { valid: true, errors: Vec::new(), warnings: &config.warnings, effective: Some(config::effective(config)) },
        Err(faults) => {
            let errors = faults.iter().map(|f| Fault { path: &f.path, message: &f.text }).collect();
            Report { valid: false, errors, warnings: &[], effective: None }
        }
    }
}
