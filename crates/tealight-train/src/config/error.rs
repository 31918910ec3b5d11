//! What is wrong with a configuration, shown where it was written.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::render;
use super::tree::Span;

/// Names are listed in a note if there are no more than this.
const MAX_LISTED: usize = 25;

/// Something is wrong with a configuration.
///
/// `Display` is the whole message as a compiler would show it, over several lines and beginning
/// with "error: ".
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", render::plain(.report, .sources))]
pub struct ConfigError {
    report: Box<Report>,
    sources: Arc<[Source]>,
}

impl ConfigError {
    /// The rule that was broken, on one line: "unknown key `d_modle` in `[model]`".
    pub fn message(&self) -> &str {
        &self.report.message
    }

    /// The same as `Display`, with the colors of a terminal.
    pub fn in_color(&self) -> String {
        render::styled(&self.report, &self.sources)
    }

    pub(super) fn new(report: Report, sources: &Arc<[Source]>) -> Self {
        Self { report: Box::new(report), sources: Arc::clone(sources) }
    }

    /// A file that cannot be read has no text to show.
    pub(super) fn unreadable(path: &Path, reason: &io::Error) -> Self {
        let report = Report::new(format!("cannot read `{}`: {reason}", path.display()));
        Self::new(report, &Arc::default())
    }

    pub(super) fn not_utf8(path: &Path, bytes: &[u8], valid: usize) -> Self {
        let line = bytes[..valid].split(|byte| *byte == b'\n').count();
        let place = format!("byte {valid}, on line {line}");
        let report = Report::new(format!("`{}` is not UTF-8 text: {place}", path.display()));
        Self::new(report, &Arc::default())
    }

    pub(super) fn unwritable(reason: impl fmt::Display) -> Self {
        let report = Report::new(format!("the configuration cannot be written as TOML: {reason}"));
        Self::new(report, &Arc::default())
    }
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
