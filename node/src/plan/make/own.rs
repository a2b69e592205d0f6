//! This node's own podCIDRs and addresses, and what is wrong with them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

use super::Plan;
use super::ways::Maker;
use crate::cluster::inside;
use crate::word::{Code, Reason};

/// The bridge of flannel and of other network plugins, which stays when they go.
const OTHERS_BRIDGE: &str = "cni0";

impl Maker<'_> {
    /// The podCIDRs that this node's pods get. Adds what is wrong with this node to the plan.
    pub(super) fn own(&mut self, plan: &mut Plan) -> Vec<IpNetwork> {
        let name = self.facts.name;
        let mut own = self.claims.networks.get(name).cloned().unwrap_or_default();
        for network in own.clone() {
            if let Some(why) = self.cuts(network) {
                self.cutting.insert(network);
                plan.refuse(name, network, why);
            }
        }
        own.retain(|network| !self.cutting.contains(network));
        let mut reasons: Vec<(Code, String)> = Vec::new();
        if let Some(why) = self.no_ipv6
            && own.iter().any(IpNetwork::is_ipv6)
        {
            own.retain(IpNetwork::is_ipv4);
            let code = if own.is_empty() { Code::PodCidr } else { Code::Family };
            reasons.push((code, format!("the pods of this node get no IPv6 addresses: {why}")));
        }
        let refused = plan.refusals.iter().filter(|refusal| refusal.node == name);
        let code = if own.is_empty() { Code::PodCidr } else { Code::Family };
        reasons.extend(
            refused.map(|refusal| {
                (code, format!("{} of node {name} is not used: {}", refusal.what, refusal.why))
            }),
        );
        if own.is_empty() && reasons.is_empty() {
            reasons.push((
                Code::PodCidr,
                format!("the Node object {name} has no podCIDR: new pods cannot start"),
            ));
        }
        reasons.extend(self.addresses().into_iter().map(|text| (Code::Address, text)));
        for network in &own {
            let left = self.leftovers(*network, &mut plan.desired.stale);
            reasons.extend(left.into_iter().map(|text| (Code::Leftover, text)));
        }
        plan.reasons.extend(reasons.into_iter().map(|(code, text)| {
            let about = name.to_owned();
            Reason { code, about, text }
        }));
        own
    }

    /// Why other nodes do not reach this node by the addresses of its object.
    fn addresses(&self) -> Vec<String> {
        let (name, local) = (self.facts.name, self.facts.local);
        if self.me.addresses == [None, None] {
            return vec![format!(
                "the Node object {name} has no InternalIP: other nodes do not reach its pods"
            )];
        }
        let fault = |family| {
            let address = self.me.address(family)?;
            match self.claims.address(name, self.me, family) {
                Err(why) => Some(format!("other nodes do not reach the pods of node {name}: {why}")),
                Ok(_) if local.link_of(address).is_none() => Some(format!(
                    "the Node object {name} has the InternalIP {address}, which no link of this node has"
                )),
                Ok(_) => None,
            }
        };
        IpFamily::ALL.into_iter().filter_map(fault).collect()
    }

    /// What other networks have left in a podCIDR of this node. Adds the addresses of a bridge without ports to `stale`.
    fn leftovers(&self, network: IpNetwork, stale: &mut BTreeSet<(u32, IpAddr)>) -> Vec<String> {
        let (things, local) = (&self.things, self.facts.local);
        let mut found = Vec::new();
        let mut named: BTreeSet<u32> = things.bridge.into_iter().collect();
        for (address, index) in inside(&things.addresses, network) {
            let Some(link) = local.links.get(index) else { continue };
            if things.bridge == Some(*index) || things.is_inner(*index) {
                continue;
            }
            named.insert(*index);
            let ports = local.links.values().filter(|port| port.master == Some(*index)).count();
            if link.is_bridge && link.name == OTHERS_BRIDGE && ports == 0 {
                stale.insert((*index, address.ip()));
                continue;
            }
            let (ip, link) = (address.ip(), &link.name);
            found.push(match ports {
                0 => format!(
                    "{link} has the address {ip} in this node's podCIDR {network}; ip address flush dev {link} removes it"
                ),
                _ => format!(
                    "{link} has the address {ip} in this node's podCIDR {network}, and {ports} pods of another network plugin; ip link delete {link} removes it"
                ),
            });
        }
        for (_, route) in inside(self.lookup.routes(), network) {
            let is_ours = route.links.iter().any(|link| named.contains(link) || things.is_inner(*link));
            // With a bridge the kernel's own route to the podCIDR has the metric 0. With ptp each pod has a longer one.
            let is_behind = route.dst == network && (route.priority > 0 || self.facts.bridge.is_none());
            if !is_ours && !is_behind {
                found.push(format!(
                    "a route takes packets to pods of this node's podCIDR {network}: {}",
                    self.shown(route)
                ));
            }
        }
        found
    }
}
