//! A run's settings as they were written: one file, and `--set` arguments laid over it.
//!
//! ```text
//! text ─► toml ─► --set overrides ─► tree ─► any struct        unknown keys are refused
//!                                     └────► value_error       later: "5 does not divide 256"
//! ```
//!
//! The tree remembers where each key and value was written. Whatever is found wrong, while
//! reading or when the model is built, is shown at that place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::DeTable;

use super::error::ConfigError;
use super::overrides::{DroppedKey, Override, PREFIX};
use super::report::{FILE, Report, Source, Span};
use super::tree::{Node, Reader, Table};
use super::{base, de};

/// A longer value is not repeated in a message.
const MAX_SHOWN: usize = 40;

/// The text of a configuration and the command line's changes to it.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    path: PathBuf,
    sources: Arc<[Source]>,
    /// The root of the tree.
    table: Table,
    dropped: Vec<DroppedKey>,
}

impl ConfigSource {
    /// Reads the file at `path`. An override is what follows `--set`: `model.d_model=256`.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let bytes = fs::read(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        let text = str::from_utf8(&bytes)
            .map_err(|error| ConfigError::not_utf8(path, &bytes, error.valid_up_to()))?;
        Self::parse(path, text, overrides)
    }

    /// The same for a text that is in memory; `path` only names it.
    pub fn parse(path: &Path, text: &str, overrides: &[String]) -> Result<Self, ConfigError> {
        let file = Source { path: Some(path.display().to_string()), text: text.to_string() };
        let typed = |text: &String| Source { path: None, text: format!("{PREFIX}{text}") };
        let sources: Arc<[Source]> =
            [file].into_iter().chain(overrides.iter().map(typed)).collect();
        let (table, dropped) =
            merge(&sources).map_err(|report| ConfigError::new(report, &sources))?;
        Ok(Self { path: path.to_path_buf(), sources, table, dropped })
    }

    /// The same settings, with what they leave out taken from the TOML in `base`, which `origin` names
    /// in messages.
    pub fn filled_in(self, origin: &str, base: &str) -> Result<Self, ConfigError> {
        let Self { path, sources, mut table, dropped } = self;
        let reader = Reader { source: sources.len(), offset: 0 };
        let base = Source { path: Some(origin.to_owned()), text: base.to_owned() };
        let sources: Arc<[Source]> = sources.iter().cloned().chain([base]).collect();
        let text = &sources[reader.source].text;
        let parsed = DeTable::parse(text).map_err(|error| syntax_error(reader, text, &error));
        let read = parsed.and_then(|parsed| reader.table(parsed.into_inner()));
        base::fill_in(&mut table, read.map_err(|report| ConfigError::new(report, &sources))?);
        Ok(Self { path, sources, table, dropped })
    }

    /// Reads the settings into a struct. Its types decide which keys and values are valid.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        de::from_table(&self.table)
            .map_err(|fault| self.error(fault.report(&self.table, |node| self.shown(node))))
    }

    /// The file that this was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the file, as it was given.
    pub fn text(&self) -> &str {
        &self.sources[FILE].text
    }

    /// The keys of the file that a change of `kind` on the command line has dropped.
    pub fn dropped_keys(&self) -> &[DroppedKey] {
        &self.dropped
    }

    /// An error about the value of `key`, as in `model.n_heads`, shown where it was written.
    ///
    /// A key that was left at its default is shown at the table that it belongs to.
    pub fn value_error(&self, key: &str, message: &str) -> ConfigError {
        self.conflict_error(&[key], message)
    }

    /// An error about the values of several keys, the most important first.
    pub fn conflict_error(&self, keys: &[&str], message: &str) -> ConfigError {
        let written = keys.iter().filter_map(|key| self.table.find(key));
        let report = Report::new(message).mark_all(written.map(|node| &node.span));
        let first = keys.first().filter(|_| report.marks.is_empty());
        let around = first.and_then(|key| Some((key, self.table.nearest(key)?)));
        self.error(match around {
            Some((key, node)) => report.label(&node.span, format!("`{key}` has its default value")),
            None => report,
        })
    }

    fn error(&self, report: Report) -> ConfigError {
        ConfigError::new(report, &self.sources)
    }

    /// " = 5" if the value is short, else " is an array".
    fn shown(&self, node: &Node) -> String {
        let Span { source, range } = &node.span;
        let text = self.sources[*source].text.get(range.clone()).unwrap_or_default();
        let short = !text.contains(char::is_control) && text.chars().count() <= MAX_SHOWN;
        if short && node.as_table().is_none() {
            format!(" = {text}")
        } else {
            format!(" is {}", node.type_name())
        }
    }
}

/// The tree of the file with the other sources laid over it, and what they drop.
fn merge(sources: &[Source]) -> Result<(Table, Vec<DroppedKey>), Report> {
    let file = Reader { source: FILE, offset: 0 };
    let text = &sources[FILE].text;
    let parsed = DeTable::parse(text).map_err(|error| syntax_error(file, text, &error))?;
    let mut table = file.table(parsed.into_inner())?;
    let mut dropped = Vec::new();
    for change in last_overrides(sources)? {
        dropped.extend(change.apply(&mut table)?);
    }
    Ok((table, dropped))
}

/// Of several overrides of one key, the last.
fn last_overrides(sources: &[Source]) -> Result<Vec<Override>, Report> {
    let mut overrides: Vec<Override> = Vec::new();
    for (index, source) in sources.iter().enumerate().skip(FILE + 1) {
        let change = Override::parse(index, &source.text)?;
        overrides.retain(|earlier| !earlier.same_path(&change));
        overrides.push(change);
    }
    Ok(overrides)
}

/// The parser's message; where it takes an unquoted word for half a boolean, ours.
fn syntax_error(reader: Reader, text: &str, error: &toml::de::Error) -> Report {
    let span = error.span().unwrap_or_default();
    let at = text.get(span.clone()).unwrap_or_default();
    let rule = error.message();
    let unquoted =
        rule.starts_with("string values must be quoted") || rule.starts_with("invalid boolean");
    let report = match (unquoted, at) {
        (true, "") => Report::new("invalid TOML: expected a value"),
        (true, _) => Report::new("invalid TOML: expected a value; a string stands in quotes"),
        (false, _) => Report::new(format!("invalid TOML: {rule}")),
    };
    report.mark(&reader.span(span))
}

/// The settings with every default written out, for a run's `resolved.toml`.
///
/// Tables follow the plain values, `kind` comes first, and reading it back gives `config` again.
pub fn to_resolved_toml<T: Serialize>(config: &T) -> Result<String, ConfigError> {
    toml::to_string(config).map_err(ConfigError::unwritable)
}

#[cfg(test)]
mod tests;
