//! The veth pair between the container and the bridge.

use std::thread;
use std::time::{Duration, Instant};

use cni_common::netlink::link::{self, OPER_UP, VethEnd};
use cni_common::netlink::{self, Link, LinkId, Mac, Socket};
use cni_common::netns::Netns;
use cni_common::spec::{AddResult, CniError, Failures, Step};
use nix::errno::Errno;
use sha2::{Digest, Sha512};

use crate::config::Conf;
use crate::container::Container;
use crate::device::{ignore_router_advertisements, two};
use cni_common::plugin::Attachment;

/// The kind of link.
pub const KIND: &str = "veth";
/// How many names the host's end may have, should the end of an earlier attachment of the same identity not be gone yet.
const CANDIDATES: u8 = 4;
/// How long the bridge's port may take to become ready; the reference waits as long.
const PORT_PATIENCE: Duration = Duration::from_millis(2550);

/// The name and hardware address of the host's end. They follow from the attachment's identity, so that a DEL which is told
/// neither the namespace nor the result finds the link, and together they tell it from a stranger's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEnd {
    /// `veth` and eight hexadecimal digits, as the reference has it.
    pub name: String,
    /// A locally administered address.
    pub mac: Mac,
}

/// The host's ends that the attachment may have, in the order in which they are tried.
pub fn host_ends(attachment: &Attachment<'_>) -> impl Iterator<Item = HostEnd> + use<> {
    // No part of an identity holds a zero.
    let identity = Sha512::new()
        .chain_update(attachment.network)
        .chain_update("\0")
        .chain_update(attachment.container_id)
        .chain_update("\0")
        .chain_update(attachment.ifname);
    (0..CANDIDATES).map(move |candidate| {
        let hash = identity.clone().chain_update([candidate]).finalize();
        let [a, b, c, d, e, f, g, h, i, j, ..] = <[u8; 64]>::from(hash);
        HostEnd { name: format!("veth{a:02x}{b:02x}{c:02x}{d:02x}"), mac: Mac::local([e, f, g, h, i, j]) }
    })
}

/// Makes the pair: the host's end up and a port of the bridge, the container's end in its namespace and down.
///
/// # Errors
/// `container veth name ("eth0") ...` if the container has such an interface already, or what the kernel said.
pub fn create(
    socket: &mut Socket,
    bridge: &Link,
    netns: &Netns,
    attachment: Attachment<'_>,
    conf: &Conf,
) -> Result<Link, CniError> {
    let ifname = attachment.ifname;
    for host in host_ends(&attachment) {
        let host_end = VethEnd { name: &host.name, mac: Some(host.mac) };
        let container_end = VethEnd { name: ifname, mac: conf.mac };
        let make = link::new_veth(host_end, container_end, netns, conf.mtu, bridge.index);
        let failed = || format!("failed to make veth pair {:?} and {ifname:?}", host.name);
        let [made, found] =
            two(socket.requests(vec![make, link::get(LinkId::Name(&host.name))])).step(failed)?;
        let found = link::read(found).step(failed)?;
        match (made, found) {
            (Ok(_), Some(port)) => return finish(socket, port, conf),
            // The host's name is taken, by the end of an earlier attachment that the kernel has not removed yet.
            (Err(error), Some(_)) if error.errno == Errno::EEXIST => continue,
            (Err(error), None) if error.errno == Errno::EEXIST => return Err(name_taken(ifname, &host.name)),
            (Err(error), _) => return Err(error).step(failed),
            (Ok(_), None) => return Err(CniError::internal(format!("{}: it is gone again", failed()))),
        }
    }
    Err(CniError::internal(format!(
        "failed to make veth pair for {ifname:?}: every name for the host's end is taken"
    )))
}

/// The error for an interface name that the container uses already.
pub fn name_taken(ifname: &str, host: &str) -> CniError {
    CniError::internal(format!("container veth name ({ifname:?}) peer provided ({host:?}) already exists"))
}

fn finish(socket: &mut Socket, port: Link, conf: &Conf) -> Result<Link, CniError> {
    ignore_router_advertisements(&port.name);
    if conf.hairpin {
        let set = socket.request(link::set_hairpin(port.index, true));
        set.inspect_err(|_| remove(socket, &port)).step(|| format!("set hairpin mode of {:?}", port.name))?;
    }
    Ok(port)
}

/// Removes the pair after a failure, of which its own outcome is not to distract.
pub fn remove(socket: &mut Socket, port: &Link) {
    if let Err(error) = socket.request(link::delete(LinkId::Index(port.index))) {
        eprintln!("removing {:?} after the failed ADD: {error}", port.name);
    }
}

/// Waits for the port to be ready, and returns it and the bridge as they are then.
///
/// # Errors
/// The reference's `bridge port in error state: ...`.
pub fn settle(socket: &mut Socket, port: &Link, bridge: &Link) -> Result<(Link, Link), CniError> {
    let end = Instant::now() + PORT_PATIENCE;
    let mut pause = Duration::from_micros(100);
    loop {
        let lookup = || format!("look up {:?} and {:?}", port.name, bridge.name);
        let requests = vec![link::get(LinkId::Index(port.index)), link::get(LinkId::Index(bridge.index))];
        let [port_now, bridge_now] = two(socket.requests(requests)).step(lookup)?;
        let (port_now, bridge_now) =
            (link::read(port_now).step(lookup)?, link::read(bridge_now).step(lookup)?);
        let (Some(port_now), Some(bridge_now)) = (port_now, bridge_now) else {
            return Err(CniError::internal(format!("{}: gone while the container was attached", lookup())));
        };
        if port_now.operstate == OPER_UP {
            return Ok((port_now, bridge_now));
        }
        if Instant::now() >= end {
            return Err(CniError::internal("bridge port in error state: down")
                .with_details(format!("operational state of {:?} is {}", port.name, port_now.operstate)));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Removes the pair of an attachment: through the container's end if that can be had, else through the host's.
///
/// # Errors
/// What the kernel said; a link that is gone is none.
pub fn delete(
    netns: Option<&Netns>,
    attachment: Attachment<'_>,
    result: Option<&AddResult>,
) -> Result<(), CniError> {
    let ifname = attachment.ifname;
    if let Some(netns) = netns {
        let mut container = Container::open(netns, ifname)?;
        let step = || format!("remove {ifname:?} from the container");
        if delete_link(&mut container.socket, LinkId::Name(ifname)).step(step)? {
            return Ok(());
        }
    }
    delete_host_end(attachment, result)
}

/// Removes the host's end: the one in the result, or those that the attachment's identity stands for. Usually there is none,
/// since the kernel removes it with the container's end or its namespace.
fn delete_host_end(attachment: Attachment<'_>, result: Option<&AddResult>) -> Result<(), CniError> {
    let mut ends: Vec<HostEnd> = host_ends(&attachment).collect();
    let reported = result.map(|result| result.interfaces.as_slice()).unwrap_or_default();
    for interface in reported.iter().filter(|interface| interface.sandbox.is_empty()) {
        if let Ok(mac) = interface.mac.parse() {
            ends.push(HostEnd { name: interface.name.clone(), mac });
        }
    }
    let mut socket = Socket::route().step(|| "open a netlink socket")?;
    let answers = socket.requests(ends.iter().map(|end| link::get(LinkId::Name(&end.name))).collect());
    let mut failures = Failures::default();
    for (end, answer) in ends.iter().zip(answers) {
        let step = || format!("remove {:?}", end.name);
        let Some(Some(link)) = failures.keep(link::read(answer).step(step)) else { continue };
        // Only a veth with the very address: a name alone may have passed to another attachment, or be the bridge's.
        if link.kind == KIND && link.mac == end.mac {
            failures.keep(delete_link(&mut socket, LinkId::Index(link.index)).step(step));
        }
    }
    failures.into_result()
}

/// Whether there was such a link, which is gone now.
fn delete_link(socket: &mut Socket, id: LinkId<'_>) -> Result<bool, netlink::Error> {
    match socket.request(link::delete(id)) {
        Ok(_) => Ok(true),
        Err(error) if error.errno == Errno::ENODEV => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_ends_follow_from_the_identity() {
        let ends = |network, container_id, ifname| {
            host_ends(&Attachment { network, container_id, ifname }).collect::<Vec<_>>()
        };
        let own = ends("net", "id", "eth0");
        assert_eq!(own, ends("net", "id", "eth0"));
        assert_eq!(own.len(), usize::from(CANDIDATES));
        assert!(own.iter().all(|end| end.name.len() == 12 && end.mac.is_unicast()));
        assert_ne!(own[0].name, own[1].name);
        // Parts do not run into each other.
        assert_ne!(own, ends("neti", "d", "eth0"));
        assert_ne!(own, ends("net", "ideth", "0"));
    }
}
