//! The addresses and routes of both ends, from IPAM's result and the configuration. Nothing here touches the kernel.

use std::net::{IpAddr, Ipv6Addr};

use cni_common::spec::{AddResult, CniError, IpConfig, Route};
use ferrule_kernel::netlink::addr::Address;
use ferrule_kernel::netlink::{Mac, route};
use ferrule_kernel::sorted;
use ferrule_kit::config::LinkConf;
use ferrule_kit::plan::Plan;
use ferrule_kit::route::of_result;
use ipnetwork::IpNetwork;

/// `RT_SCOPE_HOST`: the reference's scope of the node's routes to containers.
const SCOPE_HOST: u32 = 254;

/// Completes IPAM's result for a point-to-point link.
///
/// # Errors
/// An address without a gateway: the node would have no address on the link.
pub fn new(conf: &LinkConf, assigned: Option<AddResult>) -> Result<Plan, CniError> {
    let plan = Plan::new(conf, assigned)?;
    if let Some(ip) = plan.ips.iter().find(|ip| ip.gateway.is_none()) {
        return Err(CniError::internal(format!("IPAM plugin returned no gateway for {}", ip.address)));
    }
    Ok(Plan { point_to_point: true, ..plan })
}

/// The gateways as addresses of the host's end, without duplicates.
pub fn gateways(ips: &[IpConfig]) -> Vec<IpNetwork> {
    sorted(ips.iter().filter_map(|ip| ip.gateway).map(IpNetwork::from))
}

/// The link-local address that the kernel would give a link with this MAC address (RFC 4291, appendix A), without a subnet.
pub fn link_local(mac: Mac) -> IpNetwork {
    let [a, b, c, d, e, f] = mac.0.map(u16::from);
    let [high, middle, low] = [(a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d];
    IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, high, middle, low, e << 8 | f)).into()
}

/// Whether the host's end needs a link-local address: the node solicits its IPv6 neighbours from it.
pub fn needs_link_local(ips: &[IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.is_ipv6())
}

/// Whether a link with these addresses has a link-local one: [`link_local`], or the kernel's.
pub fn has_link_local(present: &[Address]) -> bool {
    let is_link_local =
        |address: &Address| matches!(address.network.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    present.iter().any(is_link_local)
}

/// The node's routes to the container.
pub fn host_routes(ips: &[IpConfig]) -> impl Iterator<Item = route::Route> {
    ips.iter().map(|ip| {
        let to = Route { scope: Some(SCOPE_HOST), ..Route::new(ip.address.ip().into(), None) };
        of_result(&to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(address: &str, gateway: &str) -> IpConfig {
        IpConfig { address: address.parse().unwrap(), gateway: gateway.parse().ok(), interface: None }
    }

    #[test]
    fn every_address_needs_a_gateway() {
        let assigned =
            |gateway| Some(AddResult { ips: vec![ip("10.1.2.2/24", gateway)], ..AddResult::default() });
        assert!(new(&LinkConf::default(), assigned("10.1.2.1")).unwrap().point_to_point);
        let error = new(&LinkConf::default(), assigned("")).unwrap_err();
        assert_eq!(error.msg, "IPAM plugin returned no gateway for 10.1.2.2/24");
    }

    #[test]
    fn the_link_local_address_is_the_kernels() {
        assert_eq!(link_local(Mac([0x02, 0, 0x5e, 0x10, 0xab, 1])).to_string(), "fe80::5eff:fe10:ab01/128");
        assert_eq!(link_local(Mac([0x1e, 2, 3, 4, 5, 6])).to_string(), "fe80::1c02:3ff:fe04:506/128");
    }

    #[test]
    fn the_host_has_each_gateway_once_and_a_route_to_each_address() {
        let ips = [ip("10.1.2.2/24", "10.1.2.1"), ip("fd00::2/64", "fd00::1"), ip("10.1.2.3/24", "10.1.2.1")];
        let texts = |list: Vec<IpNetwork>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(gateways(&ips)), ["10.1.2.1/32", "fd00::1/128"]);
        let routes = host_routes(&ips).map(|route| route.dst).collect();
        assert_eq!(texts(routes), ["10.1.2.2/32", "fd00::2/128", "10.1.2.3/32"]);
    }
}
