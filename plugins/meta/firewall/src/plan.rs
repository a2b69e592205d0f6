//! What an attachment needs. Nothing here touches the kernel.

use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::{AddResult, IpConfig};
use ferrule_kernel::ip::IpFamily;
use ferrule_kit::owner;

use crate::config::{Conf, Policy};

/// What an attachment needs of its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The owner label.
    pub label: String,
    /// The network's name.
    pub network: String,
    /// The container's addresses, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// The names of the links on the host. One of them may be the bridge.
    pub host_links: Vec<String>,
    /// The bridge to which the policy applies; `None` for the policy `open`.
    pub bridge: Option<String>,
    /// The configuration.
    pub conf: Conf,
}

impl Plan {
    /// The plan for an attachment.
    pub fn new(
        conf: Conf,
        owner: &Attachment<'_>,
        result: &AddResult,
        addresses: Vec<IpAddr>,
        bridge: Option<String>,
    ) -> Self {
        let host_links = result.host_interfaces(owner.ifname);
        let host_links = host_links.map(|interface| interface.name.clone()).collect();
        let (label, network) = (owner::label(owner), owner.network.to_owned());
        Plan { label, network, addresses, host_links, bridge, conf }
    }

    /// The bridge and its policy, unless that is `open`.
    pub fn policy(&self) -> Option<(&str, Policy)> {
        self.bridge.as_deref().map(|bridge| (bridge, self.conf.policy))
    }

    /// The plan without a policy.
    pub fn without_policy(&self) -> Self {
        Plan { bridge: None, ..self.clone() }
    }

    /// The addresses of one family.
    pub fn of(&self, family: IpFamily) -> Vec<IpAddr> {
        self.addresses.iter().copied().filter(|address| IpFamily::of(*address) == family).collect()
    }

    /// The families of the addresses.
    pub fn families(&self) -> impl Iterator<Item = IpFamily> {
        IpFamily::ALL.into_iter().filter(|family| !self.of(*family).is_empty())
    }
}

/// All addresses of a result, without duplicates: what ADD opens. Like the reference, does not look at the interfaces: not all
/// plugins report which of them is the container's.
pub fn addresses(result: &AddResult) -> Vec<IpAddr> {
    distinct(result.ips.iter())
}

/// The addresses of the container's interface, without duplicates: what CHECK looks for. A later plugin of the chain may have
/// added others.
pub fn own_addresses(result: &AddResult, ifname: &str) -> Vec<IpAddr> {
    distinct(result.ips_of(ifname))
}

/// Without those of `lo`: the kernel forwards nothing to them, and every container has them.
fn distinct<'a>(ips: impl Iterator<Item = &'a IpConfig>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for ip in ips {
        let address = ip.address.ip();
        if !address.is_loopback() && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// An address with the length of a single address: `10.1.2.3/32`.
pub fn single(address: IpAddr) -> String {
    format!("{address}/{}", IpFamily::of(address).bits())
}
