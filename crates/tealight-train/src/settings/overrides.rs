//! `--set key.path=value`: a setting on the command line that overrides the file.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::{FILE, Report, Span};
use super::tree::{Node, Reader, Table, Value, quoted_key};

/// Precedes the argument in its source text, so that messages show it as typed.
pub(super) const PREFIX: &str = "--set ";

/// A key of the file that is dropped because `--set …kind=…` selects another kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedKey {
    /// The dotted path, as in `model.attention.n_landmarks`.
    pub key: String,
    /// The kind in the file, to which the key belongs.
    pub old_kind: String,
    /// The kind on the command line.
    pub new_kind: String,
}

impl std::fmt::Display for DroppedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, old_kind, new_kind } = self;
        write!(f, "`{key}` is dropped: it belongs to kind `{old_kind}`, and `{new_kind}` is set")
    }
}

/// A parsed `--set` argument.
#[derive(Debug)]
pub(super) struct Override {
    /// The keys of the path, at least one, with their places.
    path: Vec<(String, Span)>,
    value: Node,
}

impl Override {
    /// Parses the source `text`: [`PREFIX`] and the argument.
    pub(super) fn parse(source: usize, text: &str) -> Result<Self, Report> {
        let typed = &text[PREFIX.len()..];
        let whole = Span { source, range: PREFIX.len()..text.len() };
        let reader = Reader { source, offset: PREFIX.len() };
        // Quotes may hold another `=`: only the text before the right one is a key.
        let mut sides = typed.match_indices('=').map(|(at, _)| (&typed[..at], &typed[at + 1..]));
        let parsed = sides.find_map(|(key, raw)| Some((parse_path(reader, key)?, raw)));
        let (path, raw) = parsed.ok_or_else(|| {
            let has_equals = typed.contains('=');
            let expected = if has_equals { "a key before `=`" } else { "`--set key.path=value`" };
            Report::new(format!("expected {expected}")).mark(&whole)
        })?;
        let offset = text.len() - raw.trim_start().len();
        let names: Vec<String> = path.iter().map(|(key, _)| quoted_key(key)).collect();
        let value = parse_value(Reader { source, offset }, &names.join("."), raw.trim())?;
        Ok(Self { path, value })
    }

    pub(super) fn same_path(&self, other: &Self) -> bool {
        self.path.iter().map(|(key, _)| key).eq(other.path.iter().map(|(key, _)| key))
    }

    /// Sets the value in `root`. Returns the keys of the file that a change of `kind` drops.
    pub(super) fn apply(self, root: &mut Table) -> Result<Vec<DroppedKey>, Report> {
        let Self { mut path, value } = self;
        let (mut key, key_span) = path.pop().expect("invariant: a path has a key");
        let mut table = root;
        let mut names: Vec<String> = Vec::new();
        for (parent, span) in &path {
            names.push(quoted_key(parent));
            table = descend(table, parent, span, &names)?;
        }
        // A string in place of a table is the short form of its kind: `--set model.attention=softmax`.
        let old = table.get(&key).and_then(|entry| entry.node.as_table());
        if old.is_some() && value.as_str().is_some() {
            names.push(quoted_key(&key));
            table = descend(table, &key, &key_span, &names)?;
            key = "kind".to_string();
        }
        let dropped = swap_kind(table, &key, &value, &names);
        *table.node_mut(&key, &key_span) = value;
        Ok(dropped)
    }
}

/// Parses a dotted key as the key of a one-line TOML document.
fn parse_path(reader: Reader, key: &str) -> Option<Vec<(String, Span)>> {
    if key.contains(['\n', '\r']) {
        return None;
    }
    let line = format!("{key}=0");
    let mut table = DeTable::parse(&line).ok()?.into_inner();
    let mut path = Vec::new();
    loop {
        let (key, value) = table.into_iter().next()?;
        path.push((key.get_ref().to_string(), reader.span(key.span())));
        match value.into_inner() {
            DeValue::Table(inner) => table = inner,
            _ => return Some(path),
        }
    }
}

/// Parses the TOML value of `key`, or takes a bare word as a string.
fn parse_value(reader: Reader, key: &str, text: &str) -> Result<Node, Report> {
    let span = reader.span(0..text.len());
    match DeValue::parse(text) {
        Ok(value) => reader.node(key, Spanned::new(0..text.len(), value.into_inner())),
        Err(_) if is_word(text) || is_assignment(text) => {
            Ok(Node { span, value: Value::String(text.to_string()) })
        }
        Err(_) if text.is_empty() => Err(Report::new("expected a value after `=`").mark(&span)),
        Err(error) => Err(Report::new(format!("not a TOML value: {}", error.message()))
            .mark(&span)
            .help("text of several words or with signs needs quotes: `name='\"two words\"'`")),
    }
}

/// Whether `text` is a name or a path without characters that have a meaning in TOML.
fn is_word(text: &str) -> bool {
    let is_syntax = |c: char| c.is_whitespace() || c.is_control() || "\"'[]{}=#,\\".contains(c);
    !text.is_empty() && !text.contains(is_syntax)
}

/// Whether `text` is a word, `=` and a word, as `precision=0.9` in a text: no value of TOML begins so.
fn is_assignment(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, value)| is_word(name) && is_word(value))
}

/// The table at `key`: created if it is missing, expanded if it is the short form of a kind.
fn descend<'a>(
    table: &'a mut Table,
    key: &str,
    span: &Span,
    names: &[String],
) -> Result<&'a mut Table, Report> {
    let node = table.node_mut(key, span);
    let node_span = node.span.clone();
    node.expand_kind().ok_or_else(|| {
        let report = Report::new(format!("`{}` is not a table", names.join(".")));
        report.mark(span).label(&node_span, "its value")
    })
}

/// Drops the file's other keys of `table` if `key` is a `kind` that changes.
fn swap_kind(table: &mut Table, key: &str, value: &Node, names: &[String]) -> Vec<DroppedKey> {
    let (Some(old), Value::String(new)) = (table.kind(), &value.value) else { return Vec::new() };
    if key != "kind" || old == new {
        return Vec::new();
    }
    let old_kind = old.to_string();
    let mut keys = Vec::new();
    drop_file_keys(table, names, &mut keys);
    let own = [names, &["kind".to_string()]].concat().join(".");
    keys.retain(|key| *key != own);
    let dropped = |key| DroppedKey { key, old_kind: old_kind.clone(), new_kind: new.clone() };
    keys.into_iter().map(dropped).collect()
}

/// Removes the entries that come from the file. Entries of the command line stay, with their enclosing tables.
fn drop_file_keys(table: &mut Table, names: &[String], dropped: &mut Vec<String>) {
    table.entries.retain_mut(|entry| {
        let names = [names, &[quoted_key(&entry.key)]].concat();
        if let Value::Table(inner) = &mut entry.node.value {
            drop_file_keys(inner, &names, dropped);
            return !inner.entries.is_empty() || entry.node.span.source != FILE;
        }
        if entry.node.span.source == FILE {
            dropped.push(names.join("."));
        }
        entry.node.span.source != FILE
    });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::settings::source::{ConfigSource, to_resolved_toml};

    const FILE_TEXT: &str = "\
seed = 17
[model]
d_model = 33
[model.attention]
kind = \"nystrom\"
n_landmarks = 7
pinv = { n_iterations = 5, tolerance = 0.1 }
";

    fn source(text: &str, overrides: &[&str]) -> Result<ConfigSource, String> {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let source = ConfigSource::parse(Path::new("run.toml"), text, &overrides);
        source.map_err(|error| error.to_string())
    }

    /// `text` with `overrides` applied, as TOML.
    fn merged(text: &str, overrides: &[&str]) -> String {
        let value: toml::Table = source(text, overrides).unwrap().deserialize().unwrap();
        to_resolved_toml(&value).unwrap()
    }

    fn dropped(overrides: &[&str]) -> Vec<String> {
        let source = source(FILE_TEXT, overrides).unwrap();
        source.dropped_keys.iter().map(|dropped| dropped.key.clone()).collect()
    }

    #[test]
    fn values_are_toml_or_bare_words() {
        for (typed, written) in [
            ("a=1", "a = 1\n"),
            ("a = -1.5 ", "a = -1.5\n"),
            ("a=true", "a = true\n"),
            ("a=softmax", "a = \"softmax\"\n"),
            ("a=data/é.txt", "a = \"data/é.txt\"\n"),
            ("a=1e-3x", "a = \"1e-3x\"\n"),
            ("a=\"two = words\"", "a = \"two = words\"\n"),
            ("a=[1, 2]", "a = [1, 2]\n"),
            ("a.b.c=1", "[a.b]\nc = 1\n"),
            ("a={ b = 1 }", "[a]\nb = 1\n"),
            ("\"x=y\".z=1", "[\"x=y\"]\nz = 1\n"),
        ] {
            assert_eq!(merged("", &[typed]), written, "{typed}");
        }
    }

    #[test]
    fn the_last_override_of_a_key_wins() {
        assert_eq!(merged("a = 1", &["a=2", "b=3", "a=4"]), "a = 4\nb = 3\n");
    }

    #[test]
    fn a_changed_kind_drops_the_keys_of_the_file_and_keeps_other_overrides() {
        let overrides = ["model.attention.window=3", "model.attention.kind=local"];
        let expected = "seed = 17\n\n[model]\nd_model = 33\n\n\
                        [model.attention]\nkind = \"local\"\nwindow = 3\n";
        assert_eq!(merged(FILE_TEXT, &overrides), expected);
        let keys = ["n_landmarks", "pinv.n_iterations", "pinv.tolerance"];
        let keys = keys.map(|key| format!("model.attention.{key}"));
        assert_eq!(dropped(&overrides), keys);
        // The order of the overrides does not matter.
        assert_eq!(dropped(&[overrides[1], overrides[0]]), keys);
    }

    #[test]
    fn an_override_inside_a_dropped_table_stays() {
        let overrides = ["model.attention.pinv.tolerance=0.5", "model.attention.kind=local"];
        assert_eq!(dropped(&overrides).len(), 2);
        assert!(
            merged(FILE_TEXT, &overrides).ends_with("[model.attention.pinv]\ntolerance = 0.5\n")
        );
    }

    #[test]
    fn the_same_kind_drops_nothing() {
        assert_eq!(dropped(&["model.attention.kind=nystrom"]), Vec::<String>::new());
        // Back again: only the last counts.
        let overrides = ["model.attention.kind=local", "model.attention.kind=nystrom"];
        assert_eq!(dropped(&overrides), Vec::<String>::new());
    }

    #[test]
    fn a_kind_may_be_given_in_the_short_form() {
        assert_eq!(dropped(&["model.attention=local"]).len(), 3);
        let short = "attention = \"nystrom\"";
        let expected = "[attention]\nkind = \"nystrom\"\nn_landmarks = 3\n";
        assert_eq!(merged(short, &["attention.n_landmarks=3"]), expected);
        assert_eq!(merged(short, &["attention.kind=local"]), "[attention]\nkind = \"local\"\n");
    }

    #[test]
    fn a_dropped_key_says_why() {
        let source = source(FILE_TEXT, &["model.attention=local"]).unwrap();
        let expected = "`model.attention.n_landmarks` is dropped: \
                        it belongs to kind `nystrom`, and `local` is set";
        assert_eq!(source.dropped_keys[0].to_string(), expected);
    }

    #[test]
    fn a_way_through_a_value_is_refused() {
        let expected = "\
error: `seed` is not a table
  |
  | --set seed.x=1
  |       ^^^^
  |
 ::: run.toml:1:8
  |
1 | seed = 17
  |        -- its value";
        assert_eq!(source(FILE_TEXT, &["seed.x=1"]).unwrap_err(), expected);
    }

    #[test]
    fn malformed_overrides_are_shown() {
        let message = |typed| source("", &[typed]).unwrap_err();
        let expected = "\
error: expected `--set key.path=value`
 |
 | --set model.d_model
 |       ^^^^^^^^^^^^^";
        assert_eq!(message("model.d_model"), expected);
        assert!(message("").contains("expected `--set key.path=value`"));
        for key in ["=1", "a..b=1", "a b=1", "#=1", "\"a=1", "a\nb=1", "[a]=1"] {
            let message = message(key);
            assert!(message.contains("expected"), "{key}: {message}");
        }
        assert!(message("a=").contains("expected a value after `=`"));
        assert!(
            message("a=two words")
                .contains("help: text of several words or with signs needs quotes")
        );
    }
}
