//! What there is: the container's link, its peer on the host, and what hangs on that.

use cni_common::netlink::filter::{AT_CLSACT_INGRESS, AT_INGRESS, Filter};
use cni_common::netlink::link::{self, Link, LinkId};
use cni_common::netlink::qdisc::{self, Qdisc};
use cni_common::netlink::{Answer, Error, Message, Socket, nsid};
use cni_common::netns::Netns;
use cni_common::spec::{CniError, Step};

use crate::owner;
use cni_common::plugin::Attachment;

/// The kind of link that has a peer.
const VETH: &str = "veth";
/// The kind of hook that a filter can share with filters on what the link sends.
const CLSACT: &str = "clsact";

/// The hook for filters on what a link receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its kind, `ingress` or `clsact`.
    pub kind: String,
    /// What is at it, in order.
    pub filters: Vec<Filter>,
}

impl Hook {
    /// The parent that its filters have.
    pub fn parent(&self) -> u32 {
        if self.kind == CLSACT { AT_CLSACT_INGRESS } else { AT_INGRESS }
    }
}

/// The container's peer on the host, and what hangs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The link.
    pub link: Link,
    /// The discipline of what it sends.
    pub root: Option<Qdisc>,
    /// The hook for what it receives.
    pub hook: Option<Hook>,
}

/// The links that have the names of the attachment's IFB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ifbs {
    /// By the name that the reference knows.
    pub shared: Option<Link>,
    /// By the name that no other interface has.
    pub own: Option<Link>,
}

/// Looks up the container's link, in its namespace.
///
/// # Errors
/// The reference's, if there is none or if it is no veth; what the kernel said.
pub fn container(netns: &Netns, ifname: &str) -> Result<Link, CniError> {
    let no_peer =
        |why: String| CniError::internal(format!("container interface {ifname} has no veth peer: {why}"));
    let found = netns.enter(|| {
        let mut socket = Socket::route().step(|| "open a netlink socket in the container")?;
        socket.link(LinkId::Name(ifname)).step(|| format!("look up {ifname:?} in the container"))
    })?;
    let link = found.ok_or_else(|| no_peer(format!("could not look up {ifname:?}: Link not found")))?;
    if link.kind != VETH || link.peer.is_none() {
        return Err(no_peer(format!("interface {ifname:?} was not a veth interface")));
    }
    Ok(link)
}

/// Reads everything about an attachment at once; the filters in a second round, if there can be any and `with_filters`.
///
/// The kernel itself proves that the host's link is the container's peer: it names the container's link as its own peer, in
/// the namespace that CNI_NETNS is. So it does not matter whether a plugin before this one reported it.
///
/// # Errors
/// `veth peer with index N is not in host ns`, or what the kernel said.
pub fn read(
    socket: &mut Socket,
    netns: &Netns,
    container: &Link,
    owner: &Attachment<'_>,
    with_filters: bool,
) -> Result<(Host, Ifbs), CniError> {
    let index = container.peer.unwrap_or_default();
    let lookup = || format!("look up the host's end of {:?}", container.name);
    // The link before its namespace's number: looking at the link makes sure that there is one.
    let mut requests = host_requests(index);
    requests.push(nsid::get(netns));
    requests.extend(ifb_requests(owner));
    let answers = socket.requests(requests);
    let [link, root, hook, nsid, shared, own] = <[Answer; 6]>::try_from(answers).map_err(|_| cut_short())?;

    let is_peer = |link: &Link, number: Option<i32>| {
        link.kind == VETH
            && link.peer == Some(container.index)
            && number.is_some()
            && link.peer_netns == number
    };
    let number = nsid::read(nsid).step(|| "look up the number of the container's namespace")?;
    let link = link::read(link).step(lookup)?.filter(|link| is_peer(link, number));
    let link =
        link.ok_or_else(|| CniError::internal(format!("veth peer with index {index} is not in host ns")))?;
    let host = read_host(socket, link, root, hook, with_filters)?;
    Ok((host, read_ifbs(owner, shared, own)?))
}

/// Reads the attachment's IFBs alone.
///
/// # Errors
/// What the kernel said.
pub fn ifbs(socket: &mut Socket, owner: &Attachment<'_>) -> Result<Ifbs, CniError> {
    let answers = socket.requests(ifb_requests(owner).into());
    let [shared, own] = <[Answer; 2]>::try_from(answers).map_err(|_| cut_short())?;
    read_ifbs(owner, shared, own)
}

/// Reads a veth on the host by its index, `None` if there is none.
///
/// # Errors
/// What the kernel said.
pub fn veth(socket: &mut Socket, index: u32) -> Result<Option<Host>, CniError> {
    let answers = socket.requests(host_requests(index));
    let [link, root, hook] = <[Answer; 3]>::try_from(answers).map_err(|_| cut_short())?;
    let link = link::read(link).step(|| format!("look up link {index}"))?;
    link.filter(|link| link.kind == VETH).map(|link| read_host(socket, link, root, hook, true)).transpose()
}

fn host_requests(index: u32) -> Vec<Message> {
    vec![link::get(LinkId::Index(index)), qdisc::get(index, qdisc::ROOT), qdisc::get(index, qdisc::INGRESS)]
}

fn ifb_requests(owner: &Attachment<'_>) -> [Message; 2] {
    [owner::shared_name(owner), owner::own_name(owner)].map(|name| link::get(LinkId::Name(&name)))
}

fn read_ifbs(owner: &Attachment<'_>, shared: Answer, own: Answer) -> Result<Ifbs, CniError> {
    Ok(Ifbs {
        shared: link::read(shared).step(|| format!("look up {:?}", owner::shared_name(owner)))?,
        own: link::read(own).step(|| format!("look up {:?}", owner::own_name(owner)))?,
    })
}

fn read_host(
    socket: &mut Socket,
    link: Link,
    root: Answer,
    hook: Answer,
    filters: bool,
) -> Result<Host, CniError> {
    let list = || format!("look up the qdiscs of {:?}", link.name);
    let root = qdisc::read(root).step(list)?;
    let hook = qdisc::read(hook).step(list)?.map(|qdisc| Hook { kind: qdisc.kind, filters: Vec::new() });
    let mut host = Host { link, root, hook };
    if let Some(hook) = host.hook.as_mut().filter(|_| filters) {
        let found: Result<_, Error> = socket.filters(host.link.index, hook.parent());
        hook.filters = found.step(|| format!("list the filters of {:?}", host.link.name))?;
    }
    Ok(host)
}

/// Only if a socket were to lose answers, which it reports as errors.
fn cut_short() -> CniError {
    CniError::internal("the kernel's answer was cut short")
}
