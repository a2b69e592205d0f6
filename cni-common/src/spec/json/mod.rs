//! Go's `encoding/json` rules for serde. All JSON input of Ferrule is decoded here.
//!
//! Existing network configurations were written for plugins in Go. Go's decoder accepts more keys and nulls
//! than serde_json, and fewer numbers. A configuration struct is a plain
//! `#[derive(Deserialize)] #[serde(default, rename_all = "camelCase")]`; [`Json::decode`] applies Go's rules:
//!
//! * A key matches a field exactly or, if no field matches exactly, case-insensitively (ASCII, and `ſ` for s,
//!   `K` for k). Within one object an exact match has precedence over a case-insensitive one, in any order;
//!   of several equal matches the last one wins. Keys of maps are not folded.
//! * `null` for a field equals an absent key, so it never replaces an earlier value. A null map value or
//!   document is the zero value of the type (`""`, `0`, `false`, empty). A null list element is `None` for an
//!   `Option` and an error for any other type.
//! * Duplicate objects for a struct or map field are merged. Of any other duplicate values the last one wins.
//! * Unknown keys are ignored, with any value.
//! * An integer must be written as an integer (`1`, not `1.0`, `1e0` or `"1"`) and fit its type.
//! * Bytes that are not UTF-8 and lone surrogate escapes become U+FFFD.
//!
//! Enums may only have unit variants (a JSON string). Do not use `#[serde(flatten)]` or internally tagged or
//! untagged enums in configuration structs: they buffer their input without field names, so keys inside them
//! are not folded. `#[serde(alias)]` makes the alias a separate field name, and both names in one object are
//! an error.
//!
//! Known differences from Go (no known configuration depends on them): nesting of more than 128 levels
//! and numbers beyond the range of f64 are errors even under an unknown key; `-0` is not an integer; an
//! earlier duplicate of a scalar or list is not type-checked; a null does not clear an earlier list or map of
//! the same key.

mod de;
mod error;
mod fold;
mod node;
mod text;

use serde::Deserialize;

pub use self::error::JsonError;
use self::node::Node;

/// A parsed JSON document. Keeps duplicate keys and the order of keys.
///
/// A field of this type (`prev_result: Option<Json>`) holds its part of the document undecoded. Serialising
/// returns an equal document, except for white space and the spelling of escapes and floats. A float may
/// change in its 17th digit, because serde_json does not always parse to the nearest double.
#[derive(Clone, Debug, PartialEq)]
pub struct Json(Node);

impl Json {
    /// Parses one JSON value, with optional white space around it.
    ///
    /// # Errors
    /// Malformed, truncated or empty input, a byte order mark, or text after the value.
    pub fn parse(bytes: &[u8]) -> Result<Json, JsonError> {
        serde_json::from_str(&text::repair(bytes)).map_err(JsonError::syntax)
    }

    /// Decodes the document into a `T` by Go's rules (see the [module](self)). `T` may borrow strings from
    /// `self`.
    ///
    /// # Errors
    /// A value of the wrong type or out of range, a missing required field, or an error of the `Deserialize`
    /// implementation of `T`. The error has the path of the value.
    pub fn decode<'de, T: Deserialize<'de>>(&'de self) -> Result<T, JsonError> {
        T::deserialize(de::Value::document(self))
    }

    /// Whether the document is an object.
    pub fn is_object(&self) -> bool {
        matches!(self.0, Node::Object(_))
    }

    /// Whether the document is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self.0, Node::Null)
    }

    /// The value of `key` in an object, by the rules for a struct field of that name; of duplicate objects it
    /// returns the last one and does not merge. `None` if the key is absent or null, or if this is not an
    /// object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        let Node::Object(entries) = &self.0 else { return None };
        let last = |matches: &dyn Fn(&str) -> bool| {
            entries.iter().rev().find(|(k, v)| !v.is_null() && matches(k)).map(|(_, v)| v)
        };
        last(&|k| k == key).or_else(|| last(&|k| fold::same(k, key)))
    }

    /// True if this is an object that has `key` (case-insensitive), even if its value is null.
    pub fn has_key(&self, key: &str) -> bool {
        matches!(&self.0, Node::Object(entries) if entries.iter().any(|(k, _)| k == key || fold::same(k, key)))
    }

    /// The name of the type: `null`, `boolean`, `number`, `string`, `array` or `object`.
    pub fn kind(&self) -> &'static str {
        match self.0 {
            Node::Null => "null",
            Node::Bool(_) => "boolean",
            Node::Unsigned(_) | Node::Negative(_) | Node::Float(_) => "number",
            Node::String(_) => "string",
            Node::Array(_) => "array",
            Node::Object(_) => "object",
        }
    }
}
