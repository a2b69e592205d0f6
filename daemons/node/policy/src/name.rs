//! Names of sets and chains: hashes of their content, so that equal sets and chains have one name on each node and after each start.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

const BYTES: usize = 10;

/// The name of a set or a chain: `s` or `c`, and 20 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    kind: Kind,
    hash: [u8; BYTES],
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Set,
    Chain,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.kind == Kind::Set { "s" } else { "c" })?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// This text is no name of ours.
#[derive(Debug, PartialEq, Eq)]
pub struct NotOurs;

impl FromStr for Name {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Name, NotOurs> {
        let digits = text.as_bytes().get(1..).unwrap_or_default();
        let kind = match text.as_bytes().first() {
            Some(b's') => Kind::Set,
            Some(b'c') => Kind::Chain,
            _ => return Err(NotOurs),
        };
        if digits.len() != 2 * BYTES || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        {
            return Err(NotOurs);
        }
        let value = |digit: u8| if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 };
        let mut hash = [0; BYTES];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0]) << 4 | value(pair[1]);
        }
        Ok(Name { kind, hash })
    }
}

/// Makes a name of parts. Each text carries its length, so that two different lists of parts never give the same bytes.
pub(crate) struct Maker {
    kind: Kind,
    digest: Sha256,
}

impl Maker {
    pub(crate) fn new(kind: Kind) -> Maker {
        Maker { kind, digest: Sha256::new() }
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut Maker {
        self.digest.update(number.to_be_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Maker {
        self.number(bytes.len() as u64);
        self.digest.update(bytes);
        self
    }

    pub(crate) fn name(&mut self, name: Name) -> &mut Maker {
        self.digest.update(name.hash);
        self
    }

    pub(crate) fn finish(self) -> Name {
        let mut hash = [0; BYTES];
        hash.iter_mut().zip(self.digest.finalize()).for_each(|(to, from)| *to = from);
        Name { kind: self.kind, hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_nothing_else_is_a_name() {
        for kind in [Kind::Set, Kind::Chain] {
            let mut maker = Maker::new(kind);
            maker.bytes(b"a");
            let name = maker.finish();
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let good = "s0123456789abcdef0123";
        assert!(good.parse::<Name>().is_ok());
        for bad in [
            "",
            "s",
            "x0123456789abcdef0123",
            "s0123456789abcdef012",
            "s0123456789abcdef01234",
            "s0123456789ABCDEF0123",
            "sé123456789abcdef012",
        ] {
            assert_eq!(bad.parse::<Name>(), Err(NotOurs), "{bad}");
        }
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let of = |parts: &[&str]| {
            let mut maker = Maker::new(Kind::Set);
            parts.iter().for_each(|part| {
                maker.bytes(part.as_bytes());
            });
            maker.finish()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
    }
}
