//! Go's `encoding/json` rules for serde: the one place where Ferrule reads JSON it did not write itself.
//!
//! Network configurations in the field were written for plugins in Go, whose decoder is laxer than serde_json about
//! keys and nulls and stricter about numbers. A config struct here is a plain
//! `#[derive(Deserialize)] #[serde(default, rename_all = "camelCase")]`; [`Json::decode`] gives it Go's rules:
//!
//! * A key matches a field exactly or, failing that, ignoring case (ASCII, and `ſ` for s, `K` for k). Within one
//!   object an exactly written key beats a folded one wherever it stands; among equals the last one wins. Keys of
//!   maps are taken as they are.
//! * `null` for a field is as good as no key at all, so a null never undoes an earlier value. A null map value or
//!   document is the type's zero (`""`, `0`, `false`, empty). A null list element is `None` for an `Option` and
//!   otherwise an error.
//! * An object that occurs twice for a struct or map field is merged; anything else that occurs twice: last wins.
//! * Unknown keys are ignored, whatever they hold.
//! * An integer must be written as one (`1`, neither `1.0` nor `1e0` nor `"1"`) and fit its type.
//! * Bytes that are not UTF-8 and lone surrogate escapes become U+FFFD.
//!
//! Enums may have unit variants only (a JSON string). `#[serde(flatten)]` and internally tagged or untagged enums
//! buffer their input without naming their fields, so keys are not folded inside them: do not use them in config
//! structs. `#[serde(alias)]` makes the alias a field name of its own, and both names in one object are an error.
//!
//! Known differences from Go, none of them seen in a real configuration: nesting beyond 128 levels and a number
//! beyond the range of f64 are errors even under an unknown key; `-0` is no integer; an earlier duplicate of a
//! scalar or list is not type-checked; and a null that follows a list or map for the same key does not empty it.

mod de;
mod error;
mod fold;
mod node;
mod text;

use serde::Deserialize;

pub use self::error::JsonError;
use self::node::Node;

/// A parsed JSON document, of any shape, that keeps duplicate keys and document order.
///
/// Also usable as a field (`prev_result: Option<Json>`) that holds its part of the document undecoded, and
/// serialisable back into an equal document: white space and the spelling of escapes and floats aside. A float may
/// change in its 17th digit, since serde_json does not always read the nearest double.
#[derive(Clone, Debug, PartialEq)]
pub struct Json(Node);

impl Json {
    /// Parses `bytes`, which must be one JSON value and white space.
    ///
    /// # Errors
    /// Malformed, truncated or empty input, a byte order mark, text after the value.
    pub fn parse(bytes: &[u8]) -> Result<Json, JsonError> {
        serde_json::from_str(&text::repair(bytes)).map_err(JsonError::syntax)
    }

    /// Decodes the document into a `T` by Go's rules (see the [module](self)). `T` may borrow strings from `self`.
    ///
    /// # Errors
    /// A value of another type than `T` wants at that place, or out of its range, a field that `T` requires and
    /// the document lacks, or what `T`'s own `Deserialize` refuses. The error names the path to the value.
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

    /// The value of `key` in an object, by the rules for a struct field of that name, except that duplicate objects
    /// are not merged: the last one is returned. `None` if there is no such key, it is null, or this is no object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        let Node::Object(entries) = &self.0 else { return None };
        let last = |matches: &dyn Fn(&str) -> bool| {
            entries.iter().rev().find(|(k, v)| !v.is_null() && matches(k)).map(|(_, v)| v)
        };
        last(&|k| k == key).or_else(|| last(&|k| fold::same(k, key)))
    }

    /// Whether this is an object with `key`, spelled in any case, and be its value null.
    pub fn has_key(&self, key: &str) -> bool {
        matches!(&self.0, Node::Object(entries) if entries.iter().any(|(k, _)| k == key || fold::same(k, key)))
    }

    /// What kind of value this is: `null`, `boolean`, `number`, `string`, `array` or `object`.
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
