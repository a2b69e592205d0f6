//! Go's rule that assigns the keys of an object to the fields of a struct.

use super::Json;
use super::node::Node;

/// One key and value for a struct or map.
pub(super) struct Entry<'de> {
    /// The field name of the struct; for a map the key.
    pub(super) name: &'de str,
    /// The key as the document spells it, for errors.
    pub(super) key: &'de str,
    pub(super) value: &'de Json,
    /// Earlier values of the same key, in document order.
    pub(super) earlier: Vec<&'de Json>,
}

/// Merges `objects` and returns the entries for a struct with `fields`: without nulls, and one entry per
/// field. Values that are not objects have no entries.
pub(super) fn fields<'de>(
    objects: impl Iterator<Item = &'de Json>,
    fields: &[&'static str],
) -> Vec<Entry<'de>> {
    let mut found: Vec<Entry<'de>> = Vec::new();
    for entries in objects.map(entries_of) {
        for (key, value) in entries {
            let Some(name) = field_of(key, fields) else { continue };
            if value.is_null() || (key != name && has_exact(entries, name)) {
                continue;
            }
            match found.iter_mut().find(|entry| entry.name == name) {
                Some(entry) => {
                    entry.key = key;
                    entry.earlier.push(std::mem::replace(&mut entry.value, value));
                }
                None => found.push(Entry { name, key, value, earlier: Vec::new() }),
            }
        }
    }
    found
}

/// All entries of `objects`, including nulls and duplicates.
pub(super) fn verbatim<'de>(objects: impl Iterator<Item = &'de Json>) -> Vec<Entry<'de>> {
    objects
        .flat_map(entries_of)
        .map(|(key, value)| Entry { name: key, key, value, earlier: Vec::new() })
        .collect()
}

/// Go's case-insensitive comparison. Field names are ASCII, and U+017F and U+212A are the only other
/// characters that fold to ASCII letters.
pub(super) fn same(a: &str, b: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17F}' => 's',
        '\u{212A}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    a.chars().map(fold).eq(b.chars().map(fold))
}

fn field_of(key: &str, fields: &[&'static str]) -> Option<&'static str> {
    let find = |matches: &dyn Fn(&str) -> bool| fields.iter().copied().find(|field| matches(field));
    find(&|field| field == key).or_else(|| find(&|field| same(field, key)))
}

fn has_exact(entries: &[(String, Json)], name: &str) -> bool {
    entries.iter().any(|(key, value)| key == name && !value.is_null())
}

fn entries_of(json: &Json) -> &[(String, Json)] {
    match &json.0 {
        Node::Object(entries) => entries,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::{field_of, same};

    #[test]
    fn folds_ascii_and_two_other_characters() {
        for (a, b) in [("mtu", "MTU"), ("hostIP", "HoStip"), ("dns", "DN\u{17F}"), ("key", "\u{212A}EY")] {
            assert!(same(a, b), "{a} {b}");
        }
        for (a, b) in [("mtu", "mt"), ("mt", "mtu"), ("e", "é"), ("é", "É"), ("a-b", "a_b"), ("", "a")] {
            assert!(!same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn an_exact_match_is_preferred() {
        let fields = ["address", "Address"];
        assert_eq!(field_of("address", &fields), Some("address"));
        assert_eq!(field_of("Address", &fields), Some("Address"));
        assert_eq!(field_of("ADDRESS", &fields), Some("address"));
        assert_eq!(field_of("addr", &fields), None);
    }
}
