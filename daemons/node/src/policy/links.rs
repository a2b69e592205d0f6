//! What the table knows of the node's pods beside their policies: the addresses of all, and the links of those whose egress is isolated.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Result;
use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::{Batch, Element, link_key};
use ferrule_node_policy::Compiler;
use ferrule_node_policy::model::Direction;

use super::former::Former;
use super::hosts::Hosts;
use super::layout::{LINKS_OUT, TABLE, pods};
use super::table::Owner;

/// The elements of these sets.
#[derive(Debug, Default)]
pub(super) struct Links {
    pods: BTreeSet<IpAddr>,
    /// The links by index, with their names.
    out: BTreeMap<u32, String>,
}

impl Links {
    /// The wanted elements. A pod that was isolated and has ended counts as one with isolated egress.
    ///
    /// # Errors
    /// The kernel refuses to name a link that these do not have.
    pub(super) fn next(&self, compiler: &Compiler, former: &Former, hosts: &mut Hosts) -> Result<Links> {
        let pods = hosts.all().filter(|address| compiler.cluster().has_local(*address)).collect();
        let isolated = compiler.ruleset().maps.keys().filter(|entry| entry.direction == Direction::Egress);
        let isolated = isolated.map(|entry| entry.pod).chain(former.all().iter().copied());
        let mut out = BTreeMap::new();
        for index in isolated.filter_map(|pod| hosts.link(pod)).collect::<BTreeSet<_>>() {
            let name = match self.out.get(&index) {
                Some(name) => Some(name.clone()),
                None => hosts.name(index)?,
            };
            out.extend(name.map(|name| (index, name)));
        }
        Ok(Links { pods, out })
    }

    /// Adds and removes the elements that differ.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn follow(
        &mut self,
        compiler: &Compiler,
        former: &Former,
        hosts: &mut Hosts,
        owner: &mut Owner,
    ) -> Result<()> {
        let next = self.next(compiler, former, hosts)?;
        let mut batch = Batch::new();
        self.change(&next, &mut batch);
        *self = next;
        Ok(owner.commit(batch)?)
    }

    /// Adds to the batch what makes `next` of these.
    pub(super) fn change(&self, next: &Links, batch: &mut Batch) {
        for of in IpFamily::ALL {
            let pairs = |list: &Links, but: &Links| -> Vec<Element> {
                let own = list.pods.difference(&but.pods).filter(|address| IpFamily::of(**address) == of);
                own.map(|address| Element::new(octets(*address).repeat(2))).collect()
            };
            batch.delete(TABLE, pods(of), &pairs(self, next));
            batch.add_elements(TABLE, pods(of), &pairs(next, self));
        }
        // Two numbers may have one name for a moment: a link that is gone, and its successor.
        let names = |list: &Links| list.out.values().cloned().collect::<BTreeSet<String>>();
        let keys = |list: &Links, but: &Links| -> Vec<Element> {
            (&names(list) - &names(but)).iter().map(|name| Element::new(link_key(name))).collect()
        };
        batch.delete(TABLE, LINKS_OUT, &keys(self, next));
        batch.add_elements(TABLE, LINKS_OUT, &keys(next, self));
    }
}
