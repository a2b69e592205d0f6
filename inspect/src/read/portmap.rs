//! Host ports in all layouts: our table, the reference's nftables backend, and both variants of iptables.

use std::net::IpAddr;

use cni_common::spec::CniError;
use ferrule_kit::owner;
use ferrule_kit::sandbox::Sandbox;
use ferrule_portmap::nft::{labelled_host_ports, layout::TABLE, sandboxes};
use ferrule_portmap::plan::HostPort;
use ferrule_portmap::{reference, survey};

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};
use crate::named::{Named, add_new};

/// Lists the host ports of each container in each layout.
pub(super) fn read(sockets: &mut Sockets, _: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = ours(sockets)?;
    objects.extend(of_reference(sockets)?);
    for chain in survey::chains(&mut sockets.netfilter)? {
        let owner = Owner::container(&chain.container_id).on(&chain.network);
        let name = if chain.host_ports.is_empty() { chain.name.clone() } else { chain.host_ports.join(", ") };
        let target = |port: &String| target_of(port.rsplit_once(" -> ")?.1);
        let mut addresses: Vec<IpAddr> = chain.host_ports.iter().filter_map(target).collect();
        addresses.dedup();
        let place = format!("iptables nat {}", chain.name);
        let object = Object::new(Kind::HostPort, name, place, owner, Maker::Either);
        objects.push(Object { addresses, ..object }.removed_by(move |sockets, is_dead| {
            // The interface is not part of the names.
            let owner = cni_common::plugin::Attachment {
                network: &chain.network,
                container_id: &chain.container_id,
                ifname: "",
            };
            survey::remove_chains(&mut sockets.netfilter, &owner, is_dead)
        }));
    }
    Ok(objects)
}

fn target_of(target: &str) -> Option<IpAddr> {
    target.parse().map(|target: std::net::SocketAddr| target.ip()).or_else(|_| target.parse()).ok()
}

fn ours(sockets: &mut Sockets) -> Result<Vec<Object>, CniError> {
    let mut ports: Named<Vec<HostPort>> = Named::default();
    for (label, host_port) in labelled_host_ports(&mut sockets.netfilter)? {
        ports.entry(&label, Vec::new).push(host_port);
    }
    let mut objects = Vec::new();
    for (label, sandbox) in sandboxes(&mut sockets.netfilter)? {
        let host_ports: &[HostPort] = ports.get(&label).map_or(&[], Vec::as_slice);
        let whose = owner::parse(&label).map(Owner::from).unwrap_or_default();
        let alive = matches!(sandbox, Sandbox::Present(_));
        let object = Object::new(
            Kind::HostPort,
            describe(host_ports),
            format!("table {TABLE}"),
            whose,
            Maker::Ferrule,
        );
        let gone = matches!(sandbox, Sandbox::Gone { .. });
        let object = Object {
            addresses: targets(host_ports),
            alive: alive.then(|| "the namespace of its ADD exists".to_owned()),
            dead: gone.then(|| "the namespace of its ADD does not exist".to_owned()),
            facts: vec![("label", label.clone())],
            ..object
        };
        objects.push(
            object
                .removed_by(move |sockets, is_dead| survey::remove(&mut sockets.netfilter, &label, is_dead)),
        );
    }
    Ok(objects)
}

fn of_reference(sockets: &mut Sockets) -> Result<Vec<Object>, CniError> {
    let mut containers: Named<(String, Vec<HostPort>)> = Named::default();
    for (container, host_port) in reference::list(&mut sockets.netfilter)? {
        containers.entry(&container, || (container.clone(), Vec::new())).1.extend(host_port);
    }
    let objects = containers.into_items().into_iter().map(|(container, host_ports)| {
        let owner = Owner::container(&container);
        let place = "table cni_hostport of the reference";
        let object = Object::new(Kind::HostPort, describe(&host_ports), place, owner, Maker::Reference);
        Object { addresses: targets(&host_ports), ..object }.removed_by(move |sockets, is_dead| {
            survey::remove_reference(&mut sockets.netfilter, &container, is_dead)
        })
    });
    Ok(objects.collect())
}

fn describe(host_ports: &[HostPort]) -> String {
    let text = |host_port: &HostPort| {
        let host = host_port.key.host_ip.map_or(String::new(), |ip| format!("{ip}:"));
        format!("{host}{}/{} -> {}", host_port.key.port, host_port.key.proto, host_port.target)
    };
    match host_ports {
        [] => "no host ports".to_owned(),
        _ => host_ports.iter().map(text).collect::<Vec<_>>().join(", "),
    }
}

fn targets(host_ports: &[HostPort]) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    add_new(&mut addresses, host_ports.iter().map(|host_port| host_port.target.ip()));
    addresses
}
