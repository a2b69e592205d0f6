//! Links: host ends of pairs, IFBs, and the limits on both; users of VLAN devices; links in containers.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};

use cni_common::spec::CniError;
use ferrule_bandwidth::gc::used;
use ferrule_bandwidth::owner::{self, Alias, is_ifb_name};
use ferrule_container_link::vlan_device;
use ferrule_kernel::netlink::link::Counters;
use ferrule_kernel::netlink::qdisc::{Listed, ROOT};
use ferrule_kernel::netlink::{Link, ifb};
use ferrule_kit::veth;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Shared, Sockets, State};

/// The links of attachments on the host, and their limits.
pub(super) fn on_host(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    let of_owner = |owner| Some((owner, scene.cache.host_end(&scene.pairs, owner)?));
    let ends = scene.attachments().filter_map(|(owner, _)| of_owner(owner));
    let ends: HashMap<u32, (&Owner, Maker)> =
        ends.map(|(owner, (link, maker))| (link.index, (owner, maker))).collect();
    let is_limit = |qdisc: &&Listed| qdisc.parent == ROOT && qdisc.qdisc.tbf.is_some();
    let limits: HashMap<u32, &Listed> =
        scene.qdiscs.iter().filter(is_limit).map(|limit| (limit.link, limit)).collect();
    // Hashes of all attachments; only if an IFB has no alias.
    let shared = LazyCell::new(|| scene.owners_by(owner::shared_name));
    let mut in_use: Option<Vec<u32>> = None;
    for (link, counters) in &scene.links {
        let limit = limits.get(&link.index).copied();
        if link.kind == veth::KIND || link.kind == veth::NETKIT {
            let (owner, maker) = match ends.get(&link.index) {
                Some((owner, maker)) => (Owner::clone(owner), *maker),
                None => (Owner::default(), Maker::Either),
            };
            let new = |kind, name| Object::new(kind, name, place(link), owner.clone(), maker);
            let facts = host_end(scene, link, counters.as_ref());
            objects.push(Object { facts, ..new(Kind::Link, link.name.clone()) });
            objects.extend(limit.map(|limit| Object {
                facts: shape(limit).into(),
                ..new(Kind::Limit, format!("to container, on {}", link.name))
            }));
        } else if link.kind == ifb::KIND && is_ifb_name(&link.name) {
            let by_name = |name: &str| shared.get(name).cloned();
            let mut object = of_ifb(link, by_name, |index| {
                let mut links = scene.links.iter().map(|(link, _)| link);
                let host_link = links.find(|link| link.index == index && link.kind == veth::KIND);
                host_link.map(|link| link.name.clone())
            });
            if object.owner.container.is_none() && object.removal.is_some() {
                let in_use = match &in_use {
                    Some(in_use) => in_use,
                    // Reads the filters of all host ends; only if some IFB of the reference names no container.
                    None => in_use.insert(used(&mut sockets.route)?),
                };
                if in_use.contains(&link.index) {
                    object.sign = Some(State::Alive("a filter redirects to it".to_owned()));
                }
            }
            object.facts.extend(limit.into_iter().flat_map(shape));
            objects.push(object);
        }
    }
    Ok(objects)
}

fn place(link: &Link) -> String {
    format!("link {}", link.index)
}

/// The facts of a host's end. Bytes and drops are seen from the container.
fn host_end(scene: &Scene, link: &Link, counters: Option<&Counters>) -> BTreeMap<&'static str, String> {
    let master = scene.links.iter().find(|(other, _)| Some(other.index) == link.master);
    let state = if link.is_up() { "up" } else { "down" };
    let facts = [("kind", link.kind.clone()), ("mac", link.mac.to_string()), ("mtu", link.mtu.to_string())];
    let mut facts = BTreeMap::from(facts);
    facts.extend(master.map(|(master, _)| ("master", master.name.clone())));
    facts.insert("state", state.to_owned());
    facts.extend(counters.into_iter().flat_map(|counters| {
        [
            ("to container", format!("{} B", counters.tx_bytes)),
            ("from container", format!("{} B", counters.rx_bytes)),
            ("dropped", (counters.rx_dropped + counters.tx_dropped).to_string()),
        ]
    }));
    facts
}

/// `by_name` returns the owner with the reference's hash of network and container, `host_link` the name of the veth with an index.
fn of_ifb(
    link: &Link,
    by_name: impl Fn(&str) -> Option<Owner>,
    host_link: impl Fn(u32) -> Option<String>,
) -> Object {
    let alias = Alias::parse(&link.alias);
    let (owner, maker) = match &alias {
        Some(alias) => (alias.attachment().map(Owner::from), Maker::Ferrule),
        None => (by_name(&link.name).map(|owner| Owner { ifname: None, ..owner }), Maker::Reference),
    };
    let owner = owner.unwrap_or_default();
    let is_foreign = alias.is_none() && !link.alias.is_empty();
    let is_nameless = owner.container.is_none();
    let object = Object::new(Kind::Ifb, link.name.clone(), place(link), owner, maker);
    let name = alias.as_ref().and_then(|alias| host_link(alias.veth));
    let alive = name.map(|name| State::Alive(format!("its host link {name} exists")));
    let object = Object { sign: alive, facts: [("kind", "ifb".to_owned())].into(), ..object };
    if is_foreign || (is_nameless && alias.is_some()) {
        return object;
    }
    let unused = || State::Dead("no filter redirects to it, no cache entry has its name".to_owned());
    let sign = object.sign.or_else(|| is_nameless.then(unused));
    Object { sign, ..object }.removed_with(Shared::Ifb(link.clone()))
}

/// Rate, and what passed and was dropped.
fn shape(limit: &Listed) -> [(&'static str, String); 3] {
    let rate = limit.qdisc.tbf.map_or(0, |tbf| tbf.rate * 8);
    [
        ("rate", format!("{rate} bit/s")),
        ("passed", format!("{} B", limit.bytes)),
        ("dropped", format!("{} packets", limit.drops)),
    ]
}

/// The state of a user without a name and without evidence.
const UNUSED: &str = "no cache entry has its hash, no live namespace has a macvlan on the device";

/// The users of the VLAN devices that macvlan makes for the key `vlan`. Each is an alternative name with a hash of the attachment.
pub(super) fn vlan_users(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let known = LazyCell::new(|| scene.owners_by(vlan_device::user));
    let object = |(device, user): (&Link, &str)| {
        let owner = known.get(user).cloned().unwrap_or_default();
        let is_nameless = owner.container.is_none();
        let place = format!("alternative name {user}");
        let object = Object::new(Kind::VlanUser, device.name.clone(), place, owner, Maker::Ferrule);
        Object {
            facts: [("kind", device.kind.clone()), ("mtu", device.mtu.to_string())].into(),
            parent: Some(device.index),
            sign: is_nameless.then(|| State::Dead(UNUSED.to_owned())),
            ..object
        }
        .removed_with(Shared::VlanUser(user.to_owned()))
    };
    Ok(vlan_device::users(scene.links.iter().map(|(link, _)| link)).map(object).collect())
}

/// The plugins that make such a link.
const PLUGINS: [&str; 6] = ["dummy", "host-device", "ipvlan", "macvlan", "tap", "vlan"];

/// Links in containers that have no end on the host: they end with the namespace, so gc has nothing to do. The cached result names
/// them; no namespace is entered.
pub(super) fn in_containers(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    for entry in &scene.cache.entries {
        let plugins = entry.plugins();
        let Some(plugin) = plugins.first() else { continue };
        let text = |key: &str| plugin[key].as_str().unwrap_or_default().to_owned();
        let kind = text("type");
        if !PLUGINS.contains(&kind.as_str()) {
            continue;
        }
        for link in entry.links.iter().filter(|link| !link.sandbox.is_empty()) {
            let place = format!("namespace {}", entry.netns);
            let name = format!("{} in the container", link.name);
            let object = Object::new(Kind::Link, name, place, entry.owner.clone(), Maker::Either);
            let facts = [("kind", kind.clone()), ("mac", link.mac.clone()), ("master", text("master"))];
            objects.push(Object { facts: facts.into(), ..object });
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ifb_without_owner_is_removable_only_if_the_reference_made_it() {
        let shared = |_: &str| None;
        let link =
            |alias: &str| Link { name: "bwpa8eda89404b7".into(), alias: alias.into(), ..Link::default() };
        let bare = of_ifb(&link(""), shared, |_| None);
        assert!(
            bare.removal.is_some()
                && matches!(bare.sign, Some(State::Dead(_)))
                && bare.maker == Maker::Reference
        );
        assert!(of_ifb(&link("uplink"), shared, |_| None).removal.is_none());
        let alias = "bandwidth network=pods container=c1 ifname=eth0 veth=12 hook=made";
        let ours = of_ifb(&link(alias), shared, |_| None);
        assert!(
            ours.removal.is_some() && ours.owner.container.as_deref() == Some("c1") && ours.sign.is_none()
        );
        let host_link = |index| (index == 12).then(|| "veth0".to_owned());
        assert_eq!(
            of_ifb(&link(alias), shared, host_link).sign.unwrap().reason(),
            "its host link veth0 exists"
        );
        let hashed = alias.replace("=c1", "=#0123");
        assert!(of_ifb(&link(&hashed), shared, |_| None).removal.is_none());
    }
}
