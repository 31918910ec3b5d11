//! The JSON Schema of the file (draft 2020-12), for editors: it accepts what is read, and refuses what is not.
//!
//! It states the types, not the rules between settings that are checked when a model is built. JSON makes no
//! difference between 2 and 2.0, which TOML does. A file with `init_from` may leave out the `kind` that the model in
//! that folder has; the schema asks for it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tealight_model::describe::{Alternatives, Field, Shape, plain};
use tealight_model::names::Kind;

use super::reference;

/// The schema of the whole file.
pub fn json_schema() -> Value {
    let mut definitions = Definitions::default();
    let Value::Object(file) = table("", &reference::settings(), None, &mut definitions) else {
        unreachable!("a table has an object");
    };
    let mut schema = Map::new();
    schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".to_owned(), json!("Tealight"));
    schema.insert("description".to_owned(), json!("The configuration of a run of Tealight."));
    schema.extend(file);
    schema.insert("$defs".to_owned(), Value::Object(definitions.schemas));
    Value::Object(schema)
}

/// The schemas of choices, each named after the first key that has it: a choice may stand at several keys.
#[derive(Default)]
struct Definitions {
    names: BTreeMap<&'static str, String>,
    schemas: Map<String, Value>,
}

impl Definitions {
    /// A reference to the schema of `choice`, which stands at `key`.
    fn reference(&mut self, key: &str, choice: &Alternatives) -> Value {
        if !self.names.contains_key(choice.type_name) {
            let name = self.free_name(key);
            self.names.insert(choice.type_name, name.clone());
            let schema = alternatives(key, choice, self);
            self.schemas.insert(name, schema);
        }
        json!({ "$ref": format!("#/$defs/{}", self.names[choice.type_name]) })
    }

    /// `key`, with a number if another choice has it.
    fn free_name(&self, key: &str) -> String {
        let is_free = |name: &String| !self.names.values().any(|used| used == name);
        let numbered = (2..).map(|n| format!("{key}.{n}"));
        let mut names = std::iter::once(key.to_owned()).chain(numbered);
        names.find(is_free).unwrap_or_default()
    }
}

/// An object with these settings, of a `kind` if it is one of a choice. It is at `key`.
fn table(key: &str, fields: &[Field], kind: Option<&str>, definitions: &mut Definitions) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    if let Some(kind) = kind {
        properties.insert("kind".to_owned(), json!({ "const": kind }));
        required.push("kind");
    }
    for field in fields {
        let key =
            if key.is_empty() { field.name.to_owned() } else { format!("{key}.{}", field.name) };
        properties.insert(field.name.to_owned(), property(&key, field, definitions));
        required.extend(field.is_required.then_some(field.name));
    }
    let mut schema = json!({
        "type": "object", "properties": properties, "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The schema of a setting with its documentation and its default.
fn property(key: &str, field: &Field, definitions: &mut Definitions) -> Value {
    let mut schema = shape(key, &field.shape, definitions);
    schema["description"] = json!(field.meaning());
    // The settings of a table have their own.
    if let (Some(default), false) = (&field.default, matches!(field.shape, Shape::Table(_))) {
        schema["default"] = default.clone();
    }
    schema
}

fn shape(key: &str, shape: &Shape, definitions: &mut Definitions) -> Value {
    match shape {
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Integer { greatest: None } => json!({ "type": "integer", "minimum": 0 }),
        Shape::Integer { greatest: Some(greatest) } => {
            json!({ "type": "integer", "minimum": 0, "maximum": greatest })
        }
        Shape::Number => json!({ "type": "number" }),
        Shape::Text | Shape::Path => json!({ "type": "string" }),
        Shape::Words(words) => json!({ "oneOf": words.iter().map(word).collect::<Vec<_>>() }),
        Shape::List { item, len } => {
            let mut schema =
                json!({ "type": "array", "items": self::shape(key, item, definitions) });
            if let Some(len) = len {
                schema["minItems"] = json!(len);
                schema["maxItems"] = json!(len);
            }
            schema
        }
        Shape::Table(fields) => table(key, fields, None, definitions),
        Shape::TableOrFirst(fields) => {
            let first = fields.first().map(|field| self::shape(key, &field.shape, definitions));
            let table = table(key, fields, None, definitions);
            json!({ "oneOf": first.into_iter().chain([table]).collect::<Vec<_>>() })
        }
        Shape::Choice(choice) => definitions.reference(key, choice),
    }
}

fn word(Kind { name, summary }: &Kind) -> Value {
    json!({ "const": name, "description": summary })
}

/// The name of a kind, or a table with `kind` and its settings.
fn alternatives(key: &str, choice: &Alternatives, definitions: &mut Definitions) -> Value {
    let names: Vec<&str> = choice.kinds.iter().map(|kind| kind.name).collect();
    let mut schemas = vec![json!({ "enum": names })];
    for kind in &choice.kinds {
        let mut schema = table(key, &kind.fields, Some(kind.name), definitions);
        schema["title"] = json!(kind.name);
        schema["description"] = json!(plain(kind.doc));
        schemas.push(schema);
    }
    json!({ "oneOf": schemas })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_type_documentation_and_default() {
        let schema = json_schema();
        let steps = &schema["properties"]["training"]["properties"]["steps"];
        assert_eq!(
            (&steps["type"], &steps["minimum"], &steps["default"]),
            (&json!("integer"), &json!(0), &json!(1000))
        );
        assert!(steps["description"].as_str().unwrap().starts_with("Number of steps"));
        assert_eq!(schema["required"], json!(["task"]));
        assert_eq!(schema["additionalProperties"], json!(false));
    }

    #[test]
    fn a_choice_is_defined_once() {
        let schema = json_schema();
        let model = &schema["properties"]["model"]["properties"];
        let [attention, cross] = ["attention", "cross_attention"].map(|key| &model[key]["$ref"]);
        assert_eq!(attention, cross);
        assert_eq!(attention, "#/$defs/model.attention");
        let kinds = schema["$defs"]["model.attention"]["oneOf"].as_array().unwrap();
        let local = kinds.iter().find(|kind| kind["title"] == "local").unwrap();
        assert_eq!(local["properties"]["kind"], json!({ "const": "local" }));
        assert_eq!(local["required"], json!(["kind"]));
    }
}
