//! What ADDs need of the open blocks, and whether these have it.

use anyhow::Result;
use cni_common::spec::Code;
use ferrule_blocks::block::Block;
use ferrule_blocks::ledger::State;
use ferrule_blocks::plan::{self, Situation, Use};
use ferrule_blocks::wire::{Failure, Need};
use tokio::time::Instant;

use super::{Ask, Keeper, Trouble, failure};

impl Keeper {
    /// The situation of each set.
    pub(super) async fn situations(&mut self, waiting: &[Ask]) -> Result<Vec<Situation>> {
        let mut sets = Vec::new();
        for set in 0..self.kept.ledger.network.sets.len() {
            sets.push(self.situation(set, waiting).await?);
        }
        Ok(sets)
    }

    pub(super) async fn situation(&mut self, set: usize, waiting: &[Ask]) -> Result<Situation> {
        let used = self.kept.used().await?;
        let ranges = &self.kept.ledger.network.usual_ranges(set)[..];
        let is_of_set = |block: &Block| ranges.iter().any(|range| range.fixed.part_of(block).is_some());
        let (now, mut uses) = (Instant::now(), Vec::new());
        for block in self.kept.ledger.open(&self.boot).filter(is_of_set) {
            if used.range(block.first..=block.last()).next().is_some() {
                self.empty.remove(&block);
            }
            let since = *self.empty.entry(block).or_insert(now);
            uses.push(Use::of(ranges, block, &used, now - since));
        }
        let size = ranges.iter().map(|range| range.fixed.block_size).max().unwrap_or_default();
        let waiting = waiting.iter().filter(|ask| ask.needs.contains(&Need::Set(set))).count();
        let supply = plan::supply(ranges, &self.claims);
        self.empty.retain(|block, _| self.kept.ledger.state(block) == Some(State::Open));
        Ok(Situation { uses, size, waiting, supply })
    }

    /// Whether the open blocks have what an ADD needs; else why not.
    pub(super) fn satisfied(
        &self,
        needs: &[Need],
        sets: &[Situation],
        trouble: Option<&Trouble>,
    ) -> Result<(), Failure> {
        let network = &self.kept.ledger.network;
        for need in needs {
            let lacks = match need {
                Need::Set(set) if sets.get(*set).is_some_and(|situation| situation.free() > 0) => continue,
                Need::Set(set) if network.usual_ranges(*set).is_empty() => {
                    "its addresses are given on request alone".to_owned()
                }
                Need::Set(_) => format!("all blocks of the domain are claimed{}", self.quarantine),
                Need::Address(ip) => {
                    if self.kept.ledger.open(&self.boot).any(|block| block.contains(*ip)) {
                        continue;
                    }
                    let owner = self.claims.iter().find(|claim| claim.block.contains(*ip));
                    match owner {
                        Some(claim) if claim.store == self.api.store() => {
                            format!(
                                "{ip} is in a block of network {}, or in one that is given back",
                                claim.network
                            )
                        }
                        Some(claim) if network.is_on_request(&claim.block) => {
                            self.quarantine.holder(*ip, claim)
                        }
                        Some(claim) => format!("{ip} is in a block of node {}", claim.node),
                        None => format!("{ip} is in no block of this node"),
                    }
                }
            };
            return Err(match trouble {
                Some(trouble) => trouble.failure(),
                None => failure(Code::TryAgainLater, format!("domain {}: {lacks}", network.domain)),
            });
        }
        Ok(())
    }
}
