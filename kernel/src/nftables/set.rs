//! Sets and maps: creates and fills them in batches, reads single elements or all.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use super::batch::{Batch, LIST_ELEMENT, request};
use super::encode::{DATA_VALUE, DATA_VERDICT};
use super::expr::Verdict;
use super::read::{HEADER, absent, dump, name};
use super::{Error, Table, decode, userdata};
use crate::ip::octets;
use crate::netlink::message::{F_CREATE, F_DUMP, F_EXCL, attrs, find_attr};
use crate::netlink::{Answer, Message, Socket};

const NEW_SET: u16 = 9;
const GET_SET: u16 = 10;
pub(super) const DEL_SET: u16 = 11;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
pub(super) const DEL_ELEMENT: u16 = 14;

// NFTA_SET_*
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_USERDATA: u16 = 13;
/// `nft`'s `BYTEORDER_HOST_ENDIAN`.
const HOST_ORDER: u32 = 1;
/// `NFT_SET_INTERVAL`.
const FLAG_INTERVAL: u32 = 4;
/// `NFT_SET_MAP`.
const FLAG_MAP: u32 = 8;
/// `NFT_SET_ELEM_INTERVAL_END`.
const INTERVAL_END: u32 = 1;
/// `NFT_DATA_VERDICT`.
const TYPE_VERDICT: u32 = 0xffff_ff00;

// NFTA_SET_ELEM_LIST_*
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
// NFTA_SET_ELEM_*
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_USERDATA: u16 = 6;

/// Elements in one request: an attribute has at most 64 KiB, and an element takes at most some 340 bytes.
const PER_REQUEST: usize = 150;

/// The type of one part of a key or value, with its number in `nft`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// An IPv4 address.
    Ipv4Addr = 7,
    /// An IPv6 address.
    Ipv6Addr = 8,
    /// A transport protocol.
    Proto = 12,
    /// A port.
    Service = 13,
    /// A packet mark, in the byte order of the host.
    Mark = 19,
    /// An interface name.
    IfName = 41,
}

impl DataType {
    /// The length in bytes in a concatenation.
    const fn len(self) -> u32 {
        match self {
            DataType::Ipv6Addr | DataType::IfName => 16,
            DataType::Ipv4Addr | DataType::Proto | DataType::Service | DataType::Mark => 4,
        }
    }

    /// The type number of a concatenation (6 bits for each part) and its length in bytes.
    fn concatenation(parts: &[DataType]) -> (u32, u32) {
        parts.iter().fold((0, 0), |(number, len), part| (number << 6 | *part as u32, len + part.len()))
    }
}

/// The type of the values of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// A concatenation of these types.
    Of(&'a [DataType]),
    /// A verdict.
    Verdict,
}

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
        }
    }

    fn encode_key(&self, message: Message) -> Message {
        let flags = self.is_end.then(|| INTERVAL_END.to_be_bytes());
        message.nest(ELEMENT_KEY, |key| key.attr(DATA_VALUE, &self.key)).attr_if(ELEMENT_FLAGS, flags)
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
        self.new_set(table, name, id, key, values, flags)
    }

    /// Adds a set of intervals, see [`Element::of_network`]. An existing one stays unchanged. `id` as for [`Batch::add_set`].
    pub fn add_interval_set(&mut self, table: Table<'_>, name: &str, id: u32, key: DataType) -> &mut Self {
        self.new_set(table, name, id, &[key], None, FLAG_INTERVAL)
    }

    fn new_set(
        &mut self,
        table: Table<'_>,
        name: &str,
        id: u32,
        key: &[DataType],
        values: Option<Values<'_>>,
        flags: u32,
    ) -> &mut Self {
        let (key_type, key_len) = DataType::concatenation(key);
        // NFTA_SET_FLAGS, _KEY_TYPE, _KEY_LEN, _DATA_TYPE, _DATA_LEN, _ID
        let mut message = set_request(NEW_SET, F_CREATE, table, name)
            .attr_be32(3, flags)
            .attr_be32(4, key_type)
            .attr_be32(5, key_len);
        if let Some(values) = values {
            let (data_type, data_len) = match values {
                Values::Of(parts) => DataType::concatenation(parts),
                Values::Verdict => (TYPE_VERDICT, 0),
            };
            message = message.attr_be32(6, data_type).attr_be32(7, data_len);
        }
        // Without the byte order nft prints interface names as empty text, and marks with their bytes swapped.
        let order = if key == [DataType::IfName] { HOST_ORDER } else { 0 };
        let mut user = userdata::encode_key_order(order);
        if values == Some(Values::Of(&[DataType::Mark])) {
            user.extend(userdata::encode_data_order(HOST_ORDER));
        }
        let message = message.attr_be32(10, id).attr(SET_USERDATA, &user);
        self.push(format!("add set {table} {name}"), message)
    }

    /// Deletes a set or map. The kernel rejects this if a rule uses it.
    pub fn delete_set(&mut self, table: Table<'_>, name: &str) -> &mut Self {
        self.push(format!("delete set {table} {name}"), set_request(DEL_SET, 0, table, name))
    }

    /// Adds elements. The kernel rejects the batch if one of the keys exists, see [`Error::is_taken`].
    pub fn add_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Self {
        for part in elements.chunks(PER_REQUEST) {
            let message = list_request(NEW_ELEMENT, F_CREATE | F_EXCL, table, set, part, Element::encode);
            self.push(format!("add elements to {table} {set}"), message);
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
        for part in elements.chunks(PER_REQUEST) {
            let message = list_request(DEL_ELEMENT, 0, table, set, part, Element::encode_key);
            self.push(format!("delete elements of {table} {set}"), message);
        }
        self
    }
}

fn set_request(message: u16, flags: u16, table: Table<'_>, name: &str) -> Message {
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
