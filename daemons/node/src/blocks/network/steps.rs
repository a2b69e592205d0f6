//! The steps *create*, *claimed*, *close*, *give_back* and *returned*.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use ferrule_blocks::block::Block;
use ferrule_blocks::ledger::{Claim, GiveBack, Ledger, Network, State};
use ferrule_blocks::plan;
use ferrule_blocks::wire::Need;
use tokio::time::Instant;

use super::super::api::Created;
use super::{Ask, Keeper};

/// How many objects of other nodes a search for a free block may meet before the list is read again.
const MISSES: usize = 4;
/// How many blocks are tried before an ADD hears that none is free.
const ATTEMPTS: usize = 32;
/// A list that is so old is read again before an ADD hears that no block is free.
const FRESH: Duration = Duration::from_secs(1);

impl Keeper {
    /// Claims the blocks of requested addresses.
    pub(super) async fn claim_addresses(&mut self, waiting: &[Ask]) -> Result<()> {
        let addresses: BTreeSet<_> = waiting
            .iter()
            .flat_map(|ask| &ask.needs)
            .filter_map(|need| match need {
                Need::Address(ip) => Some(*ip),
                Need::Set(_) => None,
            })
            .collect();
        for ip in addresses {
            let range = self.kept.ledger.network.ranges().find(|range| range.fixed.contains(ip));
            let Some(block) = range.map(|range| range.fixed.block(ip)) else { continue };
            // The claim of another block has another name.
            if self
                .claims
                .iter()
                .any(|claim| claim.block.first != block.first && claim.block.overlaps(&block))
            {
                continue;
            }
            if self.kept.ledger.state(&block).is_some() || self.claim(block).await? {
                continue;
            }
            let is_on_request = self.kept.ledger.network.is_on_request(&block);
            if self.is_freed(block).await? || is_on_request && self.take(block).await? {
                self.claim(block).await?;
            }
        }
        Ok(())
    }

    /// Closes what another node can have: addresses that containers have requested and no longer use, and blocks outside of the ranges
    /// that the network has now.
    pub(super) async fn close_unneeded(&mut self, waiting: &[Ask]) -> Result<()> {
        let (now, used) = (Instant::now(), self.kept.used().await?);
        let is_awaited = |block: &Block| {
            let needs = waiting.iter().flat_map(|ask| &ask.needs);
            needs.into_iter().any(|need| matches!(need, Need::Address(ip) if block.contains(*ip)))
        };
        let network = self.kept.ledger.network.clone();
        let is_usual = |block: &Block| {
            network.ranges().any(|range| !range.on_request && range.fixed.part_of(block).is_some())
        };
        let open: Vec<Block> = self.kept.ledger.open(&self.boot).collect();
        for block in open.into_iter().filter(|block| !is_usual(block) && !is_awaited(block)) {
            if used.range(block.first..=block.last()).next().is_some() {
                self.empty.remove(&block);
            } else if now - *self.empty.entry(block).or_insert(now) >= self.times.patience.scarce {
                self.close(block).await?;
            }
        }
        Ok(())
    }

    /// The step *close*, for a block without a used address. Returns false if it has one: an ADD may have got it since.
    async fn close(&mut self, block: Block) -> Result<bool> {
        let close = move |ledger: &mut Ledger, used: &BTreeSet<IpAddr>| {
            let is_empty = used.range(block.first..=block.last()).next().is_none();
            if is_empty {
                ledger.close(&block);
            }
            is_empty
        };
        self.kept.change(close).await
    }

    /// Whether a block that was claimed by another node is free by now.
    async fn is_freed(&mut self, block: Block) -> Result<bool> {
        let domain = &self.kept.ledger.network.domain;
        let found = self.api.get(block, domain).await?;
        self.claims.retain(|claim| claim.block.first != block.first);
        let is_freed = found.is_none();
        self.claims.extend(found);
        Ok(is_freed)
    }

    /// Claims blocks for a set, and closes those that it does not need.
    pub(super) async fn claim_for(&mut self, set: usize, waiting: &[Ask]) -> Result<()> {
        let mut situation = self.situation(set, waiting).await?;
        let mut claims = Vec::new();
        let outcome = self.create_some(set, situation.wanted(), &mut claims).await;
        self.claimed(claims).await?;
        outcome?;
        loop {
            situation = self.situation(set, waiting).await?;
            let Some(block) = situation.surplus(self.times.patience) else { return Ok(()) };
            if !self.close(block).await? {
                return Ok(());
            }
        }
    }

    /// Claims up to `count` free blocks for the set. The claims are added to those.
    async fn create_some(&mut self, set: usize, count: usize, claims: &mut Vec<Claim>) -> Result<()> {
        while claims.len() < count {
            match self.create_one(set).await? {
                Some(claim) => claims.push(claim),
                None => break,
            }
        }
        Ok(())
    }

    /// Claims a free block for the set; `None` without a free block.
    async fn create_one(&mut self, set: usize) -> Result<Option<Claim>> {
        let network = self.kept.ledger.network.clone();
        let ranges = &network.usual_ranges(set)[..];
        let hint = plan::hint(self.api.node(), &network.network);
        // Others have taken these, or their objects are no claims.
        let mut refused = BTreeSet::new();
        for _ in 0..ATTEMPTS {
            let mut taken = self.taken();
            taken.extend(&refused);
            match plan::next(ranges, hint, &taken) {
                Some(block) => {
                    if let Some(claim) = self.create(block).await? {
                        return Ok(Some(claim));
                    }
                    refused.insert(block);
                    if refused.len().is_multiple_of(MISSES) {
                        self.list().await?;
                    }
                }
                None if self.listed.is_some_and(|at| at.elapsed() < FRESH) => {
                    if !self.take_one(ranges).await? {
                        return Ok(None);
                    }
                }
                None => self.list().await?,
            }
        }
        Ok(None)
    }

    /// The blocks that are not free: those of the last list, and those of the ledger.
    fn taken(&self) -> BTreeSet<Block> {
        let of_others = self.claims.iter().map(|claim| claim.block);
        of_others.chain(self.kept.ledger.states().map(|(block, _)| block)).collect()
    }

    /// The steps *create* and *claimed*. Returns whether the block is this node's.
    async fn claim(&mut self, block: Block) -> Result<bool> {
        let claim = self.create(block).await?;
        let is_ours = claim.is_some();
        self.claimed(claim.into_iter().collect()).await?;
        Ok(is_ours)
    }

    /// The step *create*: the claim, if it is this node's.
    async fn create(&mut self, block: Block) -> Result<Option<Claim>> {
        let Network { domain, network, .. } = self.kept.ledger.network.clone();
        let slot = plan::free_slot(self.api.node(), &network, &self.claims);
        // The object may be there although the answer is lost: the next list tells.
        let created =
            self.api.create(block, &domain, &network, slot).await.inspect_err(|_| self.listed = None);
        let claim = match created? {
            Created::Done(claim) => claim,
            // An answer may have been lost: then the object is ours.
            Created::Taken => match self.api.get(block, &domain).await? {
                Some(claim) => claim,
                None => return Ok(None),
            },
        };
        self.claims.retain(|known| known.block.first != block.first);
        self.claims.push(claim.clone());
        let ledger = &self.kept.ledger;
        let is_ours = ledger.owns(&claim, self.api.store()) && ledger.state(&block).is_none();
        Ok(is_ours.then_some(claim))
    }

    /// The step *claimed*, for all of them under one lock.
    async fn claimed(&mut self, claims: Vec<Claim>) -> Result<()> {
        if claims.is_empty() {
            return Ok(());
        }
        let store = self.api.store().to_owned();
        let opened = self.kept.change(move |ledger, _| {
            let mut opened = claims;
            opened.retain(|claim| ledger.claimed(claim, &store));
            opened
        });
        // The API server has these claims. Without them in the ledger the next turn would claim others.
        let opened = opened.await.inspect_err(|_| self.listed = None)?;
        let Network { domain, network, .. } = &self.kept.ledger.network;
        for claim in opened {
            log!("network {network}: has claimed block {}", claim.block.name(domain));
        }
        Ok(())
    }

    /// The steps *give_back* and *returned*, for each closed block.
    pub(super) async fn give_back_closed(&mut self) -> Result<()> {
        let closed: Vec<Block> = self.kept.ledger.blocks(State::Closed).collect();
        for block in closed {
            let Network { domain, network, .. } = self.kept.ledger.network.clone();
            let found = self.api.get(block, &domain).await?;
            let is_used = self
                .kept
                .change(move |_, used| used.range(block.first..=block.last()).next().is_some())
                .await?;
            let is_gone = match self.kept.ledger.give_back(&block, found.as_ref(), is_used) {
                GiveBack::Not => false,
                GiveBack::Gone => true,
                GiveBack::Delete(claim) => self.api.delete(claim, &domain).await?,
            };
            if is_gone {
                self.kept.change(move |ledger, _| ledger.returned(&block)).await?;
                self.claims.retain(|claim| claim.block != block);
                log!("network {network}: has given back block {}", block.name(&domain));
            }
        }
        Ok(())
    }
}
