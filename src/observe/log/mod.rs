//! Hangar's log: follow the file ([`tail`]) or the journal ([`journal`]), unwrap what a container runtime or a journal put around each line
//! ([`frame`]), and tell deaths from noise ([`classify`]).
//!
//! Upstream text can be anywhere in that log, so nothing here searches for words: a line counts only if it parses as
//! a record of Hangar's and its `event`, `logger` and `level` belong together.

pub mod classify;
mod console;
pub mod frame;
pub mod journal;
pub mod record;
pub mod split;
pub mod tail;
pub mod told;

pub use classify::{Change, Classifier, Told, Verdict};
pub use frame::{Form, Frames, Inner, InputFormat};
pub use split::Splitter;
pub use tail::{Checkpoint, FileId, Follower, ServerState, Tail, Update, follow};

/// One source of log lines: its frames and its state machine.
#[derive(Debug)]
pub struct Reader {
    frames: Frames,
    classifier: Classifier,
}

impl Reader {
    /// A reader that has seen nothing yet.
    #[must_use]
    pub fn new(format: InputFormat) -> Self {
        Self { frames: Frames::new(format), classifier: Classifier::new() }
    }

    /// Goes on from `saved`, over the same source.
    #[must_use]
    pub fn restored_from(saved: ReaderState, format: InputFormat) -> Self {
        Self { frames: Frames::restored_from(saved.frames, format), classifier: Classifier::restored_from(saved.classifier) }
    }

    /// What to go on from after a restart.
    pub fn save(&self) -> ReaderState {
        ReaderState { frames: self.frames.save(), classifier: self.classifier.save() }
    }

    /// Takes one line of the source (without its newline) that began at `offset`, and tells what it says.
    pub fn line(&mut self, line: &[u8], offset: u64, tell: &mut dyn FnMut(Told)) {
        let Self { frames, classifier } = self;
        frames.line(line, offset, &mut |inner| match inner {
            Inner::Line { form, line, offset } => classifier.feed(form, line, offset, tell),
            Inner::Mistaken => {
                *classifier = Classifier::starting_in(classifier.file());
                tell(Told::retraction(classifier.file(), offset));
            }
        });
    }

    /// The lines to come are from `file`.
    pub const fn in_file(&mut self, file: FileId) {
        self.classifier.in_file(file);
    }

    /// What the log shows at its end so far.
    pub const fn classifier(&self) -> &Classifier {
        &self.classifier
    }

    /// What was counted while unwrapping.
    pub const fn counts(&self) -> frame::FrameCounts {
        self.frames.counts()
    }
}

/// A [`Reader`]'s state, to go on from after a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReaderState {
    frames: frame::Recognised,
    classifier: classify::Saved,
}

/// Entry point for fuzzing: any bytes, as a file of any form.
#[doc(hidden)]
pub fn fuzz_log(data: &[u8]) {
    for format in [InputFormat::Auto, InputFormat::Json, InputFormat::Console, InputFormat::Cri, InputFormat::Docker, InputFormat::Journald]
    {
        let (mut reader, mut splitter) = (Reader::new(format), Splitter::default());
        let mut line = |offset: u64, line: &[u8]| reader.line(line, offset, &mut |_| {});
        splitter.feed(data, &mut line);
        splitter.finish(&mut line);
    }
}

/// Entry point for fuzzing: one line straight into the state machine.
#[doc(hidden)]
pub fn fuzz_classify(line: &[u8]) {
    let mut classifier = Classifier::new();
    for form in [Form::Json, Form::Console] {
        classifier.line(form, line, 0).for_each(drop);
    }
}
