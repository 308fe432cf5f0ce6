//! `classify`: which servers a log shows dead at its end, and why.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::observe::log::{InputFormat, Reader, Splitter, Told, Verdict};

/// Arguments of `classify`.
#[derive(Debug, Clone, Args)]
pub struct ClassifyArgs {
    /// Hangar's log, or - for standard input
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// What stands around the log's lines
    #[arg(long = "format.input", value_enum, default_value_t)]
    pub input: InputFormat,
    /// Print every transition instead of the state at the end
    #[arg(long)]
    pub all: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Output,
}

/// How `classify` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// One JSON object a line
    #[default]
    Json,
    Table,
}

/// Why `classify` could not.
#[derive(Debug, thiserror::Error)]
pub enum ClassifyError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot print")]
    Print(#[source] io::Error),
}

/// Opens what `args` names and classifies it.
///
/// # Errors
/// The file cannot be opened or read, or `out` cannot be written.
pub fn run(args: &ClassifyArgs, out: &mut dyn Write) -> Result<(), ClassifyError> {
    if args.file.as_os_str() == "-" {
        return classify(args, &mut io::stdin().lock(), out);
    }
    let mut file = File::open(&args.file).map_err(|source| ClassifyError::Read { path: args.file.clone(), source })?;
    classify(args, &mut file, out)
}

/// Classifies `input` to its end. Lines are printed as they are told with `--all`, else at the end, by name.
///
/// # Errors
/// `input` cannot be read, or `out` cannot be written. A reader that closed the pipe early is no error.
pub fn classify(args: &ClassifyArgs, input: &mut dyn Read, out: &mut dyn Write) -> Result<(), ClassifyError> {
    let mut reader = Reader::new(args.input);
    let mut splitter = Splitter::default();
    let mut printer = Printer { out, output: args.output(), broken: None };
    let mut chunk = vec![0; 256 * 1024];
    if args.all {
        printer.head(&["MCP_SERVER", "CHANGE", "REASON", "AT", "OFFSET", "EVENT"]);
    }
    loop {
        let got = match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(ClassifyError::Read { path: args.file.clone(), source }),
        };
        splitter.feed(chunk.get(..got).unwrap_or_default(), &mut |offset, line| {
            reader.line(line, offset, &mut |told| {
                if args.all {
                    printer.told(&told);
                }
            });
        });
        if printer.broken.is_some() {
            return printer.end();
        }
    }
    splitter.finish(&mut |offset, line| {
        reader.line(line, offset, &mut |told| {
            if args.all {
                printer.told(&told);
            }
        });
    });
    if !args.all {
        printer.dead(&reader);
    }
    printer.end()
}

impl ClassifyArgs {
    const fn output(&self) -> Output {
        self.format
    }
}

struct Printer<'a> {
    out: &'a mut dyn Write,
    output: Output,
    broken: Option<io::Error>,
}

impl Printer<'_> {
    fn print(&mut self, line: std::fmt::Arguments<'_>) {
        if self.broken.is_none() {
            self.broken = writeln!(self.out, "{line}").err();
        }
    }

    fn json<T: serde::Serialize>(&mut self, value: &T) {
        match serde_json::to_string(value) {
            Ok(line) => self.print(format_args!("{line}")),
            Err(error) => self.broken = Some(error.into()),
        }
    }

    fn head(&mut self, columns: &[&str; 6]) {
        if self.output == Output::Table {
            let [server, change, reason, at, offset, event] = columns;
            self.print(format_args!("{server:<32} {change:<16} {reason:<18} {at:<28} {offset:>12} {event}"));
        }
    }

    fn told(&mut self, told: &Told) {
        if self.output == Output::Json {
            return self.json(told);
        }
        let server = told.mcp_server.as_deref().unwrap_or("-").escape_debug().to_string();
        let (change, reason) = told.what.words();
        self.print(format_args!("{server:<32} {change:<16} {reason:<18} {:<28} {:>12} {}", told.at, told.offset, told.event));
    }

    fn dead(&mut self, reader: &Reader) {
        let mut dead: Vec<Verdict<'_>> = reader.classifier().dead().collect();
        dead.sort_by_key(|verdict| verdict.mcp_server);
        if self.output == Output::Json {
            for verdict in &dead {
                self.json(verdict);
            }
            return;
        }
        self.print(format_args!("{:<32} {:<18} {:<28} {:>12} EVENT", "MCP_SERVER", "REASON", "AT", "OFFSET"));
        for verdict in dead {
            let Verdict { mcp_server, reason, at, offset, event, .. } = verdict;
            // Of all characters that could break the table only a last newline can be in an id.
            let mcp_server = mcp_server.escape_debug().to_string();
            self.print(format_args!("{mcp_server:<32} {reason:<18} {at:<28} {offset:>12} {event}"));
        }
    }

    fn end(self) -> Result<(), ClassifyError> {
        let flushed = match self.broken {
            Some(error) => Err(error),
            None => self.out.flush(),
        };
        match flushed {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ClassifyError::Print(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
