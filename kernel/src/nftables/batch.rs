//! Atomic batches of changes.

use super::expr::Expr;
use super::generation::Generation;
use super::{ChainType, Error, Hook, SUBSYSTEM, Table, header, kind, userdata};
use crate::netlink::message::{F_APPEND, F_CREATE, F_EXCL};
use crate::netlink::{Message, Socket};

/// `NFNL_MSG_BATCH_BEGIN`.
const BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`.
const END: u16 = 0x11;
/// `NFNL_BATCH_GENID`.
const BATCH_GENERATION: u16 = 1;

// enum nf_tables_msg_types
pub(super) const NEW_TABLE: u16 = 0;
pub(super) const DEL_TABLE: u16 = 2;
pub(super) const NEW_CHAIN: u16 = 3;
pub(super) const DEL_CHAIN: u16 = 5;
pub(super) const NEW_RULE: u16 = 6;
pub(super) const DEL_RULE: u16 = 8;

/// `NFTA_TABLE_NAME`.
pub(super) const TABLE_NAME: u16 = 1;
/// `NFTA_TABLE_FLAGS`.
pub(super) const TABLE_FLAGS: u16 = 2;
/// `NFT_TABLE_F_OWNER`
pub(super) const OWNER: u32 = 2;
/// `NFT_TABLE_F_PERSIST`
pub(super) const PERSIST: u32 = 4;
/// `NFTA_TABLE_USERDATA`, since Linux 5.10. Earlier kernels ignore it, so the table has no comment.
const TABLE_USERDATA: u16 = 6;

/// `NFTA_CHAIN_TABLE`.
pub(super) const CHAIN_TABLE: u16 = 1;
/// `NFTA_CHAIN_NAME`.
pub(super) const CHAIN_NAME: u16 = 3;
/// `NFTA_CHAIN_HOOK`.
pub(super) const CHAIN_HOOK: u16 = 4;
/// `NFTA_CHAIN_POLICY`.
pub(super) const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
/// `NFTA_CHAIN_USERDATA`, also since Linux 5.10.
const CHAIN_USERDATA: u16 = 12;
/// `NFTA_HOOK_HOOKNUM`.
pub(super) const HOOK_POINT: u16 = 1;
/// `NFTA_HOOK_PRIORITY`.
pub(super) const HOOK_PRIORITY: u16 = 2;

/// `NFTA_RULE_TABLE`.
pub(super) const RULE_TABLE: u16 = 1;
/// `NFTA_RULE_CHAIN`.
pub(super) const RULE_CHAIN: u16 = 2;
/// `NFTA_RULE_HANDLE`.
pub(super) const RULE_HANDLE: u16 = 3;
/// `NFTA_RULE_EXPRESSIONS`.
pub(super) const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_RULE_POSITION`.
const RULE_POSITION: u16 = 6;
/// `NFTA_RULE_USERDATA`.
pub(super) const RULE_USERDATA: u16 = 7;
/// `NFTA_LIST_ELEM`.
pub(super) const LIST_ELEMENT: u16 = 1;

/// A list of requests. The kernel applies all of them in order, or none.
///
/// The kernel answers every request, and the receive buffer of the socket holds some 250 answers. So a batch
/// should have at most [`Batch::ROOM`] requests.
#[derive(Default)]
pub struct Batch {
    /// The requests, each behind its text for errors, such as `add chain inet t c`.
    requests: Vec<(String, Message)>,
}

impl Batch {
    /// The number of requests whose answers certainly fit into the receive buffer.
    pub const ROOM: usize = 128;

    /// An empty batch.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Whether the batch has no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn push(&mut self, description: String, message: Message) -> &mut Self {
        self.requests.push((description, message));
        self
    }

    /// Adds a table. An existing table stays unchanged.
    pub fn add_table(&mut self, table: Table<'_>, comment: Option<&str>) -> &mut Self {
        let message = request(NEW_TABLE, F_CREATE, table).attr_text(TABLE_NAME, table.name);
        let message = message.attr_if(TABLE_USERDATA, comment.map(userdata::encode));
        self.push(format!("add table {table}"), message)
    }

    /// Adds a table that only this batch's socket may change, and that stays when the socket is closed (`owner` and `persist`, since
    /// Linux 6.9). Claims an existing one that has these flags and whose owner is gone.
    pub fn own_table(&mut self, table: Table<'_>, comment: Option<&str>) -> &mut Self {
        let message = request(NEW_TABLE, F_CREATE, table).attr_text(TABLE_NAME, table.name);
        let message = message.attr_be32(TABLE_FLAGS, OWNER | PERSIST);
        let message = message.attr_if(TABLE_USERDATA, comment.map(userdata::encode));
        self.push(format!("own table {table}"), message)
    }

    /// Adds a chain; with a hook it is a base chain. An existing chain stays unchanged, but the request costs
    /// an RCU grace period.
    pub fn add_chain(
        &mut self,
        table: Table<'_>,
        chain: &str,
        hook: Option<Hook>,
        comment: Option<&str>,
    ) -> &mut Self {
        let mut message = chain_request(NEW_CHAIN, F_CREATE, table, chain);
        if let Some(Hook { chain_type, point, priority, policy }) = hook {
            let kind = if chain_type == ChainType::Nat { "nat" } else { "filter" };
            let place = |m: Message| {
                m.attr_be32(HOOK_POINT, point as u32).attr(HOOK_PRIORITY, &priority.to_be_bytes())
            };
            message = message.nest(CHAIN_HOOK, place).attr_be32(CHAIN_POLICY, policy as u32);
            message = message.attr_text(CHAIN_TYPE, kind);
        }
        message = message.attr_if(CHAIN_USERDATA, comment.map(userdata::encode));
        self.push(format!("add chain {table} {chain}"), message)
    }

    /// Adds a chain that is not a base chain; if it exists already, the batch fails with EEXIST.
    pub fn add_new_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Self {
        let message = chain_request(NEW_CHAIN, F_CREATE | F_EXCL, table, chain);
        self.push(format!("add new chain {table} {chain}"), message)
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(
        &mut self,
        table: Table<'_>,
        chain: &str,
        exprs: &[Expr],
        comment: Option<&str>,
    ) -> &mut Self {
        let message = new_rule(F_CREATE | F_APPEND, table, chain, exprs);
        let message = message.attr_if(RULE_USERDATA, comment.map(userdata::encode));
        self.push(format!("add rule to {table} {chain}"), message)
    }

    /// Inserts a rule behind the rule with this handle, or at the start of the chain.
    pub fn insert_rule(
        &mut self,
        table: Table<'_>,
        chain: &str,
        exprs: &[Expr],
        behind: Option<u64>,
    ) -> &mut Self {
        let flags = if behind.is_some() { F_CREATE | F_APPEND } else { F_CREATE };
        let message = new_rule(flags, table, chain, exprs);
        let message = message.attr_if(RULE_POSITION, behind.map(u64::to_be_bytes));
        self.push(format!("insert rule into {table} {chain}"), message)
    }

    /// Deletes the rule with this handle.
    pub fn delete_rule(&mut self, table: Table<'_>, chain: &str, handle: u64) -> &mut Self {
        let message = rule_request(DEL_RULE, 0, table, chain).attr(RULE_HANDLE, &handle.to_be_bytes());
        self.push(format!("delete rule {handle} of {table} {chain}"), message)
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Self {
        self.push(format!("flush chain {table} {chain}"), rule_request(DEL_RULE, 0, table, chain))
    }

    /// Deletes a chain. The kernel rejects this (`EBUSY`) while a rule or map element jumps to it.
    pub fn delete_chain(&mut self, table: Table<'_>, chain: &str) -> &mut Self {
        self.push(format!("delete chain {table} {chain}"), chain_request(DEL_CHAIN, 0, table, chain))
    }

    /// Deletes a table with all its chains, rules and sets.
    pub fn delete_table(&mut self, table: Table<'_>) -> &mut Self {
        let message = request(DEL_TABLE, 0, table).attr_text(TABLE_NAME, table.name);
        self.push(format!("delete table {table}"), message)
    }

    /// Sends the batch to the kernel. Does nothing if the batch is empty.
    ///
    /// # Errors
    /// The first request that the kernel rejected. In this case nothing has changed.
    pub fn commit(self, socket: &mut Socket) -> Result<(), Error> {
        self.send(socket, None)
    }

    /// As [`Batch::commit`], but fails if any ruleset of the namespace has changed since `generation`.
    ///
    /// # Errors
    /// As [`Batch::commit`]. [`Error::is_outdated`] is true if the generation has changed.
    pub fn commit_at(self, socket: &mut Socket, generation: Generation) -> Result<(), Error> {
        self.send(socket, Some(generation))
    }

    fn send(self, socket: &mut Socket, generation: Option<Generation>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let (descriptions, messages): (Vec<_>, Vec<_>) = self.requests.into_iter().unzip();
        let marker = |message| Message::new(message, 0, &header(0, SUBSYSTEM));
        let generation = generation.map(|Generation(id)| id.to_be_bytes());
        let begin = marker(BEGIN).attr_if(BATCH_GENERATION, generation);
        socket.batch(begin, messages, marker(END)).map_err(|rejected| {
            let description = rejected.request.and_then(|index| descriptions.into_iter().nth(index));
            let request = description.unwrap_or_else(|| "commit nf_tables batch".to_owned());
            Error { request, source: rejected.error }
        })
    }
}

pub(super) fn request(message: u16, flags: u16, table: Table<'_>) -> Message {
    Message::new(kind(message), flags, &table.header())
}

pub(super) fn chain_request(message: u16, flags: u16, table: Table<'_>, chain: &str) -> Message {
    request(message, flags, table).attr_text(CHAIN_TABLE, table.name).attr_text(CHAIN_NAME, chain)
}

fn new_rule(flags: u16, table: Table<'_>, chain: &str, exprs: &[Expr]) -> Message {
    rule_request(NEW_RULE, flags, table, chain).nest(RULE_EXPRESSIONS, |list| {
        exprs.iter().fold(list, |list, expr| list.nest(LIST_ELEMENT, |element| expr.encode(element)))
    })
}

pub(super) fn rule_request(message: u16, flags: u16, table: Table<'_>, chain: &str) -> Message {
    request(message, flags, table).attr_text(RULE_TABLE, table.name).attr_text(RULE_CHAIN, chain)
}
