//! The messages of nf_tables about changes of the ruleset.
//!
//! For each transaction the kernel sends the changed objects, then the new generation with the process that has made it.

use super::SUBSYSTEM;
use super::batch::{
    CHAIN_NAME, DEL_CHAIN, DEL_RULE, DEL_TABLE, NEW_CHAIN, NEW_RULE, NEW_TABLE, RULE_CHAIN, TABLE_NAME,
};
use super::set::{DEL_ELEMENT, DEL_SET, LIST_SET, NEW_ELEMENT};
use super::{Base, Chain, Element, Table};
use crate::netlink::message::{Received, find_attr, text};

/// `NFNLGRP_NFTABLES`
pub(crate) const GROUP: u32 = 7;

/// `NFT_MSG_NEWGEN`
const NEW_GENERATION: u16 = 15;
/// `NFTA_GEN_PROC_NAME`
const PROCESS_NAME: u16 = 3;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A table is new.
    TableMade(String),
    /// A table is gone.
    TableGone(String),
    /// A rule or a whole chain is gone.
    RuleGone {
        /// The table's name.
        table: String,
        /// The chain's name.
        chain: String,
    },
    /// A set of this table or an element of one is gone.
    ElementGone(String),
    /// The transaction with the changes before this one is complete.
    Generation {
        /// The name of the process that has made it, as in `/proc/PID/comm`; empty if the kernel does not say it.
        process: String,
    },
}

/// The family's number ([`Family`](super::Family)) and the name of the table that a message is about. `None` for a new generation.
pub fn table_of(message: &Received<'_>) -> Option<(u8, String)> {
    let table = find_attr(message.body.get(4..)?, TABLE_NAME)
        .filter(|_| message.kind >> 8 == SUBSYSTEM && message.kind & 0xff != NEW_GENERATION)?;
    Some((message.body[0], text(table)))
}

/// As [`table_of`], and the name of the chain, for a message about a chain or a rule.
pub fn chain_of(message: &Received<'_>) -> Option<(u8, String, String)> {
    let (family, table) = table_of(message)?;
    let chain = match message.kind & 0xff {
        NEW_CHAIN | DEL_CHAIN => CHAIN_NAME,
        NEW_RULE | DEL_RULE => RULE_CHAIN,
        _ => return None,
    };
    Some((family, table, find_attr(message.body.get(4..)?, chain).map(text)?))
}

/// The hook and the policy in a message about a base chain.
pub fn base_of(message: &Received<'_>) -> Option<Base> {
    let is_chain = message.kind >> 8 == SUBSYSTEM && [NEW_CHAIN, DEL_CHAIN].contains(&(message.kind & 0xff));
    Chain::parse(message.body).base.filter(|_| is_chain)
}

/// Elements that have come to a set or gone from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elements {
    /// The set's name.
    pub set: String,
    /// Whether they are new.
    pub are_new: bool,
    /// Gone ones have their keys only, or all that they had.
    pub elements: Vec<Element>,
}

/// The elements in a message about a set of this table. A message about a whole set or table has none.
pub fn elements_of(message: &Received<'_>, table: Table<'_>) -> Option<Elements> {
    let (family, name) = table_of(message)?;
    let are_new = match message.kind & 0xff {
        NEW_ELEMENT => true,
        DEL_ELEMENT => false,
        _ => return None,
    };
    if family != table.family as u8 || name != table.name {
        return None;
    }
    let set = find_attr(message.body.get(4..)?, LIST_SET).map(text)?;
    Some(Elements { set, are_new, elements: Element::parse_list(message.body) })
}

impl Notice {
    /// Decodes a message. `None` for all other changes.
    pub(crate) fn parse(message: &Received<'_>) -> Option<Notice> {
        if message.kind >> 8 != SUBSYSTEM {
            return None;
        }
        let kind = message.kind & 0xff;
        let attributes = message.body.get(4..)?;
        let text_of = |kind| find_attr(attributes, kind).map(text);
        // `TABLE_NAME` is the number of the table's name for every object.
        Some(match kind {
            NEW_GENERATION => Notice::Generation { process: text_of(PROCESS_NAME).unwrap_or_default() },
            NEW_TABLE => Notice::TableMade(text_of(TABLE_NAME)?),
            DEL_TABLE => Notice::TableGone(text_of(TABLE_NAME)?),
            DEL_CHAIN => Notice::RuleGone { table: text_of(TABLE_NAME)?, chain: text_of(CHAIN_NAME)? },
            DEL_RULE => Notice::RuleGone { table: text_of(TABLE_NAME)?, chain: text_of(RULE_CHAIN)? },
            DEL_SET | DEL_ELEMENT => Notice::ElementGone(text_of(TABLE_NAME)?),
            _ => return None,
        })
    }
}
