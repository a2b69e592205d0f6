//! The hash that the reference uses in names of chains and links.

use sha2::{Digest, Sha512};

/// The first `len` hexadecimal digits of the SHA-512 of `text`, in lower case. At most 128 digits.
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
    fn equals_the_output_of_sha512sum() {
        // printf test1234 | sha512sum
        assert_eq!(sha512_hex("test1234", 24), "2bbe0c48b91a7d1b8a6753a8");
        assert_eq!(sha512_hex("test1234", 5), "2bbe0");
        assert_eq!(sha512_hex("", 1000).len(), 128);
    }
}
