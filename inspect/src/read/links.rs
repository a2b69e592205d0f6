//! Host ends of pairs, IFBs, and the limits on both.

use std::cell::OnceCell;

use cni_common::spec::CniError;
use ferrule_bandwidth::gc::{remove_if, used};
use ferrule_bandwidth::owner::{self, Alias, is_ifb_name};
use ferrule_kernel::netlink::link::Counters;
use ferrule_kernel::netlink::qdisc::{Listed, ROOT};
use ferrule_kernel::netlink::{Link, Mac, ifb};
use ferrule_kit::veth;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};
use crate::named::Named;

/// Lists the links of attachments.
pub(super) fn read(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    let (ours, theirs) = (derived(scene), cached(scene));
    // Hashes of all attachments; only if an IFB has no alias.
    let shared = OnceCell::new();
    let make_shared =
        || Named::of(scene.attachments().map(|(owner, attachment)| (owner::shared_name(&attachment), owner)));
    let shared = || shared.get_or_init(make_shared);
    let limits: Vec<&Listed> =
        scene.qdiscs.iter().filter(|qdisc| qdisc.parent == ROOT && qdisc.qdisc.tbf.is_some()).collect();
    let mut in_use: Option<Vec<u32>> = None;
    for (link, counters) in &scene.links {
        let limit = limits.iter().find(|limit| limit.link == link.index);
        if link.kind == veth::KIND || link.kind == veth::NETKIT {
            let key = end(&link.name, &link.mac.to_string());
            let (owner, maker) = match (ours.get(&key), theirs.get(&key)) {
                (Some(owner), _) => ((*owner).clone(), Maker::Ferrule),
                (None, Some(owner)) => ((*owner).clone(), Maker::Reference),
                (None, None) => (Owner::default(), Maker::Either),
            };
            let mut object = host_end(scene, link, owner.clone(), maker);
            object.facts.extend(counters.iter().flat_map(passed));
            objects.push(object);
            if let Some(limit) = limit {
                let object = Object::new(
                    Kind::Limit,
                    format!("to container, on {}", link.name),
                    place(link),
                    owner,
                    maker,
                );
                objects.push(Object { facts: shape(limit), ..object });
            }
        } else if link.kind == ifb::KIND && is_ifb_name(&link.name) {
            let mut object = of_ifb(link, shared, |index| {
                let has_index =
                    |(link, _): &&(Link, Option<Counters>)| link.index == index && link.kind == veth::KIND;
                scene.links.iter().find(has_index).map(|(link, _)| link.name.clone())
            });
            if object.owner.container.is_none() && object.removal.is_some() {
                let in_use = match &in_use {
                    Some(in_use) => in_use,
                    // Reads the filters of all host ends; only if some IFB of the reference names no container.
                    None => in_use.insert(used(&mut sockets.route)?),
                };
                object.alive = in_use.contains(&link.index).then(|| "a filter redirects to it".to_owned());
            }
            object.facts.extend(limit.map(|limit| shape(limit)).unwrap_or_default());
            objects.push(object);
        }
    }
    Ok(objects)
}

/// The name of a host's end for [`Named`].
fn end(name: &str, mac: &str) -> String {
    format!("{name} {mac}")
}

/// The host ends that Ferrule has made.
fn derived(scene: &Scene) -> Named<&Owner> {
    let links = Named::of(scene.links.iter().map(|(link, _)| (end(&link.name, &link.mac.to_string()), ())));
    // ADD nearly always gets the first name, so one hash for each attachment is enough.
    Named::of(scene.attachments().filter_map(|(owner, attachment)| {
        let mut ends =
            veth::names(&attachment).map(|(name, mac): (String, Mac)| end(&name, &mac.to_string()));
        Some((ends.find(|end| links.get(end).is_some())?, owner))
    }))
}

/// The host ends in cached results.
fn cached(scene: &Scene) -> Named<&Owner> {
    let links = scene.cache.entries.iter();
    Named::of(
        links.flat_map(|entry| entry.host_links.iter().map(|(name, mac)| (end(name, mac), &entry.owner))),
    )
}

fn place(link: &Link) -> String {
    format!("link {}", link.index)
}

fn host_end(scene: &Scene, link: &Link, owner: Owner, maker: Maker) -> Object {
    let master = scene.links.iter().find(|(other, _)| Some(other.index) == link.master);
    let mut facts =
        vec![("kind", link.kind.clone()), ("mac", link.mac.to_string()), ("mtu", link.mtu.to_string())];
    facts.extend(master.map(|(master, _)| ("master", master.name.clone())));
    facts.push(("state", if link.is_up() { "up" } else { "down" }.to_owned()));
    Object { facts, ..Object::new(Kind::Link, link.name.clone(), place(link), owner, maker) }
}

/// `host_link` returns the name of the veth with an index.
fn of_ifb<'s>(
    link: &Link,
    shared: impl Fn() -> &'s Named<&'s Owner>,
    host_link: impl Fn(u32) -> Option<String>,
) -> Object {
    let alias = Alias::parse(&link.alias);
    let maker = if alias.is_some() { Maker::Ferrule } else { Maker::Reference };
    // The reference's name has a hash of network and container.
    let by_name = || shared().get(&link.name).map(|owner| Owner { ifname: None, ..(*owner).clone() });
    let named = alias.as_ref().map(|alias| alias.attachment().map(Owner::from).unwrap_or_default());
    let is_foreign = alias.is_none() && !link.alias.is_empty();
    let owner = named.or_else(by_name).unwrap_or_default();
    let is_nameless = owner.container.is_none();
    let object = Object::new(Kind::Ifb, link.name.clone(), place(link), owner, maker);
    let name = alias.as_ref().and_then(|alias| host_link(alias.veth));
    let object = Object { alive: name.map(|name| format!("its host link {name} exists")), ..object };
    if is_foreign || (is_nameless && alias.is_some()) {
        return object;
    }
    let dead = is_nameless.then(|| "no filter redirects to it, no cache entry has its name".to_owned());
    let link = link.clone();
    Object { dead, ..object }
        .removed_by(move |sockets, is_dead| remove_if(&mut sockets.route, &link, is_dead))
}

/// Bytes and drops of a link, seen from the container.
fn passed(counters: &Counters) -> [(&'static str, String); 3] {
    [
        ("to container", format!("{} B", counters.tx_bytes)),
        ("from container", format!("{} B", counters.rx_bytes)),
        ("dropped", (counters.rx_dropped + counters.tx_dropped).to_string()),
    ]
}

/// Rate, and what passed and was dropped.
fn shape(limit: &Listed) -> Vec<(&'static str, String)> {
    let rate = limit.qdisc.tbf.map_or(0, |tbf| tbf.rate * 8);
    vec![
        ("rate", format!("{rate} bit/s")),
        ("passed", format!("{} B", limit.bytes)),
        ("dropped", format!("{} packets", limit.drops)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ifb_without_owner_is_removable_only_if_the_reference_made_it() {
        let none = Named::default();
        let shared = || &none;
        let link =
            |alias: &str| Link { name: "bwpa8eda89404b7".into(), alias: alias.into(), ..Link::default() };
        let bare = of_ifb(&link(""), shared, |_| None);
        assert!(bare.removal.is_some() && bare.dead.is_some() && bare.maker == Maker::Reference);
        assert!(of_ifb(&link("uplink"), shared, |_| None).removal.is_none());
        let alias = "bandwidth network=pods container=c1 ifname=eth0 veth=12 hook=made";
        let ours = of_ifb(&link(alias), shared, |_| None);
        assert!(
            ours.removal.is_some() && ours.owner.container.as_deref() == Some("c1") && ours.dead.is_none()
        );
        let host_link = |index| (index == 12).then(|| "veth0".to_owned());
        assert_eq!(of_ifb(&link(alias), shared, host_link).alive.unwrap(), "its host link veth0 exists");
        let hashed = alias.replace("=c1", "=#0123");
        assert!(of_ifb(&link(&hashed), shared, |_| None).removal.is_none());
    }
}
