//! Packets that wait for the pod's MAC address. They have passed `forward` before the pod was announced, and the kernel would send them when it
//! has resolved the address, perhaps to the pod's first process.

use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::ip::from_octets;
use ferrule_kernel::netlink::neighbour::{Neighbour, Table};
use ferrule_kernel::netlink::{LinkId, Mac};
use ferrule_kit::socket;
use ferrule_policy_kit::Direction;
use nix::errno::Errno;

use crate::plan::Plan;

/// Drops them, with the unresolved entries of the pod's addresses. An entry with a MAC address has no packets, and stays.
///
/// # Errors
/// Code 999 if the kernel refuses it.
pub fn drop_all(plan: &Plan, result: &AddResult, ifname: &str) -> Result<(), CniError> {
    let keys = plan.keys.iter().filter(|key| key.direction == Direction::Ingress);
    let addresses: Vec<_> = keys.filter_map(|key| from_octets(&key.key)).collect();
    if addresses.is_empty() {
        return Ok(());
    }
    let mut socket = socket::route()?;
    for interface in result.host_interfaces(ifname).filter(|interface| !interface.name.is_empty()) {
        let step = || format!("drop what waits for the pod at {:?}", interface.name);
        let Some(link) = socket.link(LinkId::Name(&interface.name)).context(step)? else { continue };
        for ip in &addresses {
            // Before Linux 5.0 there is no such question, and the kernel only resolves a deleted entry again.
            if socket.neighbour(link.index, *ip).is_ok_and(|entry| entry.is_some()) {
                continue;
            }
            let entry =
                Neighbour { table: Table::Neighbours, mac: Mac::default(), ip: *ip, is_permanent: false };
            match socket.request(entry.delete(link.index)) {
                Err(error) if error.errno != Errno::ENOENT => return Err(error).context(step),
                _ => {}
            }
        }
    }
    Ok(())
}
