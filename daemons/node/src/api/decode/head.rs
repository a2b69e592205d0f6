//! The name and the version of an object that cannot be read as a whole, because it has an error or is cut off.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// The first fields of an object, or of the `object` in a line of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Head {
    /// `type` of the line of a watch.
    pub(in super::super) event: String,
    pub(in super::super) namespace: String,
    pub(in super::super) name: String,
    pub(in super::super) version: String,
}

impl Head {
    /// Reads up to the first error.
    pub(in super::super) fn read(text: &[u8]) -> Head {
        let mut head = Head::default();
        // The head has the fields before the error.
        let _ = serde_json::Deserializer::from_slice(text).deserialize_map(Fields(&mut head, Place::Top));
        head
    }
}

#[derive(Clone, Copy)]
enum Place {
    Top,
    Object,
    Metadata,
}

/// Writes into a head, so that an error later on takes nothing away.
struct Fields<'h>(&'h mut Head, Place);

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Fields(head, place) = self;
        while let Some(key) = map.next_key::<String>()? {
            let text = match (place, key.as_str()) {
                (Place::Top, "object") => {
                    map.next_value_seed(Fields(head, Place::Object))?;
                    continue;
                }
                (Place::Top | Place::Object, "metadata") => {
                    map.next_value_seed(Fields(head, Place::Metadata))?;
                    continue;
                }
                (Place::Top, "type") => &mut head.event,
                (Place::Metadata, "namespace") => &mut head.namespace,
                (Place::Metadata, "name") => &mut head.name,
                (Place::Metadata, "resourceVersion") => &mut head.version,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *text = map.next_value()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_error_is_read() {
        let object = r#"{"kind":"Pod","metadata":{"name":"n","namespace":"s","resourceVersion":"7","labels":{"name":"x"}"#;
        let expected = |event: &str| Head {
            event: event.into(),
            namespace: "s".into(),
            name: "n".into(),
            version: "7".into(),
        };
        assert_eq!(Head::read(object.as_bytes()), expected(""));
        let line = format!(r#"{{"type":"MODIFIED","object":{object}}},"spec":[1],"metadata":"x""#);
        for end in [line.len(), line.len() - 4, line.find("\"spec").unwrap()] {
            assert_eq!(Head::read(&line.as_bytes()[..end]), expected("MODIFIED"));
        }
        assert_eq!(Head::read(br#"{"metadata":{"name":1,"namespace":"s"}}"#), Head::default());
        assert_eq!(Head::read(b"<html>"), Head::default());
    }
}
