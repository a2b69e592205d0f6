//! Userdata of nf_tables objects: comments and owner metadata. The kernel stores opaque bytes. `nft` stores a
//! list of entries with type (1 byte), length (1 byte) and value there, and so do we.

use crate::ip::IpFamily;
use crate::netlink::message::text;

/// The maximum length of a comment in bytes: `nft`'s limit for all objects.
pub const COMMENT_MAX: usize = 128;

/// `NFTNL_UDATA_RULE_COMMENT`; tables and chains use the same number.
const COMMENT: u8 = 0;

// nft's numbers of expressions: EXPR_PAYLOAD, EXPR_CONCAT
const PAYLOAD: u32 = 7;
const CONCATENATION: u32 = 13;

/// Truncates a comment to [`COMMENT_MAX`] bytes at a character boundary: `nft -j` fails on invalid UTF-8.
pub fn cut_comment(comment: &str) -> &str {
    let mut end = comment.len().min(COMMENT_MAX);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    &comment[..end]
}

/// The entry type of owner metadata. `nft` does not define this type and ignores it.
const OWNER_METADATA: u8 = 0xf0;

/// An entry, whose value is truncated to 255 bytes.
fn entry(kind: u8, value: &[u8]) -> Vec<u8> {
    let len = u8::try_from(value.len()).unwrap_or(u8::MAX);
    [&[kind, len], &value[..usize::from(len)]].concat()
}

/// Encodes the byte order of a set's keys (`NFTNL_UDATA_SET_KEYBYTEORDER`), which `nft` needs to print them.
pub(super) fn encode_key_order(order: u32) -> Vec<u8> {
    entry(0, &order.to_ne_bytes())
}

/// Encodes the byte order of a map's values (`NFTNL_UDATA_SET_DATABYTEORDER`).
pub(super) fn encode_data_order(order: u32) -> Vec<u8> {
    entry(1, &order.to_ne_bytes())
}

/// Encodes what the keys of a set of pairs are (`NFTNL_UDATA_SET_KEY_TYPEOF`), without which nft could not print the set: `typeof ip
/// saddr . @th,OFFSET,LENGTH`, in bits there.
pub(super) fn encode_pair(source: IpFamily, (offset, len): (u32, u32)) -> Vec<u8> {
    let numbers = |values: &[u32]| entries(values.iter().map(|value| value.to_ne_bytes().to_vec()));
    let expression = |kind: u32, data: &[u8]| [numbers(&[kind]), entry(1, data)].concat();
    // The header and its field (PROTO_DESC_IP and IPHDR_SADDR, and those of IPv6).
    let field = if source == IpFamily::V4 { [12, 11] } else { [13, 8] };
    // No known header and field, the base (PROTO_BASE_TRANSPORT_HDR), offset and length.
    let payload = [0, 0, 3, offset * 8, len * 8];
    let parts = [&field[..], &payload].map(|values| expression(PAYLOAD, &numbers(values)));
    [encode_key_order(0), entry(3, &expression(CONCATENATION, &entries(parts)))].concat()
}

/// Numbered entries.
fn entries(values: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    (0..).zip(values).flat_map(|(kind, value)| entry(kind, &value)).collect()
}

/// Encodes owner metadata.
pub(super) fn encode_owner_metadata(metadata: &[u8]) -> Vec<u8> {
    entry(OWNER_METADATA, metadata)
}

/// The owner metadata in userdata.
pub(super) fn decode_owner_metadata(bytes: &[u8]) -> Option<Vec<u8>> {
    find(bytes, OWNER_METADATA).map(<[u8]>::to_vec)
}

/// Encodes a comment, truncated by [`cut_comment`], with the terminating zero that `nft` expects.
pub(super) fn encode(comment: &str) -> Vec<u8> {
    entry(COMMENT, &[cut_comment(comment).as_bytes(), &[0]].concat())
}

/// The comment in userdata.
pub(super) fn decode(bytes: &[u8]) -> Option<String> {
    find(bytes, COMMENT).map(text)
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
    fn a_comment_is_encoded_as_nft_encodes_it() {
        // From the output of `nft --debug=netlink` for `comment "hello"`.
        assert_eq!(encode("hello"), b"\x00\x06hello\x00");
        assert_eq!(decode(b"\x00\x06hello\x00"), Some("hello".to_owned()));
    }

    #[test]
    fn a_comment_is_truncated_to_the_limit() {
        let bytes = encode(&"x".repeat(300));
        assert_eq!(bytes.len(), 2 + COMMENT_MAX + 1);
        assert_eq!(bytes[1], 129);
        assert_eq!(decode(&bytes), Some("x".repeat(128)));
        assert_eq!(cut_comment(&"é".repeat(100)).chars().count(), 64);
        assert_eq!(cut_comment(&format!("x{}", "é".repeat(100))).len(), 127);
    }

    #[test]
    fn owner_metadata_and_comment_coexist() {
        let bytes = [encode("c"), encode_owner_metadata(b"data")].concat();
        assert_eq!(decode(&bytes), Some("c".to_owned()));
        assert_eq!(decode_owner_metadata(&bytes), Some(b"data".to_vec()));
        assert_eq!(decode_owner_metadata(&encode("c")), None);
    }

    #[test]
    fn other_entries_are_skipped_and_truncated_ones_end_the_search() {
        assert_eq!(decode(b"\x01\x04\x00\x00\x00\x00\x00\x03hi\x00"), Some("hi".to_owned()));
        assert_eq!(decode(b""), None);
        assert_eq!(decode(b"\x00"), None);
        assert_eq!(decode(b"\x00\x09hi"), None);
    }
}
