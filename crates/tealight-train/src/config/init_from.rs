//! `init_from`: the model that a run starts from, `"FOLDER"` or `{ path = "FOLDER", allow = ["model.n_heads"] }`.

use std::fmt;
use std::path::PathBuf;

use serde::de::{Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize, Serializer};
use tealight_model::describe::{Described, Field, Shape};

/// The model that a run starts from. Written as its path alone if nothing may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitFrom {
    /// The folder of the model, or its name in the cache of Hugging Face.
    pub path: PathBuf,
    /// Keys of settings, or of tables of settings, that may differ from the model's.
    pub allow: Vec<String>,
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
    #[serde(default)]
    allow: Vec<String>,
}

impl Serialize for InitFrom {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { path, allow } = self.clone();
        if allow.is_empty() {
            return path.serialize(serializer);
        }
        Table { path, allow }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for InitFrom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathOrTable;

        impl<'de> Visitor<'de> for PathOrTable {
            type Value = InitFrom;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or a table with `path` and `allow`")
            }

            fn visit_str<E>(self, path: &str) -> Result<InitFrom, E> {
                Ok(InitFrom { path: path.into(), allow: Vec::new() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<InitFrom, A::Error> {
                let Table { path, allow } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(InitFrom { path, allow })
            }
        }

        deserializer.deserialize_any(PathOrTable)
    }
}

impl Described for InitFrom {
    fn shape() -> Shape {
        let allow = "Keys in which the run may differ from the model, such as `model.n_heads`. A setting that gives \
                     the parameters their meaning is otherwise refused if it differs.";
        Shape::TableOrFirst(vec![
            Field::required::<PathBuf>("path", "The model."),
            Field::optional::<Vec<String>>("allow", allow, &Vec::new()),
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
        assert_eq!(short, InitFrom { path: "runs/a".into(), allow: Vec::new() });
        assert_eq!(read(json!({ "path": "runs/a" })).unwrap(), short);
        assert_eq!(written(&short), json!("runs/a"));
        let long = json!({ "path": "runs/a", "allow": ["model.attention"] });
        assert_eq!(written(&read(long.clone()).unwrap()), long);
        for wrong in [json!(5), json!({}), json!({ "path": "a", "allows": [] })] {
            read(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_table_is_allowed_with_all_of_its_settings() {
        let allow = ["model.attention".to_owned(), "model.n_heads".to_owned()].into();
        let init = InitFrom { path: PathBuf::new(), allow };
        assert!(init.allows("model.attention.kind") && init.allows("model.n_heads"));
        assert!(!init.allows("model.attention_of") && !init.allows("model"));
    }
}
