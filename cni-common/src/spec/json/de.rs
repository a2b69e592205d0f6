//! The serde deserializer over a [`Json`] tree.
//!
//! Each method calls only the `visit_*` method that belongs to its type, and one non-generic function creates the
//! error for every type mismatch. Both keep the plugins small: unused `visit_*` methods are not compiled in,
//! and type checks are not repeated for each visitor.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Expected, MapAccess, SeqAccess, Visitor};

use super::fold::{self, Entry};
use super::node::Node;
use super::{Json, JsonError};

/// A value to decode.
#[derive(Clone, Copy)]
pub(super) struct Value<'a, 'de> {
    json: &'de Json,
    /// Earlier values of the same key, in document order.
    earlier: &'a [&'de Json],
    /// Whether null decodes to the zero value of the type.
    null_is_zero: bool,
}

static FALSE: Json = Json(Node::Bool(false));
static ZERO: Json = Json(Node::Unsigned(0));
static EMPTY_STRING: Json = Json(Node::String(String::new()));
static EMPTY_ARRAY: Json = Json(Node::Array(Vec::new()));

impl<'de> Value<'_, 'de> {
    pub(super) fn document(json: &'de Json) -> Self {
        Value { json, earlier: &[], null_is_zero: true }
    }

    fn or_zero(&self, zero: &'static Json) -> &'de Node {
        if self.null_is_zero && self.json.is_null() { &zero.0 } else { &self.json.0 }
    }

    fn mismatch(&self, expected: &dyn Expected) -> JsonError {
        JsonError::mismatch(self.json.unexpected(), &expected)
    }

    fn string(&self, expected: &dyn Expected) -> Result<&'de str, JsonError> {
        match self.or_zero(&EMPTY_STRING) {
            Node::String(value) => Ok(value),
            _ => Err(self.mismatch(expected)),
        }
    }

    fn array(&self) -> Result<Elements<'de>, JsonError> {
        match self.or_zero(&EMPTY_ARRAY) {
            Node::Array(elements) => Ok(Elements { rest: elements.iter(), next: 0 }),
            _ => Err(self.mismatch(&"an array")),
        }
    }

    /// The merged entries of this object and of the earlier objects of the same key. `fields` are the fields
    /// of the target struct; `None` if the target is a map.
    fn object(&self, fields: Option<&[&'static str]>) -> Result<Entries<'de>, JsonError> {
        let found = || self.earlier.iter().copied().chain([self.json]);
        let found_zero = self.null_is_zero && self.json.is_null();
        if let Some(other) = found().find(|json| !json.is_object() && !found_zero) {
            return Err(JsonError::mismatch(other.unexpected(), &"an object"));
        }
        Ok(Entries::new(match fields {
            Some(fields) => fold::fields(found(), fields),
            None => fold::verbatim(found()),
        }))
    }
}

macro_rules! numbers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            match self.or_zero(&ZERO) {
                Node::Unsigned(value) => visitor.visit_u64(*value),
                Node::Negative(value) => visitor.visit_i64(*value),
                // The visitor of an integer refuses it.
                Node::Float(value) => visitor.visit_f64(*value),
                _ => Err(self.mismatch(&visitor)),
            }
        }
    )*};
}

macro_rules! strings {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            let value = self.string(&visitor)?;
            visitor.visit_borrowed_str(value)
        }
    )*};
}

impl<'de> Deserializer<'de> for Value<'_, 'de> {
    type Error = JsonError;

    numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32 deserialize_f64
    }
    strings! { deserialize_str deserialize_string deserialize_char deserialize_identifier }
    serde::forward_to_deserialize_any! { bytes byte_buf unit unit_struct tuple tuple_struct }

    /// The unchanged value. Go's rules do not apply here.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match &self.json.0 {
            Node::Null => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Unsigned(value) => visitor.visit_u64(*value),
            Node::Negative(value) => visitor.visit_i64(*value),
            Node::Float(value) => visitor.visit_f64(*value),
            Node::String(value) => visitor.visit_borrowed_str(value),
            Node::Array(_) => visitor.visit_seq(self.array()?),
            Node::Object(_) => visitor.visit_map(Entries::new(fold::verbatim([self.json].into_iter()))),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self.or_zero(&FALSE) {
            Node::Bool(value) => visitor.visit_bool(*value),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        if self.json.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_seq(self.array()?)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_map(self.object(None)?)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        visitor.visit_map(self.object(Some(fields))?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        let name = self.string(&"a string")?;
        visitor.visit_enum(BorrowedStrDeserializer::new(name))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_unit()
    }
}

struct Elements<'de> {
    rest: std::slice::Iter<'de, Json>,
    next: usize,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = JsonError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, JsonError> {
        let Some(json) = self.rest.next() else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        let element = seed.deserialize(Value { json, earlier: &[], null_is_zero: false });
        element.map(Some).map_err(|error| error.under_index(index))
    }
}

struct Entries<'de> {
    rest: std::vec::IntoIter<Entry<'de>>,
    current: Option<Entry<'de>>,
}

impl<'de> Entries<'de> {
    fn new(entries: Vec<Entry<'de>>) -> Self {
        Entries { rest: entries.into_iter(), current: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = JsonError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, JsonError> {
        self.current = self.rest.next();
        let Some(entry) = &self.current else { return Ok(None) };
        let key = seed.deserialize(BorrowedStrDeserializer::<JsonError>::new(entry.name));
        key.map(Some).map_err(|error| error.under_key(entry.key))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, JsonError> {
        let Some(entry) = self.current.take() else {
            return Err(JsonError::new("map value requested before its key".to_owned()));
        };
        // Matters only for maps: `fold::fields` drops the nulls of structs.
        let value = Value { json: entry.value, earlier: &entry.earlier, null_is_zero: true };
        seed.deserialize(value).map_err(|error| error.under_key(entry.key))
    }
}
