//! Takes a list apart while it comes: with `resourceVersion=0` an API server sends all nodes at once, 100 MB for 5,000 of them. Pure.

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cluster::ListMetadata;

/// The most bytes of one object. etcd keeps objects up to 1.5 MB.
const MAX_ITEM: usize = 8 << 20;
/// The most bytes of all but the objects.
const MAX_REST: usize = 1 << 20;

/// The state between two pieces.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// The list without its items.
    rest: Vec<u8>,
    /// The item so far, and whether more of it was dropped.
    item: Vec<u8>,
    is_cut: bool,
    /// The open braces and brackets.
    depth: usize,
    /// Whether the place is within the items of the list.
    in_items: bool,
    in_string: bool,
    is_escaped: bool,
}

#[derive(Deserialize)]
struct Rest {
    metadata: ListMetadata,
    /// Empty, but it must be there: another answer is no list without nodes.
    #[serde(rename = "items")]
    _items: Vec<IgnoredAny>,
}

impl Items {
    /// Takes the next piece. `each` gets each item, and whether it is cut off because it is too large.
    ///
    /// # Errors
    /// It is no list, all but its items is too large, or `each` fails.
    pub(super) fn take(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8], bool) -> Result<()>,
    ) -> Result<()> {
        for byte in piece {
            self.step(*byte)?;
            if self.in_items && self.depth == 2 && *byte == b'}' && !self.in_string {
                each(&self.item, std::mem::take(&mut self.is_cut))?;
                self.item.clear();
            }
        }
        Ok(())
    }

    fn step(&mut self, byte: u8) -> Result<()> {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return self.keep(byte);
        }
        match byte {
            b'"' => self.in_string = true,
            b'[' if self.depth == 1 && self.is_at_items() => {
                self.keep(byte)?;
                (self.in_items, self.depth) = (true, 2);
                return Ok(());
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                let is_last = self.in_items && self.depth == 2;
                self.depth = self.depth.checked_sub(1).context("it is no list")?;
                if is_last {
                    self.in_items = false;
                }
            }
            b',' | b' ' | b'\n' | b'\r' | b'\t' if self.in_items && self.depth == 2 => return Ok(()),
            _ => {}
        }
        self.keep(byte)
    }

    fn keep(&mut self, byte: u8) -> Result<()> {
        if self.in_items {
            self.is_cut |= self.item.len() >= MAX_ITEM;
            if !self.is_cut {
                self.item.push(byte);
            }
            return Ok(());
        }
        ensure!(self.rest.len() < MAX_REST, "it has more than {MAX_REST} bytes besides its items");
        self.rest.push(byte);
        Ok(())
    }

    /// Whether the last word at the top is `"items":`.
    fn is_at_items(&self) -> bool {
        let before = |text: &[u8]| text.trim_ascii_end().to_vec();
        self.rest[self.rest.len().saturating_sub(64)..]
            .trim_ascii_end()
            .strip_suffix(b":")
            .is_some_and(|text| before(text).ends_with(b"\"items\""))
    }

    /// The list's own fields.
    ///
    /// # Errors
    /// It is no list, or it is not complete.
    pub(super) fn finish(self) -> Result<ListMetadata> {
        if !self.item.is_empty() {
            bail!("it ends in an object");
        }
        Ok(serde_json::from_slice::<Rest>(&self.rest)?.metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_apart(text: &str, piece: usize) -> Result<(Vec<String>, ListMetadata)> {
        let (mut items, mut found) = (Items::default(), Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            items.take(piece, |item, is_cut| {
                assert_eq!(is_cut, item.len() == MAX_ITEM);
                found.push(String::from_utf8(item.to_vec())?);
                Ok(())
            })?;
        }
        Ok((found, items.finish()?))
    }

    #[test]
    fn objects_are_cut_out_wherever_a_piece_ends() {
        let one = r#"{"metadata":{"name":"a","x":"]}\"{[\\"},"items":[{"items":[1]}]}"#;
        for text in [
            format!(
                r#"{{"kind":"NodeList","metadata":{{"resourceVersion":"7","items":[3]}},"items":[{one}, {{}} ]}}"#
            ),
            format!("{{\"items\" : \n[{one},\n{{}}],\"metadata\":{{\"resourceVersion\":\"7\"}}}}"),
        ] {
            for piece in [1, 2, 3, 7, text.len()] {
                let (found, metadata) = take_apart(&text, piece).unwrap();
                assert_eq!(found, [one, "{}"], "{text} in pieces of {piece}");
                assert_eq!(metadata.resource_version, "7");
            }
        }
        let (found, metadata) =
            take_apart(r#"{"items":[],"metadata":{"resourceVersion":"7","continue":"x"}}"#, 5).unwrap();
        assert_eq!((found.len(), metadata.next.as_deref()), (0, Some("x")));
    }

    #[test]
    fn other_answers_are_no_lists() {
        for text in [
            "",
            "<html>redirected</html>",
            "[]",
            "]",
            r#"{"kind":"Status","metadata":{}}"#,
            r#"{"metadata":{},"items":null}"#,
            r#"{"metadata":{},"items":[{"#,
            r#"{"metadata":{},"items":[{}"#,
            r#"{"metadata":{},"items":[{}]"#,
            r#"{"metadata":{},"items":[1]}"#,
            r#"{"metadata":{},"items":{}}"#,
        ] {
            assert!(take_apart(text, 3).is_err(), "{text}");
        }
        let long = format!(r#"{{"metadata":{{"x":"{}"}},"items":[]}}"#, "x".repeat(MAX_REST));
        assert!(take_apart(&long, 1 << 16).is_err());
    }

    #[test]
    fn an_item_that_is_too_large_is_cut_off() {
        let long = format!(r#"{{"metadata":{{"name":"a"}},"x":"{}","y":[{{}}]}}"#, "x".repeat(MAX_ITEM));
        let text = format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{{}},{long},{{"z":1}}]}}"#);
        let (found, metadata) = take_apart(&text, 1 << 16).unwrap();
        assert_eq!((&*found[0], &*found[2], &*metadata.resource_version), ("{}", r#"{"z":1}"#, "7"));
        assert_eq!((found.len(), &found[1]), (3, &long[..MAX_ITEM].to_owned()));
    }
}
