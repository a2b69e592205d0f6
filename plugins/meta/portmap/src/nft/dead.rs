//! ADD: drops the host ports of containers that are gone and that had one of the new container's addresses. Their DEL was lost, as by
//! a crash or a reboot, and clients of their host ports must not reach the new container.

use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::remark;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::change;
use ferrule_kit::owner;
use ferrule_kit::presence::Presence;

use crate::plan::HostPort;

use super::element::{self, Owned};
use super::list::{self, presence_of};
use super::pods::{self, Pod};
use super::refused;

const STEP: &str = "drop host ports of containers that are gone";

/// Drops the host ports that lead to one of `addresses`, which the owner's network has just given to it, and that belong to
/// another container: one of the same network, or one that is gone by another proof. Returns them. One round trip if there are
/// none.
///
/// # Errors
/// Code 999 if the kernel refuses a request; code 11 after 200 concurrent changes.
pub fn drop_dead(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    addresses: &[IpAddr],
) -> Result<Vec<HostPort>, CniError> {
    let is_other = |pod: &Pod| !owner::is_of(&pod.label, owner.container_id);
    if !pods::find(socket, addresses).map_err(refused(STEP))?.iter().any(is_other) {
        return Ok(Vec::new());
    }
    let dropped = change(socket, |socket, batch| {
        let mut dead = Vec::new();
        for pod in pods::find(socket, addresses)?.into_iter().filter(is_other) {
            let element = list::find_owner(socket, &pod.label)?;
            let is_gone = element.as_ref().is_none_or(|element| {
                matches!(presence_of(element, std::slice::from_ref(&pod)), Presence::Gone { .. })
            });
            if is_gone || owner::is_on(&pod.label, owner.network) {
                dead.push((pod, element.is_some()));
            }
        }
        if dead.is_empty() {
            return Ok(Vec::new());
        }
        let all = list::list_where(socket, |label| dead.iter().any(|(pod, _)| pod.label == label))?;
        let leads_there = |owned: &Owned| {
            let target = owned.host_port.target.ip();
            dead.iter().any(|(pod, _)| pod.label == owned.label && pod.address == target)
        };
        let (dropped, kept): (Vec<Owned>, Vec<Owned>) = all.into_iter().partition(leads_there);
        let dropped = list::with_marks(socket, dropped)?;
        // An owner without host ports is not needed any more.
        let mut owners: Vec<String> = dead
            .iter()
            .filter(|(pod, has_owner)| *has_owner && kept.iter().all(|owned| owned.label != pod.label))
            .map(|(pod, _)| pod.label.clone())
            .collect();
        owners.sort_unstable();
        owners.dedup();
        for Owned { label, host_port } in &dropped {
            let (key, target) = (&host_port.key, host_port.target.ip());
            remark!("dropping host port {key} of {}, which had {target}", owner::describe(label));
        }
        let dropped: Vec<HostPort> = dropped.into_iter().map(|owned| owned.host_port).collect();
        element::delete_owned(batch, &owners, &dropped);
        pods::delete(batch, dead.iter().map(|(pod, _)| pod));
        Ok(dropped)
    });
    dropped.map_err(refused(STEP))
}
