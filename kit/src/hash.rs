//! Hashes in names of chains and links.

use cni_common::plugin::Attachment;
use sha2::{Digest, Sha512};

/// The SHA-512 of `text`, which the reference uses too.
pub fn sha512(text: &str) -> [u8; 64] {
    Sha512::digest(text).into()
}

/// The text to hash for names that belong to one attachment. NUL bytes separate the parts, which cannot
/// contain one.
pub fn identity(attachment: &Attachment<'_>) -> String {
    format!("{}\0{}\0{}", attachment.network, attachment.container_id, attachment.ifname)
}

/// The first `len` hexadecimal digits of the SHA-512 of `text`, in lower case. At most 128 digits.
pub fn sha512_hex(text: &str, len: usize) -> String {
    let mut digits: String =
        sha512(text).iter().take(len.div_ceil(2)).map(|byte| format!("{byte:02x}")).collect();
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
