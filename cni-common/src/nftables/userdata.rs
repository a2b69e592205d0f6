//! Comments. The kernel keeps them as opaque bytes; `nft` reads and writes a list of type, length, value in them.

/// The longest comment in bytes, `nft`'s limit for every kind of object.
pub const COMMENT_MAX: usize = 128;

/// `NFTNL_UDATA_RULE_COMMENT`, and the same number for tables and chains.
const COMMENT: u8 = 0;

/// The comment, cut at [`COMMENT_MAX`] bytes, but never within a character: `nft -j` refuses to print half a one.
pub fn cut_comment(comment: &str) -> &str {
    let mut end = comment.len().min(COMMENT_MAX);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    &comment[..end]
}

/// The bytes for the byte order of a set's keys (`NFTNL_UDATA_SET_KEYBYTEORDER`), by which `nft` knows how to print them.
pub(super) fn encode_key_order(order: u32) -> Vec<u8> {
    [&[0, 4], order.to_ne_bytes().as_slice()].concat()
}

/// A type that `nft` does not know and passes over.
const NOTE: u8 = 0xf0;

/// The bytes for a note.
pub(super) fn encode_note(note: &[u8]) -> Vec<u8> {
    let note = &note[..note.len().min(usize::from(u8::MAX))];
    let len = u8::try_from(note.len()).unwrap_or(u8::MAX);
    [&[NOTE, len], note].concat()
}

/// The note in an object's bytes, if there is one.
pub(super) fn decode_note(bytes: &[u8]) -> Option<Vec<u8>> {
    find(bytes, NOTE).map(<[u8]>::to_vec)
}

/// The bytes for a comment, cut and with the terminating zero that `nft` wants.
pub(super) fn encode(comment: &str) -> Vec<u8> {
    let text = cut_comment(comment).as_bytes();
    // At most 129, which a byte holds.
    let len = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut bytes = Vec::with_capacity(text.len() + 3);
    bytes.extend_from_slice(&[COMMENT, len]);
    bytes.extend_from_slice(text);
    bytes.push(0);
    bytes
}

/// The comment in an object's bytes, if there is one.
pub(super) fn decode(bytes: &[u8]) -> Option<String> {
    find(bytes, COMMENT).map(crate::netlink::message::text)
}

fn find(mut bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    while let [kind, len, rest @ ..] = bytes {
        let value = rest.get(..usize::from(*len))?;
        if *kind == wanted {
            return Some(value);
        }
        bytes = &rest[value.len()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_as_nft_writes_it() {
        // What `nft --debug=netlink` shows for `comment "hello"`.
        assert_eq!(encode("hello"), b"\x00\x06hello\x00");
        assert_eq!(decode(b"\x00\x06hello\x00"), Some("hello".to_owned()));
    }

    #[test]
    fn a_comment_is_cut_at_the_limit() {
        let bytes = encode(&"x".repeat(300));
        assert_eq!(bytes.len(), 2 + COMMENT_MAX + 1);
        assert_eq!(bytes[1], 129);
        assert_eq!(decode(&bytes), Some("x".repeat(128)));
        assert_eq!(cut_comment(&"é".repeat(100)).chars().count(), 64);
        assert_eq!(cut_comment(&format!("x{}", "é".repeat(100))).len(), 127);
    }

    #[test]
    fn a_note_stands_beside_a_comment() {
        let bytes = [encode("c"), encode_note(b"note")].concat();
        assert_eq!((decode(&bytes), decode_note(&bytes)), (Some("c".to_owned()), Some(b"note".to_vec())));
        assert_eq!(decode_note(&encode("c")), None);
    }

    #[test]
    fn other_entries_are_passed_over_and_broken_ones_end_the_walk() {
        assert_eq!(decode(b"\x01\x04\x00\x00\x00\x00\x00\x03hi\x00"), Some("hi".to_owned()));
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"\x00"), None);
        assert_eq!(decode(b"\x00\x09hi"), None);
    }
}
