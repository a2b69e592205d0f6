//! Sets and maps: made and filled in batches, read element by element or as a whole.

use nix::errno::Errno;

use super::batch::{Batch, LIST_ELEMENT, request};
use super::encode::{DATA_VALUE, DATA_VERDICT};
use super::expr::Verdict;
use super::read::{HEADER, absent};
use super::{Error, Table, decode, userdata};
use crate::netlink::message::{F_CREATE, F_DUMP, F_EXCL, attrs, find_attr, text};
use crate::netlink::{Message, Socket};

const NEW_SET: u16 = 9;
const GET_SET: u16 = 10;
const DEL_SET: u16 = 11;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DEL_ELEMENT: u16 = 14;

// NFTA_SET_*
const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_USERDATA: u16 = 13;
/// `nft`'s `BYTEORDER_HOST_ENDIAN`.
const HOST_ORDER: u32 = 1;
/// `NFT_SET_MAP`.
const FLAG_MAP: u32 = 8;
/// `NFT_DATA_VERDICT`.
const TYPE_VERDICT: u32 = 0xffff_ff00;

// NFTA_SET_ELEM_LIST_*
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
// NFTA_SET_ELEM_*
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_USERDATA: u16 = 6;

/// How many elements go into one request: an attribute holds 64 KiB, and an element takes at most some 340 bytes.
const PER_REQUEST: usize = 150;

/// What a part of a key or value is; the numbers are those that `nft` prints the types by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// An IPv4 address.
    Ipv4Addr,
    /// An IPv6 address.
    Ipv6Addr,
    /// A transport protocol.
    Proto,
    /// A port.
    Service,
    /// An interface's name.
    IfName,
}

impl DataType {
    /// `nft`'s number of the type, and how many bytes it takes in a concatenation.
    const fn layout(self) -> (u32, u32) {
        match self {
            DataType::Ipv4Addr => (7, 4),
            DataType::Ipv6Addr => (8, 16),
            DataType::Proto => (12, 4),
            DataType::Service => (13, 4),
            DataType::IfName => (41, 16),
        }
    }

    /// A concatenation's number (six bits for each part) and length.
    fn concatenation(parts: &[DataType]) -> (u32, u32) {
        parts
            .iter()
            .map(|part| part.layout())
            .fold((0, 0), |(number, len), (part, bytes)| (number << 6 | part, len + bytes))
    }
}

/// What a map has for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// A value of these parts.
    Of(&'a [DataType]),
    /// A verdict.
    Verdict,
}

/// What an element has for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes, each part padded to four.
    Bytes(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its key, each part padded to four bytes.
    pub key: Vec<u8>,
    /// What a map has for it.
    pub value: Option<Value>,
    /// Whatever a person should read, at most [`super::COMMENT_MAX`] bytes.
    pub comment: Option<String>,
    /// Bytes of one's own, which `nft` passes over. Beside a comment of full length there is room for
    /// [`Element::NOTE_MAX`].
    pub note: Option<Vec<u8>>,
}

impl Element {
    /// The longest note in bytes. The kernel keeps 256 bytes for it and the comment.
    pub const NOTE_MAX: usize = 120;

    /// An element of that key.
    pub fn new(key: Vec<u8>) -> Self {
        Element { key, ..Element::default() }
    }

    fn encode_key(&self, message: Message) -> Message {
        message.nest(ELEMENT_KEY, |key| key.attr(DATA_VALUE, &self.key))
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
        if let Some(note) = &self.note {
            user.extend(userdata::encode_note(note));
        }
        if user.is_empty() { message } else { message.attr(ELEMENT_USERDATA, &user) }
    }
}

impl Batch {
    /// Makes a set, or with `values` a map; one that exists stays as it is. `id` is a number that no other set of the
    /// batch has.
    pub fn add_set(
        &mut self,
        table: Table<'_>,
        name: &str,
        id: u32,
        key: &[DataType],
        values: Option<Values<'_>>,
    ) -> &mut Self {
        let (key_type, key_len) = DataType::concatenation(key);
        // NFTA_SET_FLAGS, _KEY_TYPE, _KEY_LEN, _DATA_TYPE, _DATA_LEN, _ID
        let mut message = set_request(NEW_SET, F_CREATE, table, name)
            .attr_be32(3, if values.is_some() { FLAG_MAP } else { 0 })
            .attr_be32(4, key_type)
            .attr_be32(5, key_len);
        if let Some(values) = values {
            let (data_type, data_len) = match values {
                Values::Of(parts) => DataType::concatenation(parts),
                Values::Verdict => (TYPE_VERDICT, 0),
            };
            message = message.attr_be32(6, data_type).attr_be32(7, data_len);
        }
        // Without it nft prints nothing where an interface's name is.
        let order = if key == [DataType::IfName] { HOST_ORDER } else { 0 };
        let message = message.attr_be32(10, id).attr(SET_USERDATA, &userdata::encode_key_order(order));
        self.push(format!("add set {table} {name}"), message)
    }

    /// Deletes a set that no rule uses.
    pub fn delete_set(&mut self, table: Table<'_>, name: &str) -> &mut Self {
        self.push(format!("delete set {table} {name}"), set_request(DEL_SET, 0, table, name))
    }

    /// Adds elements none of whose keys is there (`EEXIST`, see [`Error::is_taken`]).
    pub fn add_elements(&mut self, table: Table<'_>, set: &str, elements: &[Element]) -> &mut Self {
        for part in elements.chunks(PER_REQUEST) {
            let message = list_request(NEW_ELEMENT, F_CREATE | F_EXCL, table, set, part, Element::encode);
            self.push(format!("add elements to {table} {set}"), message);
        }
        self
    }

    /// Deletes the elements of these keys.
    pub fn delete_elements(&mut self, table: Table<'_>, set: &str, keys: &[Vec<u8>]) -> &mut Self {
        let elements: Vec<Element> = keys.iter().cloned().map(Element::new).collect();
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

/// The names of a table's sets and maps; none if there is no such table.
///
/// # Errors
/// What the kernel said, unless it is that there is no such table.
pub fn sets(socket: &mut Socket, table: Table<'_>) -> Result<Vec<String>, Error> {
    let question = request(GET_SET, F_DUMP, table).attr_text(SET_TABLE, table.name);
    let bodies = match socket.request(question) {
        Ok(bodies) => bodies,
        Err(error) if absent(&error) => return Ok(Vec::new()),
        Err(source) => return Err(Error { request: format!("list sets of {table}"), source }),
    };
    let attributes = bodies.iter().filter_map(|body| body.get(HEADER..));
    let of_table =
        attributes.filter(|set| find_attr(set, SET_TABLE).is_some_and(|name| text(name) == table.name));
    Ok(of_table.filter_map(|set| find_attr(set, SET_NAME).map(text)).collect())
}

/// All elements of a set; none if there is no such set.
///
/// # Errors
/// What the kernel said, unless it is that there is no such set.
pub fn elements(socket: &mut Socket, table: Table<'_>, set: &str) -> Result<Vec<Element>, Error> {
    let question =
        request(GET_ELEMENT, F_DUMP, table).attr_text(LIST_TABLE, table.name).attr_text(LIST_SET, set);
    match socket.request(question) {
        Ok(bodies) => Ok(bodies.iter().flat_map(|body| read_list(body)).collect()),
        Err(error) if absent(&error) => Ok(Vec::new()),
        Err(source) => Err(Error { request: format!("list elements of {table} {set}"), source }),
    }
}

/// Looks for single elements, each given by its set and key, in one round trip for every hundred of them; the answers are
/// in the order of the questions.
///
/// # Errors
/// What the kernel said, unless it is that there is no such element, set or table.
pub fn find_elements(
    socket: &mut Socket,
    table: Table<'_>,
    wanted: &[(&str, &[u8])],
) -> Result<Vec<Option<Element>>, Error> {
    let mut found = Vec::with_capacity(wanted.len());
    for part in wanted.chunks(Batch::ROOM) {
        let questions = part
            .iter()
            .map(|(set, key)| {
                let element = [Element::new(key.to_vec())];
                list_request(GET_ELEMENT, 0, table, set, &element, Element::encode_key)
            })
            .collect();
        for (answer, (set, _)) in socket.requests(questions).into_iter().zip(part) {
            found.push(match answer {
                Ok(bodies) => bodies.first().and_then(|body| read_list(body).pop()),
                Err(error) if absent(&error) || error.errno == Errno::ENOTDIR => None,
                Err(source) => {
                    return Err(Error { request: format!("get element of {table} {set}"), source });
                }
            });
        }
    }
    Ok(found)
}

fn read_list(body: &[u8]) -> Vec<Element> {
    let list = body.get(HEADER..).and_then(|attributes| find_attr(attributes, LIST_ELEMENTS));
    attrs(list.unwrap_or_default())
        .filter(|(kind, _)| *kind == LIST_ELEMENT)
        .map(|(_, element)| read_element(element))
        .collect()
}

fn read_element(attributes: &[u8]) -> Element {
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
        note: userdata::decode_note(user),
    }
}
