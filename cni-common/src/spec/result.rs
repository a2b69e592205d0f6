//! What an attachment looks like once it is made: one model for every version.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// The result of ADD, as CHECK and DEL get it back. Its layouts on the wire are in [`super::wire`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddResult {
    /// Every interface of the attachment, host-level ones included.
    pub interfaces: Vec<Interface>,
    /// The addresses.
    pub ips: Vec<IpConfig>,
    /// The routes in the container.
    pub routes: Vec<Route>,
    /// Name resolution.
    pub dns: Dns,
}

impl AddResult {
    /// The interfaces that lie in a container, those with a `sandbox`.
    pub fn container_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| !interface.sandbox.is_empty())
    }

    /// The interface that an address belongs to, if its index is given and valid.
    pub fn interface_of(&self, ip: &IpConfig) -> Option<&Interface> {
        self.interfaces.get(usize::try_from(ip.interface?).ok()?)
    }
}

/// An interface of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address, lower case with colons; empty where that means nothing.
    pub mac: String,
    /// Its MTU in bytes; 0 is unknown. Since 1.1.0.
    pub mtu: u32,
    /// The CNI_NETNS of the container it is in, as given; empty on the host.
    pub sandbox: String,
    /// Path of a socket that stands for the interface. Since 1.1.0.
    pub socket_path: String,
    /// PCI address of its device. Since 1.1.0.
    pub pci_id: String,
}

/// An address of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// The address with its prefix length; host bits kept.
    pub address: IpNetwork,
    /// The gateway of its subnet: information, not an order to add a route.
    pub gateway: Option<IpAddr>,
    /// Index into `interfaces`. What a runtime hands back may lie outside of it.
    pub interface: Option<i64>,
}

/// A route in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub dst: IpNetwork,
    /// Next hop; without it the gateway of the attachment's first address of the family.
    pub gw: Option<IpAddr>,
    /// Path MTU in bytes, 0 for the kernel's choice. Since 1.1.0, like the rest.
    pub mtu: u32,
    /// MSS in bytes to advertise, 0 for the kernel's choice.
    pub advmss: u32,
    /// Metric, 0 for the kernel's choice.
    pub priority: u32,
    /// Routing table, the main one without it.
    pub table: Option<u32>,
    /// Scope as in linux/rtnetlink.h: 0 global, 253 link, 254 host.
    pub scope: Option<u32>,
}

impl Route {
    /// A route with nothing but a destination and perhaps a next hop.
    pub fn new(dst: IpNetwork, gw: Option<IpAddr>) -> Self {
        Route { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// Name resolution, as in resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Name servers, best first.
    pub nameservers: Vec<String>,
    /// Local domain; empty for none.
    pub domain: String,
    /// Search list.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}
