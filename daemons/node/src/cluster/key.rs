//! The public key of a node for WireGuard, as its Node object has it.

use base64::prelude::{BASE64_STANDARD as STANDARD, Engine as _};

/// Reads a key in base64. `None` for any other text.
pub fn parse_key(text: &str) -> Option<[u8; 32]> {
    // All zeros is no key: the kernel does not store such a peer.
    STANDARD.decode(text).ok()?.try_into().ok().filter(|key| *key != [0; 32])
}

/// The key in base64.
pub fn key_text(key: &[u8; 32]) -> String {
    STANDARD.encode(key)
}
