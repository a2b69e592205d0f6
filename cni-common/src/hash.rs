//! Names that are hashes, as the reference makes them.

use sha2::{Digest, Sha512};

/// The first `len` hexadecimal digits of the text's SHA-512, in small letters; all 128 if `len` is more.
pub fn sha512_hex(text: &str, len: usize) -> String {
    let digest = Sha512::digest(text);
    let mut digits: String = digest.iter().take(len.div_ceil(2)).map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(len);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_sha512sum_prints() {
        // printf test1234 | sha512sum
        assert_eq!(sha512_hex("test1234", 24), "2bbe0c48b91a7d1b8a6753a8");
        assert_eq!(sha512_hex("test1234", 5), "2bbe0");
        assert_eq!(sha512_hex("", 1000).len(), 128);
    }
}
