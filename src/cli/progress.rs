//! How far a long command is: on stderr, and only when a person looks at it.

use std::io::{self, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A percentage that is redrawn when it moves. Silent where stderr is no terminal.
pub struct Meter {
    what: &'static str,
    shown: Option<u64>,
    visible: bool,
}

impl Meter {
    /// `what` is the word before the number: `read`, `verified`.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, shown: None, visible: io::stderr().is_terminal() }
    }

    /// `done` of `total`; without a total nothing is shown.
    pub fn at(&mut self, done: u64, total: u64) {
        let Some(percent) = done.saturating_mul(100).checked_div(total) else { return };
        if self.visible && self.shown != Some(percent) {
            self.shown = Some(percent);
            let _ = write!(io::stderr(), "\r{} {percent} %", self.what);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = writeln!(io::stderr());
        }
    }
}

/// Bytes that went through a reader, seen from outside of it.
#[derive(Debug, Clone, Default)]
pub struct Bytes(Arc<AtomicU64>);

impl Bytes {
    /// So far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A reader that counts.
#[derive(Debug)]
pub struct Counted<R> {
    inner: R,
    bytes: Bytes,
}

impl<R> Counted<R> {
    /// Counts into `bytes`.
    pub fn new(inner: R, bytes: Bytes) -> Self {
        Self { inner, bytes }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.bytes.0.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}
