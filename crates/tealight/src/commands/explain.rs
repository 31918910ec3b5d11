//! `tealight explain KEY`: what a setting means.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tealight_model::describe::{Alternative, Field, Shape, first_paragraph, plain};
use tealight_train::config::reference::{self, Entry, Item};

use crate::args::explain::Explain;
use crate::terminal::output::{print, print_json};

/// Columns of the text.
const WIDTH: usize = 96;

pub(crate) fn run(Explain { key, json }: &Explain) -> Result<()> {
    let Some(key) = key else {
        let fields = || reference::settings().iter().map(of_field).collect::<Value>();
        return if *json { print_json(&json!({ "keys": fields() })) } else { print(&whole_file()) };
    };
    let entries = reference::find(key);
    if entries.is_empty() {
        let near: Vec<_> =
            reference::similar_keys(key).iter().map(|key| format!("`{key}`")).collect();
        let near = match near.as_slice() {
            [] => String::new(),
            near => format!("did you mean {}? ", near.join(" or ")),
        };
        bail!("there is no setting `{key}`; {near}`tealight explain` lists the tables");
    }
    if *json {
        let found: Value = entries.iter().map(of_entry).collect();
        return print_json(&json!({ "found": found }));
    }
    let blocks: Vec<String> = merged(entries).iter().map(|same| explanation(same)).collect();
    print(&blocks.join("\n\n"))
}

/// Entries of different kinds that say the same, together.
fn merged(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut groups: Vec<Vec<Entry>> = Vec::new();
    for entry in entries {
        match groups.iter_mut().find(|group| group[0].item == entry.item) {
            Some(group) => group.push(entry),
            None => groups.push(vec![entry]),
        }
    }
    groups
}

/// An entry as JSON: where it stands, and what it is.
fn of_entry(entry: &Entry) -> Value {
    let mut object = match &entry.item {
        Item::Setting(field) => of_field(field),
        Item::Kind(kind) => of_kind(kind),
    };
    let kinds = entry.kinds.iter().map(|(key, kind)| (key.clone(), json!(kind)));
    object["key"] = json!(entry.key);
    object["of_kind"] = Value::Object(kinds.collect());
    object["range"] = json!(reference::rule(entry));
    object
}

fn of_field(field: &Field) -> Value {
    let mut object = json!({
        "name": field.name,
        "meaning": field.meaning(),
        "type": type_name(&field.shape),
        "default": field.default,
    });
    let item = if let Shape::List { item, .. } = &field.shape { item } else { &field.shape };
    match item {
        Shape::Words(words) => {
            object["words"] = words.iter().map(|word| (word.name, word.summary)).collect();
        }
        Shape::Choice(choice) => object["kinds"] = choice.kinds.iter().map(of_kind).collect(),
        Shape::Table(fields) | Shape::TableOrFirst(fields) => {
            object["keys"] = fields.iter().map(of_field).collect();
        }
        _ => {}
    }
    object
}

fn of_kind(kind: &Alternative) -> Value {
    let settings: Value = kind.fields.iter().map(of_field).collect();
    json!({ "name": kind.name, "meaning": plain(kind.doc), "settings": settings })
}

/// The text about entries that say the same.
fn explanation(same: &[Entry]) -> String {
    let first = &same[0];
    let mut text = format!("{}\n", first.key);
    match &first.item {
        Item::Setting(field) => {
            text += &indented(&field.meaning());
            line(&mut text, "type", &type_name(&field.shape));
            if let Some(default) = default(field) {
                line(&mut text, "default", &default);
            }
            if let Some(rule) = reference::rule(first) {
                line(&mut text, "range", &rule);
            }
            line(&mut text, "of kind", &kinds(same));
            text += &parts(&field.shape);
            text += &example(first, field);
        }
        Item::Kind(kind) => {
            text = format!("{} = \"{}\"\n", first.key, kind.name);
            text += &indented(&plain(kind.doc));
            text += &settings("settings", &kind.fields);
            let _ = write!(text, "\nexample\n    {} = \"{}\"\n", first.key, kind.name);
        }
    }
    text
}

/// The tables and keys of the file.
fn whole_file() -> String {
    let fields = reference::settings();
    let keys = settings("keys of the file", &fields);
    format!(
        "{}\n`tealight explain KEY` explains one of them: `tealight explain model.attention`\n",
        keys.trim_start()
    )
}

/// Adds a line with a name and its value, which may be empty.
fn line(text: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        if !text.contains("\ntype") {
            text.push('\n');
        }
        let _ = writeln!(text, "{name:<8} {value}");
    }
}

/// `local, aft_local of model.attention`
fn kinds(same: &[Entry]) -> String {
    let of_entry = |entry: &Entry| {
        let kinds = entry.kinds.iter().map(|(key, kind)| format!("`{key}` = \"{kind}\""));
        kinds.collect::<Vec<_>>().join(" and ")
    };
    let mut kinds: Vec<String> = same.iter().map(of_entry).collect();
    kinds.dedup();
    kinds.join(", or ")
}

/// The default as TOML; of a choice, its kind.
fn default(field: &Field) -> Option<String> {
    let default = field.default.as_ref()?;
    match &field.shape {
        Shape::Table(_) => None,
        Shape::Choice(_) => Some(default.get("kind").map_or_else(|| toml(default), toml)),
        _ => Some(toml(default)),
    }
}

/// A value as TOML writes it.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        Value::Object(table) => {
            let entries = table.iter().map(|(key, value)| format!("{key} = {}", toml(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        // JSON writes strings, numbers and booleans as TOML does.
        plain => plain.to_string(),
    }
}

fn type_name(shape: &Shape) -> String {
    match shape {
        Shape::Boolean => "`true` or `false`".to_owned(),
        Shape::Integer { greatest: None } => "an integer, not negative".to_owned(),
        Shape::Integer { greatest: Some(greatest) } => format!("an integer from 0 to {greatest}"),
        Shape::Number => "a number".to_owned(),
        Shape::Text => "a text".to_owned(),
        Shape::Path => "a path".to_owned(),
        Shape::Words(_) => "one of these words".to_owned(),
        Shape::List { item, len } => {
            let of = match &**item {
                Shape::Boolean => "booleans".to_owned(),
                Shape::Integer { .. } => "integers".to_owned(),
                Shape::Number => "numbers".to_owned(),
                Shape::Text => "texts".to_owned(),
                Shape::Path => "paths".to_owned(),
                Shape::Table(_) => "tables".to_owned(),
                other => format!("values, each {}", type_name(other)),
            };
            let n = len.map_or(String::new(), |len| format!("{len} "));
            format!("an array of {n}{of}")
        }
        Shape::Table(_) => "a table".to_owned(),
        Shape::TableOrFirst(fields) => {
            let first = fields.first().map_or_else(String::new, |first| type_name(&first.shape));
            format!("{first}, or a table")
        }
        Shape::Choice(_) => "a table with `kind`, or the name of a kind".to_owned(),
    }
}

/// The words, the kinds with their settings, or the keys of a table.
fn parts(shape: &Shape) -> String {
    match shape {
        Shape::Words(words) => {
            let rows = words.iter().map(|word| (word.name.to_owned(), word.summary.to_owned()));
            rows_of("words", &rows.collect::<Vec<_>>())
        }
        Shape::Choice(choice) => {
            rows_of("kinds", &choice.kinds.iter().map(row_of_kind).collect::<Vec<_>>())
        }
        Shape::Table(fields) | Shape::TableOrFirst(fields) => settings("keys", fields),
        Shape::List { item, .. } if matches!(**item, Shape::Table(_)) => parts(item),
        _ => String::new(),
    }
}

/// A kind, its meaning, and its keys.
fn row_of_kind(kind: &Alternative) -> (String, String) {
    let keys: Vec<_> = kind.fields.iter().map(|field| format!("`{}`", field.name)).collect();
    let keys =
        if keys.is_empty() { String::new() } else { format!(" Settings: {}.", keys.join(", ")) };
    (kind.name.to_owned(), format!("{}{keys}", kind.summary()))
}

/// Settings with their defaults and the beginning of their meaning.
fn settings(heading: &str, fields: &[Field]) -> String {
    let rows = fields.iter().map(|field| {
        let name = match (default(field), &field.shape) {
            (Some(default), _) if default.len() <= 24 => format!("{} = {default}", field.name),
            _ => field.name.to_owned(),
        };
        (name, first_paragraph(&field.meaning()).to_owned())
    });
    rows_of(heading, &rows.collect::<Vec<_>>())
}

/// A heading, and two columns below it.
fn rows_of(heading: &str, rows: &[(String, String)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut text = format!("\n{heading}\n");
    for (name, meaning) in rows {
        for (index, part) in wrapped(meaning, WIDTH.saturating_sub(width + 6)).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let _ = writeln!(text, "    {name:<width$}  {part}");
        }
    }
    text
}

/// Paragraphs with four spaces before each line.
fn indented(text: &str) -> String {
    let lines = text.lines().flat_map(|paragraph| wrapped(paragraph, WIDTH - 4));
    lines.flat_map(|line| ["    ".to_owned(), line, "\n".to_owned()]).collect()
}

/// The words of a text in lines of at most `width` characters; at least one line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("invariant: there is a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.extend([" ", word]);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Lines of a file in which the setting stands, with the kinds that it needs.
fn example(Entry { key, kinds, .. }: &Entry, field: &Field) -> String {
    if matches!(field.shape, Shape::Table(_)) {
        return String::new();
    }
    let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut text = "\nexample\n".to_owned();
    // Tables above the setting that need a kind.
    for (of, kind) in kinds {
        if of != table {
            let _ = writeln!(text, "    [{of}]\n    kind = \"{kind}\"");
        }
    }
    if let Shape::List { item, .. } = &field.shape
        && matches!(**item, Shape::Table(_))
    {
        let _ = writeln!(text, "    [[{key}]]");
        return text;
    }
    if !table.is_empty() {
        let _ = writeln!(text, "    [{table}]");
    }
    if let Some((_, kind)) = kinds.iter().find(|(of, _)| of == table) {
        let _ = writeln!(text, "    kind = \"{kind}\"");
    }
    let value = default(field).unwrap_or_else(|| match &field.shape {
        Shape::Text => first_quoted(&field.meaning()).unwrap_or_else(|| sample(&field.shape)),
        shape => sample(shape),
    });
    let _ = writeln!(text, "    {name} = {value}");
    text
}

/// The first word in backticks of a meaning, which is a value of a text that may have few.
fn first_quoted(meaning: &str) -> Option<String> {
    let word = meaning.split('`').nth(1)?;
    let is_word = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_word && !word.is_empty()).then(|| format!("{word:?}"))
}

/// A value of a setting that has no default.
fn sample(shape: &Shape) -> String {
    match shape {
        Shape::Boolean => "true".to_owned(),
        Shape::Integer { .. } => "8".to_owned(),
        Shape::Number => "0.5".to_owned(),
        Shape::Text => "\"text\"".to_owned(),
        Shape::Path => "\"data/file\"".to_owned(),
        Shape::Words(words) => {
            words.first().map_or(String::new(), |word| format!("{:?}", word.name))
        }
        Shape::List { item, len } => {
            let items = vec![sample(item); len.unwrap_or(1)];
            format!("[{}]", items.join(", "))
        }
        Shape::Table(_) => "{}".to_owned(),
        Shape::TableOrFirst(fields) => {
            fields.first().map_or(String::new(), |first| sample(&first.shape))
        }
        Shape::Choice(choice) => {
            choice.kinds.first().map_or(String::new(), |kind| format!("{:?}", kind.name))
        }
    }
}
