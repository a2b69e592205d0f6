//! The error type of parsing and decoding.

use std::fmt;

use serde::de::{Error, Expected, Unexpected};

/// Why a document could not be parsed or decoded.
///
/// The text is the path of the offending value (with keys as the document spells them) and the reason:
/// `ipam.ranges[0][1].subnet: expected a string, found number 5`. A syntax error has line and column instead
/// of the path. An error of the top-level value has no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    path: String,
    message: String,
}

impl JsonError {
    pub(super) fn new(message: String) -> Self {
        JsonError { path: String::new(), message }
    }

    pub(super) fn syntax(error: serde_json::Error) -> Self {
        JsonError::new(format!("malformed JSON: {error}"))
    }

    pub(super) fn mismatch(found: Unexpected<'_>, expected: &dyn fmt::Display) -> Self {
        let found = match found {
            Unexpected::Unit => "null".to_owned(),
            Unexpected::Bool(value) => format!("boolean {value}"),
            Unexpected::Unsigned(value) => format!("number {value}"),
            Unexpected::Signed(value) => format!("number {value}"),
            // As serde_json prints it: the formatting of the standard library adds 12 kB to the program.
            Unexpected::Float(value) => {
                format!("number {}", serde_json::to_string(&value).unwrap_or_default())
            }
            Unexpected::Str(text) => format!("string {text:?}"),
            Unexpected::Seq => "array".to_owned(),
            Unexpected::Map => "object".to_owned(),
            Unexpected::Other(what) => what.to_owned(),
            _ => "a value of another type".to_owned(),
        };
        JsonError::new(format!("expected {expected}, found {found}"))
    }

    /// Prepends `key` to the path.
    pub(super) fn under_key(self, key: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if key.is_empty() || !key.chars().all(plain) {
            return self.under(format!("[{key:?}]"));
        }
        self.under(key.to_owned())
    }

    /// Prepends an array index to the path.
    pub(super) fn under_index(self, index: usize) -> Self {
        self.under(format!("[{index}]"))
    }

    fn under(self, mut path: String) -> Self {
        if !self.path.is_empty() && !self.path.starts_with('[') {
            path.push('.');
        }
        path.push_str(&self.path);
        JsonError { path, ..self }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for JsonError {}

impl Error for JsonError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        JsonError::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        JsonError::mismatch(found, &expected)
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        JsonError::mismatch(found, &expected)
    }
}
