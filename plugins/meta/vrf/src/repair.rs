//! Repair: ADD, which leaves a port of the VRF as it is, then the links' state and the missing routes.

use cni_common::plugin::AddRequest;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::link::{self, IFF_UP};
use ferrule_kernel::netlink::route::{self, Route};
use ferrule_kernel::netlink::{Link, LinkId};
use ferrule_kit::route::{of_result, to_subnet};
use ferrule_kit::steps::{Step, UndoStack};
use nix::errno::Errno;

use crate::verbs::{add, configured, find, missing_routes, open};

/// Makes again what CHECK refuses.
///
/// # Errors
/// The interface is a port of another link now, or the VRF has another table.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    add(call)?;
    let (conf, result, mut socket) = open(call)?;
    let gone = |name: &str| CniError::internal(format!("{name} disappeared from the container"));
    let vrf = configured(&mut socket, &conf)?.ok_or_else(|| gone(&conf.vrfname))?;
    let link = find(&mut socket, LinkId::Name(call.ifname))?.ok_or_else(|| gone(call.ifname))?;
    let up = |link: &Link| {
        Step::new(format!("set {:?} up", link.name), link::set_flags(link.index, IFF_UP, IFF_UP))
    };
    let down = [&vrf, &link].into_iter().filter(|link| !link.is_up());
    UndoStack::default().run(&mut socket, down.map(up).collect())?;
    let table = vrf.vrf_table.unwrap_or_default();
    let missing = missing_routes(&mut socket, call, result, &link, table)?;
    if missing.is_empty() {
        return Ok(());
    }
    // The next hops are reachable through these.
    let is_needed =
        |subnet: &Route| missing.iter().any(|route| route.gw.is_some_and(|gw| subnet.dst.contains(gw)));
    let subnets = result.ips_of(call.ifname).filter_map(|ip| to_subnet(ip.address)).filter(is_needed);
    let routes = subnets.chain(missing.iter().map(|route| of_result(route)));
    let steps = routes.map(|route| {
        let route = Route { table: Some(table), ..route };
        let what = format!("could not add route '{}' to table {table}", route.dst);
        Step::new(what, route::add(link.index, &route))
            .undone_by(route::delete(link.index, &route))
            .unless(&[Errno::EEXIST])
    });
    UndoStack::default().run(&mut socket, steps.collect())?;
    Ok(())
}
