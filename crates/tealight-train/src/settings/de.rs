//! A serde deserializer for the tree.
//!
//! `toml`'s own deserializer reports a message and a span. This one reports the broken rule, the valid
//! names and the path of the key, so that no message has to be parsed. A table yields its `kind` first:
//! `tealight_model::choice` reads the other keys into the settings of that kind.

use std::iter::Enumerate;
use std::slice;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};

use super::fault::SettingFault;
use super::tree::{Entry, Node, Table, Value, quoted_key};

/// Deserialises a whole document.
pub(super) fn from_table<T: DeserializeOwned>(table: &Table) -> Result<T, SettingFault> {
    T::deserialize(MapAccessDeserializer::new(Entries::new(table)))
}

/// Deserialises the value at a dotted `path`.
pub(super) fn from_node<T: DeserializeOwned>(node: &Node, path: &str) -> Result<T, SettingFault> {
    let inside = |fault: SettingFault, key| fault.inside(node, quoted_key(key));
    T::deserialize(node).map_err(|fault| path.rsplit('.').fold(fault, inside))
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = SettingFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingFault> {
        match &self.value {
            Value::String(value) => visitor.visit_borrowed_str(value),
            Value::Signed(value) => visitor.visit_i64(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Array(items) => visitor.visit_seq(Items(items.iter().enumerate())),
            Value::Table(table) => visitor.visit_map(Entries::new(table)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingFault> {
        visitor.visit_some(self)
    }

    /// Serde's tuples ignore further elements: refuse an array of another length.
    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, SettingFault> {
        match &self.value {
            Value::Array(items) if items.len() != len => Err(SettingFault::invalid_length(
                items.len(),
                &format!("an array of {len} values").as_str(),
            )),
            _ => self.deserialize_any(visitor),
        }
    }

    /// Serde reads a struct from an array, too, by position: refuse that.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SettingFault> {
        match &self.value {
            Value::Array(_) => {
                Err(SettingFault::invalid_type(Unexpected::Other(self.type_name()), &visitor))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SettingFault> {
        match &self.value {
            Value::String(variant) if !variants.contains(&variant.as_str()) => {
                Err(SettingFault::unknown_value(variant, variants))
            }
            Value::String(variant) => visitor.visit_enum(variant.as_str().into_deserializer()),
            _ => Err(SettingFault::invalid_type(Unexpected::Other(self.type_name()), &"a string")),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct newtype_struct seq tuple_struct map identifier ignored_any
    }
}

struct Items<'de>(Enumerate<slice::Iter<'de, Node>>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = SettingFault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, SettingFault> {
        let Some((index, node)) = self.0.next() else { return Ok(None) };
        let element = seed.deserialize(node);
        element.map(Some).map_err(|fault| fault.inside(node, format!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The entries of a table, `kind` first.
struct Entries<'de> {
    kind: Option<&'de Entry>,
    rest: slice::Iter<'de, Entry>,
    value: Option<&'de Entry>,
}

impl<'de> Entries<'de> {
    fn new(table: &'de Table) -> Self {
        Self { kind: table.get("kind"), rest: table.entries.iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = SettingFault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, SettingFault> {
        let next = || self.rest.find(|entry| entry.key != "kind");
        self.value = self.kind.take().or_else(next);
        let Some(entry) = self.value else { return Ok(None) };
        let key = StrDeserializer::new(&entry.key);
        seed.deserialize(key).map(Some).map_err(|fault: SettingFault| fault.at(&entry.key_span))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, SettingFault> {
        let entry = self.value.take().expect("invariant: serde reads a value after its key");
        let value = seed.deserialize(&entry.node);
        value.map_err(|fault| fault.inside(&entry.node, quoted_key(&entry.key)))
    }
}
