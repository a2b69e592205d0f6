//! The flags of a table.

use super::batch::{OWNER, PERSIST, TABLE_FLAGS, TABLE_NAME};
use super::read::{GET_TABLE, HEADER, be32, found};
use super::{Error, Table, kind};
use crate::netlink::message::find_attr;
use crate::netlink::{Message, Socket};

/// `NFT_TABLE_F_DORMANT`
const DORMANT: u32 = 1;

/// What the flags of a table say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableState {
    /// The kernel passes over its chains.
    pub is_dormant: bool,
    /// Only one socket may change it.
    pub is_owned: bool,
    /// It stays when its owner's socket is closed.
    pub is_persistent: bool,
}

/// The flags of a table; `None` if it does not exist.
pub fn table_state(socket: &mut Socket, table: Table<'_>) -> Result<Option<TableState>, Error> {
    let request =
        Message::new(kind(GET_TABLE), 0, &table.header()).attr_text(TABLE_NAME, table.name).one_answer();
    let answer = socket.request(request);
    let bodies = found(socket, answer, || format!("get table {table}"))?;
    let Some(body) = bodies.first() else { return Ok(None) };
    let flags = body.get(HEADER..).and_then(|attributes| find_attr(attributes, TABLE_FLAGS)).map_or(0, be32);
    let has = |flag| flags & flag != 0;
    Ok(Some(TableState { is_dormant: has(DORMANT), is_owned: has(OWNER), is_persistent: has(PERSIST) }))
}

/// Whether the kernel passes over the chains of a table (`flags dormant`); false if the table does not exist.
pub fn is_dormant(socket: &mut Socket, table: Table<'_>) -> Result<bool, Error> {
    Ok(table_state(socket, table)?.is_some_and(|state| state.is_dormant))
}
