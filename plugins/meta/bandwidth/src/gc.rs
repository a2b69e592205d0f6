//! GC: removes the IFBs of attachments that are not valid. If DEL was lost, only they remain: all other
//! objects belong to a link that the kernel deletes with the namespace.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::Duration;

use cni_common::plugin::{Attachment, GcRequest};
use cni_common::spec::{CniError, Context, ValidAttachment};
use ferrule_kernel::netlink::link::{Link, LinkId};
use ferrule_kernel::netlink::{Socket, ifb};
use ferrule_kit::socket;
use ferrule_kit::steps::run_all;

use crate::del::remove_ifb;
use crate::owner::{self, Alias, is_ifb_name};
use crate::state;

/// How long an IFB without an alias must be unused before GC removes it. During an ADD of the reference, its
/// IFB is unused for a short time, before the filter is added.
const UNUSED_TIME: Duration = Duration::from_millis(100);

/// Removes the network's IFBs that have no valid attachment.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let network = call.config.name();
    let is_protected = protected(network, call.valid);
    let mut socket = socket::route()?;
    let links = socket.links(Some(ifb::KIND)).context(|| "list the ifb devices")?;
    let ours = links.into_iter().filter(|link| is_ifb_name(&link.name));
    let (mut to_remove, without_alias): (Vec<Link>, Vec<Link>) =
        ours.filter(|link| !is_protected(link)).partition(|link| !link.alias.is_empty());
    to_remove.extend(unused(&mut socket, without_alias)?);
    run_all(&mut socket, to_remove.iter().map(remove_ifb).collect())
}

/// Removes those of these IFBs that no filter redirects to, that still have their names and aliases, and whose owners are dead: `are_dead`
/// is asked once some are found, for one answer for each. One without an alias may belong to an ADD of the reference that has not
/// added the filter yet, so it must be unused for a time. Returns for each whether it is removed.
///
/// # Errors
/// The kernel's error.
pub fn remove(
    socket: &mut Socket,
    ifbs: &[Link],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let found: HashMap<u32, Link> = match ifbs {
        [ifb] => {
            let found = socket.link(LinkId::Index(ifb.index)).context(|| format!("find {:?}", ifb.name))?;
            found.into_iter().map(|link| (link.index, link)).collect()
        }
        _ => {
            let found = socket.links(Some(ifb::KIND)).context(|| "list the ifb devices")?;
            found.into_iter().map(|link| (link.index, link)).collect()
        }
    };
    let is_same = |ifb: &&Link| {
        found.get(&ifb.index).is_some_and(|link| (&link.name, &link.alias) == (&ifb.name, &ifb.alias))
    };
    let (nameless, named): (Vec<Link>, Vec<Link>) =
        ifbs.iter().filter(is_same).cloned().partition(|link| link.alias.is_empty());
    let mut unused = unused(socket, nameless)?;
    if !named.is_empty() {
        let used = used(socket)?;
        unused.extend(named.into_iter().filter(|link| !used.contains(&link.index)));
    }
    if unused.is_empty() {
        return Ok(vec![false; ifbs.len()]);
    }
    let answers = ifbs.iter().zip(are_dead());
    let dead: HashSet<u32> = answers.filter(|(_, is_dead)| *is_dead).map(|(ifb, _)| ifb.index).collect();
    unused.retain(|link| dead.contains(&link.index));
    run_all(socket, unused.iter().map(remove_ifb).collect())?;
    Ok(ifbs.iter().map(|ifb| unused.iter().any(|link| link.index == ifb.index)).collect())
}

/// Whether an IFB belongs to a valid attachment, to another network or to another program.
fn protected<'a>(network: &'a str, valid: &[ValidAttachment]) -> impl Fn(&Link) -> bool + use<'a> {
    let keys = Attachment::keys(network, valid, owner::key);
    let names = Attachment::keys(network, valid, owner::shared_name);
    move |link| match Alias::parse(&link.alias) {
        Some(alias) => !alias.is_on(network) || keys.contains(&alias.key()),
        None => !link.alias.is_empty() || names.contains(&link.name),
    }
}

/// The IFBs that no veth redirects to. An IFB without an alias names its network only as part of a hash, so
/// GC looks for filters of any network that use it.
fn unused(socket: &mut Socket, mut links: Vec<Link>) -> Result<Vec<Link>, CniError> {
    for delay in [Duration::ZERO, UNUSED_TIME] {
        if links.is_empty() {
            break;
        }
        thread::sleep(delay);
        let used = used(socket)?;
        links.retain(|link| !used.contains(&link.index));
    }
    Ok(links)
}

/// The indices of all links that a filter of a veth redirects to.
pub fn used(socket: &mut Socket) -> Result<Vec<u32>, CniError> {
    let mut used = Vec::new();
    for veth in socket.links(Some("veth")).context(|| "list the veth devices")? {
        let ingress_qdisc = state::veth(socket, veth.index)?.and_then(|host| host.ingress_qdisc);
        used.extend(
            ingress_qdisc.iter().flat_map(|qdisc| &qdisc.filters).filter_map(|filter| filter.redirect),
        );
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invalid_attachments_of_this_network_are_removed() {
        let owner = |network, container_id| Attachment { network, container_id, ifname: "eth0" };
        let link = |name: String, alias: String| Link { name, alias, ..Link::default() };
        let with_alias = |owner: Attachment<'_>| {
            link(owner::shared_name(&owner), owner::alias(&owner, 3, true).to_string())
        };
        let one = owner("pods", "one");
        let valid = [ValidAttachment { container_id: "one".to_owned(), ifname: "eth0".to_owned() }];
        let protects = |link| super::protected("pods", &valid)(&link);
        assert!(protects(with_alias(one)));
        assert!(!protects(with_alias(owner("pods", "two"))));
        assert!(!protects(with_alias(Attachment { ifname: "eth1", ..one })));
        assert!(protects(with_alias(owner("other", "two"))));
        assert!(protects(link(owner::shared_name(&one), String::new())));
        assert!(!protects(link(owner::shared_name(&owner("pods", "two")), String::new())));
        assert!(protects(link("bwp000000000000".to_owned(), "another program's".to_owned())));
    }
}
