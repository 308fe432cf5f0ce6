//! Bytes into lines, bounded.

use super::frame::LINE_MAX;

/// Splits a stream of chunks into lines. A line that lies within one chunk is not copied.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The unfinished line.
    partial: Vec<u8>,
    /// Offset of the next byte to come.
    position: u64,
    /// Inside a line beyond [`LINE_MAX`].
    skipping: bool,
    too_long: u64,
}

impl Splitter {
    /// A splitter whose first byte is at `position` of its source, `skipping` if that is inside an overlong line.
    #[must_use]
    pub const fn at(position: u64, skipping: bool) -> Self {
        Self { partial: Vec::new(), position, skipping, too_long: 0 }
    }

    /// Offset of the next byte to be fed.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Offset of the first byte that no told line held; where a reader that starts again has to begin.
    pub fn told_to(&self) -> u64 {
        self.position - self.partial.len() as u64
    }

    /// Whether the next byte is inside a line that is being skipped.
    pub const fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// Lines skipped for their length.
    pub const fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Takes the next bytes and tells each line that they complete: its offset and its bytes without the newline.
    /// NUL bytes before a line are dropped: a writer without `O_APPEND` leaves a hole when its file is truncated.
    pub fn feed(&mut self, chunk: &[u8], tell: &mut dyn FnMut(u64, &[u8])) {
        let mut begin = 0;
        for newline in memchr::memchr_iter(b'\n', chunk) {
            let piece = chunk.get(begin..newline).unwrap_or_default();
            let offset = self.position;
            self.position += piece.len() as u64 + 1;
            begin = newline + 1;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.partial.is_empty() {
                self.whole(offset, piece, tell);
                continue;
            }
            let offset = offset - self.partial.len() as u64;
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(piece);
            self.whole(offset, &line, tell);
            line.clear();
            line.shrink_to(64 * 1024);
            self.partial = line;
        }
        self.keep(chunk.get(begin..).unwrap_or_default());
    }

    /// The source is complete: its last line may have no newline.
    pub fn finish(&mut self, tell: &mut dyn FnMut(u64, &[u8])) {
        let line = std::mem::take(&mut self.partial);
        if !line.is_empty() {
            self.whole(self.position - line.len() as u64, &line, tell);
        }
        self.skipping = false;
    }

    fn whole(&mut self, offset: u64, line: &[u8], tell: &mut dyn FnMut(u64, &[u8])) {
        let nuls = leading_nuls(line);
        let line = line.get(nuls..).unwrap_or_default();
        if line.len() > LINE_MAX {
            self.too_long += 1;
        } else {
            tell(offset + nuls as u64, line);
        }
    }

    fn keep(&mut self, rest: &[u8]) {
        self.position += rest.len() as u64;
        if self.skipping {
            return;
        }
        let rest = if self.partial.is_empty() { rest.get(leading_nuls(rest)..).unwrap_or_default() } else { rest };
        if self.partial.len() + rest.len() > LINE_MAX {
            self.partial = Vec::new();
            self.skipping = true;
            self.too_long += 1;
        } else {
            self.partial.extend_from_slice(rest);
        }
    }
}

fn leading_nuls(line: &[u8]) -> usize {
    match line.first() {
        Some(0) => line.iter().position(|b| *b != 0).unwrap_or(line.len()),
        _ => 0,
    }
}
