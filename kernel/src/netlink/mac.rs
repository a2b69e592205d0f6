//! Hardware (MAC) addresses.

use std::fmt;
use std::str::FromStr;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether all bytes are zero. A bridge without a fixed address has this one after its last port has
    /// left.
    pub fn is_zero(self) -> bool {
        self == Mac::default()
    }

    /// Whether an interface may have this address: it is neither multicast nor zero.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && !self.is_zero()
    }

    /// Makes a locally administered unicast address from `bytes`: changes only the two lowest bits of the
    /// first byte.
    pub fn local(mut bytes: [u8; 6]) -> Self {
        bytes[0] = bytes[0] & 0xfe | 0x02;
        Mac(bytes)
    }

    /// A random locally administered unicast address.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 6];
        getrandom::fill(&mut bytes)?;
        Ok(Mac::local(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    /// Parses six pairs of hexadecimal digits, separated by colons or by hyphens, or three groups of four digits,
    /// separated by dots.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("address {text}: invalid MAC address");
        let (separator, width) = match () {
            () if text.contains('.') => ('.', 4),
            () if text.contains('-') => ('-', 2),
            () => (':', 2),
        };
        let groups: Vec<&str> = text.split(separator).collect();
        let is_group = |group: &&str| group.len() == width && group.bytes().all(|b| b.is_ascii_hexdigit());
        if groups.len() * width != 12 || !groups.iter().all(is_group) {
            return Err(bad());
        }
        let number = u64::from_str_radix(&groups.concat(), 16).map_err(|_| bad())?;
        let [_, _, mac @ ..] = number.to_be_bytes();
        Ok(Mac(mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_displays() {
        let mac: Mac = "92:D0:c6:0a:29:33".parse().unwrap();
        assert_eq!(mac.to_string(), "92:d0:c6:0a:29:33");
        assert_eq!("92-d0-c6-0a-29-33".parse(), Ok(mac));
        assert_eq!("92D0.c60a.2933".parse(), Ok(mac));
        for bad in [
            "",
            "92:d0:c6:0a:29",
            "92:d0:c6:0a:29:33:01",
            "92:d0:c6:0a:29:3",
            "+2:d0:c6:0a:29:33",
            "zz:d0:c6:0a:29:33",
            "92d0.c60a",
            "92d0.c60a.29:3",
        ] {
            assert_eq!(bad.parse::<Mac>(), Err(format!("address {bad}: invalid MAC address")));
        }
    }

    #[test]
    fn zero_unicast_and_local() {
        assert!(Mac::default().is_zero() && !Mac::default().is_unicast());
        assert!(!Mac([1, 0, 0, 0, 0, 1]).is_unicast());
        assert_eq!(Mac::local([0xff; 6]).0[0], 0xfe);
        assert!(Mac::local([0; 6]).is_unicast());
        assert_ne!(Mac::random(), Mac::random());
    }
}
