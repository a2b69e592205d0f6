//! A table of nf_tables that is as wanted, whatever other programs do to it.

mod layout;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::message::Received;
use ferrule_kernel::nftables::notice::table_of;
use ferrule_kernel::nftables::{self, Batch, Element, Rule, Table};
use ferrule_kernel::notices::Messages;

pub(crate) use layout::{Chain, Item, Kind, Layout, Set, disjoint};

use crate::listener::Listener;

/// The table as wanted, and the kernel's messages about it.
pub(crate) struct Part {
    table: Table<'static>,
    socket: Socket,
    /// The port of `socket`: the kernel's messages name it for our own changes.
    port: u32,
    listener: Listener,
    /// What the table contains, `Some(None)` without a table; `None` if another program may have changed it.
    known: Option<Option<Layout>>,
}

impl Part {
    /// Subscribes to the kernel's messages. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel has no nf_tables.
    pub(crate) fn open(table: Table<'static>) -> Result<Self> {
        let listener = Messages::of_ruleset().context("listen to changes of nf_tables")?;
        let mut socket = Socket::netfilter()?;
        Ok(Part { table, port: socket.port()?, socket, listener: Listener::new(listener)?, known: None })
    }

    /// Blocks for some milliseconds. Sends nothing if the table is as wanted. A change of elements is one batch.
    ///
    /// # Errors
    /// The kernel refuses the batch. The next call tries again.
    pub(crate) fn sync(&mut self, wanted: Option<Layout>) -> Result<()> {
        let (known, table) = (self.known.take(), self.table);
        let Some(wanted) = wanted else {
            if !matches!(known, Some(None)) {
                remove(&mut self.socket, table)?;
            }
            self.known = Some(None);
            return Ok(());
        };
        let batch = match known {
            Some(Some(known)) if known.is_like(&wanted) => known.change_to(&wanted, table),
            None if is_made(&mut self.socket, table, &wanted)? => Batch::new(),
            _ => wanted.make(table),
        };
        // The kernel refuses the change if another program has added or removed one of the elements.
        if let Err(error) = batch.commit(&mut self.socket) {
            log!("makes the table {table} anew: {error}");
            wanted.make(table).commit(&mut self.socket)?;
        }
        self.known = Some(Some(wanted));
        Ok(())
    }

    /// Ends when another program has changed the table; the next [`Part::sync`] then looks at it. Safe to cancel.
    pub(crate) async fn disturbed(&mut self) {
        let (own, table) = (self.port, self.table);
        self.listener.hear(|message| message.port != own && is_about(message, table)).await;
        self.known = None;
    }
}

fn is_about(message: &Received<'_>, table: Table<'_>) -> bool {
    table_of(message).is_some_and(|(family, name)| family == table.family as u8 && name == table.name)
}

/// Whether the table contains this and nothing else.
fn is_made(socket: &mut Socket, table: Table<'_>, wanted: &Layout) -> Result<bool> {
    if nftables::is_dormant(socket, table)? {
        return Ok(false);
    }
    let chains = nftables::all_chains(socket, table)?;
    let has = |wanted: &Chain| {
        chains.iter().any(|(name, chain)| {
            let is_placed = match (&chain.base, &wanted.hook) {
                (Some(base), Some(hook)) => base.is(hook),
                (base, hook) => base.is_none() && hook.is_none(),
            };
            name == wanted.name && is_placed
        })
    };
    let names = nftables::sets(socket, table)?;
    let [found, expected]: [BTreeSet<&str>; 2] =
        [names.iter().map(String::as_str).collect(), wanted.sets.iter().map(|set| set.name).collect()];
    if chains.len() != wanted.chains.len() || !wanted.chains.iter().all(has) || found != expected {
        return Ok(false);
    }
    let rules = nftables::all_rules(socket, table)?;
    for chain in &wanted.chains {
        let of_chain = rules.iter().filter(|(name, _)| name == chain.name);
        let decoded: Option<Vec<_>> = of_chain.map(|(_, rule)| Rule::decode(rule)).collect();
        if decoded.as_ref() != Some(&chain.rules) {
            return Ok(false);
        }
    }
    for set in wanted.sets.iter().filter(|set| !matches!(set.kind, Kind::Counts(..))) {
        if keys(&nftables::elements(socket, table, set.name)?) != keys(&set.elements(&set.items)) {
            return Ok(false);
        }
    }
    Ok(true)
}

type Key<'a> = (&'a [u8], bool, Option<&'a [u8]>);

fn keys(elements: &[Element]) -> BTreeSet<Key<'_>> {
    elements.iter().map(|element| (&element.key[..], element.is_end, element.last.as_deref())).collect()
}

/// Removes the table. Returns whether there was one.
fn remove(socket: &mut Socket, table: Table<'_>) -> Result<bool> {
    let mut batch = Batch::new();
    batch.delete_table(table);
    match batch.commit(socket) {
        Err(error) if error.is_not_found() => Ok(false),
        // Without nf_tables there is no table.
        Err(_) if nftables::probe(socket, table.family).is_err() => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}

/// Removes the table. Returns its name for the report.
pub(crate) fn cleanup(table: Table<'_>) -> Result<Vec<String>> {
    let removed = remove(&mut Socket::netfilter()?, table)?;
    Ok(removed.then(|| format!("table {table}")).into_iter().collect())
}
