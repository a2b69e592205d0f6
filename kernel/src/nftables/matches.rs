//! Conditions of rules, and changes of the packet mark. Each one has the same expressions as the equivalent `nft` statement, so that
//! `nft list ruleset` prints that statement.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::expr::{CmpOp, CtKey, Expr, FIB_DADDR, LOCAL, MetaKey, PayloadBase, Register};
use crate::ip::{IpFamily, octets};
use crate::netlink::Mac;

/// `IFNAMSIZ`: the size of an interface name with its terminating zeros.
const INTERFACE_NAME: usize = 16;
/// The offset of the source address in an Ethernet header.
const SOURCE_MAC: u32 = 6;

/// Source or destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

impl End {
    /// Offset and length in bytes of the address in the IPv4 or IPv6 header.
    pub const fn position(self, family: IpFamily) -> (u32, u32) {
        match (self, family) {
            (End::Source, IpFamily::V4) => (12, 4),
            (End::Destination, IpFamily::V4) => (16, 4),
            (End::Source, IpFamily::V6) => (8, 16),
            (End::Destination, IpFamily::V6) => (24, 16),
        }
    }
}

/// Matches packets of a family. A rule in an `inet` table needs it before the first [`address()`] match;
/// `nft` prints nothing for it.
pub fn family(family: IpFamily) -> [Expr; 2] {
    [
        Expr::Meta { key: MetaKey::NfProto, to: Register::R1 },
        Expr::Cmp { register: Register::R1, op: CmpOp::Eq, value: vec![family.number()] },
    ]
}

/// As [`family()`], with the family of `address`.
pub fn family_of(address: IpAddr) -> [Expr; 2] {
    family(IpFamily::of(address))
}

/// Matches packets by address: `ip saddr 10.0.0.0/24`, `ip6 daddr != fd00::1` and similar. A single address
/// is a network with full prefix length.
pub fn address(end: End, op: CmpOp, network: IpNetwork) -> Vec<Expr> {
    let (offset, full) = end.position(IpFamily::of(network.ip()));
    let mut value = octets(network.network());
    let prefix = u32::from(network.prefix());
    // If the prefix is a multiple of 8 bits, load and compare only its bytes. Otherwise apply a mask.
    let whole = prefix > 0 && prefix.is_multiple_of(8);
    let len = if whole { prefix / 8 } else { full };
    let mut exprs = vec![Expr::Payload { base: PayloadBase::Network, offset, len, to: Register::R1 }];
    if whole {
        value.truncate(value.len() - (full - len) as usize);
    } else {
        let mask = octets(network.mask());
        exprs.push(Expr::Bitwise { register: Register::R1, xor: vec![0; mask.len()], mask });
    }
    exprs.push(Expr::Cmp { register: Register::R1, op, value });
    exprs
}

/// Whether these expressions match packets by this address, and nothing else. Also recognises the form of
/// older versions of iptables-nft, which apply a mask to every network.
pub fn is_address(exprs: &[Expr], end: End, op: CmpOp, network: IpNetwork) -> bool {
    if exprs == address(end, op, network) {
        return true;
    }
    let [Expr::Payload { base: PayloadBase::Network, offset, len, .. }, Expr::Bitwise { mask, xor, .. }, cmp] =
        exprs
    else {
        return false;
    };
    let is_compared =
        matches!(cmp, Expr::Cmp { op: is, value, .. } if *is == op && *value == octets(network.network()));
    (*offset, *len) == end.position(IpFamily::of(network.ip()))
        && *mask == octets(network.mask())
        && xor.iter().all(|byte| *byte == 0)
        && is_compared
}

/// `iifname NAME` or `iifname != NAME`: the packet arrived at the interface of this name.
pub fn input_interface(op: CmpOp, name: &str) -> [Expr; 2] {
    let mut value = name.as_bytes().to_vec();
    value.resize(INTERFACE_NAME, 0);
    [Expr::Meta { key: MetaKey::IifName, to: Register::R1 }, Expr::Cmp { register: Register::R1, op, value }]
}

/// The name in the first two expressions, if they are those of [`input_interface`] with [`CmpOp::Eq`].
pub fn input_interface_of(exprs: &[Expr]) -> Option<String> {
    let [Expr::Meta { key: MetaKey::IifName, .. }, Expr::Cmp { op: CmpOp::Eq, value, .. }, ..] = exprs else {
        return None;
    };
    let name = value.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// `ether saddr MAC`: the frame's source address is this one. For tables of the bridge family.
pub fn source_mac(mac: Mac) -> [Expr; 2] {
    [
        Expr::Payload { base: PayloadBase::Link, offset: SOURCE_MAC, len: 6, to: Register::R1 },
        Expr::Cmp { register: Register::R1, op: CmpOp::Eq, value: mac.0.to_vec() },
    ]
}

/// Loads the source or destination address, to find it in a set.
pub fn read_address(end: End, family: IpFamily) -> Expr {
    let (offset, len) = end.position(family);
    Expr::Payload { base: PayloadBase::Network, offset, len, to: Register::R1 }
}

/// `fib daddr type local`: the destination is an address of this host.
pub fn destination_is_local() -> [Expr; 2] {
    [
        Expr::FibType { flags: FIB_DADDR, to: Register::R1 },
        Expr::Cmp { register: Register::R1, op: CmpOp::Eq, value: LOCAL.to_ne_bytes().to_vec() },
    ]
}

/// `meta mark & BIT == BIT`: the bit of the packet's mark is set.
pub fn mark_bit_is_set(bit: u8) -> [Expr; 3] {
    let mark = 1 << bit;
    let [mask, cmp] = masked(mark, CmpOp::Eq, mark);
    [Expr::Meta { key: MetaKey::Mark, to: Register::R1 }, mask, cmp]
}

/// Compares the bits of `mask` in a loaded number of 4 bytes.
fn masked(mask: u32, op: CmpOp, value: u32) -> [Expr; 2] {
    [change(mask, 0), Expr::Cmp { register: Register::R1, op, value: value.to_ne_bytes().to_vec() }]
}

/// Changes a loaded number of 4 bytes.
fn change(mask: u32, xor: u32) -> Expr {
    let bytes = |number: u32| number.to_ne_bytes().to_vec();
    Expr::Bitwise { register: Register::R1, mask: bytes(mask), xor: bytes(xor) }
}

/// `meta mark set meta mark & MASK ^ XOR`.
fn change_mark(mask: u32, xor: u32) -> [Expr; 3] {
    let (key, register) = (MetaKey::Mark, Register::R1);
    [Expr::Meta { key, to: register }, change(mask, xor), Expr::SetMeta { key, from: register }]
}

/// `meta mark set meta mark | BIT`: sets the bit of the packet's mark.
pub fn set_mark_bit(bit: u8) -> [Expr; 3] {
    change_mark(!(1 << bit), 1 << bit)
}

/// `meta mark set meta mark ^ BIT`: inverts the bit of the packet's mark.
pub fn invert_mark_bit(bit: u8) -> [Expr; 3] {
    change_mark(u32::MAX, 1 << bit)
}

/// `ct state` or `ct status` with one of the bits (`any`), or without all of them.
pub fn ct_bits(key: CtKey, bits: u32, any: bool) -> [Expr; 3] {
    let [mask, cmp] = masked(bits, if any { CmpOp::Neq } else { CmpOp::Eq }, 0);
    [Expr::Ct { key, to: Register::R1 }, mask, cmp]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(offset: u32, len: u32) -> Expr {
        Expr::Payload { base: PayloadBase::Network, offset, len, to: Register::R1 }
    }

    fn mask(mask: &[u8]) -> Expr {
        Expr::Bitwise { register: Register::R1, mask: mask.to_vec(), xor: vec![0; mask.len()] }
    }

    fn cmp(op: CmpOp, value: &[u8]) -> Expr {
        Expr::Cmp { register: Register::R1, op, value: value.to_vec() }
    }

    fn destination(network: &str) -> Vec<Expr> {
        address(End::Destination, CmpOp::Neq, network.parse().unwrap())
    }

    // The expected expressions are the output of `nft --debug=netlink`.
    #[test]
    fn networks_have_the_expressions_of_nft() {
        use CmpOp::{Eq, Neq};
        let source = address(End::Source, Eq, "10.0.0.2/32".parse().unwrap());
        assert_eq!(source, [load(12, 4), cmp(Eq, &[10, 0, 0, 2])]);
        assert_eq!(destination("10.0.0.7/24"), [load(16, 3), cmp(Neq, &[10, 0, 0])]);
        assert_eq!(
            destination("10.0.16.1/20"),
            [load(16, 4), mask(&[255, 255, 240, 0]), cmp(Neq, &[10, 0, 16, 0])]
        );
        assert_eq!(destination("0.0.0.0/0"), [load(16, 4), mask(&[0; 4]), cmp(Neq, &[0; 4])]);
        assert_eq!(destination("fd00::1/64"), [load(24, 8), cmp(Neq, &[0xfd, 0, 0, 0, 0, 0, 0, 0])]);
        assert_eq!(destination("ff00::/8"), [load(24, 1), cmp(Neq, &[0xff])]);
        assert_eq!(destination("fd00::/50").len(), 3);
    }

    #[test]
    fn an_address_is_recognised_with_and_without_a_mask() {
        let network: IpNetwork = "10.0.3.7/24".parse().unwrap();
        let is = |exprs: &[Expr]| is_address(exprs, End::Destination, CmpOp::Eq, network);
        let masked = [load(16, 4), mask(&[255, 255, 255, 0]), cmp(CmpOp::Eq, &[10, 0, 3, 0])];
        assert!(is(&masked) && is(&[load(16, 3), cmp(CmpOp::Eq, &[10, 0, 3])]));
        assert!(!is(&[load(12, 4), masked[1].clone(), masked[2].clone()]));
        assert!(!is(&[load(16, 4), mask(&[255, 255, 0, 0]), masked[2].clone()]));
        assert!(!is(&[masked[0].clone(), masked[1].clone(), cmp(CmpOp::Neq, &[10, 0, 3, 0])]));
        assert!(!is(&masked[..2]) && !is(&[]));
    }

    #[test]
    fn the_family_is_one_byte() {
        let exprs = family_of("::1".parse().unwrap());
        assert_eq!(exprs[1], cmp(CmpOp::Eq, &[10]));
    }
}
