//! The ledger: a node's blocks for one network, in a file that the plugin reads at each ADD. Only the daemon changes it, while it has the
//! lock of the network's store, so that no ADD is between its look at the ledger and its reservation.
//!
//! The protocol has these steps. `tests/model` explores all orders of them.
//!
//! 1. **create**: the daemon creates the object that has the block's name. The API server decides: one node succeeds.
//! 2. [`Ledger::claimed`]: the object is this store's, so the block is open.
//! 3. [`Ledger::close`]: ADD gives no address of the block any more. A closed block is never opened again, because a deletion whose answer
//!    is lost may arrive at any time.
//! 4. [`Ledger::give_back`]: a closed block without a used address is deleted, with the object's UID as a precondition.
//! 5. [`Ledger::returned`]: the object is gone, and the block leaves the ledger.
//! 6. [`Ledger::compare`]: after a start of the daemon, and again and again. After a boot of the machine no block is open before it:
//!    others may have got the blocks of a dead machine.
//! 7. **own Node** and [`Ledger::stale`]: before the first comparison of a boot the daemon makes sure that its own Node has not
//!    [`FENCED`], and then writes the boot into each of its objects. So a deletion by a node that saw the taint before fails.
//! 8. **take**: another node's daemon gets the object, *then* reads the Node of its owner, which must have [`FENCED`] and be the same machine,
//!    and deletes the object with UID and version as preconditions. Nothing else proves that a machine no longer runs: no time, no
//!    condition of the Node, no missing Node.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::block::{Block, check_domain};
use crate::range::{Fixed, Range};

/// The version of the file's format.
pub const FORMAT: u32 = 1;

/// An operator sets this taint of a Node if its machine is off and stays off.
pub const FENCED: &str = "node.kubernetes.io/out-of-service";

/// The largest file in bytes.
pub const MAX_FILE: u64 = 16 << 20;

/// A node's blocks for one network.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// [`FORMAT`].
    pub ferrule_blocks: u32,
    /// What the network's configuration says.
    #[serde(flatten)]
    pub network: Network,
    /// The boot in which the blocks were compared with the API server's objects. Empty: none.
    #[serde(default)]
    pub boot: String,
    /// The blocks.
    #[serde(default)]
    blocks: Vec<Entry>,
}

/// What the configuration of a network says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Its name.
    pub network: String,
    /// The layer-2 domain that it is part of.
    pub domain: String,
    /// The folder of host-local's stores.
    pub data_dir: PathBuf,
    /// Its range sets.
    pub sets: Vec<Vec<Range>>,
    /// The node's link to the layer-2 domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

impl Network {
    /// Checks what another process has sent or written.
    ///
    /// # Errors
    /// A name or a range is invalid.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.network;
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if !name.bytes().all(is_valid)
            || !name.starts_with(|c: char| c.is_ascii_alphanumeric())
            || name.len() > 200
        {
            return Err(format!("network {name:?} has no name for a file"));
        }
        if !self.data_dir.is_absolute() {
            return Err("the folder of the stores is no absolute path".to_owned());
        }
        check_domain(&self.domain)?;
        self.fixed().iter().try_for_each(Fixed::check)
    }

    /// What all nodes of the domain must agree on.
    pub fn fixed(&self) -> Vec<Fixed> {
        self.ranges().map(|range| range.fixed.clone()).collect()
    }

    /// The ranges of a set from which containers get addresses without a request.
    pub fn usual_ranges(&self, set: usize) -> Vec<Range> {
        self.sets.get(set).into_iter().flatten().filter(|range| !range.on_request).cloned().collect()
    }

    /// Whether containers get the addresses of the block only on request.
    pub fn is_on_request(&self, block: &Block) -> bool {
        self.ranges().any(|range| range.on_request && range.fixed.part_of(block).is_some())
    }

    /// The ranges of all sets.
    pub fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.sets.iter().flatten()
    }
}

/// A block in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    block: Block,
    state: State,
    /// The UID of the object.
    uid: String,
}

/// What a node does with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// ADD may give its addresses.
    Open,
    /// It will be given back once none of its addresses is used.
    Closed,
    /// The API server has no such object, or another node has it, but containers of this node still have addresses of the block.
    Lost,
}

/// An object of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The block.
    pub block: Block,
    /// The UID.
    pub uid: String,
    /// The `resourceVersion`.
    pub version: String,
    /// The name of the node that has made it.
    pub node: String,
    /// The identifier of that node's folder of ledgers.
    pub store: String,
    /// The network.
    pub network: String,
    /// The boot of the node in which it has made the object, or was last sure of it.
    pub boot: String,
    /// A hash of the identifiers of the node's machine.
    pub machine: String,
    /// One of the places that the node has in the domain. The API server lets a node have each one once, so their number limits its blocks.
    pub slot: u32,
}

/// What [`Ledger::compare`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object is this store's, and the ledger did not know: the answer was lost, or a request came late. The block is open.
    Adopted(Block),
    /// The block is no longer this node's, but some of its addresses are used.
    Lost(Block),
    /// The block is no longer this node's, and none of its addresses is used.
    Gone(Block),
}

impl Change {
    /// The block.
    pub fn block(&self) -> Block {
        match self {
            Change::Adopted(block) | Change::Lost(block) | Change::Gone(block) => *block,
        }
    }
}

/// What to do about a closed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack<'c> {
    /// Nothing: it is not closed, or addresses of it are used.
    Not,
    /// Delete this object, if it still has this UID and this version.
    Delete(&'c Claim),
    /// The object is gone: [`Ledger::returned`].
    Gone,
}

impl Ledger {
    /// The ledger of a network that has no block.
    pub fn new(network: Network) -> Ledger {
        Ledger { ferrule_blocks: FORMAT, network, boot: String::new(), blocks: Vec::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is damaged, or of another version.
    pub fn parse(text: &[u8]) -> Result<Ledger, String> {
        let ledger: Ledger = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if ledger.ferrule_blocks != FORMAT {
            return Err(format!("it has version {} of the format, not {FORMAT}", ledger.ferrule_blocks));
        }
        ledger.network.check()?;
        match ledger.blocks.iter().find(|entry| !entry.block.is_aligned()) {
            Some(entry) => Err(format!("{} is not the first address of a block", entry.block.first)),
            None => Ok(ledger),
        }
    }

    /// The file.
    pub fn to_text(&self) -> Vec<u8> {
        // A struct of texts and numbers is always valid JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The blocks whose addresses ADD may give in this boot.
    pub fn open(&self, boot: &str) -> impl Iterator<Item = Block> {
        let is_compared = !boot.is_empty() && self.boot == boot;
        self.blocks(State::Open).filter(move |_| is_compared)
    }

    /// The blocks in this state.
    pub fn blocks(&self, state: State) -> impl Iterator<Item = Block> {
        self.blocks.iter().filter(move |entry| entry.state == state).map(|entry| entry.block)
    }

    /// All blocks, with their states.
    pub fn states(&self) -> impl Iterator<Item = (Block, State)> {
        self.blocks.iter().map(|entry| (entry.block, entry.state))
    }

    /// The UIDs of the objects.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.blocks.iter().map(|entry| &*entry.uid)
    }

    /// The state of a block.
    pub fn state(&self, block: &Block) -> Option<State> {
        self.blocks.iter().find(|entry| entry.block == *block).map(|entry| entry.state)
    }

    /// Whether the object is this network's in this store.
    pub fn owns(&self, claim: &Claim, store: &str) -> bool {
        claim.store == store && claim.network == self.network.network
    }

    /// This store's objects of another boot: the daemon writes this one into them before [`Ledger::compare`].
    pub fn stale<'c>(&self, claims: &'c [Claim], store: &str, boot: &str) -> impl Iterator<Item = &'c Claim> {
        claims.iter().filter(move |claim| self.owns(claim, store) && claim.boot != boot)
    }

    /// Opens the block of an object that the API server has for this store. Returns whether it is open.
    pub fn claimed(&mut self, claim: &Claim, store: &str) -> bool {
        if !self.owns(claim, store) || self.state(&claim.block).is_some() {
            return false;
        }
        self.blocks.push(Entry { block: claim.block, state: State::Open, uid: claim.uid.clone() });
        true
    }

    /// Closes an open block.
    pub fn close(&mut self, block: &Block) {
        for entry in
            self.blocks.iter_mut().filter(|entry| entry.block == *block && entry.state == State::Open)
        {
            entry.state = State::Closed;
        }
    }

    /// What to do about a block, by the object that the API server has of this name now.
    pub fn give_back<'c>(&self, block: &Block, claim: Option<&'c Claim>, is_used: bool) -> GiveBack<'c> {
        let closed = self.blocks.iter().find(|entry| entry.block == *block && entry.state == State::Closed);
        match (closed, claim) {
            (Some(entry), Some(claim)) if !is_used && claim.uid == entry.uid => GiveBack::Delete(claim),
            (Some(_), _) if !is_used => GiveBack::Gone,
            _ => GiveBack::Not,
        }
    }

    /// Forgets a closed block whose object is gone.
    pub fn returned(&mut self, block: &Block) {
        self.blocks.retain(|entry| entry.block != *block || entry.state != State::Closed);
    }

    /// Compares the ledger with the newest list of the domain's objects. After it the open blocks are open in this boot. Changes nothing
    /// while an object is [stale](Ledger::stale).
    ///
    /// An object of this store that the ledger does not have was never open: each removal from the ledger follows the end of the object
    /// with that UID. So it is safe to open it.
    pub fn compare(
        &mut self,
        claims: &[Claim],
        store: &str,
        boot: &str,
        is_used: impl Fn(&Block) -> bool,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.stale(claims, store, boot).next().is_some() {
            return changes;
        }
        self.blocks.retain_mut(|entry| {
            let mut own = claims.iter().filter(|claim| claim.block == entry.block && claim.store == store);
            if entry.state != State::Lost && own.any(|claim| claim.uid == entry.uid) {
                return true;
            }
            let is_used = is_used(&entry.block);
            match (is_used, entry.state) {
                (true, State::Lost) => {}
                (true, _) => changes.push(Change::Lost(entry.block)),
                (false, _) => changes.push(Change::Gone(entry.block)),
            }
            entry.state = State::Lost;
            is_used
        });
        for claim in claims {
            if self.claimed(claim, store) {
                changes.push(Change::Adopted(claim.block));
            }
        }
        boot.clone_into(&mut self.boot);
        changes
    }
}
