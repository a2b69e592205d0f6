//! Reading chains and rules, by name: what somebody else has in other chains is not even looked at.

use std::net::IpAddr;

use nix::errno::Errno;

use super::batch::{
    CHAIN_NAME, CHAIN_TABLE, LIST_ELEMENT, RULE_CHAIN, RULE_EXPRESSIONS, RULE_HANDLE, RULE_TABLE,
    RULE_USERDATA, TABLE_NAME, chain_request, rule_request,
};
use super::encode::{DATA, DATA_VALUE, DATA_VERDICT, IMMEDIATE_DATA, NAME, VERDICT_CHAIN};
use super::matches::End;
use super::{CmpOp, Error, Expr, Family, PayloadBase, Table, kind, userdata};
use crate::netlink;
use crate::netlink::message::{F_DUMP, attrs, find_attr, text};
use crate::netlink::{Message, Socket};

const GET_TABLE: u16 = 1;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
/// `struct nfgenmsg` in front of an answer's attributes.
pub(super) const HEADER: usize = 4;
/// `NFTA_CHAIN_USE`.
const CHAIN_USE: u16 = 6;
/// `NFTA_MATCH_NAME`.
const MATCH_NAME: u16 = 1;
/// `NFTA_MATCH_INFO`.
const MATCH_INFO: u16 = 3;

/// A chain that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// How many rules it has, and how many lead to it, added up.
    pub uses: u32,
}

/// A step of a rule as the kernel gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawExpr {
    /// The kernel's name for it.
    pub name: String,
    /// Its attributes.
    pub data: Vec<u8>,
}

/// A rule as the kernel gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// By which it can be deleted.
    pub handle: u64,
    /// The comment that `nft` wrote, or an `iptables` that keeps comments in the same place.
    pub comment: Option<String>,
    /// Its steps.
    pub expressions: Vec<RawExpr>,
}

/// Whether the kernel has nf_tables for the family: asked for a table that cannot be there, it says so.
///
/// # Errors
/// What it says instead.
pub fn probe(socket: &mut Socket, family: Family) -> Result<(), netlink::Error> {
    let no_such = Table::new(family, "");
    let request = Message::new(kind(GET_TABLE), 0, &no_such.header()).attr_text(TABLE_NAME, no_such.name);
    match socket.request(request) {
        Err(error) if error.errno != Errno::ENOENT => Err(error),
        _ => Ok(()),
    }
}

/// Whether the error means that the thing asked for is not there.
pub(super) fn absent(error: &netlink::Error) -> bool {
    // ENOENT: no such table or chain. The others come from a kernel without the family, or without nf_tables at all.
    matches!(error.errno, Errno::ENOENT | Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// Looks for several chains in one round trip; the answers are in the order of the questions.
///
/// # Errors
/// What the kernel said, unless it is that there is no such chain.
pub fn chains(socket: &mut Socket, wanted: &[(Table<'_>, &str)]) -> Result<Vec<Option<Chain>>, Error> {
    let questions: Vec<Message> =
        wanted.iter().map(|(table, chain)| chain_request(GET_CHAIN, 0, *table, chain)).collect();
    let answers = socket.requests(questions).into_iter().zip(wanted);
    answers
        .map(|(answer, (table, chain))| match answer {
            Ok(bodies) => Ok(bodies.first().map(|body| read_chain(body))),
            Err(error) if absent(&error) => Ok(None),
            Err(source) => Err(Error { request: format!("get chain {table} {chain}"), source }),
        })
        .collect()
}

/// All chains of a table with their names; none if there is no such table. For a table of one's own: the kernel goes
/// through all chains of the family.
///
/// # Errors
/// What the kernel said, unless it is that there is no such table.
pub fn all_chains(socket: &mut Socket, table: Table<'_>) -> Result<Vec<(String, Chain)>, Error> {
    let question = Message::new(kind(GET_CHAIN), F_DUMP, &table.header()).attr_text(CHAIN_TABLE, table.name);
    let bodies = match socket.request(question) {
        Ok(bodies) => bodies,
        Err(error) if absent(&error) => return Ok(Vec::new()),
        Err(source) => return Err(Error { request: format!("list chains of {table}"), source }),
    };
    let of_table = bodies.iter().filter(|body| {
        let name = body.get(HEADER..).and_then(|attributes| find_attr(attributes, CHAIN_TABLE));
        name.is_some_and(|name| text(name) == table.name)
    });
    let named = of_table
        .filter_map(|body| Some((text(find_attr(body.get(HEADER..)?, CHAIN_NAME)?), read_chain(body))));
    Ok(named.collect())
}

fn read_chain(body: &[u8]) -> Chain {
    let attributes = body.get(HEADER..).unwrap_or_default();
    Chain { uses: find_attr(attributes, CHAIN_USE).map_or(0, be32) }
}

/// The rules of one chain in their order; none if there is no such chain.
///
/// # Errors
/// What the kernel said, unless it is that there is no such chain.
pub fn rules(socket: &mut Socket, table: Table<'_>, chain: &str) -> Result<Vec<Rule>, Error> {
    let bodies = match socket.request(rule_request(GET_RULE, F_DUMP, table, chain)) {
        Ok(bodies) => bodies,
        Err(error) if absent(&error) => return Ok(Vec::new()),
        Err(source) => return Err(Error { request: format!("list rules of {table} {chain}"), source }),
    };
    // A kernel that does not filter a dump gives the rules of all tables.
    let of_chain = |attributes: &&[u8]| {
        let is = |kind, name: &str| find_attr(attributes, kind).is_some_and(|value| text(value) == name);
        is(RULE_TABLE, table.name) && is(RULE_CHAIN, chain)
    };
    Ok(bodies.iter().filter_map(|body| body.get(HEADER..)).filter(of_chain).map(read_rule).collect())
}

fn read_rule(attributes: &[u8]) -> Rule {
    let mut rule = Rule::default();
    for (kind, value) in attrs(attributes) {
        match kind {
            RULE_HANDLE => rule.handle = value.try_into().map_or(0, u64::from_be_bytes),
            RULE_USERDATA => rule.comment = userdata::decode(value),
            RULE_EXPRESSIONS => {
                let elements = attrs(value).filter(|(kind, _)| *kind == LIST_ELEMENT);
                rule.expressions = elements.map(|(_, element)| read_expr(element)).collect();
            }
            _ => {}
        }
    }
    rule
}

fn read_expr(element: &[u8]) -> RawExpr {
    RawExpr {
        name: find_attr(element, NAME).map(text).unwrap_or_default(),
        data: find_attr(element, DATA).unwrap_or_default().to_vec(),
    }
}

impl Rule {
    /// The rule's steps, or `None` if one of them is none that [`Expr`] can say.
    pub fn decode(&self) -> Option<Vec<Expr>> {
        self.expressions.iter().map(RawExpr::decode).collect()
    }

    /// Whether the rule has a step of that name.
    pub fn has(&self, name: &str) -> bool {
        self.expressions.iter().any(|expr| expr.name == name)
    }

    /// The chain that the rule jumps or goes to.
    pub fn jump_target(&self) -> Option<String> {
        let target = |expr: &RawExpr| {
            let data = find_attr(&expr.data, IMMEDIATE_DATA)?;
            find_attr(find_attr(data, DATA_VERDICT)?, VERDICT_CHAIN).map(text)
        };
        self.expressions.iter().filter(|expr| expr.name == "immediate").find_map(target)
    }

    /// The text of an `iptables` rule's `-m comment`, which iptables-nft writes as a match of its own.
    pub fn compat_comment(&self) -> Option<String> {
        let is_comment = |expr: &&RawExpr| {
            expr.name == "match"
                && find_attr(&expr.data, MATCH_NAME).is_some_and(|name| text(name) == "comment")
        };
        let expr = self.expressions.iter().find(is_comment)?;
        find_attr(&expr.data, MATCH_INFO).map(text)
    }

    /// The single source address that the rule is for, if it is for one.
    pub fn source(&self) -> Option<IpAddr> {
        self.expressions.windows(2).find_map(|pair| match pair {
            [load, cmp] if load.name == "payload" && cmp.name == "cmp" => source_of(&load.data, &cmp.data),
            _ => None,
        })
    }
}

/// The address in a load of the source address and the comparison behind it.
fn source_of(load: &[u8], cmp: &[u8]) -> Option<IpAddr> {
    let number = |data, kind| find_attr(data, kind).map(be32);
    // NFTA_CMP_OP, _DATA
    if number(cmp, 2)? != CmpOp::Eq.number() {
        return None;
    }
    let value = find_attr(find_attr(cmp, 3)?, DATA_VALUE)?;
    // NFTA_PAYLOAD_BASE, _OFFSET, _LEN
    let loaded = (number(load, 2)?, (number(load, 3)?, number(load, 4)?));
    let of_family = |v6| (PayloadBase::Network.number(), End::Source.position(v6));
    if loaded == of_family(false) {
        <[u8; 4]>::try_from(value).ok().map(IpAddr::from)
    } else if loaded == of_family(true) {
        <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
    } else {
        None
    }
}

fn be32(value: &[u8]) -> u32 {
    value.try_into().map_or(0, u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::{Expr, Verdict, matches};

    /// The rule that the kernel would give back for these steps.
    fn rule(exprs: &[Expr]) -> Rule {
        let read = |expr: &Expr| {
            let bytes = expr.encode(Message::new(0, 0, &[])).finish(0, 0);
            read_expr(&bytes[16..])
        };
        Rule { expressions: exprs.iter().map(read).collect(), ..Rule::default() }
    }

    fn source(op: CmpOp, network: &str) -> Vec<Expr> {
        matches::address(End::Source, op, network.parse().unwrap())
    }

    #[test]
    fn a_single_source_is_recognised_and_a_network_is_not() {
        assert_eq!(rule(&source(CmpOp::Eq, "10.0.0.2/32")).source(), "10.0.0.2".parse().ok());
        assert_eq!(rule(&source(CmpOp::Eq, "fd00::2/128")).source(), "fd00::2".parse().ok());
        assert_eq!(rule(&source(CmpOp::Neq, "10.0.0.2/32")).source(), None);
        assert_eq!(rule(&source(CmpOp::Eq, "10.0.0.0/24")).source(), None);
        assert_eq!(rule(&source(CmpOp::Eq, "10.0.0.0/20")).source(), None);
        let destination = matches::address(End::Destination, CmpOp::Eq, "10.0.0.2/32".parse().unwrap());
        assert_eq!(rule(&destination).source(), None);
    }

    #[test]
    fn targets_are_found_and_other_verdicts_have_none() {
        let jump = rule(&[Expr::Verdict(Verdict::Jump("CNI-x".to_owned()))]);
        assert_eq!(jump.jump_target().as_deref(), Some("CNI-x"));
        assert!(jump.has("immediate") && !jump.has("masq"));
        assert_eq!(rule(&[Expr::Verdict(Verdict::Return)]).jump_target(), None);
        assert_eq!(jump.compat_comment(), None);
    }

    #[test]
    fn an_iptables_comment_ends_at_its_zero() {
        let mut info = b"name: \"net\" id: \"one\"".to_vec();
        info.resize(256, 0);
        let data = Message::new(0, 0, &[]).attr_text(MATCH_NAME, "comment").attr(MATCH_INFO, &info);
        let expr = RawExpr { name: "match".to_owned(), data: data.finish(0, 0)[16..].to_vec() };
        let rule = Rule { expressions: vec![expr], ..Rule::default() };
        assert_eq!(rule.compat_comment().as_deref(), Some("name: \"net\" id: \"one\""));
    }
}
