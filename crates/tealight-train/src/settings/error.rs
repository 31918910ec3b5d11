//! The error about a configuration, shown at the line that causes it.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::render;
use super::report::{Report, Source};

/// An error in a configuration.
///
/// `Display` writes it as a compiler does: several lines, the first of which begins with "error: ".
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", render::plain(.report, .sources))]
pub struct ConfigError {
    report: Box<Report>,
    sources: Arc<[Source]>,
}

impl ConfigError {
    /// The broken rule, on one line: "unknown key `d_modle` in `[model]`".
    pub fn message(&self) -> &str {
        &self.report.message
    }

    /// `Display` with terminal colors.
    pub fn in_color(&self) -> String {
        render::styled(&self.report, &self.sources)
    }

    pub(super) fn new(report: Report, sources: &Arc<[Source]>) -> Self {
        Self { report: Box::new(report), sources: Arc::clone(sources) }
    }

    /// `path` cannot be read.
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
