//! Which policies are for each pod of this node, and whom they name: for people.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cluster::KnownPod;
use crate::model::{Direction, IpFamily};
use crate::ruleset::Contents;

use super::Compiler;
use super::definition::Definition;
use super::parts::{Allow, AllowPeer, AllowPorts};

/// A policy that is for a pod of this node in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<'c> {
    /// Empty for a ClusterNetworkPolicy.
    pub namespace: &'c str,
    pub policy: &'c str,
    pub direction: Direction,
}

/// The peers that the rules of a policy name in one direction, to allow or to deny.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// A rule is for everybody.
    pub everybody: bool,
    /// Of pods.
    pub addresses: BTreeSet<IpAddr>,
    /// The first and the last address of blocks.
    pub blocks: BTreeSet<(IpAddr, IpAddr)>,
}

impl Compiler {
    /// The pods of this node that policies may be for, by namespace and name.
    pub fn local_pods(&self) -> impl Iterator<Item = (&str, &str, &KnownPod)> {
        self.cluster.local_names().filter(|(.., pod)| pod.has_part())
    }

    /// The policies of a pod: those of ClusterNetworkPolicies first.
    pub fn applied<'c>(&'c self, pod: &'c KnownPod) -> impl Iterator<Item = Applied<'c>> {
        Direction::ALL.into_iter().flat_map(move |direction| {
            let tiers = self
                .tiers
                .iter()
                .filter(move |(_, parts)| parts.has.has(direction) && parts.is_for(&self.cluster, pod));
            let own = self.parts.get(&*pod.namespace).into_iter().flatten();
            let own = own.filter(move |(_, parts)| parts.isolates.has(direction) && parts.is_for(pod));
            let tiers = tiers.map(move |(policy, _)| Applied { namespace: "", policy, direction });
            tiers.chain(own.map(move |(policy, _)| Applied { namespace: &pod.namespace, policy, direction }))
        })
    }

    /// Whom a policy of one of these pods names. An entry that can allow nothing names no peer.
    pub fn named(&self, Applied { namespace, policy, direction }: &Applied<'_>) -> Named {
        let mut named = Named::default();
        for family in IpFamily::ALL {
            match self.parts.get(*namespace).and_then(|of| of.get(*policy)) {
                Some(parts) => {
                    parts.allows(*direction, family).iter().for_each(|allow| self.add(allow, &mut named));
                }
                None => {
                    let steps = self.tiers.get(*policy).map(|parts| parts.steps(*direction, family));
                    steps.into_iter().flatten().for_each(|(_, allow)| self.add(allow, &mut named));
                }
            }
        }
        named
    }

    fn add(&self, allow: &Allow, named: &mut Named) {
        let set: &Definition = match (&allow.peer, &allow.ports) {
            (AllowPeer::In(set), _) | (AllowPeer::Any, AllowPorts::In(set)) => set,
            (AllowPeer::Any, _) => {
                named.everybody = true;
                return;
            }
        };
        match self.ruleset.sets.get(&set.name).map(|set| &set.contents) {
            Some(Contents::Addresses(all)) => named.addresses.extend(all),
            Some(Contents::Ports(all)) => named.addresses.extend(all.iter().map(|(address, ..)| *address)),
            Some(Contents::Blocks(all)) => named.blocks.extend(all),
            None => {}
        }
    }
}
