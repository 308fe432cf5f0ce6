//! Colours, where a person looks at a terminal and did not ask for none.

use std::io::{self, IsTerminal};

use anstyle::{AnsiColor, Style};

/// What a piece of text says by its colour. It never says it by its colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Good,
    Warn,
    Bad,
    Quiet,
    Strong,
}

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// No colours.
    #[must_use]
    pub const fn plain() -> Self {
        Self { on: false }
    }

    /// Colours where stdout is a terminal, unless `NO_COLOR` is set and not empty (no-color.org) or `TERM` is `dumb`.
    #[must_use]
    pub fn for_stdout() -> Self {
        Self {
            on: wanted(io::stdout().is_terminal(), |name| {
                std::env::var_os(name).is_some_and(|v| !v.is_empty() && (name != "TERM" || v == "dumb"))
            }),
        }
    }

    /// The text in its colour. Pad before: escapes have no width.
    #[must_use]
    pub fn of(self, tone: Tone, text: &str) -> String {
        if !self.on {
            return text.to_owned();
        }
        let style = match tone {
            Tone::Good => Style::new().fg_color(Some(AnsiColor::Green.into())),
            Tone::Warn => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
            Tone::Bad => Style::new().fg_color(Some(AnsiColor::Red.into())).bold(),
            Tone::Quiet => Style::new().dimmed(),
            Tone::Strong => Style::new().bold(),
        };
        format!("{style}{text}{style:#}")
    }
}

/// `is_set`: whether that variable speaks against colours.
fn wanted(terminal: bool, is_set: impl Fn(&str) -> bool) -> bool {
    terminal && !is_set("NO_COLOR") && !is_set("TERM")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_a_terminal_that_wants_them() {
        assert!(wanted(true, |_| false));
        assert!(!wanted(false, |_| false));
        assert!(!wanted(true, |name| name == "NO_COLOR") && !wanted(true, |name| name == "TERM"));
        assert_eq!(Paint::plain().of(Tone::Bad, "x"), "x");
        assert_eq!(Paint { on: true }.of(Tone::Good, "x"), "\u{1b}[32mx\u{1b}[0m");
    }
}
