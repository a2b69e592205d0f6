//! This node's own podCIDRs and addresses, and what is wrong with them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ferrule_kit::origin::{Origin, may_leave_bridge};
use ipnetwork::IpNetwork;

use super::Plan;
use super::ways::Maker;
use crate::cluster::inside;
use crate::reason::{Code, Reason};

impl Maker<'_> {
    /// The podCIDRs that this node's pods get. Adds what is wrong with this node to the plan.
    pub(super) fn own(&mut self, plan: &mut Plan) -> Vec<IpNetwork> {
        let name = self.facts.name;
        let mut own = self.claims.networks.get(name).cloned().unwrap_or_default();
        for network in own.clone() {
            if let Some(why) = self.things.cuts(network) {
                self.cutting.insert(network);
                plan.refuse(name, network, why);
            }
        }
        own.retain(|network| !self.cutting.contains(network));
        let mut reasons: Vec<(Code, String, String)> = Vec::new();
        if let Some(why) = self.no_ipv6
            && own.iter().any(IpNetwork::is_ipv6)
        {
            own.retain(IpNetwork::is_ipv4);
            let text = format!("the pods of this node get no IPv6 addresses: {why}");
            reasons.push((Code::Family, IpFamily::V6.to_string(), text));
        }
        if own.is_empty() {
            let refusal = plan.refusals.iter().find(|refusal| refusal.node == name);
            let why = match (refusal, self.no_ipv6) {
                (Some(refusal), _) => {
                    format!("podCIDR that this node can use: {} is not used: {}", refusal.what, refusal.why)
                }
                (None, Some(why)) if !self.me.networks.is_empty() => {
                    format!("podCIDR that this node can use: {why}")
                }
                (None, _) => "podCIDR: new pods cannot start".to_owned(),
            };
            reasons.push((Code::PodCidr, String::new(), format!("the Node object {name} has no {why}")));
        }
        let address = |(family, text)| (Code::Address, family, text);
        reasons.extend(self.addresses().into_iter().map(address));
        for network in &own {
            let left = self.leftovers(*network, &mut plan.desired.stale);
            reasons.extend(left.into_iter().map(|(about, text)| (Code::Leftover, about, text)));
        }
        plan.reasons.extend(reasons.into_iter().map(|(code, about, text)| Reason { code, about, text }));
        own
    }

    /// Why other nodes do not reach this node by the addresses of its object.
    fn addresses(&self) -> Vec<(String, String)> {
        let (name, local) = (self.facts.name, self.facts.local);
        if self.me.addresses == [None, None] {
            let text = format!("the Node object {name} has no InternalIP: other nodes do not reach its pods");
            return vec![(String::new(), text)];
        }
        let fault = |family: IpFamily| {
            let address = self.me.address(family)?;
            let text = match self.claims.address(name, self.me, family) {
                Err(why) => Some(format!("other nodes do not reach the pods of node {name}: {why}")),
                Ok(_) if local.link_of(address).is_none() => Some(format!(
                    "the Node object {name} has the InternalIP {address}, which no link of this node has"
                )),
                Ok(_) => None,
            };
            Some((family.to_string(), text?))
        };
        IpFamily::ALL.into_iter().filter_map(fault).collect()
    }

    /// What other networks have left in a podCIDR of this node. Adds the addresses of a bridge without ports to `stale`.
    fn leftovers(&self, network: IpNetwork, stale: &mut BTreeSet<(u32, IpAddr)>) -> Vec<(String, String)> {
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
            if link.is_bridge && may_leave_bridge(&link.name) && ports == 0 {
                stale.insert((*index, address.ip()));
                continue;
            }
            let (ip, origin, link) = (address.ip(), link.origin, &link.name);
            let text = match ports {
                0 => format!(
                    "{link} has the address {ip} in this node's podCIDR {network}; {} removes it",
                    origin.map_or_else(|| format!("ip address flush dev {link}"), Origin::cleanup)
                ),
                _ => format!(
                    "{link} has the address {ip} in this node's podCIDR {network}, and {ports} pods of another network plugin; ip link delete {link} removes it"
                ),
            };
            found.push((ip.to_string(), text));
        }
        for (_, route) in inside(self.things.lookup.routes(), network) {
            let is_ours = route.links.iter().any(|link| named.contains(link) || things.is_inner(*link));
            // With a bridge the kernel's own route to the podCIDR has the metric 0. With ptp each pod has a longer one.
            let is_behind = route.dst == network && (route.priority > 0 || self.facts.bridge.is_none());
            if !is_ours && !is_behind {
                found.push((
                    route.dst.to_string(),
                    format!(
                        "a route takes packets to pods of this node's podCIDR {network}: {}",
                        self.things.shown(route)
                    ),
                ));
            }
        }
        found
    }
}
