//! Sets and maps: creates and fills them in batches, reads single elements or all.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use super::batch::{Batch, LIST_ELEMENT, request};
use super::data_type::{DataType, Values};
use super::encode::{DATA_VALUE, DATA_VERDICT};
use super::expr::Verdict;
use super::read::{HEADER, absent, dump, name, read_expr};
use super::{Error, Table, decode, userdata};
use crate::ip::octets;
use crate::netlink::message::{F_CREATE, F_DUMP, F_EXCL, attrs, find_attr};
use crate::netlink::{Answer, Message, Socket};

pub(super) const NEW_SET: u16 = 9;
pub(super) const GET_SET: u16 = 10;
pub(super) const DEL_SET: u16 = 11;
pub(super) const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
pub(super) const DEL_ELEMENT: u16 = 14;

// NFTA_SET_*
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
pub(super) const SET_FLAGS: u16 = 3;
pub(super) const SET_KEY_TYPE: u16 = 4;
pub(super) const SET_KEY_LEN: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LEN: u16 = 7;
pub(super) const SET_ID: u16 = 10;
pub(super) const SET_USERDATA: u16 = 13;
/// `nft`'s `BYTEORDER_HOST_ENDIAN`.
const HOST_ORDER: u32 = 1;
/// `NFT_SET_MAP`.
const FLAG_MAP: u32 = 8;
/// `NFT_SET_ELEM_INTERVAL_END`.
const INTERVAL_END: u32 = 1;
/// `NFT_DATA_VERDICT`.
const TYPE_VERDICT: u32 = 0xffff_ff00;

// NFTA_SET_ELEM_LIST_*
const LIST_TABLE: u16 = 1;
pub(super) const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
// NFTA_SET_ELEM_*
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_USERDATA: u16 = 6;
const ELEMENT_EXPR: u16 = 7;
const ELEMENT_KEY_END: u16 = 10;
/// Of an element with several expressions.
const ELEMENT_EXPRS: u16 = 11;

/// Elements in one request: an attribute has at most 64 KiB, and an element takes at most some 340 bytes, or 76 if it is only a key.
const PER_REQUEST: [usize; 2] = [150, 600];

/// The value of a map element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Data, each part padded to a multiple of 4 bytes.
    Bytes(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its key, each part padded to a multiple of 4 bytes.
    pub key: Vec<u8>,
    /// Its value in a map; `None` in a set.
    pub value: Option<Value>,
    /// A comment for users, at most [`super::COMMENT_MAX`] bytes.
    pub comment: Option<String>,
    /// The owner metadata: private bytes of the plugin, which `nft` ignores. At most [`Element::METADATA_MAX`]
    /// bytes.
    pub metadata: Option<Vec<u8>>,
    /// In a set of intervals: the key is the first one behind an interval.
    pub is_end: bool,
    /// In a set of pairs: the last key of the interval.
    pub last: Option<Vec<u8>>,
    /// How many packets its counter has seen, if it has one.
    pub packets: Option<u64>,
}

impl Element {
    /// The maximum length of the owner metadata in bytes. The kernel stores at most 256 bytes of userdata for
    /// metadata and comment.
    pub const METADATA_MAX: usize = 120;

    /// An element with this key, without value and comment.
    pub fn new(key: Vec<u8>) -> Self {
        Element { key, ..Element::default() }
    }

    /// The elements of a set of intervals that contain this network and nothing else: its first address, and the first
    /// one behind it unless it has the last address of the family.
    pub fn of_network(network: IpNetwork) -> Vec<Element> {
        let first = Element::new(octets(network.network()));
        let mut key = octets(network.broadcast());
        // Adds one.
        for byte in key.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                return vec![first, Element { is_end: true, ..Element::new(key) }];
            }
        }
        vec![first]
    }

    /// The element of [`Batch::add_pair_set`] with this source and the addresses of the network.
    pub fn of_pair(source: IpAddr, network: IpNetwork) -> Element {
        let key = |address| [octets(source), octets(address)].concat();
        Element::of_range(key(network.network()), key(network.broadcast()))
    }

    /// The element of [`Batch::add_range_set`] from the first key to the last one, in each part.
    pub fn of_range(first: Vec<u8>, last: Vec<u8>) -> Element {
        Element { last: Some(last), ..Element::new(first) }
    }

    /// The elements in the body of an answer.
    pub fn parse_list(body: &[u8]) -> Vec<Element> {
        let list = body.get(HEADER..).and_then(|attributes| find_attr(attributes, LIST_ELEMENTS));
        attrs(list.unwrap_or_default())
            .filter(|(kind, _)| *kind == LIST_ELEMENT)
            .map(|(_, element)| Element::parse(element))
            .collect()
    }

    fn parse(attributes: &[u8]) -> Element {
        let user = find_attr(attributes, ELEMENT_USERDATA).unwrap_or_default();
        let value = find_attr(attributes, ELEMENT_DATA).and_then(|data| match find_attr(data, DATA_VALUE) {
            Some(bytes) => Some(Value::Bytes(bytes.to_vec())),
            None => decode::decode_verdict(data).map(Value::Verdict),
        });
        let key = find_attr(attributes, ELEMENT_KEY).and_then(|key| find_attr(key, DATA_VALUE));
        Element {
            key: key.unwrap_or_default().to_vec(),
            value,
            comment: userdata::decode(user),
            metadata: userdata::decode_owner_metadata(user),
            is_end: find_attr(attributes, ELEMENT_FLAGS) == Some(&INTERVAL_END.to_be_bytes()),
            last: find_attr(attributes, ELEMENT_KEY_END)
                .and_then(|key| find_attr(key, DATA_VALUE))
                .map(<[u8]>::to_vec),
            packets: find_attr(attributes, ELEMENT_EXPR)
                .into_iter()
                .chain(attrs(find_attr(attributes, ELEMENT_EXPRS).unwrap_or_default()).map(|(_, expr)| expr))
                .find_map(|expr| read_expr(expr).packets()),
        }
    }

    fn encode_key(&self, message: Message) -> Message {
        let flags = self.is_end.then(|| INTERVAL_END.to_be_bytes());
        let message = message.nest(ELEMENT_KEY, |key| key.attr(DATA_VALUE, &self.key));
        let message = match &self.last {
            Some(last) => message.nest(ELEMENT_KEY_END, |key| key.attr(DATA_VALUE, last)),
            None => message,
        };
        message.attr_if(ELEMENT_FLAGS, flags)
    }

    fn encode(&self, message: Message) -> Message {
        let mut message = self.encode_key(message);
        message = match &self.value {
            None => message,
            Some(Value::Bytes(bytes)) => message.nest(ELEMENT_DATA, |data| data.attr(DATA_VALUE, bytes)),
            Some(Value::Verdict(verdict)) => {
                message.nest(ELEMENT_DATA, |data| data.nest(DATA_VERDICT, |data| verdict.encode(data)))
            }
        };
        let mut user = self.comment.as_deref().map(userdata::encode).unwrap_or_default();
        if let Some(metadata) = &self.metadata {
            user.extend(userdata::encode_owner_metadata(metadata));
        }
        message.attr_if(ELEMENT_USERDATA, (!user.is_empty()).then_some(user))
    }
}

impl Batch {
    /// Adds a set, or a map if `values` is given. An existing one stays unchanged. `id` must be unique among
    /// the sets of the batch.
    pub fn add_set(
        &mut self,
        table: Table<'_>,
        name: &str,
        id: u32,
        key: &[DataType],
        values: Option<Values<'_>>,
    ) -> &mut Self {
        let flags = if values.is_some() { FLAG_MAP } else { 0 };
        let message = new_set(table, name, id, key, values, flags);
        self.push(format!("add set {table} {name}"), message)
    }

    /// Deletes a set or map. The kernel rejects this if a rule uses it.
    pub fn delete_set(&mut self, table: Table<'_>, name: &str) -> &mut Self {
        self.push(format!("delete set {table} {name}"), set_request(DEL_SET, 0, table, name))
    }

    /// Adds elements. The kernel rejects the batch if one of the keys exists, see [`Error::is_taken`].
    pub fn add_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Self {
        for part in elements.chunks(per_request(elements)) {
            let message = list_request(NEW_ELEMENT, F_CREATE | F_EXCL, table, set, part, Element::encode);
            self.push(format!("add elements to {table} {set}"), message);
        }
        self
    }

    /// As [`Batch::add_elements`], but an existing element of a set stays unchanged.
    pub fn put_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Self {
        for part in elements.chunks(per_request(elements)) {
            let message = list_request(NEW_ELEMENT, F_CREATE, table, set, part, Element::encode);
            self.push(format!("put elements into {table} {set}"), message);
        }
        self
    }

    /// Deletes the elements with these keys. The kernel rejects the batch if one of the keys does not exist.
    pub fn delete_elements(&mut self, table: Table<'_>, set: &str, keys: &[Vec<u8>]) -> &mut Self {
        let elements: Vec<Element> = keys.iter().cloned().map(Element::new).collect();
        self.delete(table, set, &elements)
    }

    /// As [`Batch::delete_elements`], also for the ends of intervals.
    pub fn delete(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Self {
        for part in elements.chunks(per_request(elements)) {
            let message = list_request(DEL_ELEMENT, 0, table, set, part, Element::encode_key);
            self.push(format!("delete elements of {table} {set}"), message);
        }
        self
    }
}

pub(super) fn new_set(
    table: Table<'_>,
    name: &str,
    id: u32,
    key: &[DataType],
    values: Option<Values<'_>>,
    flags: u32,
) -> Message {
    let (key_type, key_len) = DataType::concatenation(key);
    let mut message = set_request(NEW_SET, F_CREATE, table, name)
        .attr_be32(SET_FLAGS, flags)
        .attr_be32(SET_KEY_TYPE, key_type)
        .attr_be32(SET_KEY_LEN, key_len);
    if let Some(values) = values {
        let (data_type, data_len) = match values {
            Values::Of(parts) => DataType::concatenation(parts),
            Values::Verdict => (TYPE_VERDICT, 0),
        };
        message = message.attr_be32(SET_DATA_TYPE, data_type).attr_be32(SET_DATA_LEN, data_len);
    }
    // Without the byte order nft prints interface names as empty text, and marks with their bytes swapped.
    let order = if key == [DataType::IfName] { HOST_ORDER } else { 0 };
    let mut user = userdata::encode_key_order(order);
    if values == Some(Values::Of(&[DataType::Mark])) {
        user.extend(userdata::encode_data_order(HOST_ORDER));
    }
    message.attr_be32(SET_ID, id).attr(SET_USERDATA, &user)
}

fn per_request(elements: &[Element]) -> usize {
    let is_bare = |element: &Element| {
        element.value.is_none() && element.comment.is_none() && element.metadata.is_none()
    };
    PER_REQUEST[usize::from(elements.iter().all(is_bare))]
}

pub(super) fn set_request(message: u16, flags: u16, table: Table<'_>, name: &str) -> Message {
    request(message, flags, table).attr_text(SET_TABLE, table.name).attr_text(SET_NAME, name)
}

fn list_request(
    message: u16,
    flags: u16,
    table: Table<'_>,
    set: &str,
    elements: &[Element],
    encode: impl Fn(&Element, Message) -> Message,
) -> Message {
    request(message, flags, table).attr_text(LIST_TABLE, table.name).attr_text(LIST_SET, set).nest(
        LIST_ELEMENTS,
        |list| {
            elements
                .iter()
                .fold(list, |list, element| list.nest(LIST_ELEMENT, |message| encode(element, message)))
        },
    )
}

/// The names of all sets and maps of a table; empty if the table does not exist.
pub fn sets(socket: &mut Socket, table: Table<'_>) -> Result<Vec<String>, Error> {
    let request = request(GET_SET, F_DUMP, table).attr_text(SET_TABLE, table.name);
    let mut bodies = dump(socket, request, || format!("list sets of {table}"))?;
    bodies.retain(|body| name(body, SET_TABLE) == table.name);
    Ok(bodies.iter().map(|body| name(body, SET_NAME)).collect())
}

/// All elements of a set or map; empty if it does not exist.
pub fn elements(socket: &mut Socket, table: Table<'_>, set: &str) -> Result<Vec<Element>, Error> {
    let request =
        request(GET_ELEMENT, F_DUMP, table).attr_text(LIST_TABLE, table.name).attr_text(LIST_SET, set);
    let bodies = dump(socket, request, || format!("list elements of {table} {set}"))?;
    Ok(bodies.iter().flat_map(|body| Element::parse_list(body)).collect())
}

/// Finds single elements, each given by its set and key, with one round trip per 128 elements. The result
/// has one entry for each of `wanted`: `None` if the element, its set or the table does not exist.
pub fn find_elements(
    socket: &mut Socket,
    table: Table<'_>,
    wanted: &[(&str, &[u8])],
) -> Result<Vec<Option<Element>>, Error> {
    let request = |(set, key): &(&str, &[u8])| {
        let element = [Element::new(key.to_vec())];
        list_request(GET_ELEMENT, 0, table, set, &element, Element::encode_key).one_answer()
    };
    let answers = socket.requests(wanted.iter().map(request).collect()).into_iter().zip(wanted);
    let read = |(answer, (set, _)): (Answer, &(&str, &[u8]))| match answer {
        Ok(bodies) => Ok(bodies.first().and_then(|body| Element::parse_list(body).pop())),
        Err(error) if absent(socket, &error) || error.errno == Errno::ENOTDIR => Ok(None),
        Err(source) => Err(Error { request: format!("get element of {table} {set}"), source }),
    };
    answers.map(read).collect()
}
