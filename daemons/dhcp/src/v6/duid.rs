//! The identifiers of clients and servers: DUID and IAID. Pure.
//!
//! A container has one DUID on all nodes and networks, and one IAID for each of its interfaces on a network. Both follow from the
//! attachment, so a container keeps its address if the daemon loses its leases.
//!
//! # References
//! RFC 8415, section 11; RFC 6355 (DUID-UUID); RFC 9562, section 5.8 (UUID version 8).

use std::fmt::{Display, Formatter, Result as FmtResult};

use ferrule_dhcp::wire::Key;
use serde::{Deserialize, Serialize};

/// The type of a DUID-UUID.
const UUID: [u8; 2] = [0, 4];

/// A DUID. As a text it has hexadecimal digits with colons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Duid(Vec<u8>);

impl Duid {
    /// The DUID-UUID of a container: a UUID of version 8 with a hash of its ID.
    pub(crate) fn of(key: &Key) -> Self {
        let mut uuid = hash(&[&key.container_id]).to_be_bytes();
        uuid[6] = 0x80 | uuid[6] & 0x0f;
        uuid[8] = 0x80 | uuid[8] & 0x3f;
        Duid([&UUID[..], &uuid].concat())
    }

    /// The DUID with this content. `None` if it has a forbidden length.
    pub(crate) fn read(content: &[u8]) -> Option<Self> {
        (3..=130).contains(&content.len()).then(|| Duid(content.to_vec()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The IAID of a container's interface: a hash of its name and of the network's.
pub(crate) fn iaid(key: &Key) -> u32 {
    let hash = hash(&[&key.network, &key.ifname]);
    (hash ^ (hash >> 32) ^ (hash >> 64) ^ (hash >> 96)) as u32
}

/// FNV-1a with 128 bits, of the texts, each with a zero byte at its end.
fn hash(texts: &[&str]) -> u128 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

impl Display for Duid {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl From<Duid> for String {
    fn from(duid: Duid) -> String {
        duid.to_string()
    }
}

impl TryFrom<String> for Duid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes: Result<Vec<u8>, _> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
        bytes.ok().and_then(|bytes| Duid::read(&bytes)).ok_or_else(|| format!("{text:?} is no DUID"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(container_id: &str, network: &str, ifname: &str) -> Key {
        Key { network: network.to_owned(), container_id: container_id.to_owned(), ifname: ifname.to_owned() }
    }

    /// Servers keep these values for longer than a daemon lives: they must never change.
    #[test]
    fn values_are_stable() {
        let key = key("c1", "net", "eth0");
        assert_eq!(Duid::of(&key).to_string(), "00:04:a6:8d:6c:54:0d:8b:88:22:83:6d:bc:79:7c:11:e0:73");
        assert_eq!(iaid(&key), 0x5794_41d6);
    }

    #[test]
    fn a_container_has_one_duid_and_each_interface_an_iaid() {
        let [one, eth1, net2, other] = [
            key("c1", "net", "eth0"),
            key("c1", "net", "eth1"),
            key("c1", "net2", "eth0"),
            key("c2", "net", "eth0"),
        ];
        assert!(Duid::of(&one) == Duid::of(&eth1) && Duid::of(&one) == Duid::of(&net2));
        assert_ne!(Duid::of(&one), Duid::of(&other));
        assert!(iaid(&one) != iaid(&eth1) && iaid(&one) != iaid(&net2) && iaid(&one) == iaid(&other));
        assert_ne!(iaid(&key("c", "a", "bc")), iaid(&key("c", "ab", "c")));
    }

    #[test]
    fn texts() {
        let duid = Duid::of(&key("c1", "net", "eth0"));
        assert_eq!(Duid::try_from(duid.to_string()), Ok(duid));
        for text in ["", "0", "00:01", "00:04:xy", "00:04:100", &"00:".repeat(131)] {
            assert!(Duid::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(
            [2, 3, 130, 131].map(|len| Duid::read(&vec![0; len]).is_some()),
            [false, true, true, false]
        );
    }
}
