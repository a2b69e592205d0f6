//! The steps *own Node*, *renew* and *take*: an operator's taint says that a machine is off.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use ferrule_blocks::block::Block;
use ferrule_blocks::ledger::{Claim, FENCED};
use ferrule_blocks::range::Range;
use ferrule_kernel::netlink::{LinkId, Mac, Socket};
use ferrule_kernel::probe::{MOST, probe};
use tokio::time::Instant;

use super::Keeper;

/// The shortest time between two searches for blocks of machines that are off.
const PAUSE: Duration = Duration::from_secs(10);
/// How many Nodes a search reads.
const NODES: usize = 32;
/// How long an owner of an address has for an answer (RFC 5227: three questions, each after a second).
const ANSWER: Duration = Duration::from_secs(3);

/// Other machines that may be off.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    searched: Option<Instant>,
    /// The last Node of the last search.
    last: String,
    /// Since when Nodes are seen to be fenced.
    fenced: BTreeMap<String, Instant>,
    /// Why claims of other nodes were not taken.
    kept: BTreeMap<Block, String>,
}

/// The reason to add to "all blocks of the domain are claimed".
impl fmt::Display for Quarantine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kept.values().next().map_or(Ok(()), |why| write!(f, "; {why}"))
    }
}

impl Quarantine {
    /// Why a requested address is not to be had.
    pub(super) fn holder(&self, ip: IpAddr, claim: &Claim) -> String {
        let node = &claim.node;
        let more = self.kept.get(&claim.block).map_or(String::new(), |why| format!("; {why}"));
        format!(
            "node {node} has {ip}: waits until a container has ended there, or until the Node {node} has the taint {FENCED}{more}"
        )
    }
}

impl Keeper {
    /// The step *own Node*.
    pub(super) async fn check_own_node(&self) -> Result<()> {
        let node = self.api.node();
        match self.api.get_node(node).await? {
            Some(found) if found.is_fenced() => bail!(
                "the Node {node} has the taint {FENCED}: others may take its addresses; remove the taint, as its machine runs"
            ),
            _ => Ok(()),
        }
    }

    /// Writes this boot into this store's objects.
    pub(super) async fn renew(&mut self, mut claims: Vec<Claim>) -> Result<Vec<Claim>> {
        let ledger = &self.kept.ledger;
        let domain = &ledger.network.domain;
        let stale: BTreeSet<Block> =
            ledger.stale(&claims, self.api.store(), &self.boot).map(|claim| claim.block).collect();
        for claim in claims.iter_mut().filter(|claim| stale.contains(&claim.block)) {
            let renewed = self.api.renew(claim, domain).await?;
            *claim = renewed.ok_or_else(|| anyhow!("{} has changed meanwhile", claim.block.name(domain)))?;
        }
        Ok(claims)
    }

    /// The step *take*, for the block of a requested address or of a machine that was off for long enough. Returns whether it is free now.
    pub(super) async fn take(&mut self, block: Block) -> Result<bool> {
        let network = self.kept.ledger.network.clone();
        let name = block.name(&network.domain);
        self.quarantine.kept.remove(&block);
        // The object is read before the Node: what has changed since fails the deletion.
        let Some(claim) = self.api.get(block, &network.domain).await? else { return Ok(true) };
        let node = self.api.get_node(&claim.node).await?.filter(|node| node.is_fenced());
        let Some(node) = node.filter(|_| claim.store != self.api.store()) else { return Ok(false) };
        let mut why = None;
        if !node.has_made(&claim) {
            why = Some(format!(
                "the Node {} is another machine than the one that has claimed {name}",
                claim.node
            ));
        } else if let Some((ip, mac)) = self.owner(block).await? {
            why = Some(format!(
                "{ip} answers on the link, from {mac}, although the Node {} has the taint",
                claim.node
            ));
        }
        if let Some(why) = why {
            log!("network {}: block {name} stays claimed: {why}", network.network);
            let message = format!("block {name} stays claimed: {why}");
            self.api.tell(&claim.node, "AddressesInUse", message.clone(), message);
            self.quarantine.kept.insert(block, why);
            return Ok(false);
        }
        let is_gone = self.api.delete(&claim, &network.domain).await?;
        if is_gone {
            self.claims.retain(|known| known.block != block);
            log!(
                "network {}: has taken block {name} from node {}, whose machine is off",
                network.network,
                claim.node
            );
        }
        Ok(is_gone)
    }

    /// An address of the block that a host on the link has, and that host. Without a link it asks no host.
    async fn owner(&self, block: Block) -> Result<Option<(IpAddr, Mac)>> {
        let network = &self.kept.ledger.network;
        let Some(name) = network.link.clone() else { return Ok(None) };
        let addresses: Vec<IpAddr> = network.ranges().flat_map(|range| range.addresses(&block)).collect();
        let ask = move || {
            let found = Socket::route()?.link(LinkId::Name(&name))?;
            let link = found.with_context(|| format!("the link {name} is missing"))?;
            for some in addresses.chunks(MOST) {
                let owners =
                    probe(&link, some, ANSWER).with_context(|| format!("ask on {name} for owners"))?;
                if let Some(owner) = owners.into_iter().next() {
                    return Ok(Some(owner));
                }
            }
            Ok(None)
        };
        tokio::task::spawn_blocking(ask).await?
    }

    /// Takes a block of a machine that was off for long enough. Returns whether there is one.
    pub(super) async fn take_one(&mut self, ranges: &[Range]) -> Result<bool> {
        let now = Instant::now();
        if self.quarantine.searched.is_some_and(|at| now - at < PAUSE.min(self.times.quarantine)) {
            return Ok(false);
        }
        self.quarantine.searched = Some(now);
        if self.kept.ledger.network.link.is_none() {
            return Ok(false);
        }
        let is_of_set =
            |claim: &&Claim| ranges.iter().any(|range| range.fixed.part_of(&claim.block).is_some());
        let of_others = self.claims.iter().filter(|claim| claim.store != self.api.store());
        let mut blocks: BTreeMap<String, Vec<Block>> = BTreeMap::new();
        for claim in of_others.filter(is_of_set) {
            blocks.entry(claim.node.clone()).or_default().push(claim.block);
        }
        self.quarantine.fenced.retain(|node, _| blocks.contains_key(node));
        self.quarantine.kept.retain(|block, _| blocks.values().flatten().any(|other| other == block));
        // Each search goes on where the last one has ended.
        let last = self.quarantine.last.clone();
        let (before, after): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(node, _)| *node <= last);
        for (node, blocks) in after.into_iter().chain(before).take(NODES) {
            self.quarantine.last.clone_from(&node);
            if !self.api.get_node(&node).await?.is_some_and(|node| node.is_fenced()) {
                self.quarantine.fenced.remove(&node);
                continue;
            }
            let since = *self.quarantine.fenced.entry(node.clone()).or_insert(now);
            if now - since < self.times.quarantine {
                continue;
            }
            for block in blocks {
                if self.take(block).await? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
