//! The gateway of a VLAN: a veth pair between the host and a port of the bridge in that VLAN.
//!
//! The bridge itself is in no container's VLAN, so it cannot have the gateway's addresses. All attachments of the
//! VLAN share the pair, perhaps those of other networks too; no verb deletes it, as with the reference.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::link::{self, IFF_UP, NewLink};
use ferrule_kernel::netlink::{Link, LinkId, Mac, Socket};
use ferrule_kernel::sysctl;
use ferrule_kit::check;
use ferrule_kit::hash::sha512_hex;
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::veth;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::config::Conf;
use crate::gateways::{self, Place};
use crate::vlan::VlanConf;

/// The gateway's link with these addresses. Makes the pair if it does not exist, and completes it if an earlier ADD was killed. `own`
/// is the port of the attachment. A new gateway gets this MAC address, or a random one.
///
/// # Errors
/// A link of another kind has the name, the kernel's error, or as [`gateways::ensure`].
pub fn ensure(
    socket: &mut Socket,
    bridge: &Link,
    own: &Link,
    conf: &Conf,
    addresses: &[IpNetwork],
    mac: Option<Mac>,
) -> Result<Link, CniError> {
    let name = conf.vlan_gateway(&bridge.name);
    let failed = || format!("failed to create vlan interface {name:?}");
    let gateway = match find(socket, &name)? {
        Some(gateway) => gateway,
        None => create(socket, &name, conf, mac)?,
    };
    let port = port(socket, &gateway)?;
    let mut steps = Vec::new();
    match port.master {
        None => {
            // Otherwise the bridge may take that of the port.
            steps.push(Step::new(failed(), link::set_mac(bridge.index, bridge.mac)));
            steps.push(Step::new(failed(), link::set_master(port.index, bridge.index)));
        }
        Some(master) => check::ensure(master == bridge.index, || not_a_port(&port, &name, bridge))?,
    }
    for end in [&gateway, &port].into_iter().filter(|end| !end.is_up()) {
        steps.push(Step::new(failed(), link::set_flags(end.index, IFF_UP, IFF_UP)));
    }
    steps.extend(VlanConf::only(conf.vlan.vlan).steps(bridge, &port));
    UndoStack::default().run(socket, steps)?;
    let present = socket.addresses(gateway.index).context(|| format!("list the addresses of {name:?}"))?;
    let place = Place { link: &gateway, present: &present, bridge, port: own, force: conf.force_address };
    gateways::ensure(socket, &place, addresses)?;
    Ok(gateway)
}

/// The link of this name. `None` if it does not exist.
fn find(socket: &mut Socket, name: &str) -> Result<Option<Link>, CniError> {
    let found = socket.link(LinkId::Name(name)).context(|| format!("look up {name:?}"))?;
    if let Some(link) = &found {
        let is_pair = link.kind == veth::KIND && link.peer_netns.is_none();
        check::ensure(is_pair, || format!("{name:?} already exists but is not the gateway of a VLAN"))?;
    }
    Ok(found)
}

/// The gateway's port on the bridge.
fn port(socket: &mut Socket, gateway: &Link) -> Result<Link, CniError> {
    let missing = || CniError::internal(format!("{:?} has no peer", gateway.name));
    let index = gateway.peer.ok_or_else(missing)?;
    let found =
        socket.link(LinkId::Index(index)).context(|| format!("look up the peer of {:?}", gateway.name));
    found?.ok_or_else(missing)
}

fn not_a_port(port: &Link, gateway: &str, bridge: &Link) -> String {
    format!("{:?}, the peer of {gateway:?}, is not a port of bridge {:?}", port.name, bridge.name)
}

/// Makes the pair. The gateway's end is the first one, as in the reference: the port's index precedes its own.
fn create(socket: &mut Socket, name: &str, conf: &Conf, mac: Option<Mac>) -> Result<Link, CniError> {
    let step = || format!("failed to create vlan interface {name:?}");
    let port = format!("veth{}", sha512_hex(name, 8));
    let end = NewLink { kind: veth::KIND, mtu: conf.link.mtu, flags: IFF_UP, ..NewLink::default() };
    // The kernel cannot set the second end up in this request.
    let make = link::new_veth(&NewLink { name, mac, ..end }, &NewLink { name: &port, flags: 0, ..end });
    let [made, found] = socket.request_each([make, link::get(LinkId::Name(name))]);
    // EEXIST: a concurrent ADD made the pair first.
    if let Err(error) = made
        && error.errno != Errno::EEXIST
    {
        return Err(error).context(step);
    }
    for link in [name, &port] {
        ferrule_kit::sysctl::ignore_router_advertisements(link);
    }
    // As for the bridge, see `device`.
    let _ = sysctl::write(&format!("net/ipv6/conf/{name}/accept_dad"), "0");
    let found = link::read(found).context(step)?;
    found.ok_or_else(|| CniError::internal(format!("{}: {port:?} exists", step())))
}

/// Checks that the gateway is up and its port is in the VLAN. Returns the gateway's link.
pub fn check(socket: &mut Socket, bridge: &Link, conf: &Conf) -> Result<Link, CniError> {
    let name = conf.vlan_gateway(&bridge.name);
    let gateway = find(socket, &name)?;
    let gateway =
        gateway.ok_or_else(|| CniError::internal(format!("gateway {name:?} of the VLAN not found")))?;
    let port = port(socket, &gateway)?;
    check::ensure(port.master == Some(bridge.index), || not_a_port(&port, &name, bridge))?;
    check::ensure(gateway.is_up() && port.is_up(), || {
        format!("{name:?} or its peer {:?} is down", port.name)
    })?;
    let present = socket.vlans(port.index).context(|| format!("list the VLANs of {:?}", port.name))?;
    VlanConf::only(conf.vlan.vlan).check_port(bridge, &port.name, &present)?;
    Ok(gateway)
}
