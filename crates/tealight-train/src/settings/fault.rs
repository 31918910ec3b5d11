//! The error of deserialising the settings: the broken rule, its place, and its message.

use std::fmt::Display;

use serde::de::{Error, Expected, Unexpected};

use super::report::{Report, Span};
use super::suggest;
use super::tree::{Node, Table, quoted_key};

/// Longer keys are truncated in messages.
const MAX_SHOWN: usize = 60;

/// A broken rule. The deserialisers of the enclosing values add its place and its path.
#[derive(Debug, thiserror::Error)]
#[error("{rule:?}")]
pub(super) struct SettingFault {
    rule: Rule,
    span: Option<Span>,
    /// The innermost enclosing value, at `path`.
    node: Option<Box<Node>>,
    /// From the innermost key outwards.
    path: Vec<String>,
}

type Names = &'static [&'static str];

#[derive(Debug)]
enum Rule {
    UnknownKey(String, Names),
    /// An unknown variant of a `choice!`; the kind is empty where the table has no `kind`.
    UnknownKind(String, Names),
    /// An unknown variant of a derived enum.
    UnknownValue(String, Names),
    MissingKey(&'static str),
    Expected(String),
    Other(String),
}

impl SettingFault {
    fn new(rule: Rule) -> Self {
        Self { rule, span: None, node: None, path: Vec::new() }
    }

    pub(super) fn unknown_value(value: &str, values: Names) -> Self {
        Self::new(Rule::UnknownValue(value.to_string(), values))
    }

    /// Sets the place of the fault, unless a deeper value has set it.
    pub(super) fn at(mut self, span: &Span) -> Self {
        self.span.get_or_insert_with(|| span.clone());
        self
    }

    /// The fault is in `node`, the value of `key`, which is quoted as in TOML.
    pub(super) fn inside(mut self, node: &Node, key: String) -> Self {
        self.node.get_or_insert_with(|| Box::new(node.clone()));
        self.path.push(key);
        self.at(&node.span)
    }

    /// The message and its place. `value_text` describes the innermost value; `elsewhere` is the whole key of a setting
    /// that is called like an unknown one.
    pub(super) fn report(
        self,
        value_text: impl Fn(&Node) -> String,
        elsewhere: impl Fn(&str) -> Option<String>,
    ) -> Report {
        let Self { rule, span, node, mut path } = self;
        path.reverse();
        let node = node.as_deref();
        let value = || match node {
            Some(node) => format!("`{}`{}", dotted(&path), value_text(node)),
            None => "the configuration".to_string(),
        };
        let report = match rule {
            Rule::UnknownKey(key, keys) => {
                let report = unknown_key(&key, keys, &path, node);
                match elsewhere(&key) {
                    // Such as `steps`, which is a key of `[training]`.
                    Some(other) if path.is_empty() && suggest::similar(&key, keys).is_none() => {
                        report.help(format!("did you mean `{other}`?"))
                    }
                    _ => report,
                }
            }
            Rule::UnknownKind(kind, kinds) => match node.and_then(Node::as_table) {
                Some(_) => missing_key(&path, "kind").list("kinds", kinds),
                None => unknown_kind(&kind, kinds, &path),
            },
            Rule::UnknownValue(typed, values) => {
                let report =
                    Report::new(format!("{}: unknown value", value())).about(dotted(&path));
                suggest::among(report, &typed, values).list("values", values)
            }
            Rule::MissingKey(key) => missing_key(&path, key),
            Rule::Expected(what) => {
                Report::new(format!("{}: expected {what}", value())).about(dotted(&path))
            }
            Rule::Other(message) if path.is_empty() => Report::new(message),
            Rule::Other(message) => {
                Report::new(format!("{}: {message}", value())).about(dotted(&path))
            }
        };
        report.mark_all(span.as_ref())
    }
}

fn unknown_key(key: &str, keys: Names, path: &[String], node: Option<&Node>) -> Report {
    let kind = node.and_then(Node::as_table).and_then(Table::kind);
    let place = match (path, kind) {
        ([], _) => "at the top level".to_string(),
        (_, Some(kind)) => format!("in `[{}]` of kind `{}`", dotted(path), kind.escape_debug()),
        (_, None) => format!("in `[{}]`", dotted(path)),
    };
    let report = Report::new(format!("unknown key `{}` {place}", shortened(quoted_key(key))));
    let keys: Vec<String> = keys.iter().map(|key| quoted_key(key)).collect();
    let meant = suggest::similar(key, &keys).map(str::to_owned);
    let meant: Vec<String> = path.iter().cloned().chain(meant).collect();
    let report = report.about(dotted(&meant));
    match (keys.is_empty(), kind) {
        (true, Some(kind)) => {
            report.note(format!("kind `{}` has no settings", kind.escape_debug()))
        }
        _ => suggest::among(report, key, &keys).list("keys", &keys),
    }
}

/// Truncates a key that would fill the screen.
fn shortened(key: String) -> String {
    match key.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &key[..end]),
        None => key,
    }
}

fn unknown_kind(kind: &str, kinds: Names, path: &[String]) -> Report {
    let table = path.strip_suffix(&["kind".to_string()]).unwrap_or(path);
    let message = format!("unknown kind `{}` for `{}`", kind.escape_debug(), dotted(table));
    let report = Report::new(message).about(dotted(table));
    suggest::among(report, kind, kinds).list("kinds", kinds)
}

fn missing_key(path: &[String], key: &str) -> Report {
    let mut path = path.to_vec();
    path.push(quoted_key(key));
    Report::new(format!("missing key `{}`", dotted(&path))).about(dotted(&path))
}

/// `model.layers[2]."a b"`
fn dotted(path: &[String]) -> String {
    let mut dotted = String::new();
    for key in path {
        let separator = if dotted.is_empty() || key.starts_with('[') { "" } else { "." };
        dotted.extend([separator, key]);
    }
    dotted
}

impl Error for SettingFault {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(Rule::Other(message.to_string()))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Rule::Expected(in_words(&expected.to_string())))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        Self::new(Rule::Expected(range(&expected).unwrap_or_else(|| in_words(&expected))))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::new(Rule::Expected(in_words(&expected.to_string())))
    }

    /// Comes from a `choice!`: `deserialize_enum` refuses the unknown variants of all other enums.
    fn unknown_variant(kind: &str, kinds: Names) -> Self {
        Self::new(Rule::UnknownKind(kind.to_string(), kinds))
    }

    fn unknown_field(key: &str, keys: Names) -> Self {
        Self::new(Rule::UnknownKey(key.to_string(), keys))
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(Rule::MissingKey(key))
    }
}

/// The TOML term for the type that serde expected.
fn in_words(expected: &str) -> String {
    let words = match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i8" | "i16" | "i32" | "i64" | "i128"
        | "isize" => "an integer",
        "f32" | "f64" => "a number",
        "a boolean" => "`true` or `false`",
        "path string" => "a string",
        "a sequence" => "an array",
        "a map" => "a table",
        _ if expected.starts_with("struct ") => "a table",
        _ if expected.starts_with("a nonzero ") => "an integer that is not 0",
        _ => expected,
    };
    words.to_string()
}

/// The range of an unsigned integer type; `None` for other types.
fn range(integer: &str) -> Option<String> {
    let greatest = match integer {
        "u8" => u8::MAX.into(),
        "u16" => u16::MAX.into(),
        "u32" => u32::MAX,
        "u64" | "usize" => return Some("an integer that is not negative".to_string()),
        _ => return None,
    };
    Some(format!("an integer from 0 to {greatest}"))
}
