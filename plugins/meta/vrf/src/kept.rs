//! What an interface loses when it enters or leaves a VRF: IPv6 addresses and routes. The kernel sets it down and up
//! again, and itself restores IPv4 addresses and the routes to their subnets.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::addr::{self, Address, NO_PREFIX_ROUTE, NODAD, PERMANENT, TENTATIVE};
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::stored_route::{BY_KERNEL, BY_ROUTER, StoredRoute};
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::address_wait::wait_for_dad;
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::table::Tables;
use nix::errno::Errno;

/// The addresses and routes of an interface.
pub struct Kept {
    addresses: Vec<Address>,
    routes: Vec<StoredRoute>,
    /// Those of the routes that the kernel leaves in the main table, because another link has next hops of the same IPv6
    /// multipath route.
    parts: Vec<StoredRoute>,
}

impl Kept {
    /// Reads the permanent global IPv6 addresses, and the routes of the main table with a next hop through the link: only these
    /// next hops of them.
    pub fn read(socket: &mut Socket, link: &Link, tables: &Tables) -> Result<Self, CniError> {
        let mut addresses = socket.addresses(link.index).context(|| "list the interface's addresses")?;
        addresses.retain(|a| a.network.is_ipv6() && a.scope == 0 && a.flags & PERMANENT != 0);
        let is_kept = |route: &&StoredRoute| {
            route.table == MAIN_TABLE
                && route.links.contains(&link.index)
                && !matches!(route.protocol, BY_KERNEL | BY_ROUTER)
        };
        let kept = || tables.routes.iter().filter(is_kept);
        let mut routes: Vec<StoredRoute> = kept().filter_map(|route| route.through(link.index)).collect();
        // Next hops are reachable through the routes without one.
        routes.sort_by_key(|route| !route.gws.is_empty());
        let is_shared = |route: &&StoredRoute| route.links.iter().any(|index| *index != link.index);
        let parts = kept().filter(is_shared).filter_map(|route| route.of_link(link.index)).collect();
        Ok(Kept { addresses, routes, parts })
    }

    /// Removes the routes from the main table that the kernel leaves there.
    pub fn leave_main(&self) -> impl Iterator<Item = Step> {
        self.parts.iter().map(|part| {
            let what = format!("could not delete route '{}' from the main table", part.dst);
            Step::new(what, part.delete_from(MAIN_TABLE))
                .undone_by(part.add_to(MAIN_TABLE))
                .unless(&[Errno::ESRCH])
        })
    }

    /// Adds the addresses that are gone, waits until the kernel can use them, and adds the routes to this table.
    pub fn restore(&self, socket: &mut Socket, link: &Link, table: u32) -> Result<(), CniError> {
        let address = |address: &Address| {
            let what = format!("restore address {} of {:?}", address.network, link.name);
            let flags = address.flags & (NODAD | NO_PREFIX_ROUTE);
            Step::new(what, addr::add(link.index, address.network, flags)).unless(&[Errno::EEXIST])
        };
        let mut undo = UndoStack::default();
        undo.run(socket, self.addresses.iter().map(address).collect())?;
        let usable = self.addresses.iter().filter(|address| address.flags & TENTATIVE == 0);
        wait_for_dad(socket, link, &usable.map(|address| address.network).collect::<Vec<_>>())?;
        let route = |route: &StoredRoute| {
            let what = format!("could not add route '{}' to table {table}", route.dst);
            Step::new(what, route.add_to(table)).undone_by(route.delete_from(table)).unless(&[Errno::EEXIST])
        };
        undo.run(socket, self.routes.iter().map(route).collect()).map(drop).map_err(CniError::from)
    }
}
