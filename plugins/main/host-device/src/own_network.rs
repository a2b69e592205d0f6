//! The key `useInterfaceNetwork`: the container gets the addresses and routes that the device has on the host, and the
//! policy routing rules for these addresses that lead to these routes. Nothing here touches the kernel.

use cni_common::spec::{IpConfig, Route};
use ferrule_kernel::netlink::addr::{self, PERMANENT};
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::rule::{self, Rule};
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kit::plan::Plan;
use ipnetwork::IpNetwork;

use crate::state::State;

/// `RT_SCOPE_LINK` (linux/rtnetlink.h).
const SCOPE_LINK: u32 = 253;

/// Adds the device's global addresses and its routes to the plan, behind those of IPAM. IPv6 addresses of router
/// advertisements are left out, because the container gets advertisements of its own. IPv4 addresses of DHCP become
/// permanent, as with the reference.
pub fn merge(plan: &mut Plan, state: &State) {
    for address in addresses(state) {
        if !plan.ips.iter().any(|ip| ip.address == address) {
            plan.ips.push(IpConfig { address, gateway: None, interface: None });
        }
    }
    plan.routes.extend(state.routes().filter_map(|route| of_result(&route)));
}

fn addresses(state: &State) -> impl Iterator<Item = IpNetwork> {
    let meant = state.addresses.iter().filter_map(|one| addr::parse(one)).filter(|address| {
        address.scope == 0 && (address.network.is_ipv4() || address.flags & PERMANENT != 0)
    });
    meant.map(|address| address.network)
}

/// Those of the host's rules that the container gets too.
pub fn rules(state: &State, of_host: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let is_meant = |rule: Rule| {
        rule.src.is_some_and(|src| addresses(state).any(|address| src.contains(address.ip())))
            && state.routes().any(|route| (route.family, route.table) == (rule.family, rule.table))
    };
    of_host.into_iter().filter(|one| rule::parse(one).is_some_and(is_meant)).collect()
}

/// The route in a result. `None` if a result cannot have it, or if the kernel adds it by itself.
fn of_result(route: &StoredRoute) -> Option<Route> {
    let is_link_local = matches!(route.dst, IpNetwork::V6(dst) if dst.ip().is_unicast_link_local());
    if is_link_local || route.gws.len() > 1 {
        return None;
    }
    let gw = route.gws.first().copied();
    if gw.is_some_and(|gw| gw.is_ipv4() != route.dst.is_ipv4()) {
        return None;
    }
    // Without this scope a route without a next hop would get IPAM's gateway. The kernel ignores it for IPv6.
    let scope = if gw.is_none() { SCOPE_LINK } else { u32::from(route.scope) };
    let (scope, table) =
        (Some(scope).filter(|scope| *scope != 0), Some(route.table).filter(|table| *table != MAIN_TABLE));
    Some(Route { priority: route.priority, table, scope, ..Route::new(route.dst, gw) })
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::netlink::{Message, addr, route as kernel};

    use super::*;

    /// What follows the netlink header.
    fn body(request: Message) -> Vec<u8> {
        request.finish(0, 0).unwrap().split_off(16)
    }

    #[test]
    fn the_devices_network_comes_behind_ipams() {
        let address = |text: &str, flags| body(addr::add(1, text.parse().unwrap(), flags));
        let addresses = [
            address("10.9.0.1/24", 0),
            address("10.1.2.9/24", 0),
            address("fd00::1/64", PERMANENT),
            address("fd00::2/64", 0),
        ];
        let route = |dst: &str, gw: Option<&str>| {
            let gw = gw.map(|gw| gw.parse().unwrap());
            let of = ferrule_kit::route::of_result(&Route::new(dst.parse().unwrap(), gw));
            body(kernel::add(1, &of))
        };
        let routes =
            [route("10.9.0.7/32", None), route("fe80::/64", None), route("0.0.0.0/0", Some("10.9.0.7"))];
        let ipam = IpConfig { address: "10.1.2.9/24".parse().unwrap(), gateway: None, interface: None };
        let mut plan = Plan { ips: vec![ipam], ..Plan::default() };
        let state = State { addresses: addresses.to_vec(), routes: routes.to_vec(), ..State::default() };
        merge(&mut plan, &state);
        let texts: Vec<String> = plan.addresses().iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.1.2.9/24", "10.9.0.1/24", "fd00::1/64"]);
        let texts: Vec<String> =
            plan.routes.iter().map(|r| format!("{} {:?} {:?}", r.dst, r.gw, r.scope)).collect();
        assert_eq!(texts, ["10.9.0.7/32 None Some(253)", "0.0.0.0/0 Some(10.9.0.7) None"]);
    }
}
