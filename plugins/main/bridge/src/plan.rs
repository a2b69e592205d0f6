//! The container's addresses and routes, from IPAM's result and the configuration. Nothing here touches the
//! kernel.

use std::net::IpAddr;

use cni_common::spec::addr::default_route;
use cni_common::spec::{AddResult, CniError, IpConfig, Route};
use ipnetwork::IpNetwork;

use crate::config::Conf;

/// `RT_SCOPE_LINK` (linux/rtnetlink.h). Routes of this scope or a narrower one have no next hop.
const SCOPE_LINK: u32 = 253;

/// IPAM's result, completed by the configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The container's addresses, each with the gateway of its subnet.
    pub ips: Vec<IpConfig>,
    /// The routes as the result reports them: without a next hop if IPAM gave none.
    pub routes: Vec<Route>,
}

impl Plan {
    /// Completes `assigned`: a gateway for each address if `isGateway`, default routes if `isDefaultGateway`,
    /// and the route attributes that a result before version 1.1.0 cannot carry.
    ///
    /// # Errors
    /// The reference's `IPAM plugin returned missing IP config` if `assigned` has no address.
    pub fn new(conf: &Conf, assigned: AddResult) -> Result<Self, CniError> {
        if assigned.ips.is_empty() {
            return Err(CniError::internal("IPAM plugin returned missing IP config"));
        }
        let mut ips = assigned.ips;
        for ip in &mut ips {
            if conf.is_gateway {
                ip.gateway = ip.gateway.or_else(|| first_host(ip.address));
            }
        }
        let mut routes = assigned.routes;
        restore_attributes(&mut routes, &conf.ipam_routes);
        if conf.is_default_gateway {
            for gateway in ips.iter().filter_map(|ip| ip.gateway) {
                let dst = default_route(gateway);
                if !routes.iter().any(|route| route.dst == dst) {
                    routes.push(Route::new(dst, Some(gateway)));
                }
            }
        }
        Ok(Plan { ips, routes })
    }

    /// The gateway addresses that the bridge gets, with the prefix lengths of their subnets, without
    /// duplicates.
    pub fn gateways(&self) -> Vec<IpNetwork> {
        let mut gateways = Vec::new();
        for ip in &self.ips {
            let gateway = ip.gateway.and_then(|gateway| IpNetwork::new(gateway, ip.address.prefix()).ok());
            gateways.extend(gateway.filter(|gateway| !gateways.contains(gateway)));
        }
        gateways
    }

    /// The routes to install in the container; see [`installed`].
    pub fn installed_routes(&self) -> Vec<Route> {
        installed(&self.routes, &self.ips)
    }
}

/// Gives each route its next hop and drops duplicates, which the kernel would refuse.
pub fn installed(routes: &[Route], ips: &[IpConfig]) -> Vec<Route> {
    let gateway =
        |dst: IpAddr| ips.iter().filter_map(|ip| ip.gateway).find(|gw| gw.is_ipv4() == dst.is_ipv4());
    let mut installed: Vec<Route> = Vec::new();
    for route in routes {
        let mut route = route.clone();
        if route.scope.unwrap_or_default() < SCOPE_LINK {
            route.gw = route.gw.or_else(|| gateway(route.dst.ip()));
        }
        let is_same = |other: &Route| {
            (other.dst, other.gw, other.table, other.priority)
                == (route.dst, route.gw, route.table, route.priority)
        };
        if !installed.iter().any(is_same) {
            installed.push(route);
        }
    }
    installed
}

/// Restores the attributes that routes have in the `ipam` section and that a result before version 1.1.0
/// dropped.
pub fn restore_attributes(routes: &mut [Route], configured: &[Route]) {
    for route in routes {
        let bare = Route::new(route.dst, route.gw);
        if *route == bare
            && let Some(full) = configured.iter().find(|full| (full.dst, full.gw) == (bare.dst, bare.gw))
        {
            *route = full.clone();
        }
    }
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
    use super::*;

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        let gateway = gateway.map(|gw| gw.parse().unwrap());
        IpConfig { address: address.parse().unwrap(), gateway, interface: None }
    }

    fn route(dst: &str, gw: Option<&str>) -> Route {
        Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
    }

    fn assigned(ips: &[IpConfig], routes: &[Route]) -> AddResult {
        AddResult { ips: ips.to_vec(), routes: routes.to_vec(), ..AddResult::default() }
    }

    fn gateway_conf() -> Conf {
        Conf { is_gateway: true, is_default_gateway: true, ..Conf::default() }
    }

    #[test]
    fn no_address_is_an_error() {
        let error = Plan::new(&Conf::default(), AddResult::default()).unwrap_err();
        assert_eq!(error.msg, "IPAM plugin returned missing IP config");
    }

    #[test]
    fn gateway_defaults_to_the_first_host() {
        let assigned = assigned(&[ip("10.1.2.9/24", None), ip("fd00::9/64", Some("fd00::5"))], &[]);
        let plan = Plan::new(&gateway_conf(), assigned.clone()).unwrap();
        let gateways: Vec<String> = plan.gateways().iter().map(ToString::to_string).collect();
        assert_eq!(gateways, ["10.1.2.1/24", "fd00::5/64"]);
        assert_eq!(plan.routes, [route("0.0.0.0/0", Some("10.1.2.1")), route("::/0", Some("fd00::5"))]);
        let plain = Plan::new(&Conf::default(), assigned).unwrap();
        assert_eq!(plain.ips[0].gateway, None);
        assert!(plain.routes.is_empty());
    }

    #[test]
    fn ipams_default_route_is_not_added_twice() {
        let assigned = assigned(&[ip("10.1.2.9/24", None)], &[route("0.0.0.0/0", None)]);
        let plan = Plan::new(&gateway_conf(), assigned).unwrap();
        assert_eq!(plan.routes, [route("0.0.0.0/0", None)]);
        assert_eq!(plan.installed_routes(), [route("0.0.0.0/0", Some("10.1.2.1"))]);
    }

    #[test]
    fn one_default_route_per_family() {
        let assigned =
            assigned(&[ip("10.1.2.9/24", None), ip("10.1.3.9/24", None), ip("10.1.2.10/24", None)], &[]);
        let plan = Plan::new(&gateway_conf(), assigned).unwrap();
        assert_eq!(plan.gateways().len(), 2);
        assert_eq!(plan.routes, [route("0.0.0.0/0", Some("10.1.2.1"))]);
    }

    #[test]
    fn duplicate_routes_are_installed_once_and_link_routes_have_no_next_hop() {
        let mut on_link = route("10.9.0.0/16", None);
        on_link.scope = Some(SCOPE_LINK);
        let mut other_metric = route("10.8.0.0/16", None);
        other_metric.priority = 5;
        let routes = [
            route("10.8.0.0/16", None),
            route("10.8.0.0/16", Some("10.1.2.1")),
            other_metric,
            on_link.clone(),
        ];
        let installed = installed(&routes, &[ip("10.1.2.9/24", Some("10.1.2.1"))]);
        assert_eq!(installed.len(), 3);
        assert_eq!(installed[2], on_link);
        assert!(installed[..2].iter().all(|route| route.gw.is_some()));
    }

    #[test]
    fn attributes_are_restored_from_the_configuration() {
        let full = Route { priority: 7, table: Some(100), mtu: 1400, ..route("10.8.0.0/16", None) };
        let mut routes = [route("10.8.0.0/16", None), route("10.8.0.0/16", Some("10.1.2.3"))];
        restore_attributes(&mut routes, std::slice::from_ref(&full));
        assert_eq!(routes[0], full);
        assert_eq!(routes[1].priority, 0);
    }
}
