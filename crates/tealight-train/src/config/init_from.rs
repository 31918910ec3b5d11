//! `init_from`: the model that a run starts from, `"FOLDER"` or `{ path = "FOLDER", layers = [0, 2, 4] }`.

use std::fmt;
use std::path::PathBuf;

use serde::de::{Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize, Serializer};
use tealight_model::describe::{Described, Field, Shape};

/// The model that a run starts from. Written as its path alone if nothing may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitFrom {
    /// The folder of the model, or its name in the cache of Hugging Face.
    pub path: PathBuf,
    /// Keys of settings, or of tables of settings, that may differ from the model's.
    pub allow: Vec<String>,
    /// The layers of the model that the run starts from, counted from 0, in the order that they get; all if empty.
    pub layers: Vec<usize>,
}

impl InitFrom {
    /// Whether the setting `key` may differ from the model's.
    pub(crate) fn allows(&self, key: &str) -> bool {
        self.allow.iter().any(|allowed| is_in(key, allowed))
    }
}

/// Whether `key` is `table`, or a setting in it.
pub(crate) fn is_in(key: &str, table: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The long form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    path: PathBuf,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    layers: Vec<usize>,
}

impl Serialize for InitFrom {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { path, allow, layers } = self.clone();
        if allow.is_empty() && layers.is_empty() {
            return path.serialize(serializer);
        }
        Table { path, allow, layers }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for InitFrom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathOrTable;

        impl<'de> Visitor<'de> for PathOrTable {
            type Value = InitFrom;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or a table with `path`, `allow` and `layers`")
            }

            fn visit_str<E>(self, path: &str) -> Result<InitFrom, E> {
                Ok(InitFrom { path: path.into(), ..InitFrom::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<InitFrom, A::Error> {
                let Table { path, allow, layers } =
                    Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(InitFrom { path, allow, layers })
            }
        }

        deserializer.deserialize_any(PathOrTable)
    }
}

impl Described for InitFrom {
    fn shape() -> Shape {
        let allow = "Keys in which the run may differ from the model, such as `model.n_heads`. A setting that gives \
                     the parameters their meaning is otherwise refused if it differs.";
        let layers = "The layers of the model, counted from 0, that the run has: `[0, 2, 4]` begins a model of three \
                      layers. All if empty.";
        Shape::TableOrFirst(vec![
            Field::required::<PathBuf>("path", "The model."),
            Field::optional::<Vec<String>>("allow", allow, &Vec::new()),
            Field::optional::<Vec<usize>>("layers", layers, &Vec::new()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_are_read_and_the_short_one_is_written_where_it_says_all() {
        let read = |value| serde_json::from_value::<InitFrom>(value);
        let written = |init: &InitFrom| serde_json::to_value(init).unwrap();
        let short = read(json!("runs/a")).unwrap();
        assert_eq!(short, InitFrom { path: "runs/a".into(), ..InitFrom::default() });
        assert_eq!(read(json!({ "path": "runs/a" })).unwrap(), short);
        assert_eq!(written(&short), json!("runs/a"));
        for long in [
            json!({ "path": "runs/a", "allow": ["model.attention"] }),
            json!({ "path": "runs/a", "layers": [0, 2] }),
        ] {
            assert_eq!(written(&read(long.clone()).unwrap()), long);
        }
        for wrong in [json!(5), json!({}), json!({ "path": "a", "allows": [] })] {
            read(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_table_is_allowed_with_all_of_its_settings() {
        let allow = ["model.attention".to_owned(), "model.n_heads".to_owned()].into();
        let init = InitFrom { allow, ..InitFrom::default() };
        assert!(init.allows("model.attention.kind") && init.allows("model.n_heads"));
        assert!(!init.allows("model.attention_of") && !init.allows("model"));
    }
}
