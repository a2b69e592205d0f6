//! Pods that were isolated and have ended, but still have a link: their processes may run, so their addresses are closed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::{Batch, Element};
use ferrule_node_policy::model::Direction;
use ferrule_node_policy::ruleset::Entry;
use ferrule_node_policy::{Change, Compiler};

use super::hosts::Hosts;
use super::layout::{TABLE, former};

/// Their addresses.
#[derive(Debug, Default)]
pub(super) struct Former(BTreeSet<IpAddr>);

impl Former {
    pub(super) fn all(&self) -> &BTreeSet<IpAddr> {
        &self.0
    }

    /// Takes over addresses of a table: those of pods that are gone.
    pub(super) fn adopt(
        &mut self,
        addresses: impl IntoIterator<Item = IpAddr>,
        compiler: &Compiler,
        hosts: &Hosts,
    ) {
        self.0.extend(addresses);
        self.0.retain(|address| !is_over(*address, compiler, hosts));
    }

    /// Adds all of them to the batch that makes the table.
    pub(super) fn push(&self, batch: &mut Batch) {
        put(batch, &self.0);
    }

    /// Closes the addresses of pods that end with this change.
    pub(super) fn follow(&mut self, change: &Change, compiler: &Compiler, hosts: &Hosts, batch: &mut Batch) {
        let maps = &compiler.ruleset().maps;
        let is_isolated = |pod| {
            Direction::ALL.iter().any(|direction| maps.contains_key(&Entry { direction: *direction, pod }))
        };
        let mut new: BTreeSet<IpAddr> = change.maps.keys().map(|entry| entry.pod).collect();
        // A pod that was denied nothing is not closed, either.
        new.retain(|pod| !change.was_dry(*pod, compiler.ruleset()));
        new.retain(|pod| !is_isolated(*pod) && !is_over(*pod, compiler, hosts) && !self.0.contains(pod));
        put(batch, &new);
        self.0.extend(new);
    }

    /// Opens the addresses of pods that are gone, or that are another pod's.
    pub(super) fn expire(&mut self, compiler: &Compiler, hosts: &Hosts, batch: &mut Batch) {
        let (over, kept) = self.0.iter().partition(|address| is_over(**address, compiler, hosts));
        let over: BTreeSet<IpAddr> = over;
        self.0 = kept;
        for address in over {
            batch.delete_elements(TABLE, former(IpFamily::of(address)), &[octets(address)]);
        }
    }
}

/// Whether no pod that has ended can have the address: it has no link, or is that of a pod that the API knows.
pub(super) fn is_over(address: IpAddr, compiler: &Compiler, hosts: &Hosts) -> bool {
    !hosts.has(address) || compiler.cluster().has_local(address)
}

/// Closes addresses.
pub(super) fn put(batch: &mut Batch, addresses: &BTreeSet<IpAddr>) {
    for of in IpFamily::ALL {
        let own = addresses.iter().filter(|address| IpFamily::of(**address) == of);
        let elements: Vec<Element> = own.map(|address| Element::new(octets(*address))).collect();
        batch.put_elements(TABLE, former(of), &elements);
    }
}
