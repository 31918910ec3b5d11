//! An error message with the places that it refers to.

use std::ops::Range;

/// The index of the file among the sources; `--set` arguments follow.
pub(super) const FILE: usize = 0;

/// Names are listed in a note if there are no more than this.
const MAX_LISTED: usize = 25;

/// A stretch of bytes in one of the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) source: usize,
    pub(super) range: Range<usize>,
}

/// A text that settings come from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The path of a file; none for a `--set` argument, whose text says it.
    pub(super) path: Option<String>,
    pub(super) text: String,
}

/// A message and the places that it speaks of. The first is where to look.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) message: String,
    pub(super) marks: Vec<Mark>,
    pub(super) notes: Vec<Note>,
}

#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) span: Span,
    pub(super) label: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Note {
    Help(String),
    Note(String),
}

impl Report {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), marks: Vec::new(), notes: Vec::new() }
    }

    pub(super) fn mark(self, span: &Span) -> Self {
        self.mark_all([span])
    }

    pub(super) fn mark_all<'a>(mut self, spans: impl IntoIterator<Item = &'a Span>) -> Self {
        self.marks.extend(spans.into_iter().map(|span| Mark { span: span.clone(), label: None }));
        self
    }

    pub(super) fn label(mut self, span: &Span, label: impl Into<String>) -> Self {
        self.marks.push(Mark { span: span.clone(), label: Some(label.into()) });
        self
    }

    pub(super) fn help(mut self, text: impl Into<String>) -> Self {
        self.notes.push(Note::Help(text.into()));
        self
    }

    pub(super) fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(Note::Note(text.into()));
        self
    }

    /// Says what the valid names are, unless there are none or too many to read.
    pub(super) fn list(self, what: &str, names: &[String]) -> Self {
        if names.is_empty() || names.len() > MAX_LISTED {
            return self;
        }
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        self.note(format!("the {what} are {}", names.join(", ")))
    }
}
