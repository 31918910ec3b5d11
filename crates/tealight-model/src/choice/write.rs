//! Serialization of a choice: `kind`, then the settings of that kind.

use serde::Serialize;
use serde::ser::{Error as _, Impossible, SerializeMap as _, SerializeStruct as _, Serializer};

use super::Choice;

/// Serializes `choice` as a map: `kind`, then its settings.
pub fn serialize<C: Choice, S: Serializer>(choice: &C, serializer: S) -> Result<S::Ok, S::Error> {
    choice.write(KindFirst { kind: choice.kind(), serializer })
}

/// Serializes a struct or a map with `serializer`, with `kind` inserted as the first entry.
#[derive(Debug)]
pub struct KindFirst<S> {
    kind: &'static str,
    serializer: S,
}

/// Returns an error for values other than tables, which cannot hold `kind`.
macro_rules! refuse {
    ($($method:ident($($argument:ty),*) -> $ok:ty;)+) => {
        $(fn $method(self, $(_: $argument),*) -> Result<$ok, S::Error> {
            Err(S::Error::custom("the settings of a kind are a struct"))
        })+
    };
}

impl<S: Serializer> Serializer for KindFirst<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeMap = S::SerializeMap;
    type SerializeStruct = S::SerializeStruct;
    type SerializeSeq = Impossible<S::Ok, S::Error>;
    type SerializeTuple = Impossible<S::Ok, S::Error>;
    type SerializeTupleStruct = Impossible<S::Ok, S::Error>;
    type SerializeTupleVariant = Impossible<S::Ok, S::Error>;
    type SerializeStructVariant = Impossible<S::Ok, S::Error>;

    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, S::Error> {
        let mut fields = self.serializer.serialize_struct(name, len + 1)?;
        fields.serialize_field("kind", self.kind)?;
        Ok(fields)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        let mut entries = self.serializer.serialize_map(len.map(|len| len + 1))?;
        entries.serialize_entry("kind", self.kind)?;
        Ok(entries)
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.serialize_struct(name, 0)?.end()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<S::Ok, S::Error> {
        self.serialize_unit()
    }

    refuse! {
        serialize_bool(bool) -> S::Ok;
        serialize_i8(i8) -> S::Ok;
        serialize_i16(i16) -> S::Ok;
        serialize_i32(i32) -> S::Ok;
        serialize_i64(i64) -> S::Ok;
        serialize_u8(u8) -> S::Ok;
        serialize_u16(u16) -> S::Ok;
        serialize_u32(u32) -> S::Ok;
        serialize_u64(u64) -> S::Ok;
        serialize_f32(f32) -> S::Ok;
        serialize_f64(f64) -> S::Ok;
        serialize_char(char) -> S::Ok;
        serialize_str(&str) -> S::Ok;
        serialize_bytes(&[u8]) -> S::Ok;
        serialize_none() -> S::Ok;
        serialize_unit() -> S::Ok;
        serialize_unit_variant(&'static str, u32, &'static str) -> S::Ok;
        serialize_seq(Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant;
    }
}
