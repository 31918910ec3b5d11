//! The parsed configuration: every key and value with its place in the sources.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::report::{Report, Span};

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    String(String),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Boolean(bool),
    Array(Vec<Node>),
    Table(Table),
}

/// Entries in the order of the source. Tables are short enough for linear search.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_span: Span,
    pub(super) node: Node,
}

/// Converts parsed TOML into nodes. The parsed text starts at byte `offset` of the source `source`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub(super) source: usize,
    pub(super) offset: usize,
}

impl Reader {
    /// `path` is the dotted key of the table, empty for the whole source.
    pub(super) fn table(self, path: &str, table: DeTable<'_>) -> Result<Table, Report> {
        let entries = table.into_iter().map(|(key, value)| {
            let key_span = self.span(key.span());
            let key = key.into_inner().into_owned();
            let dot = if path.is_empty() { "" } else { "." };
            let node = self.node(&format!("{path}{dot}{}", quoted_key(&key)), value)?;
            Ok(Entry { key, key_span, node })
        });
        Ok(Table { entries: entries.collect::<Result<_, _>>()? })
    }

    /// `path` is the dotted key of the value.
    pub(super) fn node(self, path: &str, value: Spanned<DeValue<'_>>) -> Result<Node, Report> {
        let span = self.span(value.span());
        let too_large = |rule: String| {
            let message = format!("`{path}`: the number is too large, {rule}");
            Report::new(message).mark(&span).about(path)
        };
        let value = match value.into_inner() {
            DeValue::String(value) => Value::String(value.into_owned()),
            DeValue::Integer(value) => integer(&value).ok_or_else(|| {
                too_large(format!("an integer lies between {} and {}", i64::MIN, u64::MAX))
            })?,
            DeValue::Float(value) => {
                let value = float(value.as_str()).ok_or_else(|| {
                    too_large(format!("a float lies between {:e} and {:e}", f64::MIN, f64::MAX))
                })?;
                Value::Float(value)
            }
            DeValue::Boolean(value) => Value::Boolean(value),
            // No setting is a date, but a name may look like one.
            DeValue::Datetime(value) => Value::String(value.to_string()),
            DeValue::Array(items) => {
                let items = items.into_iter().enumerate();
                let nodes = items.map(|(at, item)| self.node(&format!("{path}[{at}]"), item));
                Value::Array(nodes.collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => Value::Table(self.table(path, table)?),
        };
        Ok(Node { span, value })
    }

    pub(super) fn span(self, range: Range<usize>) -> Span {
        Span { source: self.source, range: range.start + self.offset..range.end + self.offset }
    }
}

fn integer(value: &DeInteger<'_>) -> Option<Value> {
    let signed = i64::from_str_radix(value.as_str(), value.radix()).map(Value::Signed);
    let unsigned = || u64::from_str_radix(value.as_str(), value.radix()).map(Value::Unsigned);
    signed.or_else(|_| unsigned()).ok()
}

fn float(text: &str) -> Option<f64> {
    let value = text.parse::<f64>().ok()?;
    (value.is_finite() || text.contains("inf") || text.contains("nan")).then_some(value)
}

impl Table {
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(super) fn position(&self, key: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key)
    }

    /// The node at `key`: an empty table at `span` if there was none.
    pub(super) fn node_mut(&mut self, key: &str, span: &Span) -> &mut Node {
        let index = self.position(key).unwrap_or_else(|| {
            let node = Node { span: span.clone(), value: Value::Table(Table::default()) };
            self.entries.push(Entry { key: key.to_string(), key_span: span.clone(), node });
            self.entries.len() - 1
        });
        &mut self.entries[index].node
    }

    /// The value of `kind`, if it is a string.
    pub(super) fn kind(&self) -> Option<&str> {
        self.get("kind")?.node.as_str()
    }

    /// The node at a dotted `path`, in which `key[1]` is the second element of an array.
    pub(super) fn find(&self, path: &str) -> Option<&Node> {
        match path.split_once('.') {
            Some((key, rest)) => self.element(key)?.as_table()?.find(rest),
            None => self.element(path),
        }
    }

    /// The value of `key`, or an element of its array: `key[1]`.
    fn element(&self, key: &str) -> Option<&Node> {
        let Some((key, index)) = key.strip_suffix(']').and_then(|key| key.split_once('[')) else {
            return Some(&self.get(key)?.node);
        };
        match &self.get(key)?.node.value {
            Value::Array(elements) => elements.get(index.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// The deepest existing node along a dotted `path`.
    pub(super) fn nearest(&self, path: &str) -> Option<&Node> {
        let mut paths = std::iter::successors(Some(path), |path| Some(path.rsplit_once('.')?.0));
        paths.find_map(|path| self.find(path))
    }
}

impl Node {
    pub(super) fn as_table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// The kind of a choice: the `kind` of a table, or its short form.
    pub(super) fn kind(&self) -> Option<&str> {
        self.as_table().map_or_else(|| self.as_str(), Table::kind)
    }

    /// The table of this value. The short form of a choice, `attention = "softmax"`, becomes a table with that
    /// `kind`.
    pub(super) fn expand_kind(&mut self) -> Option<&mut Table> {
        if let Value::String(_) = self.value {
            let kind = self.clone();
            let entry = Entry { key: "kind".to_string(), key_span: kind.span.clone(), node: kind };
            self.value = Value::Table(Table { entries: vec![entry] });
        }
        match &mut self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The type of the value, with its article.
    pub(super) fn type_name(&self) -> &'static str {
        match self.value {
            Value::String(_) => "a string",
            Value::Signed(_) | Value::Unsigned(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Boolean(_) => "a boolean",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
        }
    }
}

/// A key as TOML writes it: quoted unless it is a bare key.
pub(super) fn quoted_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) { key.to_string() } else { format!("{key:?}") }
}
