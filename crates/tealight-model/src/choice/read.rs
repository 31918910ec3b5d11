//! Deserialization of a choice: `kind` first, then the other keys into the settings of that kind.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, MapDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use super::{Choice, Kind};

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
    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<C, E> {
        let no_settings = MapDeserializer::new(std::iter::empty::<(&str, &str)>());
        C::read(find_kind(name, C::KINDS)?, MapAccessDeserializer::new(no_settings))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<C, A::Error> {
        match map.next_key::<String>()? {
            Some(key) if key == "kind" => {}
            _ => {
                let expected = OneOf(C::KINDS);
                let message = format!("missing key `kind`, expected {expected} before other keys");
                return Err(A::Error::custom(message));
            }
        }
        let kind = map.next_value_seed(KindSeed(C::KINDS))?;
        C::read(kind, MapAccessDeserializer::new(map))
    }
}

/// Deserializes the name of a kind. It is a seed so that errors carry the position of the value.
struct KindSeed(&'static [Kind]);

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

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<&'static str, E> {
        find_kind(name, self.0)
    }
}

fn find_kind<E: serde::de::Error>(name: &str, kinds: &'static [Kind]) -> Result<&'static str, E> {
    let known = kinds.iter().find(|kind| kind.name == name);
    known
        .map(|kind| kind.name)
        .ok_or_else(|| E::custom(format_args!("unknown kind `{name}`, expected {}", OneOf(kinds))))
}

/// Formats as "one of `softmax`, `none`", for messages of the form "…, expected one of …".
struct OneOf(&'static [Kind]);

impl fmt::Display for OneOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in self.0.iter().enumerate() {
            write!(f, "{}`{}`", if index == 0 { "one of " } else { ", " }, kind.name)?;
        }
        Ok(())
    }
}
