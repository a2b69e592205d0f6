//! Routes of a result: what the kernel gets, and what an old result lost.

use std::net::IpAddr;

use cni_common::spec::{self, IpConfig};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::route::Route;
use ferrule_kernel::netlink::stored_route::BY_KERNEL;
use ipnetwork::IpNetwork;

/// `RT_SCOPE_LINK` (linux/rtnetlink.h). Routes of this scope or a narrower one have no next hop.
const SCOPE_LINK: u32 = 253;
/// The metric of the kernel's route to the subnet of an IPv6 address.
const SUBNET_METRIC: u32 = 256;

/// The route of a result as a request describes it.
pub fn of_result(route: &spec::Route) -> Route {
    let spec::Route { dst, gw, mtu, advmss, priority, table, scope } = *route;
    Route { dst, gw, src: None, onlink: false, mtu, advmss, priority, table, scope, protocol: 0 }
}

/// The subnet of an address; `None` if it is the address alone.
pub fn subnet(address: IpNetwork) -> Option<IpNetwork> {
    let is_single = address.prefix() == IpFamily::of(address.ip()).bits();
    IpNetwork::new(address.network(), address.prefix()).ok().filter(|_| !is_single)
}

/// The route to the subnet of an address, as the kernel makes it; `None` for an address alone.
pub fn to_subnet(address: IpNetwork) -> Option<Route> {
    let (src, scope, priority) = match address.ip() {
        ip @ IpAddr::V4(_) => (Some(ip), Some(SCOPE_LINK), 0),
        IpAddr::V6(_) => (None, None, SUBNET_METRIC),
    };
    let bare = |dst| of_result(&spec::Route::new(dst, None));
    let route = |dst| Route { src, scope, priority, protocol: BY_KERNEL, ..bare(dst) };
    subnet(address).map(route)
}

/// Gives each route its next hop and drops duplicates, which the kernel would refuse.
pub fn installed(routes: &[spec::Route], ips: &[IpConfig]) -> Vec<spec::Route> {
    let gateway =
        |dst: IpAddr| ips.iter().filter_map(|ip| ip.gateway).find(|gw| gw.is_ipv4() == dst.is_ipv4());
    let mut installed: Vec<spec::Route> = Vec::new();
    for route in routes {
        let mut route = route.clone();
        if route.scope.unwrap_or_default() < SCOPE_LINK {
            route.gw = route.gw.or_else(|| gateway(route.dst.ip()));
        }
        let is_same = |other: &spec::Route| {
            (other.dst, other.gw, other.table, other.priority)
                == (route.dst, route.gw, route.table, route.priority)
        };
        if !installed.iter().any(is_same) {
            installed.push(route);
        }
    }
    installed
}

/// The routes of the container on a point-to-point link: a direct one to each gateway, and one to each subnet through
/// its gateway. Both have the container's address as source.
pub fn through_gateways(ips: &[IpConfig]) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for IpConfig { address, gateway, .. } in ips {
        let Some(gateway) = *gateway else { continue };
        let to = |dst, gw, scope| Route {
            src: Some(address.ip()),
            scope,
            ..of_result(&spec::Route::new(dst, gw))
        };
        for route in [to(gateway.into(), None, Some(SCOPE_LINK)), to(*address, Some(gateway), None)] {
            let same = |other: &Route| {
                (other.dst.network(), other.dst.prefix()) == (route.dst.network(), route.dst.prefix())
            };
            if route.dst != address.ip().into() && !routes.iter().any(same) {
                routes.push(route);
            }
        }
    }
    routes
}

/// Restores the attributes that routes have in the `ipam` section and that a result before version 1.1.0
/// dropped.
pub fn restore_attributes(routes: &mut [spec::Route], configured: &[spec::Route]) {
    for route in routes {
        let bare = spec::Route::new(route.dst, route.gw);
        if *route == bare
            && let Some(full) = configured.iter().find(|full| (full.dst, full.gw) == (bare.dst, bare.gw))
        {
            *route = full.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Route;

    use super::{IpConfig, SCOPE_LINK, installed, restore_attributes};

    fn route(dst: &str, gw: Option<&str>) -> Route {
        Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
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
        let gateway = "10.1.2.1".parse().ok();
        let ip = IpConfig { address: "10.1.2.9/24".parse().unwrap(), gateway, interface: None };
        let installed = installed(&routes, &[ip]);
        assert_eq!(installed.len(), 3);
        assert_eq!(installed[2], on_link);
        assert!(installed[..2].iter().all(|route| route.gw.is_some()));
    }

    #[test]
    fn a_point_to_point_link_leads_to_the_gateways() {
        let ip = |address: &str, gateway: &str| {
            let (address, gateway) = (address.parse().unwrap(), gateway.parse().ok());
            IpConfig { address, gateway, interface: None }
        };
        let ips = [
            ip("10.1.2.2/24", "10.1.2.1"),
            ip("10.1.2.3/24", "10.1.2.1"),
            ip("10.9.0.5/32", "169.254.1.1"),
            ip("fd00::2/64", "fd00::1"),
            ip("10.8.0.1/16", ""),
        ];
        let text = |route: &super::Route| {
            let via = route.gw.map_or(String::new(), |gw| format!(" via {gw}"));
            format!("{}/{}{via} src {}", route.dst.network(), route.dst.prefix(), route.src.unwrap())
        };
        let routes: Vec<String> = super::through_gateways(&ips).iter().map(text).collect();
        let expected = [
            "10.1.2.1/32 src 10.1.2.2",
            "10.1.2.0/24 via 10.1.2.1 src 10.1.2.2",
            "169.254.1.1/32 src 10.9.0.5",
            "fd00::1/128 src fd00::2",
            "fd00::/64 via fd00::1 src fd00::2",
        ];
        assert_eq!(routes, expected);
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
