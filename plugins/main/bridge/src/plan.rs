//! The container's addresses and routes, from IPAM's result and the configuration. Nothing here touches the
//! kernel.

use std::net::IpAddr;

use cni_common::spec::addr::default_route;
use cni_common::spec::{AddResult, CniError, IpConfig, Route};
use ferrule_kit::plan::Plan;
use ipnetwork::IpNetwork;

use crate::config::Conf;

/// Completes IPAM's result: a gateway for each address if `isGateway`, and default routes if
/// `isDefaultGateway`.
pub fn new(conf: &Conf, assigned: Option<AddResult>) -> Result<Plan, CniError> {
    let mut plan = Plan::new(&conf.link, assigned)?;
    for ip in plan.ips.iter_mut().filter(|_| conf.is_gateway) {
        ip.gateway = ip.gateway.or_else(|| first_host(ip.address));
        if let Some(gateway) = ip.gateway.filter(IpAddr::is_unspecified) {
            let msg = format!("the bridge cannot have the gateway {gateway} of {}", ip.address);
            let error =
                CniError::internal(msg).with_details("isGateway gives the gateway's address to the bridge");
            return Err(error.with_remedy(
                "correct the gateway in the configuration of the IPAM plugin, or leave it out",
            ));
        }
    }
    for gateway in plan.ips.iter().filter(|_| conf.is_default_gateway).filter_map(|ip| ip.gateway) {
        let dst = default_route(gateway);
        if !plan.routes.iter().any(|route| route.dst == dst) {
            plan.routes.push(Route::new(dst, Some(gateway)));
        }
    }
    Ok(plan)
}

/// The gateway addresses that the bridge gets, with the prefix lengths of their subnets, without duplicates.
pub fn gateways(ips: &[IpConfig]) -> Vec<IpNetwork> {
    let mut gateways = Vec::new();
    for ip in ips {
        let gateway = ip.gateway.and_then(|gateway| IpNetwork::new(gateway, ip.address.prefix()).ok());
        gateways.extend(gateway.filter(|gateway| !gateways.contains(gateway)));
    }
    gateways
}

/// The first address after the network address.
fn first_host(address: IpNetwork) -> Option<IpAddr> {
    match address {
        IpNetwork::V4(v4) => u32::from(v4.network()).checked_add(1).map(|ip| IpAddr::from(ip.to_be_bytes())),
        IpNetwork::V6(v6) => u128::from(v6.network()).checked_add(1).map(|ip| IpAddr::from(ip.to_be_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use ferrule_kit::route::installed;

    use super::*;

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        let gateway = gateway.map(|gw| gw.parse().unwrap());
        IpConfig { address: address.parse().unwrap(), gateway, interface: None }
    }

    fn route(dst: &str, gw: Option<&str>) -> Route {
        Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
    }

    fn assigned(ips: &[IpConfig], routes: &[Route]) -> Option<AddResult> {
        Some(AddResult { ips: ips.to_vec(), routes: routes.to_vec(), ..AddResult::default() })
    }

    fn gateway_conf() -> Conf {
        Conf { is_gateway: true, is_default_gateway: true, ..Conf::default() }
    }

    #[test]
    fn gateway_defaults_to_the_first_host() {
        let assigned = assigned(&[ip("10.1.2.9/24", None), ip("fd00::9/64", Some("fd00::5"))], &[]);
        let plan = new(&gateway_conf(), assigned.clone()).unwrap();
        let gateways: Vec<String> = gateways(&plan.ips).iter().map(ToString::to_string).collect();
        assert_eq!(gateways, ["10.1.2.1/24", "fd00::5/64"]);
        assert_eq!(plan.routes, [route("0.0.0.0/0", Some("10.1.2.1")), route("::/0", Some("fd00::5"))]);
        let plain = new(&Conf::default(), assigned).unwrap();
        assert_eq!(plain.ips[0].gateway, None);
        assert!(plain.routes.is_empty());
    }

    #[test]
    fn a_gateway_must_be_an_address() {
        for (address, gateway) in [("10.1.2.9/24", "0.0.0.0"), ("fd00::9/64", "::"), ("10.1.2.9/0", "")] {
            let given = Some(gateway).filter(|gateway| !gateway.is_empty());
            let assigned = assigned(&[ip(address, given)], &[]);
            let outcome = new(&gateway_conf(), assigned.clone());
            // The first address of 0.0.0.0/0 is 0.0.0.1.
            assert_eq!(outcome.is_err(), given.is_some(), "{address}");
            new(&Conf::default(), assigned).unwrap();
        }
    }

    #[test]
    fn ipams_default_route_is_not_added_twice() {
        let assigned = assigned(&[ip("10.1.2.9/24", None)], &[route("0.0.0.0/0", None)]);
        let plan = new(&gateway_conf(), assigned).unwrap();
        assert_eq!(plan.routes, [route("0.0.0.0/0", None)]);
        assert_eq!(installed(&plan.routes, &plan.ips), [route("0.0.0.0/0", Some("10.1.2.1"))]);
    }

    #[test]
    fn one_default_route_per_family() {
        let assigned =
            assigned(&[ip("10.1.2.9/24", None), ip("10.1.3.9/24", None), ip("10.1.2.10/24", None)], &[]);
        let plan = new(&gateway_conf(), assigned).unwrap();
        assert_eq!(gateways(&plan.ips).len(), 2);
        assert_eq!(plan.routes, [route("0.0.0.0/0", Some("10.1.2.1"))]);
    }
}
