//! The veth pair between the container and the host, or the netkit pair, which is used in the same way.

use std::os::fd::AsFd as _;

use cni_common::netns::Netns;
use cni_common::plugin::Attachment;
use cni_common::spec::{AddResult, CniError, Code, Context, Failures};
use ferrule_kernel::netlink::link::{self, IFF_UP, NewLink};
use ferrule_kernel::netlink::{
    Answer, Link, LinkId, Mac, Socket, addr, deferred, devconf, may_be_done, nsid,
};
use nix::errno::Errno;

use crate::config::LinkConf;
use crate::container::Container;
use crate::hash::{identity, sha512};
use crate::leftover;
use crate::socket;
use crate::steps::{Step, report_undo};
use crate::sysctl::ignore_router_advertisements;

/// The kernel's link type.
pub const KIND: &str = "veth";
/// The other link type, since Linux 6.7.
pub const NETKIT: &str = "netkit";
/// How many names are tried for the host's end. The kernel may not have removed the end of an earlier
/// attachment with the same identity yet.
const CANDIDATES: u8 = 4;

/// Name and MAC address of the host's end. The name is `veth` and eight hexadecimal digits, like the reference's names. The
/// address is a locally administered unicast one. Both are derived from network, container ID and ifname: a DEL
/// without namespace and result can find the link, and both together tell it from another plugin's link.
type HostEnd = (String, Mac);

/// Name and MAC address that ADD may give to the host's end of the attachment, in the order in which it tries them.
pub fn names(attachment: &Attachment<'_>) -> impl Iterator<Item = (String, Mac)> + use<> {
    let identity = identity(attachment);
    (0..CANDIDATES).map(move |candidate| {
        let [a, b, c, d, e, f, g, h, i, j, ..] = sha512(&format!("{identity}{}", char::from(candidate)));
        (format!("veth{a:02x}{b:02x}{c:02x}{d:02x}"), Mac::local([e, f, g, h, i, j]))
    })
}

/// Creates a pair of `kind`: [`KIND`] or [`NETKIT`]. The host's end is a port of `master`, an index; the container's end is in its
/// namespace. Both are down. Returns the host's end, which [`set_up`] sets up when the container's end is ready.
///
/// # Errors
/// `container veth name ("eth0") ...` if the container already has such an interface; code 2 if the kernel has no links of this
/// kind; or the kernel's error. The pair then does not exist, even if the kernel's answer is lost.
pub fn create(
    socket: &mut Socket,
    kind: &str,
    netns: &Netns,
    attachment: &Attachment<'_>,
    conf: &LinkConf,
    master: Option<u32>,
) -> Result<Link, CniError> {
    let ifname = attachment.ifname;
    for (name, mac) in names(attachment) {
        let end = NewLink { kind, mtu: conf.mtu, ..NewLink::default() };
        let host_end = NewLink { name: &name, mac: Some(mac), master, ..end };
        let container_end = NewLink { name: ifname, mac: conf.mac, netns: Some(netns.as_fd()), ..end };
        let new_pair = if kind == NETKIT { link::new_netkit } else { link::new_veth };
        let make = new_pair(&host_end, &container_end);
        let failed = || format!("failed to make {kind} pair {name:?} and {ifname:?}");
        let [made, found] = socket.request_each([make, link::get(LinkId::Name(&name))]);
        let exists = matches!(&made, Err(error) if error.errno == Errno::EEXIST);
        let may_be_made = may_be_done(&made);
        let error = match (made, link::read(found)) {
            (Ok(_), Ok(Some(end))) => {
                if end.accepts_ra {
                    ignore_router_advertisements(&end.name);
                }
                return Ok(end);
            }
            // The host's name is taken: the kernel has not removed an earlier attachment's end yet.
            (_, Ok(Some(_))) if exists => continue,
            (_, Ok(None)) if exists => return Err(name_taken(ifname, &name)),
            (Err(error), _) if error.errno == Errno::EOPNOTSUPP => {
                let msg = format!("the kernel has no links of type {kind:?}: {error}");
                return Err(CniError::new(Code::UnsupportedField, msg).with_details(failed()));
            }
            (Err(error), _) | (Ok(_), Err(error)) => Err(error).context(failed),
            (Ok(_), Ok(None)) => Err(CniError::internal(format!("{}: the new link disappeared", failed()))),
        };
        if may_be_made {
            report_undo(delete_ends(socket, &[(name, mac)]));
        }
        return error;
    }
    Err(CniError::internal(format!(
        "failed to make veth pair for {ifname:?}: all {CANDIDATES} names for the host's end exist"
    )))
}

/// The requests that set the host's end up. While it is up without a carrier, each request about it makes the kernel walk all IPv6
/// routes of the node, so the container's end comes up first. It gets no link-local address from the kernel: those of
/// all pods are one list of routes, and with forwarding the release of such an address costs DEL a grace period of its own.
pub fn set_up(end: &Link) -> [Step; 2] {
    let name = &end.name;
    let what = format!("keep the kernel from giving {name:?} a link-local address");
    // A link without IPv6, or a kernel.
    let none = Step::new(what, devconf::set_no_link_local(end.index)).unless(&[Errno::EAFNOSUPPORT]);
    [none, Step::new(format!("set {name:?} up"), link::set_flags(end.index, IFF_UP, IFF_UP))]
}

/// Checks that the container has no such interface yet. ADD does this before IPAM ADD: a second ADD must fail
/// without IPAM DEL, which would release the address of the first ADD.
pub fn check_name(container: &mut Container<'_>, attachment: &Attachment<'_>) -> Result<(), CniError> {
    if container.interface()?.is_none() {
        return Ok(());
    }
    let host = names(attachment).next().map_or(String::new(), |(name, _)| name);
    Err(name_taken(attachment.ifname, &host))
}

/// The reference's error for an interface name that already exists in the container.
fn name_taken(ifname: &str, host: &str) -> CniError {
    CniError::internal(format!("container veth name ({ifname:?}) peer provided ({host:?}) already exists"))
}

/// Removes the attachment's pair: the link of its name in the container, and the host's end. The container may have given
/// the name to another link, but it cannot change the host's end. Then no link of the container has an address of the attachment any
/// more. A missing link is success.
pub fn delete(
    netns: Option<&Netns>,
    attachment: &Attachment<'_>,
    result: Option<&AddResult>,
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let ends = possible_ends(attachment, result);
    if deferred::has_links() {
        // If this fails, the steps below do it.
        let _ = socket::route().map(|mut socket| {
            let found = existing(&mut socket, &ends, &mut Failures::default());
            socket.delete_with_deferred(&found);
        });
    }
    let container = netns.map(|netns| delete_in(netns, attachment.ifname)).transpose();
    let container = failures.keep(container).flatten();
    // Usually the kernel has already removed it together with the container's end or its namespace.
    failures.keep(socket::route().and_then(|mut socket| delete_ends(&mut socket, &ends)));
    if let Some((mut socket, listed)) = container {
        let former = leftover::former_addresses(result, attachment.ifname);
        failures.keep(leftover::remove_addresses(&mut socket, &former, listed));
    }
    failures.into_result()
}

/// Removes the link of this name in the container, unless the kernel removes no links of its kind, such as `lo`: it is no pair
/// then. Returns a socket in the container, and the addresses of all its links.
fn delete_in(netns: &Netns, ifname: &str) -> Result<(Socket, Answer), CniError> {
    let mut socket = socket::route_in(netns)?.with_whole_dumps();
    let [removed, listed] = socket.request_each([link::delete(LinkId::Name(ifname)), addr::list(0)]);
    match removed {
        Err(error) if !matches!(error.errno, Errno::ENODEV | Errno::EOPNOTSUPP) => {
            Err(error).context(|| format!("remove {ifname:?} from the container"))
        }
        _ => Ok((socket, listed)),
    }
}

/// The host's end that `result` reports. Without a result of this plugin, also those derived from the attachment's identity.
fn possible_ends(attachment: &Attachment<'_>, result: Option<&AddResult>) -> Vec<HostEnd> {
    let mut ends: Vec<HostEnd> = names(attachment).collect();
    let reported = result.into_iter().flat_map(|result| &result.interfaces).filter(|i| i.sandbox.is_empty());
    for interface in reported {
        let Ok(mac) = interface.mac.parse() else { continue };
        let end = (interface.name.clone(), mac);
        if ends.contains(&end) {
            return vec![end];
        }
        ends.push(end);
    }
    ends
}

/// Removes those of the host ends that exist. Compares kind and MAC address: another link may have got the name,
/// and results also report the bridge, or the gateway of a VLAN, which is a pair with both ends on the node.
fn delete_ends(socket: &mut Socket, ends: &[HostEnd]) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for link in existing(socket, ends, &mut failures) {
        let deleted = socket.delete_link(LinkId::Index(link.index));
        failures.keep(deleted.context(|| format!("remove {:?}", link.name)));
    }
    failures.into_result()
}

/// Those of the host ends that exist.
fn existing(socket: &mut Socket, ends: &[HostEnd], failures: &mut Failures) -> Vec<Link> {
    let answers = socket.requests(ends.iter().map(|(name, _)| link::get(LinkId::Name(name))).collect());
    let mut found = Vec::new();
    for ((name, mac), answer) in ends.iter().zip(answers) {
        let read = link::read(answer).context(|| format!("remove {name:?}"));
        let is_end = |link: &Link| {
            [KIND, NETKIT].contains(&link.kind.as_str()) && link.peer_netns.is_some() && link.mac == *mac
        };
        found.extend(failures.keep(read).flatten().filter(is_end));
    }
    found
}

/// The host's end of the container's `link`, a veth or netkit. `None` if its peer is not in the namespace of the socket.
pub fn host_end(socket: &mut Socket, netns: &Netns, link: &Link) -> Result<Option<Link>, CniError> {
    let Some(index) = link.peer else { return Ok(None) };
    let step = || format!("look up the host's end of {:?}", link.name);
    // Request the link before its namespace ID: reading the link makes the kernel assign the ID.
    let [host, id] = socket.request_each([link::get(LinkId::Index(index)), nsid::get(netns.as_fd())]);
    let id = nsid::read(id).context(step)?;
    Ok(link::read(host).context(step)?.filter(|host| is_host_end(host, link, id)))
}

/// Whether `host` is the peer of the container's link, a veth or netkit. `netns` is the ID of the container's namespace in that of
/// `host`.
pub fn is_host_end(host: &Link, container: &Link, netns: Option<i32>) -> bool {
    host.kind == container.kind
        && host.peer == Some(container.index)
        && netns.is_some()
        && host.peer_netns == netns
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Interface;

    use super::*;

    #[test]
    fn host_ends_are_derived_from_the_identity() {
        let ends = |network, container_id, ifname| {
            names(&Attachment { network, container_id, ifname }).collect::<Vec<_>>()
        };
        let own = ends("net", "id", "eth0");
        assert_eq!(own, ends("net", "id", "eth0"));
        assert_eq!(own.len(), usize::from(CANDIDATES));
        assert!(own.iter().all(|(name, mac)| name.len() == 12 && mac.is_unicast()));
        assert_ne!(own[0].0, own[1].0);
        // A result says which one ADD has made; that of the reference has another name.
        let interface = |name: &str, mac: Mac| Interface {
            name: name.to_owned(),
            mac: mac.to_string(),
            ..Interface::default()
        };
        let attachment = Attachment { network: "net", container_id: "id", ifname: "eth0" };
        let reported = |end: &HostEnd| {
            let interfaces = vec![interface("cni0", Mac([2; 6])), interface(&end.0, end.1)];
            possible_ends(&attachment, Some(&AddResult { interfaces, ..AddResult::default() }))
        };
        assert_eq!(reported(&own[2]), [own[2].clone()]);
        let theirs = ("veth1".to_owned(), own[0].1);
        assert_eq!((reported(&theirs).len(), possible_ends(&attachment, None)), (own.len() + 2, own.clone()));
        // The separators keep neighbouring parts apart.
        assert_ne!(own, ends("neti", "d", "eth0"));
        assert_ne!(own, ends("net", "ideth", "0"));
    }
}
