//! Routing tables of a container: which are in use, and the lock of the plugins that choose one.

use std::collections::BTreeSet;
use std::path::Path;

use cni_common::netns::Netns;
use cni_common::remark;
use cni_common::spec::{CniError, Code, Context};
use ferrule_kernel::lock::Lock;
use ferrule_kernel::netlink::rule::Rule;
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{Socket, vrf};

use crate::lock;

/// The tables `default`, `main` and `local` of the kernel.
const BUILT_IN: [u32; 3] = [253, 254, 255];

/// A lock for each network namespace, by its inode.
const LOCK: &str = "/run/ferrule-netns.lock";

/// The rules and routes of a network namespace, and the tables of its VRFs.
pub struct Tables {
    /// The rules of both families.
    pub rules: Vec<Rule>,
    /// The routes of both families in all tables.
    pub routes: Vec<StoredRoute>,
    vrfs: Vec<u32>,
}

impl Tables {
    /// Reads them. A container has few.
    pub fn read(socket: &mut Socket) -> Result<Self, CniError> {
        let rules = socket.rules().context(|| "list the container's rules")?;
        let routes = socket.stored_routes().context(|| "list the container's routes")?;
        let vrfs = socket.links(Some(vrf::KIND)).context(|| "list the container's VRFs")?;
        Ok(Tables { rules, routes, vrfs: vrfs.iter().filter_map(|vrf| vrf.vrf_table).collect() })
    }

    /// The unused tables from `first` on: no rule, no route and no VRF has them.
    pub fn free(&self, first: u32) -> impl Iterator<Item = u32> + use<> {
        let (rules, routes) =
            (self.rules.iter().map(|rule| rule.table), self.routes.iter().map(|route| route.table));
        let used: BTreeSet<u32> =
            BUILT_IN.into_iter().chain(rules).chain(routes).chain(self.vrfs.clone()).collect();
        (first..=u32::MAX).filter(move |table| !used.contains(table))
    }
}

/// The lock of the plugins that choose a table in this network namespace, or remove what may be chosen. A container cannot
/// hold it, unlike a lock on the file of its namespace.
///
/// # Errors
/// Code 11 if another process still holds the lock after 10 s; code 5 if locking fails.
pub fn lock(netns: &Netns) -> Result<Lock, CniError> {
    let (_, inode) = netns
        .identity()
        .map_err(|error| CniError::new(Code::Io, format!("read the inode of CNI_NETNS: {error}")))?;
    Lock::take_byte(Path::new(LOCK), 0o600, inode).map_err(lock::error)
}

/// As [`lock()`], for DEL, which cleans up without the lock if it cannot have it: an ADD at the same time may then fail.
pub fn lock_for_del(netns: &Netns) -> Option<Lock> {
    lock(netns).inspect_err(|error| remark!("DEL goes on without a lock: {error}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_tables_are_those_of_no_rule_route_or_vrf() {
        let rules = vec![Rule::from([10, 0, 0, 1].into(), 3, 0)];
        let tables = Tables { rules, routes: Vec::new(), vrfs: vec![1, 5, 2] };
        assert_eq!(tables.free(1).take(3).collect::<Vec<_>>(), [4, 6, 7]);
        assert_eq!(tables.free(252).take(2).collect::<Vec<_>>(), [252, 256]);
    }
}
