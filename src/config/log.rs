//! The words of the `log:` section.

use std::fmt;
use std::str::FromStr;

use crate::policy::UnknownWord;

/// Least severe line that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

/// Form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    Json,
    #[default]
    Logfmt,
    /// For a person at a terminal.
    Pretty,
}

impl LogLevel {
    /// Every level, the most severe first.
    pub const ALL: &'static [Self] = &[Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The word in the file, on the command line and in a `tracing` filter.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl LogFormat {
    /// Every format.
    pub const ALL: &'static [Self] = &[Self::Json, Self::Logfmt, Self::Pretty];

    /// The word in the file and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Logfmt => "logfmt",
            Self::Pretty => "pretty",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for LogLevel {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let found = Self::ALL.iter().copied().find(|l| l.as_str() == word);
        found.ok_or_else(|| UnknownWord::new("log level", word, Self::ALL.iter().map(|l| l.as_str())))
    }
}

impl FromStr for LogFormat {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let found = Self::ALL.iter().copied().find(|f| f.as_str() == word);
        found.ok_or_else(|| UnknownWord::new("log format", word, Self::ALL.iter().map(|f| f.as_str())))
    }
}
