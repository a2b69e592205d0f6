//! The addresses and routes of both ends, from IPAM's result and the configuration. Nothing here touches the kernel.

use cni_common::spec::{AddResult, CniError, IpConfig, Route};
use ferrule_kernel::netlink::route;
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
    fn the_host_has_each_gateway_once_and_a_route_to_each_address() {
        let ips = [ip("10.1.2.2/24", "10.1.2.1"), ip("fd00::2/64", "fd00::1"), ip("10.1.2.3/24", "10.1.2.1")];
        let texts = |list: Vec<IpNetwork>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(gateways(&ips)), ["10.1.2.1/32", "fd00::1/128"]);
        let routes = host_routes(&ips).map(|route| route.dst).collect();
        assert_eq!(texts(routes), ["10.1.2.2/32", "fd00::2/128", "10.1.2.3/32"]);
    }
}
