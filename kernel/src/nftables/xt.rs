//! Expressions in the form that iptables-nft writes, for rules in a table that `iptables` must be able to read and delete.
//!
//! A rule that iptables-nft does not understand makes it refuse the whole table, kube-proxy's rules included. It
//! understands these in every version, because they carry the C structs of the iptables extensions.
//!
//! # References
//! linux/netfilter/xt_addrtype.h, xt_mark.h, xt_comment.h; `nft_compat.c`.

use super::expr::{Expr, Xt};

/// `XT_ADDRTYPE_LOCAL`
const LOCAL: u16 = 1 << 2;
/// `XT_MAX_COMMENT_LEN`, with the terminating zero.
const COMMENT_LEN: usize = 256;

fn xt(is_target: bool, name: &str, revision: u32, parts: &[&[u8]]) -> Expr {
    let mut info = parts.concat();
    info.resize(info.len().next_multiple_of(8), 0);
    Expr::Xt(Xt { is_target, name: name.to_owned(), revision, info })
}

/// `-m addrtype --dst-type LOCAL`: the destination is an address of this host.
pub fn destination_is_local() -> Expr {
    // struct xt_addrtype_info_v1: source, dest, flags
    xt(false, "addrtype", 1, &[&0_u16.to_ne_bytes(), &LOCAL.to_ne_bytes(), &0_u32.to_ne_bytes()])
}

/// `-m mark --mark BIT/BIT`: the bit of the packet's mark is set.
pub fn mark_bit_is_set(bit: u8) -> Expr {
    let mark = (1_u32 << bit).to_ne_bytes();
    // struct xt_mark_mtinfo1: mark, mask, invert
    xt(false, "mark", 1, &[&mark, &mark, &[0]])
}

/// `-j MARK --or-mark BIT`: sets the bit of the packet's mark.
pub fn set_mark_bit(bit: u8) -> Expr {
    let mark = (1_u32 << bit).to_ne_bytes();
    // struct xt_mark_tginfo2: mark, mask
    xt(true, "MARK", 2, &[&mark, &mark])
}

/// `-m comment --comment TEXT`: matches every packet. A text of more than 255 bytes is cut.
pub fn comment(text: &str) -> Expr {
    let mut bytes = text.as_bytes()[..text.len().min(COMMENT_LEN - 1)].to_vec();
    bytes.resize(COMMENT_LEN, 0);
    xt(false, "comment", 0, &[&bytes])
}
