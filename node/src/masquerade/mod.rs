//! The table `inet ferrule_node`: pods get the node's address for what leaves the cluster.

mod layout;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::message::Received;
use ferrule_kernel::nftables::notice::table_of;
use ferrule_kernel::nftables::{self, Batch, Element, Rule};
use ferrule_kernel::notices::Messages;

use self::layout::{HOOK, Layout, POSTROUTING, SETS, TABLE};
use crate::listener::Listener;
use crate::plan::Masquerade;

/// The table as wanted, and the kernel's messages about it.
pub struct Part {
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
    pub fn open() -> Result<Self> {
        let listener = Messages::of_ruleset().context("listen to changes of nf_tables")?;
        let mut socket = Socket::netfilter()?;
        Ok(Part { port: socket.port()?, socket, listener: Listener::new(listener)?, known: None })
    }

    /// Blocks for some milliseconds. Sends nothing if the table is as wanted. A change of one node is one batch of set elements.
    ///
    /// # Errors
    /// The kernel refuses the batch. The next call tries again.
    pub fn sync(&mut self, wanted: Option<&Masquerade>) -> Result<()> {
        let known = self.known.take();
        let Some(wanted) = wanted.map(Layout::of) else {
            if !matches!(known, Some(None)) {
                remove(&mut self.socket)?;
            }
            self.known = Some(None);
            return Ok(());
        };
        let batch = match known {
            Some(Some(known)) if known.rules == wanted.rules => known.change_to(&wanted),
            None if is_made(&mut self.socket, &wanted)? => Batch::new(),
            _ => wanted.make(),
        };
        // The kernel refuses the change if another program has added or removed one of the elements.
        if let Err(error) = batch.commit(&mut self.socket) {
            log!("makes the table {TABLE} anew: {error}");
            wanted.make().commit(&mut self.socket)?;
        }
        self.known = Some(Some(wanted));
        Ok(())
    }

    /// Ends when another program has changed the table; the next [`Part::sync`] then looks at it. Safe to cancel.
    pub async fn disturbed(&mut self) {
        let own = self.port;
        self.listener.hear(|message| message.port != own && is_ours(message)).await;
        self.known = None;
    }
}

fn is_ours(message: &Received<'_>) -> bool {
    table_of(message).is_some_and(|(family, name)| family == TABLE.family as u8 && name == TABLE.name)
}

/// Whether the table contains this and nothing else.
fn is_made(socket: &mut Socket, wanted: &Layout) -> Result<bool> {
    if nftables::is_dormant(socket, TABLE)? {
        return Ok(false);
    }
    let chains = nftables::all_chains(socket, TABLE)?;
    let has_chain = matches!(&chains[..], [(name, chain)] if name == POSTROUTING && chain.base.is_some_and(|base| base.is(&HOOK)));
    let names: BTreeSet<String> = nftables::sets(socket, TABLE)?.into_iter().collect();
    if !has_chain || !names.iter().map(String::as_str).eq(SETS.map(|(name, _)| name)) {
        return Ok(false);
    }
    let rules: Option<Vec<_>> =
        nftables::rules(socket, TABLE, POSTROUTING)?.iter().map(Rule::decode).collect();
    if rules.as_ref() != Some(&wanted.rules) {
        return Ok(false);
    }
    for ((name, _), networks) in SETS.iter().zip(&wanted.sets) {
        if keys(&nftables::elements(socket, TABLE, name)?) != keys(&layout::elements(networks)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn keys(elements: &[Element]) -> BTreeSet<(&[u8], bool)> {
    elements.iter().map(|element| (&element.key[..], element.is_end)).collect()
}

/// Removes the table. Returns whether there was one.
fn remove(socket: &mut Socket) -> Result<bool> {
    let mut batch = Batch::new();
    batch.delete_table(TABLE);
    match batch.commit(socket) {
        Err(error) if error.is_not_found() => Ok(false),
        // Without nf_tables there is no table.
        Err(_) if nftables::probe(socket, TABLE.family).is_err() => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}

/// Removes the table. Returns its name for the report.
pub fn cleanup() -> Result<Vec<String>> {
    let removed = remove(&mut Socket::netfilter()?)?;
    Ok(removed.then(|| format!("table {TABLE}")).into_iter().collect())
}
