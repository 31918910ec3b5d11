//! The JSON Schema of the file accepts what is read, and refuses what is not: over all shipped configurations and
//! thousands of changes to them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::RunConfig;
use tealight_train::config::schema::json_schema;
use tealight_train::config::{ConfigSource, to_resolved_toml};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn configurations() -> Result<Vec<PathBuf>> {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut files = Vec::new();
    for folder in fs::read_dir(configs)? {
        let folder = folder?;
        if folder.file_type()?.is_dir() {
            for file in fs::read_dir(folder.path())? {
                files.push(file?.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Validates by the keywords that the schema uses; any other is an error.
struct Validator<'a>(&'a Value);

impl Validator<'_> {
    fn accepts(&self, schema: &Value, value: &Value) -> bool {
        let rules = schema.as_object().expect("a schema is an object");
        rules.iter().all(|(keyword, rule)| match (keyword.as_str(), value) {
            ("$ref", _) => {
                let pointer = rule.as_str().and_then(|text| text.strip_prefix('#'));
                let target = pointer.and_then(|pointer| self.0.pointer(pointer));
                self.accepts(target.expect("the target of a reference"), value)
            }
            ("type", _) => match rule.as_str() {
                Some("object") => value.is_object(),
                Some("array") => value.is_array(),
                Some("string") => value.is_string(),
                Some("boolean") => value.is_boolean(),
                Some("number") => value.is_number(),
                // TOML tells 2 from 2.0; JSON does not.
                Some("integer") => value.is_i64() || value.is_u64(),
                _ => panic!("the type {rule}"),
            },
            ("const", _) => value == rule,
            ("enum", _) => rule.as_array().expect("a list").contains(value),
            ("oneOf", _) => {
                let schemas = rule.as_array().expect("a list").iter();
                schemas.filter(|schema| self.accepts(schema, value)).count() == 1
            }
            ("minimum", Value::Number(n)) => n.as_f64() >= rule.as_f64(),
            ("maximum", Value::Number(n)) => n.as_f64() <= rule.as_f64(),
            ("items", Value::Array(items)) => items.iter().all(|item| self.accepts(rule, item)),
            ("minItems", Value::Array(items)) => items.len() as u64 >= rule.as_u64().unwrap_or(0),
            ("maxItems", Value::Array(items)) => items.len() as u64 <= rule.as_u64().unwrap_or(0),
            ("required", Value::Object(table)) => {
                let mut keys = rule.as_array().expect("a list").iter().filter_map(Value::as_str);
                keys.all(|key| table.contains_key(key))
            }
            ("properties", Value::Object(table)) => table
                .iter()
                .all(|(key, value)| rule.get(key).is_none_or(|s| self.accepts(s, value))),
            ("additionalProperties", Value::Object(table)) => {
                assert_eq!(*rule, json!(false));
                table.keys().all(|key| schema["properties"].get(key).is_some())
            }
            (
                "$schema"
                | "$defs"
                | "title"
                | "description"
                | "default"
                | "minimum"
                | "maximum"
                | "items"
                | "minItems"
                | "maxItems"
                | "required"
                | "properties"
                | "additionalProperties",
                _,
            ) => true,
            _ => panic!("the keyword {keyword}"),
        })
    }
}

/// Both readers of a file: by the schema and by the program.
fn readings(schema: &Value, value: &Value) -> Result<(bool, std::result::Result<(), String>)> {
    let source = ConfigSource::parse(Path::new("a"), &toml::to_string(value)?, &[])?;
    let read = source.deserialize::<RunConfig>();
    let accepted = Validator(schema).accepts(schema, value);
    Ok((accepted, read.map(drop).map_err(|error| error.to_string())))
}

fn parsed(text: &str) -> Result<Value> {
    Ok(ConfigSource::parse(Path::new("a"), text, &[])?.deserialize()?)
}

#[test]
fn every_shipped_configuration_is_accepted() -> Result {
    let schema = json_schema();
    for file in configurations()? {
        let text = fs::read_to_string(&file)?;
        let config: RunConfig = ConfigSource::parse(&file, &text, &[])?.deserialize()?;
        for text in [text, to_resolved_toml(&config)?] {
            let (accepted, read) = readings(&schema, &parsed(&text)?)?;
            assert_eq!((accepted, read), (true, Ok(())), "{}", file.display());
        }
    }
    Ok(())
}

#[test]
fn the_shipped_schema_is_that_of_the_program() -> Result {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/tealight.schema.json");
    let shipped: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    assert!(
        shipped == json_schema(),
        "run `cargo run --release -- schema > configs/tealight.schema.json`"
    );
    Ok(())
}

/// Draws changes.
struct Changes {
    stream: Stream,
    n_draws: u64,
    keys: Vec<String>,
    kinds: Vec<String>,
}

impl Changes {
    fn new(schema: &Value) -> Self {
        let (mut keys, mut kinds) = (BTreeSet::new(), BTreeSet::new());
        words(schema, &mut keys, &mut kinds);
        let [keys, kinds] = [keys, kinds].map(|words| words.into_iter().collect());
        Self { stream: Stream::new(17, Purpose::Sampling), n_draws: 0, keys, kinds }
    }

    /// An index below `n`.
    fn index(&mut self, n: usize) -> usize {
        self.n_draws += 1;
        (self.stream.uniform(self.n_draws) * n as f64) as usize
    }

    fn key(&mut self) -> String {
        let index = self.index(self.keys.len());
        self.keys[index].clone()
    }

    fn kind(&mut self) -> Value {
        let index = self.index(self.kinds.len());
        self.kinds[index].clone().into()
    }

    /// A value of any type.
    fn value(&mut self) -> Value {
        let kind = self.kind();
        let values = [
            json!(true),
            json!(0),
            json!(3),
            json!(-1),
            json!(300),
            json!(5_000_000_000_u64),
            json!(2.5),
            json!("text"),
            json!(""),
            json!([]),
            json!([1, 2, 3]),
            json!([0.5, 0.25, 0.25]),
            json!(["a", "b"]),
            json!([[1, 0, 2]]),
            json!({}),
            json!({ "kind": kind }),
            json!([{}]),
            kind,
        ];
        let index = self.index(values.len());
        values[index].clone()
    }

    /// Changes one place in `file`.
    fn change(&mut self, file: &mut Value) {
        let mut tables = Vec::new();
        collect_tables("", file, &mut tables);
        let chosen = self.index(tables.len());
        let Some(Value::Object(table)) = file.pointer_mut(&tables[chosen]) else {
            panic!("a table at {}", tables[chosen]);
        };
        let keys: Vec<String> = table.keys().cloned().collect();
        let existing = (!keys.is_empty()).then(|| keys[self.index(keys.len())].clone());
        match (self.index(8), existing) {
            (0, Some(key)) => drop(table.shift_remove(&key)),
            (1, Some(key)) => rename(table, &key, self.key()),
            (2, Some(key)) => rename(table, &key, format!("{key}s")),
            (3, Some(key)) => drop(table.insert(key, self.value())),
            (4, _) if table.contains_key("kind") => drop(table.insert("kind".into(), self.kind())),
            // A kind with its defaults, in the long and in the short form.
            (5, Some(key)) => drop(table.insert(key, json!({ "kind": self.kind() }))),
            (6, Some(key)) => drop(table.insert(key, self.kind())),
            _ => drop(table.insert(self.key(), self.value())),
        }
    }
}

fn rename(table: &mut Map<String, Value>, key: &str, new: String) {
    if let Some(value) = table.shift_remove(key) {
        table.insert(new, value);
    }
}

/// The JSON pointers of all tables.
fn collect_tables(pointer: &str, value: &Value, tables: &mut Vec<String>) {
    match value {
        Value::Object(table) => {
            tables.push(pointer.to_owned());
            for (key, value) in table {
                collect_tables(&format!("{pointer}/{key}"), value, tables);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                collect_tables(&format!("{pointer}/{index}"), value, tables);
            }
        }
        _ => {}
    }
}

/// All keys and all kinds in a schema.
fn words(schema: &Value, keys: &mut BTreeSet<String>, kinds: &mut BTreeSet<String>) {
    match schema {
        Value::Object(rules) => {
            if let Some(Value::Object(properties)) = rules.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            let names = rules.get("enum").and_then(Value::as_array).into_iter().flatten();
            let found = names.chain(rules.get("const")).filter_map(Value::as_str);
            kinds.extend(found.map(str::to_owned));
            rules.values().for_each(|rule| words(rule, keys, kinds));
        }
        Value::Array(items) => items.iter().for_each(|item| words(item, keys, kinds)),
        _ => {}
    }
}

#[test]
fn the_schema_accepts_what_is_read_and_refuses_what_is_not() -> Result {
    const CHANGES: usize = 150;
    let schema = json_schema();
    let mut changes = Changes::new(&schema);
    let mut counts = [0; 2];
    for file in configurations()? {
        let text = fs::read_to_string(&file)?;
        let config: RunConfig = ConfigSource::parse(&file, &text, &[])?.deserialize()?;
        // With all defaults written out there are more places to change.
        let originals = [parsed(&text)?, parsed(&to_resolved_toml(&config)?)?];
        for original in originals {
            for n in 0..CHANGES {
                let mut changed = original.clone();
                (0..=n % 2).for_each(|_| changes.change(&mut changed));
                let (accepted, read) = readings(&schema, &changed)?;
                let context = || format!("{}\n{changed:#}\n{read:?}", file.display());
                assert_eq!(accepted, read.is_ok(), "{}", context());
                counts[usize::from(accepted)] += 1;
            }
        }
    }
    // Neither answer is rare.
    assert!(counts.iter().all(|&n| n > 500), "{counts:?}");
    Ok(())
}
