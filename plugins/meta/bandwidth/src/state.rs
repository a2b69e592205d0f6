//! Reads the kernel's state: the container's link, its peer on the host, and the qdiscs and filters of that
//! peer.

use ferrule_kernel::netlink::filter::{self, AT_CLSACT_INGRESS, AT_INGRESS, Filter};
use ferrule_kernel::netlink::link::{self, Link, LinkId};
use ferrule_kernel::netlink::qdisc::{self, Qdisc};
use ferrule_kernel::netlink::{Answer, Message, Socket, nsid};
use nix::errno::Errno;
use std::os::fd::AsFd as _;

use cni_common::netns::Netns;
use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Context};
use ferrule_kit::container::Container;
use ferrule_kit::veth;

use crate::owner;

/// The kind of a qdisc that has both ingress and egress filters.
const CLSACT: &str = "clsact";

/// An ingress or clsact qdisc: where the filters for received packets are attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressQdisc {
    /// `ingress` or `clsact`.
    pub kind: String,
    /// Its ingress filters, in order.
    pub filters: Vec<Filter>,
}

impl IngressQdisc {
    /// The parent handle of its ingress filters.
    pub fn parent(&self) -> u32 {
        if self.kind == CLSACT { AT_CLSACT_INGRESS } else { AT_INGRESS }
    }
}

/// The host's end of the veth, with its qdiscs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The link.
    pub link: Link,
    /// The root qdisc.
    pub root: Option<Qdisc>,
    /// The ingress or clsact qdisc.
    pub ingress_qdisc: Option<IngressQdisc>,
}

/// The links with the possible names of the attachment's IFB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ifbs {
    /// The link with the reference's name.
    pub shared: Option<Link>,
    /// The link with the name that is unique to the interface.
    pub own: Option<Link>,
}

/// Finds the container's link in its namespace.
///
/// # Errors
/// The reference's texts if the link does not exist or is not a veth, or the kernel's error.
pub fn container(netns: &Netns, ifname: &str) -> Result<Link, CniError> {
    let no_peer =
        |why: String| CniError::internal(format!("container interface {ifname} has no veth peer: {why}"));
    let found = Container::open(netns, ifname)?.interface()?;
    let link = found.ok_or_else(|| no_peer(format!("could not look up {ifname:?}: Link not found")))?;
    if link.kind != veth::KIND || link.peer.is_none() {
        return Err(no_peer(format!("interface {ifname:?} was not a veth interface")));
    }
    Ok(link)
}

/// Whether [`read`] reads the filters of the ingress qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filters {
    /// No.
    Omit,
    /// Yes, if the qdisc exists. The caller does not expect it to, so that costs another round trip.
    IfPresent,
    /// Yes. The caller expects the qdisc to exist, so they are requested together with it.
    Expected,
}

/// Reads the state of an attachment in one batch. Only the filters may need a second one.
///
/// The kernel proves that the host's link is the container's peer: its peer index is the container's link,
/// and its peer namespace is CNI_NETNS. Whether an earlier plugin reported it does not matter.
///
/// # Errors
/// `veth peer with index N is not in host ns`, or the kernel's error.
pub fn read(
    socket: &mut Socket,
    netns: &Netns,
    container: &Link,
    owner: &Attachment<'_>,
    filters: Filters,
) -> Result<(Host, Ifbs), CniError> {
    let index = container.peer.unwrap_or_default();
    let find = || format!("find the host's end of {:?}", container.name);
    // Request the link before its namespace ID: reading the link makes the kernel assign the ID.
    let [link, root, ingress_qdisc] = host_requests(index);
    let [shared, own] = ifb_requests(owner);
    let mut requests = vec![link, root, ingress_qdisc, nsid::get(netns.as_fd()), shared, own];
    if filters == Filters::Expected {
        requests.push(filter::list(index, AT_INGRESS));
    }
    let mut answers = socket.requests(requests).into_iter();
    let [link, root, ingress_qdisc, nsid, shared, own] =
        std::array::from_fn(|_| answers.next().unwrap_or(Err(Errno::EPROTO.into())));
    let at_ingress = answers.next();

    let number = nsid::read(nsid).context(|| "read the number of the container's namespace")?;
    let link = link::read(link).context(find)?.filter(|link| veth::is_host_end(link, container, number));
    let link =
        link.ok_or_else(|| CniError::internal(format!("veth peer with index {index} is not in host ns")))?;
    let mut host = read_host(link, root, ingress_qdisc)?;
    if filters != Filters::Omit {
        read_filters(socket, &mut host, at_ingress)?;
    }
    Ok((host, read_ifbs(owner, shared, own)?))
}

/// Reads only the attachment's IFBs.
pub fn ifbs(socket: &mut Socket, owner: &Attachment<'_>) -> Result<Ifbs, CniError> {
    let [shared, own] = socket.request_each(ifb_requests(owner));
    read_ifbs(owner, shared, own)
}

/// Reads the veth with this index on the host; `None` if there is no such veth.
pub fn veth(socket: &mut Socket, index: u32) -> Result<Option<Host>, CniError> {
    let [link, root, ingress_qdisc] = socket.request_each(host_requests(index));
    let link = link::read(link).context(|| format!("find link {index}"))?;
    let Some(link) = link.filter(|link| link.kind == veth::KIND) else { return Ok(None) };
    let Some(mut host) = unless_gone(link, root, ingress_qdisc)? else { return Ok(None) };
    read_filters(socket, &mut host, None)?;
    Ok(Some(host))
}

/// [`read_host`]; `None` if the kernel has removed the link after it was looked up, as the end of a namespace does.
fn unless_gone(link: Link, root: Answer, ingress_qdisc: Answer) -> Result<Option<Host>, CniError> {
    let is_gone = |answer: &Answer| answer.as_ref().is_err_and(|error| error.errno == Errno::ENODEV);
    if is_gone(&root) || is_gone(&ingress_qdisc) {
        return Ok(None);
    }
    read_host(link, root, ingress_qdisc).map(Some)
}

fn host_requests(index: u32) -> [Message; 3] {
    [link::get(LinkId::Index(index)), qdisc::get(index, qdisc::ROOT), qdisc::get(index, qdisc::INGRESS)]
}

fn ifb_requests(owner: &Attachment<'_>) -> [Message; 2] {
    [owner::shared_name(owner), owner::own_name(owner)].map(|name| link::get(LinkId::Name(&name)))
}

fn read_ifbs(owner: &Attachment<'_>, shared: Answer, own: Answer) -> Result<Ifbs, CniError> {
    Ok(Ifbs {
        shared: link::read(shared).context(|| format!("find {:?}", owner::shared_name(owner)))?,
        own: link::read(own).context(|| format!("find {:?}", owner::own_name(owner)))?,
    })
}

fn read_host(link: Link, root: Answer, ingress_qdisc: Answer) -> Result<Host, CniError> {
    let list = || format!("read the qdiscs of {:?}", link.name);
    let root = qdisc::read(root).context(list)?;
    let ingress_qdisc = qdisc::read(ingress_qdisc)
        .context(list)?
        .map(|qdisc| IngressQdisc { kind: qdisc.kind, filters: Vec::new() });
    Ok(Host { link, root, ingress_qdisc })
}

/// Reads the filters of the ingress qdisc, if there is one. `at_ingress` are those of [`AT_INGRESS`], if they have
/// been requested.
fn read_filters(socket: &mut Socket, host: &mut Host, at_ingress: Option<Answer>) -> Result<(), CniError> {
    let Some(qdisc) = &mut host.ingress_qdisc else { return Ok(()) };
    let found = match at_ingress {
        Some(answer) if qdisc.parent() == AT_INGRESS => filter::read(answer),
        _ => socket.filters(host.link.index, qdisc.parent()),
    };
    qdisc.filters = found.context(|| format!("list the filters of {:?}", host.link.name))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_goes_away_meanwhile_is_no_error() {
        let gone = || Err(Errno::ENODEV.into());
        assert!(unless_gone(Link::default(), gone(), gone()).unwrap().is_none());
        assert!(unless_gone(Link::default(), Ok(Vec::new()), gone()).unwrap().is_none());
        assert!(unless_gone(Link::default(), Err(Errno::EIO.into()), Ok(Vec::new())).is_err());
    }
}
