//! Base64: Go encodes bytes this way, and libcni's cache contains the configuration as bytes.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes with the standard alphabet and padding.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().chain(&[0, 0]).take(3).fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        for position in 0..4 {
            if position > group.len() {
                text.push('=');
            } else {
                let sextet = word >> (18 - 6 * position) & 0x3f;
                text.push(char::from(ALPHABET[sextet as usize]));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn encodes_the_vectors_of_rfc_4648() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(super::encode(plain.as_bytes()), encoded);
        }
    }
}
