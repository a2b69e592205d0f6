//! Routes of a result, for the kernel.

use cni_common::spec;
use ferrule_kernel::netlink::route::Route;

/// The route of a result as a request describes it.
pub fn of_result(route: &spec::Route) -> Route {
    let spec::Route { dst, gw, mtu, advmss, priority, table, scope } = *route;
    Route { dst, gw, mtu, advmss, priority, table, scope }
}
