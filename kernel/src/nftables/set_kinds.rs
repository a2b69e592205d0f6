//! The kinds of sets beside plain ones: of intervals, of pairs, of ranges, with a time.

use super::batch::{Batch, LIST_ELEMENT};
use super::data_type::DataType;
use super::expr::Expr;
use super::read::{HEADER, be32, dump};
use super::set::{
    GET_SET, NEW_SET, SET_FLAGS, SET_ID, SET_KEY_LEN, SET_KEY_TYPE, SET_USERDATA, new_set, set_request,
};
use super::{Error, Table, userdata};
use crate::ip::IpFamily;
use crate::netlink::message::{F_CREATE, find_attr};
use crate::netlink::{Message, Socket};

// NFTA_SET_*
const SET_DESCRIPTION: u16 = 9;
const SET_TIMEOUT: u16 = 11;
const SET_EXPRS: u16 = 18;
/// `NFT_SET_EXPR`: its elements have expressions. Since Linux 5.12.
const FLAG_EXPRS: u32 = 0x100;
// NFTA_SET_DESC_*
const DESCRIPTION_SIZE: u16 = 1;
const DESCRIPTION_CONCATENATION: u16 = 2;
/// `NFTA_SET_FIELD_LEN`.
const FIELD_LEN: u16 = 1;
/// `NFT_SET_INTERVAL`.
const FLAG_INTERVAL: u32 = 4;
/// `NFT_SET_TIMEOUT`.
const FLAG_TIMEOUT: u32 = 0x10;
/// `NFT_SET_EVAL`: rules change it.
const FLAG_EVAL: u32 = 0x20;
/// `NFT_SET_CONCAT`: each part of a concatenation has an interval of its own.
const FLAG_CONCAT: u32 = 0x80;
/// `nft`'s `TYPE_INTEGER`: bytes of any length.
const TYPE_INTEGER: u32 = 4;

impl Batch {
    /// Adds a set of intervals, see [`Element::of_network`](super::Element::of_network). An existing one stays unchanged. `id` as for
    /// [`Batch::add_set`].
    pub fn add_interval_set(&mut self, table: Table<'_>, name: &str, id: u32, key: DataType) -> &mut Self {
        let message = new_set(table, name, id, &[key], None, FLAG_INTERVAL);
        self.push(format!("add set {table} {name}"), message)
    }

    /// Adds a set of pairs, see [`Element::of_pair`](super::Element::of_pair): the packet's source address of this family, then the
    /// `len` bytes at `offset` of its transport header. Needs Linux 5.6. An existing one stays unchanged. `id` as for [`Batch::add_set`].
    pub fn add_pair_set(
        &mut self,
        table: Table<'_>,
        name: &str,
        id: u32,
        source: IpFamily,
        (offset, len): (u32, u32),
    ) -> &mut Self {
        let address = if source == IpFamily::V4 { DataType::Ipv4Addr } else { DataType::Ipv6Addr };
        let field = |list: Message, len| list.nest(LIST_ELEMENT, |part| part.attr_be32(FIELD_LEN, len));
        let fields = |list| field(field(list, address.len()), len);
        let message = set_request(NEW_SET, F_CREATE, table, name)
            .attr_be32(SET_FLAGS, FLAG_INTERVAL | FLAG_CONCAT)
            .attr_be32(SET_KEY_TYPE, (address as u32) << 6 | TYPE_INTEGER)
            .attr_be32(SET_KEY_LEN, address.len() + len)
            .attr_be32(SET_ID, id)
            .attr(SET_USERDATA, &userdata::encode_pair(source, (offset, len)))
            .nest(SET_DESCRIPTION, |desc| desc.nest(DESCRIPTION_CONCATENATION, fields));
        self.push(format!("add set {table} {name}"), message)
    }

    /// Adds a set whose elements rules add ([`Expr::Count`](super::Expr::Count)): at most `size`, each for `milliseconds` after its
    /// last packet. An existing one stays unchanged. `id` as for [`Batch::add_set`].
    pub fn add_counting_set(
        &mut self,
        table: Table<'_>,
        name: &str,
        id: u32,
        key: DataType,
        (size, milliseconds): (u32, u64),
    ) -> &mut Self {
        let message = new_set(table, name, id, &[key], None, FLAG_TIMEOUT | FLAG_EVAL)
            .nest(SET_DESCRIPTION, |desc| desc.attr_be32(DESCRIPTION_SIZE, size))
            .attr(SET_TIMEOUT, &milliseconds.to_be_bytes());
        self.push(format!("add set {table} {name}"), message)
    }

    /// As [`Batch::add_counting_set`], with keys of several parts and without counters: see [`Expr::Renew`](super::Expr::Renew). Other
    /// elements than those of rules get the same time.
    pub fn add_timed_set(
        &mut self,
        table: Table<'_>,
        name: &str,
        id: u32,
        key: &[DataType],
        (size, milliseconds): (u32, u64),
    ) -> &mut Self {
        let message = new_set(table, name, id, key, None, FLAG_TIMEOUT | FLAG_EVAL)
            .nest(SET_DESCRIPTION, |desc| desc.attr_be32(DESCRIPTION_SIZE, size))
            .attr(SET_TIMEOUT, &milliseconds.to_be_bytes());
        self.push(format!("add set {table} {name}"), message)
    }

    /// Adds a set whose elements each have these expressions, two at most, such as a counter and a limit: a rule that finds an element
    /// evaluates them, and ends if one of them does. Before Linux 5.12 the kernel refuses it with EINVAL. An existing one stays unchanged.
    /// `id` as for [`Batch::add_set`].
    pub fn add_set_of_exprs(
        &mut self,
        table: Table<'_>,
        name: &str,
        id: u32,
        key: DataType,
        exprs: &[Expr],
    ) -> &mut Self {
        let one = |list: Message, expr: &Expr| list.nest(LIST_ELEMENT, |element| expr.encode(element));
        let message = new_set(table, name, id, &[key], None, FLAG_EXPRS)
            .nest(SET_EXPRS, |list| exprs.iter().fold(list, one));
        self.push(format!("add set {table} {name}"), message)
    }

    /// Adds a set of ranges of a key of several parts, see [`Element::of_range`](super::Element::of_range). Needs Linux 5.6. An
    /// existing one stays unchanged. `id` as for [`Batch::add_set`].
    pub fn add_range_set(&mut self, table: Table<'_>, name: &str, id: u32, key: &[DataType]) -> &mut Self {
        let part = |list: Message, of: &DataType| {
            list.nest(LIST_ELEMENT, |part| part.attr_be32(FIELD_LEN, of.size()))
        };
        let message = new_set(table, name, id, key, None, FLAG_INTERVAL | FLAG_CONCAT)
            .nest(SET_DESCRIPTION, |desc| {
                desc.nest(DESCRIPTION_CONCATENATION, |list| key.iter().fold(list, part))
            });
        self.push(format!("add set {table} {name}"), message)
    }
}

/// Whether a set is one of intervals; `None` if it does not exist.
pub fn is_of_intervals(socket: &mut Socket, table: Table<'_>, set: &str) -> Result<Option<bool>, Error> {
    let request = set_request(GET_SET, 0, table, set).one_answer();
    let bodies = dump(socket, request, || format!("get set {table} {set}"))?;
    let flags = |body: &Vec<u8>| {
        body.get(HEADER..).and_then(|attributes| find_attr(attributes, SET_FLAGS)).map_or(0, be32)
    };
    Ok(bodies.first().map(|body| flags(body) & FLAG_INTERVAL != 0))
}
