//! Rules: host ports, masquerading, addresses that may pass, and checks of the source address.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;

use cni_common::spec::CniError;
use ferrule_bridge::mac_spoof;
use ferrule_firewall::nft::{self, Owned};
use ferrule_firewall::{forward_chain, iptables};
use ferrule_kit::owner;
use ferrule_kit::presence::Presence;
use ferrule_masquerade::{list as rules, plan};
use ferrule_portmap::nft as portmap_nft;
use ferrule_portmap::nft::layout;
use ferrule_portmap::plan::HostPort;
use ferrule_portmap::{list as portmap, reference};
use itertools::Itertools as _;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Shared, Sockets, State};

/// The host ports of each container in each layout: our table, the reference's nftables backend, and both variants of iptables.
pub(super) fn host_ports(sockets: &mut Sockets, _: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = our_host_ports(sockets)?;
    objects.extend(host_ports_of_reference(sockets)?);
    for chain in portmap::chains(&mut sockets.netfilter)? {
        let owner = Owner::container(&chain.container_id).on(&chain.network);
        let name = if chain.host_ports.is_empty() { chain.name.clone() } else { chain.host_ports.join(", ") };
        let place = format!("iptables nat {}", chain.name);
        let object = Object::new(Kind::HostPort, name, place, owner, Maker::Either);
        let target = |(_, to): (&str, &str)| {
            to.parse().map(|target: SocketAddr| target.ip()).or_else(|_| to.parse()).ok()
        };
        let addresses = object.host_ports().filter_map(target).collect();
        let names = (chain.network, chain.container_id);
        objects.push(Object { addresses, ..object }.removed_with(Shared::HostPortChains(names)));
    }
    Ok(objects)
}

fn our_host_ports(sockets: &mut Sockets) -> Result<Vec<Object>, CniError> {
    let owned = portmap_nft::list(&mut sockets.netfilter)?.into_iter();
    let mut ports = owned.map(|owned| (owned.label, owned.host_port)).into_group_map();
    let mut objects = Vec::new();
    for (label, presence) in portmap_nft::list_owners(&mut sockets.netfilter)? {
        let owner = owner::parse(&label).map(Owner::from).unwrap_or_default();
        let host_ports = ports.remove(&label).unwrap_or_default();
        let sign = match presence {
            Presence::Present(_) => Some(State::Alive("the namespace of its ADD exists".to_owned())),
            Presence::Gone { .. } => Some(State::Dead("the namespace of its ADD does not exist".to_owned())),
            Presence::Unknown => None,
        };
        let object = host_port(&host_ports, format!("table {}", layout::TABLE), owner, Maker::Ferrule);
        let facts = [("label", label.clone())].into();
        objects.push(Object { sign, facts, ..object }.removed_with(Shared::HostPorts(label)));
    }
    Ok(objects)
}

fn host_ports_of_reference(sockets: &mut Sockets) -> Result<Vec<Object>, CniError> {
    let mut containers: BTreeMap<String, Vec<HostPort>> = BTreeMap::new();
    for (container, host_port) in reference::list(&mut sockets.netfilter)? {
        containers.entry(container).or_default().extend(host_port);
    }
    let of_container = |(container, host_ports): (String, Vec<HostPort>)| {
        let place = "table cni_hostport of the reference".to_owned();
        let object = host_port(&host_ports, place, Owner::container(&container), Maker::Reference);
        object.removed_with(Shared::HostPortsOfReference(container))
    };
    Ok(containers.into_iter().map(of_container).collect())
}

fn host_port(host_ports: &[HostPort], place: String, owner: Owner, maker: Maker) -> Object {
    let text = |host_port: &HostPort| {
        let host = host_port.key.host_ip.map_or(String::new(), |ip| format!("{ip}:"));
        format!("{host}{}/{} -> {}", host_port.key.port, host_port.key.proto, host_port.target)
    };
    let name = match host_ports {
        [] => "no host ports".to_owned(),
        _ => host_ports.iter().map(text).join(", "),
    };
    let addresses = host_ports.iter().map(|host_port| host_port.target.ip()).collect();
    Object { addresses, ..Object::new(Kind::HostPort, name, place, owner, maker) }
}

/// The masquerading rules of both backends by owner.
pub(super) fn masquerade(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    // A comment that was cut still begins with two hashes of the names.
    let known = LazyCell::new(|| scene.owners_by(plan::prefix));
    let mut objects: BTreeMap<String, Object> = BTreeMap::new();
    for rule in rules::list(&mut sockets.netfilter)? {
        let (key, owner, place) = match &rule.chain {
            None => {
                let prefix = rule.comment.split(',').next().unwrap_or_default();
                let owner = plan::owner_in(&rule.comment).map(Owner::from);
                let owner = owner.or_else(|| known.get(prefix).cloned()).unwrap_or_default();
                (rule.comment.clone(), owner, format!("table {}", plan::TABLE))
            }
            Some(chain) => {
                // Else it is a rule of POSTROUTING that jumps to the chain of another program.
                let Some((network, container)) = plan::chain_owner_in(&rule.comment, chain) else { continue };
                let owner = Owner::container(container).on(network);
                (chain.clone(), owner, format!("iptables nat {chain}"))
            }
        };
        let addresses = rule.source;
        let object = objects.entry(key).or_insert_with(|| {
            let shared = rule.chain.map_or(Shared::Masquerade(rule.comment), Shared::MasqueradeChain);
            Object::new(Kind::Masquerade, String::new(), place, owner, Maker::Either).removed_with(shared)
        });
        object.addresses.extend(addresses);
    }
    let named = |object: Object| Object { name: object.addresses.iter().join(", "), ..object };
    Ok(objects.into_values().map(named).collect())
}

/// The addresses that the firewall lets pass: those of our table, and the reference's rules, which name no container.
pub(super) fn firewall(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    let mut known = BTreeSet::new();
    for owned in nft::list(&mut sockets.netfilter, |_| true)? {
        known.insert(owned.address);
        let labels: Vec<String> = owned.labels().map(str::to_owned).collect();
        objects.extend(labels.into_iter().map(|label| of_label(owned.clone(), label)));
    }
    for address in iptables::addresses(&mut sockets.netfilter)? {
        // The rules may be in both variants of iptables.
        if !known.insert(address) {
            continue;
        }
        let owner = scene.owner_of(address).cloned().unwrap_or_default();
        let place = format!("iptables filter {}", forward_chain::CNI_FORWARD);
        let object = Object::new(Kind::Firewall, address.to_string(), place, owner, Maker::Reference);
        let object = Object { addresses: [address].into(), is_by_address: true, ..object };
        objects.push(object.removed_with(Shared::FirewallOfReference(address)));
    }
    Ok(objects)
}

fn of_label(owned: Owned, label: String) -> Object {
    let by = match (owned.is_pod(), owned.zone()) {
        (true, _) => "nftables".to_owned(),
        (_, Some(zone)) => format!("firewalld zone {zone}"),
        _ => "iptables".to_owned(),
    };
    let whose = owner::parse(&label).map(Owner::from).unwrap_or_default();
    let (name, place) = (owned.address.to_string(), format!("table {}", nft::layout::TABLE));
    let object = Object::new(Kind::Firewall, name, place, whose, Maker::Ferrule);
    let facts = [("opened by", by), ("label", label.clone())].into();
    let object = Object { addresses: [owned.address].into(), facts, ..object };
    if owned.is_pod() {
        return object.removed_with(Shared::Firewall((owned.address, label)));
    }
    Object { is_by_address: true, ..object }.removed_with(Shared::FirewallOpened((owned, label)))
}

/// The attachments that have chains of `macspoofchk`.
pub(super) fn mac_spoof(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let links: HashSet<&str> = scene.links.iter().map(|(link, _)| link.name.as_str()).collect();
    let object = |(chains, port, comment): (mac_spoof::plan::Chains, String, Option<String>)| {
        let comment = comment.unwrap_or_default();
        // Both names may contain a hyphen. An attachment that is known elsewhere decides; else the last hyphen does.
        let names: Vec<Owner> = mac_spoof::plan::owners_in(&comment)
            .map(|(container, ifname)| Owner::container(container).with_ifname(ifname))
            .collect();
        let known = names.iter().find_map(|name| {
            let mut owners = scene.owners_of(name.container.as_deref()?);
            owners.find(|owner| owner.attachment().is_some() && name.may_be(owner))
        });
        let owner = known.or_else(|| names.last()).cloned().unwrap_or_default();
        let place = format!("table {} {}", mac_spoof::plan::TABLE, chains.interface);
        let object = Object::new(Kind::MacSpoof, format!("port {port}"), place, owner, Maker::Either);
        let sign = links.contains(port.as_str()).then(|| State::Alive(format!("port {port} exists")));
        Object { sign, ..object }.removed_with(Shared::MacSpoof(chains))
    };
    Ok(mac_spoof::list(&mut sockets.netfilter)?.into_iter().map(object).collect())
}
