//! One value or a list of them, as the APIs take texts. It is read without an intermediate tree of values.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// What a list holds.
pub(super) trait Item {
    /// Its name, and that of several.
    const NAMES: [&'static str; 2];
}

impl Item for String {
    const NAMES: [&'static str; 2] = ["a text", "texts"];
}

/// One value, or a list.
pub(super) struct OneOrList<T> {
    pub(super) list: Vec<T>,
    /// Whether it came as a list.
    pub(super) is_list: bool,
}

impl<'de, T: Item + Deserialize<'de>> Deserialize<'de> for OneOrList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

struct Reader<T>(PhantomData<T>);

impl<'de, T: Item + Deserialize<'de>> Visitor<'de> for Reader<T> {
    type Value = OneOrList<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, several] = T::NAMES;
        write!(formatter, "{one} or a list of {several}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(OneOrList { list: vec![T::deserialize(text.into_deserializer())?], is_list: false })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let one = T::deserialize(MapAccessDeserializer::new(map))?;
        Ok(OneOrList { list: vec![one], is_list: false })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(OneOrList { list, is_list: true })
    }
}
