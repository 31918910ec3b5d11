//! What each key of the file means.

use std::collections::BTreeSet;
use std::path::Path;

use tealight_model::describe::{Alternative, Described, Field, Shape};

use super::RunConfig;
use crate::error::Error;
use crate::settings::ConfigSource;
use crate::settings::suggest::similar;

/// What a dotted key stands for, at one of its places.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key, without the indices of arrays.
    pub key: String,
    /// The kinds that have the key, outermost first: the key of a choice, and its kind.
    pub kinds: Vec<(String, &'static str)>,
    /// What stands there.
    pub item: Item,
}

/// A setting, or a kind of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A setting.
    Setting(Field),
    /// A kind of a choice.
    Kind(Alternative),
}

/// All settings of the file.
pub fn settings() -> Vec<Field> {
    RunConfig::shape().into_fields()
}

/// The dotted keys of all settings, in alphabetical order, without the indices of arrays.
pub fn keys() -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    list(&settings(), "", &mut keys);
    keys
}

/// What `key` stands for: `model.attention.window`, `model.layers[0].attention`, or a kind, `model.attention.local`.
/// Settings of several kinds have an entry for each kind; empty if there is no such key.
pub fn find(key: &str) -> Vec<Entry> {
    let segments: Vec<&str> = key.split('.').map(without_index).collect();
    let mut found = Vec::new();
    search(&settings(), &segments, &Place::default(), &mut found);
    found
}

/// The keys that are most similar to one that does not exist.
pub fn similar_keys(key: &str) -> Vec<String> {
    const MAX: usize = 4;
    let keys: Vec<String> = keys().into_iter().collect();
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let wanted = last(key);
    if wanted.is_empty() {
        return Vec::new();
    }
    // The same last word under another table, such as `window` for `model.attention.window`.
    let same: Vec<&String> = keys.iter().filter(|key| last(key) == wanted).collect();
    if !same.is_empty() {
        let mut same: Vec<_> = same.into_iter().cloned().collect();
        same.sort_by_key(|known| (strsim::osa_distance(known, key), known.len()));
        same.truncate(MAX);
        return same;
    }
    if let Some(near) = similar(key, &keys) {
        return vec![near.to_owned()];
    }
    let words: BTreeSet<String> = keys.iter().map(|key| last(key)).collect();
    let words: Vec<String> = words.into_iter().collect();
    let Some(word) = similar(&wanted, &words) else { return Vec::new() };
    let mut same: Vec<_> = keys.iter().filter(|key| last(key) == word).cloned().collect();
    // `optimizer.lr` before `optimizer.adamw.lr`, which only one kind has.
    same.sort_by_key(|key| key.split('.').count());
    same.truncate(MAX);
    same
}

/// The rule that a number breaks when it is out of range, as the checks before training state it; `None` if they accept
/// every value of its type, or if the rule depends on other settings.
pub fn rule(entry: &Entry) -> Option<String> {
    let Item::Setting(field) = &entry.item else { return None };
    let out_of_range: &[&str] = match field.shape {
        Shape::Integer { .. } => &["0", "9007199254740991"],
        Shape::Number => &["-1", "0", "2", "1e300"],
        _ => return None,
    };
    let mut rules = Vec::new();
    for value in out_of_range {
        let broken = broken_rule(entry, value).filter(|rule| !rule.contains('`'));
        rules.extend(broken.filter(|rule| !rules.contains(rule)));
    }
    (!rules.is_empty()).then(|| rules.join("; "))
}

/// The rule that `value` breaks, without the key and the value.
fn broken_rule(Entry { key, kinds, .. }: &Entry, value: &str) -> Option<String> {
    let kinds = kinds.iter().map(|(key, kind)| format!("{key}.kind={kind}"));
    let overrides: Vec<String> = kinds.chain([format!("{key}={value}")]).collect();
    let source = ConfigSource::parse(Path::new("rule"), "task = 'weather'", &overrides).ok()?;
    let config: RunConfig = source.deserialize().ok()?;
    let checked = config.validate().and_then(|()| config.task.settings().validate());
    let Err(Error::Config(fault)) = checked else { return None };
    let rule = fault.message.strip_prefix(&format!("`{key}` = "))?;
    fault.keys.first().filter(|first| *first == key)?;
    Some(rule.split_once(' ')?.1.to_owned())
}

fn without_index(segment: &str) -> &str {
    segment.split_once('[').map_or(segment, |(name, _)| name)
}

/// Where the search is.
#[derive(Clone, Default)]
struct Place {
    key: String,
    kinds: Vec<(String, &'static str)>,
}

impl Place {
    fn below(&self, name: &str) -> Self {
        Self { key: joined(&self.key, name), kinds: self.kinds.clone() }
    }

    fn of_kind(&self, kind: &'static str) -> Self {
        let kinds = self.kinds.iter().cloned().chain([(self.key.clone(), kind)]).collect();
        Self { key: self.key.clone(), kinds }
    }

    fn entry(&self, item: Item) -> Entry {
        Entry { key: self.key.clone(), kinds: self.kinds.clone(), item }
    }
}

fn joined(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

fn search(fields: &[Field], segments: &[&str], place: &Place, found: &mut Vec<Entry>) {
    let [name, rest @ ..] = segments else { return };
    for field in fields.iter().filter(|field| field.name == *name) {
        let place = place.below(name);
        if rest.is_empty() {
            found.push(place.entry(Item::Setting(field.clone())));
        } else {
            search_shape(&field.shape, field, rest, &place, found);
        }
    }
}

fn search_shape(
    shape: &Shape,
    field: &Field,
    segments: &[&str],
    place: &Place,
    found: &mut Vec<Entry>,
) {
    match shape {
        Shape::Table(fields) | Shape::TableOrFirst(fields) => {
            search(fields, segments, place, found);
        }
        Shape::List { item, .. } => search_shape(item, field, segments, place, found),
        Shape::Choice(choice) => {
            if segments == ["kind"] {
                found.push(place.entry(Item::Setting(field.clone())));
            }
            for kind in &choice.kinds {
                if segments == [kind.name] {
                    found.push(place.entry(Item::Kind(kind.clone())));
                }
                // After the name of a kind, a setting of that kind alone.
                let of_kind = segments.split_first().filter(|(first, _)| **first == kind.name);
                let segments = of_kind.map_or(segments, |(_, rest)| rest);
                search(&kind.fields, segments, &place.of_kind(kind.name), found);
            }
        }
        _ => {}
    }
}

/// Adds all keys of `fields`.
fn list(fields: &[Field], table: &str, keys: &mut BTreeSet<String>) {
    for field in fields {
        let key = joined(table, field.name);
        list_shape(&field.shape, &key, keys);
        keys.insert(key);
    }
}

fn list_shape(shape: &Shape, key: &str, keys: &mut BTreeSet<String>) {
    match shape {
        Shape::Table(fields) | Shape::TableOrFirst(fields) => list(fields, key, keys),
        Shape::List { item, .. } => list_shape(item, key, keys),
        Shape::Choice(choice) => choice.kinds.iter().for_each(|kind| list(&kind.fields, key, keys)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn setting(entry: &Entry) -> &Field {
        match &entry.item {
            Item::Setting(field) => field,
            Item::Kind(kind) => panic!("the kind {}", kind.name),
        }
    }

    #[test]
    fn a_setting_is_found_by_its_key() {
        let [steps] = &find("training.steps")[..] else { panic!("one entry") };
        assert_eq!(setting(steps).default, Some(json!(1000)));
        assert!(setting(steps).meaning().starts_with("Number of steps;"));
        let [attention] = &find("model.attention")[..] else { panic!("one entry") };
        let meaning = setting(attention).meaning();
        assert!(meaning.ends_with("how a position reads from the others."), "{meaning}");
        assert_eq!(find("model.attention.kind")[0].item, attention.item);
        assert_eq!(find("model.layers[1].attention").len(), 1);
    }

    #[test]
    fn settings_of_several_kinds_have_an_entry_for_each() {
        let windows = find("model.attention.window");
        let kinds: Vec<_> = windows.iter().map(|entry| entry.kinds[0].1).collect();
        assert_eq!(kinds, ["local", "longformer", "aft_local"]);
        assert_eq!(windows[0].kinds[0].0, "model.attention");
        let [of_kind] = &find("model.attention.local.window")[..] else { panic!("one entry") };
        assert_eq!(of_kind.item, windows[0].item);
        let paths = find("task.source.path");
        let kinds: Vec<_> = paths.iter().map(|entry| entry.kinds.clone()).collect();
        assert!(kinds.iter().all(|kinds| kinds.len() == 2 && kinds[1].1 == "file"), "{kinds:?}");
    }

    #[test]
    fn a_kind_is_found_by_its_name() {
        let [local] = &find("model.attention.local")[..] else { panic!("one entry") };
        assert!(matches!(&local.item, Item::Kind(kind) if kind.name == "local"));
    }

    #[test]
    fn unknown_keys_have_similar_ones() {
        assert_eq!(find("model.atention.window"), []);
        let windows = similar_keys("model.atention.window");
        assert_eq!(windows[0], "model.attention.window", "{windows:?}");
        assert_eq!(similar_keys("window")[0], "task.window");
        assert_eq!(similar_keys("training.step"), ["training.steps"]);
        assert_eq!(similar_keys("learning_rate")[0], "optimizer.lr");
        assert_eq!(similar_keys("wether"), [""; 0]);
        assert_eq!(similar_keys(""), [""; 0]);
    }

    #[test]
    fn ranges_are_those_of_the_checks() {
        let rule_of = |key: &str| rule(&find(key)[0]);
        assert_eq!(
            rule_of("training.batch_size").as_deref(),
            Some("must be positive; must be at most 1048576")
        );
        assert_eq!(rule_of("training.precision"), None);
        assert_eq!(rule_of("seed"), None);
        assert!(rule_of("model.dropout").is_some_and(|rule| rule.contains('1')));
    }

    /// The reference would have an empty place otherwise.
    #[test]
    fn every_key_is_documented() {
        let mut keys = BTreeSet::new();
        list(&settings(), "", &mut keys);
        assert!(keys.len() > 200, "{}", keys.len());
        for key in &keys {
            for entry in find(key) {
                let meaning = match &entry.item {
                    Item::Setting(field) => field.meaning(),
                    Item::Kind(kind) => kind.doc.to_owned(),
                };
                assert!(!meaning.is_empty(), "{key}");
            }
        }
    }
}
