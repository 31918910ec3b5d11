//! Deserialization of a choice: `kind` first, then the other keys into the settings of that kind.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::Choice;

/// Deserializes a choice from a map whose first key is `kind`, or from the name of a kind.
pub fn deserialize<'de, C: Choice, D: Deserializer<'de>>(deserializer: D) -> Result<C, D::Error> {
    deserializer.deserialize_any(ChoiceVisitor(PhantomData))
}

struct ChoiceVisitor<C>(PhantomData<C>);

impl<'de, C: Choice> Visitor<'de> for ChoiceVisitor<C> {
    type Value = C;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table with `kind` or the name of a kind")
    }

    /// The short form: the same as a table with `kind` only.
    fn visit_str<E: Error>(self, name: &str) -> Result<C, E> {
        C::of_kind(name).ok_or_else(|| E::unknown_variant(name, C::NAMES))
    }

    /// A missing `kind` is an unknown variant without a name: of serde's errors, only an unknown variant
    /// carries the list of the valid ones.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<C, A::Error> {
        if map.next_key::<String>()?.as_deref() != Some("kind") {
            return Err(A::Error::unknown_variant("", C::NAMES));
        }
        let kind = map.next_value_seed(KindSeed(C::NAMES))?;
        C::read(kind, MapAccessDeserializer::new(map))
    }
}

/// Reads the name of a kind; as a seed, so that an error carries the line of the value.
struct KindSeed(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for KindSeed {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KindSeed {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<&'static str, E> {
        let known = self.0.iter().copied().find(|kind| *kind == name);
        known.ok_or_else(|| E::unknown_variant(name, self.0))
    }
}
