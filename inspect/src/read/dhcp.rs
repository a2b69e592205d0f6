//! Leases of the daemon `ferrule-dhcp`. The reference's daemon keeps its leases in memory only.

use std::fs;
use std::path::Path;

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_dhcp::survey::{self, Listed};

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};
use crate::scene::Sandbox;

/// Lists the leases of all daemons.
pub(super) fn read(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let leases = scene
        .dhcp_sockets
        .iter()
        .flat_map(|socket| survey::list(socket).into_iter().map(move |one| (socket, one)));
    Ok(leases
        .map(|(socket, lease)| {
            let sandbox = scene.sight.sandbox(&lease.netns);
            object(socket, lease, sandbox)
        })
        .collect())
}

fn object(socket: &Path, lease: Listed, sandbox: Sandbox) -> Object {
    let Listed { network, container_id, ifname, .. } = &lease;
    let owner = Owner::from(Attachment { network, container_id, ifname });
    let address = lease.address.parse().ok();
    let name = if lease.address.is_empty() { "no address yet" } else { &lease.address };
    let object = Object::new(Kind::Lease, name, lease.path.display().to_string(), owner, Maker::Ferrule);
    let socket = socket.to_owned();
    Object {
        since: fs::metadata(&lease.path).and_then(|meta| meta.modified()).ok(),
        addresses: address.into_iter().collect(),
        facts: vec![("server", lease.server.clone())],
        ..object
    }
    .in_namespace(&lease.netns, &sandbox)
    .removed_by(move |_, is_dead| {
        let Listed { network, container_id, ifname, .. } = &lease;
        survey::release(&socket, Attachment { network, container_id, ifname }, is_dead)
    })
}
