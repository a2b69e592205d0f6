//! The result of ADD in one model for all specification versions.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// The result of ADD. CHECK and DEL receive it as `prevResult`. [`super::wire`] defines its JSON layouts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddResult {
    /// All interfaces of the attachment, on the host and in the container.
    pub interfaces: Vec<Interface>,
    /// The IP addresses.
    pub ips: Vec<IpConfig>,
    /// The routes in the container.
    pub routes: Vec<Route>,
    /// The DNS settings.
    pub dns: Dns,
}

impl AddResult {
    /// The interfaces in a container: those with a `sandbox`.
    pub fn container_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| !interface.sandbox.is_empty())
    }

    /// The addresses of the container's interface. Addresses without an interface index, or with an index out of
    /// range, count too: results before 0.3.0 have no interfaces. Some plugins report no sandbox: if no interface of this name
    /// has one, the name alone decides, and if no interface has the name or a sandbox, all addresses are the container's.
    pub fn ips_of<'a>(&'a self, ifname: &'a str) -> impl Iterator<Item = &'a IpConfig> {
        let has_sandbox = self.has_sandbox(ifname);
        let is_reported =
            self.interfaces.iter().any(|interface| interface.name == ifname || !interface.sandbox.is_empty());
        let is_on = move |interface: &Interface| {
            !is_reported || interface.name == ifname && (!has_sandbox || !interface.sandbox.is_empty())
        };
        self.ips.iter().filter(move |ip| self.interface_of(ip).is_none_or(is_on))
    }

    /// The links on the host: the interfaces without a `sandbox`, except the container's, see [`AddResult::ips_of`].
    pub fn host_interfaces<'a>(&'a self, ifname: &'a str) -> impl Iterator<Item = &'a Interface> {
        let has_sandbox = self.has_sandbox(ifname);
        self.interfaces.iter().filter(move |interface| {
            interface.sandbox.is_empty() && (has_sandbox || interface.name != ifname)
        })
    }

    fn has_sandbox(&self, ifname: &str) -> bool {
        self.container_interfaces().any(|interface| interface.name == ifname)
    }

    /// The interface that has the address. `None` if the address has no interface index or an invalid one.
    pub fn interface_of(&self, ip: &IpConfig) -> Option<&Interface> {
        self.interfaces.get(usize::try_from(ip.interface?).ok()?)
    }
}

/// An interface of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address, in lower case with colons; empty if it has none.
    pub mac: String,
    /// Its MTU in bytes; 0 if unknown. Since 1.1.0.
    pub mtu: u32,
    /// CNI_NETNS of the container that contains the interface; empty for an interface on the host.
    pub sandbox: String,
    /// Path of the socket file of the interface; may be empty. Since 1.1.0.
    pub socket_path: String,
    /// PCI address of the device; may be empty. Since 1.1.0.
    #[serde(rename = "pciID")]
    pub pci_id: String,
}

/// An address of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// The address with its prefix length, including the host bits.
    pub address: IpNetwork,
    /// The gateway of the subnet. It does not imply a route.
    pub gateway: Option<IpAddr>,
    /// Index into `interfaces`. In a `prevResult` the index may be out of range.
    pub interface: Option<i64>,
}

/// A route in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub dst: IpNetwork,
    /// Next hop. If `None`, the gateway of the first address of the same family.
    pub gw: Option<IpAddr>,
    /// Path MTU in bytes; 0 for the kernel's default. Since 1.1.0, as all following fields.
    pub mtu: u32,
    /// Advertised MSS in bytes; 0 for the kernel's default.
    pub advmss: u32,
    /// Metric; 0 for the kernel's default.
    pub priority: u32,
    /// Routing table; `None` for the main table.
    pub table: Option<u32>,
    /// Scope as in linux/rtnetlink.h: 0 global, 253 link, 254 host.
    pub scope: Option<u32>,
}

impl Route {
    /// A route with a destination and an optional next hop.
    pub fn new(dst: IpNetwork, gw: Option<IpAddr>) -> Self {
        Route { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// DNS settings, as in resolv.conf(5).
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Name servers in order of priority.
    pub nameservers: Vec<String>,
    /// Local domain; may be empty.
    pub domain: String,
    /// Search list.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

impl Dns {
    /// True if no field is set.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides_without_a_sandbox() {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        let ip = |n: u8| IpConfig {
            address: format!("10.0.0.{n}/24").parse().unwrap(),
            gateway: None,
            interface: Some(i64::from(n)),
        };
        // The addresses 0, 1, … are on the interfaces 0, 1, …
        for (interfaces, own, on_host) in [
            (&[("cni0", ""), ("eth0", "/n"), ("eth0", "")][..], &[1][..], &["cni0", "eth0"][..]),
            (&[("cni0", ""), ("eth0", "")], &[1], &["cni0"]),
            (&[("cni0", ""), ("cali0", "")], &[0, 1], &["cni0", "cali0"]),
            (&[("cni0", ""), ("eth1", "/n")], &[], &["cni0"]),
            (&[], &[], &[]),
        ] {
            let all: Vec<Interface> =
                interfaces.iter().map(|(name, sandbox)| interface(name, sandbox)).collect();
            let ips = (0..).take(all.len()).map(ip).collect();
            let result = AddResult { interfaces: all, ips, ..AddResult::default() };
            let found: Vec<i64> = result.ips_of("eth0").filter_map(|ip| ip.interface).collect();
            assert_eq!(found, own, "{interfaces:?}");
            let found: Vec<&str> = result.host_interfaces("eth0").map(|link| link.name.as_str()).collect();
            assert_eq!(found, on_host, "{interfaces:?}");
        }
    }
}
