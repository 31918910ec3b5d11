//! The error about a configuration, shown at the line that causes it.

use std::sync::Arc;

use annotate_snippets::Renderer;

use super::render::group;
use super::report::{Report, Source};

/// An error in a configuration.
///
/// `Display` writes it as a compiler does, in several lines; the first line begins with "error: ".
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", Renderer::plain().render(&[group(.report, .sources)]))]
pub struct ConfigError {
    report: Box<Report>,
    sources: Arc<[Source]>,
}

impl ConfigError {
    /// The broken rule, on one line: "unknown key `d_modle` in `[model]`".
    pub fn message(&self) -> &str {
        &self.report.message
    }

    /// The dotted key of the setting that the error is about, or of its table.
    pub fn key(&self) -> Option<&str> {
        self.report.key.as_deref()
    }

    /// Help and notes, such as "did you mean `d_model`?".
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.report.notes.iter().map(|(_, text)| text.as_str())
    }

    /// The error with a further line of help.
    #[must_use]
    pub fn with_help(&self, text: impl Into<String>) -> Self {
        Self::new((*self.report).clone().help(text), &self.sources)
    }

    /// `Display` with terminal colors.
    pub fn in_color(&self) -> String {
        Renderer::styled().render(&[group(&self.report, &self.sources)])
    }

    pub(super) fn new(report: Report, sources: &Arc<[Source]>) -> Self {
        Self { report: Box::new(report), sources: Arc::clone(sources) }
    }

    /// An error that belongs to no line.
    pub(super) fn without_source(message: String) -> Self {
        Self::new(Report::new(message), &Arc::default())
    }
}
