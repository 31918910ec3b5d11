//! An error message with the places in the sources that it refers to.

use std::ops::Range;

use annotate_snippets::Level;

/// The index of the file among the sources; `--set` arguments follow.
pub(super) const FILE: usize = 0;

/// Longer lists of valid names are left out.
const MAX_LISTED: usize = 50;

/// A range of bytes in one of the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) source: usize,
    pub(super) range: Range<usize>,
}

/// A text with settings: the file, or a `--set` argument.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The path of a file; `None` for a `--set` argument.
    pub(super) path: Option<String>,
    pub(super) text: String,
}

/// A message and the places that it refers to, the main one first.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) message: String,
    pub(super) marks: Vec<Mark>,
    /// Help and notes below the marked lines.
    pub(super) notes: Vec<(Level<'static>, String)>,
    /// The dotted key of the setting, or of its table, that the message is about.
    pub(super) key: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) span: Span,
    pub(super) label: Option<String>,
}

impl Report {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), marks: Vec::new(), notes: Vec::new(), key: None }
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

    /// The report is about the setting at this dotted key.
    pub(super) fn about(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into()).filter(|key: &String| !key.is_empty());
        self
    }

    pub(super) fn help(mut self, text: impl Into<String>) -> Self {
        self.notes.push((Level::HELP, text.into()));
        self
    }

    pub(super) fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push((Level::NOTE, text.into()));
        self
    }

    /// Adds a note with the valid names, unless there are none or more than [`MAX_LISTED`].
    pub(super) fn list(self, what: &str, names: &[impl AsRef<str>]) -> Self {
        if names.is_empty() || names.len() > MAX_LISTED {
            return self;
        }
        let names: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
        self.note(format!("the {what} are {}", names.join(", ")))
    }
}
