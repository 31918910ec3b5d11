//! The settings of a run: one TOML file, overridden by `--set` arguments.
//!
//! ```text
//! text ─► toml ─► --set overrides ─► tree ─► any struct        refuses unknown keys
//!                                     └────► conflict_error    checked later: "5 does not divide 256"
//! ```
//!
//! The tree keeps the place of each key and value: every error, from parsing to building the model, is shown
//! there.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::DeTable;

use super::error::ConfigError;
use super::fault::SettingFault;
use super::overrides::{DroppedKey, Override, PREFIX};
use super::report::{FILE, Report, Source, Span};
use super::tree::{Node, Reader, Table};
use super::{base, de};

/// Longer values are not repeated in messages.
const MAX_SHOWN: usize = 40;

/// A configuration file with the `--set` arguments applied to it.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    sources: Arc<[Source]>,
    /// The root of the tree.
    table: Table,
    /// The keys of the file that were dropped because the command line changes a `kind`.
    pub dropped_keys: Vec<DroppedKey>,
}

impl ConfigSource {
    /// The most bytes of a file.
    pub const MAX_BYTES: u64 = 1 << 24;

    /// Reads the file at `path`. `overrides` are the arguments of `--set`: `model.d_model=256`.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let file = path.display();
        let mut bytes = Vec::new();
        let read = File::open(path)
            .and_then(|file| file.take(Self::MAX_BYTES + 1).read_to_end(&mut bytes));
        read.map_err(|error| {
            ConfigError::without_source(format!("cannot read `{file}`: {error}"))
        })?;
        if bytes.len() as u64 > Self::MAX_BYTES {
            let limit = Self::MAX_BYTES;
            let rule =
                format!("`{file}` has more than the {limit} bytes that a configuration may have");
            return Err(ConfigError::without_source(rule));
        }
        Self::from_bytes(path, &bytes, overrides)
    }

    /// [`Self::read`] for bytes in memory; `path` is their name in messages.
    pub fn from_bytes(
        path: &Path,
        bytes: &[u8],
        overrides: &[String],
    ) -> Result<Self, ConfigError> {
        let file = path.display();
        let text = str::from_utf8(bytes).map_err(|error| {
            let valid = error.valid_up_to();
            let line = bytes[..valid].split(|byte| *byte == b'\n').count();
            let place = format!("byte {valid}, on line {line}");
            ConfigError::without_source(format!("`{file}` is not UTF-8 text: {place}"))
        })?;
        Self::parse(path, text, overrides)
    }

    /// [`Self::read`] for a text in memory; `path` is its name in messages.
    pub fn parse(path: &Path, text: &str, overrides: &[String]) -> Result<Self, ConfigError> {
        let file = Source { path: Some(path.display().to_string()), text: text.to_string() };
        let typed = |text: &String| Source { path: None, text: format!("{PREFIX}{text}") };
        let sources: Arc<[Source]> =
            [file].into_iter().chain(overrides.iter().map(typed)).collect();
        let (table, dropped_keys) =
            merge(&sources).map_err(|report| ConfigError::new(report, &sources))?;
        Ok(Self { sources, table, dropped_keys })
    }

    /// These settings with missing keys taken from the TOML in `base`; `origin` is its name in messages.
    pub fn filled_in(self, origin: &str, base: &str) -> Result<Self, ConfigError> {
        let Self { sources, mut table, dropped_keys } = self;
        let index = sources.len();
        let base = Source { path: Some(origin.to_owned()), text: base.to_owned() };
        let sources: Arc<[Source]> = sources.iter().cloned().chain([base]).collect();
        let base = parse(index, &sources[index].text);
        base::fill_in(&mut table, base.map_err(|report| ConfigError::new(report, &sources))?);
        Ok(Self { sources, table, dropped_keys })
    }

    /// Deserialises all settings. The types of `T` decide which keys and values are valid.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.deserialize_with(|_| None)
    }

    /// [`Self::deserialize`]; `elsewhere` is the whole key of a setting that is called like an unknown one at the top.
    pub(crate) fn deserialize_with<T: DeserializeOwned>(
        &self,
        elsewhere: impl Fn(&str) -> Option<String>,
    ) -> Result<T, ConfigError> {
        let fault =
            |fault: SettingFault| self.error(fault.report(|node| self.shown(node), elsewhere));
        de::from_table(&self.table).map_err(fault)
    }

    /// Deserialises the setting at a dotted `key` alone, as in `init_from`; `None` if it is not written.
    pub fn value<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let value = self.table.find(key).map(|node| de::from_node(node, key));
        value.transpose().map_err(|fault| self.fault(fault))
    }

    /// The kind of the choice at a dotted `key`, `kind = "…"` or its short form; `None` if it is not written.
    pub fn kind(&self, key: &str) -> Option<&str> {
        self.table.find(key)?.kind()
    }

    /// The text of the file, without overrides.
    pub fn text(&self) -> &str {
        &self.sources[FILE].text
    }

    /// An error about the values of `keys`, as in `model.n_heads`, the most important first. It is shown at these
    /// values; if none is written, at the table around the first.
    pub fn conflict_error(&self, keys: &[&str], message: &str) -> ConfigError {
        let written = keys.iter().filter_map(|key| self.table.find(key));
        let report = Report::new(message).mark_all(written.map(|node| &node.span));
        let report = report.about(keys.first().copied().unwrap_or_default());
        let first = keys.first().filter(|_| report.marks.is_empty());
        let around = first.and_then(|key| Some((key, self.table.nearest(key)?)));
        self.error(match around {
            Some((key, node)) => report.label(&node.span, format!("`{key}` has its default value")),
            None => report,
        })
    }

    fn fault(&self, fault: SettingFault) -> ConfigError {
        self.error(fault.report(|node| self.shown(node), |_| None))
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

/// The tree of the file with the overrides applied, and the keys that they drop.
fn merge(sources: &[Source]) -> Result<(Table, Vec<DroppedKey>), Report> {
    let mut table = parse(FILE, &sources[FILE].text)?;
    let mut dropped = Vec::new();
    for change in last_overrides(sources)? {
        dropped.extend(change.apply(&mut table)?);
    }
    Ok((table, dropped))
}

/// The tree of a whole source.
fn parse(source: usize, text: &str) -> Result<Table, Report> {
    let reader = Reader { source, offset: 0 };
    let parsed = DeTable::parse(text).map_err(|error| syntax_error(reader, text, &error))?;
    reader.table("", parsed.into_inner())
}

/// The overrides in order; of several for one key, the last.
fn last_overrides(sources: &[Source]) -> Result<Vec<Override>, Report> {
    let mut overrides: Vec<Override> = Vec::new();
    for (index, source) in sources.iter().enumerate().skip(FILE + 1) {
        let change = Override::parse(index, &source.text)?;
        overrides.retain(|earlier| !earlier.same_path(&change));
        overrides.push(change);
    }
    Ok(overrides)
}

/// The parser's message, or our own for a missing or unquoted value: the parser reads a word as a boolean or a
/// number, by its first letter.
fn syntax_error(reader: Reader, text: &str, error: &toml::de::Error) -> Report {
    let span = error.span().unwrap_or_default();
    let (before, after) = text.split_at_checked(span.start).unwrap_or_default();
    let is_value = before.trim_end().ends_with('=');
    let rule = match after.lines().next().unwrap_or_default().trim_start().chars().next() {
        None | Some('#') if is_value => "expected a value",
        Some(first) if is_value && first.is_alphabetic() => "expected a value; strings need quotes",
        _ => error.message(),
    };
    Report::new(format!("invalid TOML: {rule}")).mark(&reader.span(span))
}

/// The settings with every default written out, for a run's `resolved.toml`.
///
/// Tables follow the plain values and `kind` comes first. Deserialising the text gives `config` again.
pub fn to_resolved_toml<T: Serialize>(config: &T) -> Result<String, ConfigError> {
    toml::to_string(config).map_err(|error| {
        let message = format!("the configuration cannot be written as TOML: {error}");
        ConfigError::without_source(message)
    })
}

#[cfg(test)]
mod tests;
