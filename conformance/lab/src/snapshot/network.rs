//! Links, addresses, routes, rules, queueing disciplines and forwarding.

use std::collections::HashMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoPortData, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Snapshot, netlink};
use crate::{Machine, Place as _};

const SYSCTLS: [&str; 2] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];

pub(super) fn take(snapshot: &mut Snapshot) -> anyhow::Result<()> {
    let mut objects = netlink::list(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let names = Names(objects.iter().filter_map(index_and_name).collect());
    objects.extend(netlink::list(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?);
    objects.extend(netlink::list(RouteNetlinkMessage::GetRoute(RouteMessage::default()))?);
    objects.extend(netlink::list(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()))?);
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RuleMessage::default();
        request.header.family = family;
        objects.extend(netlink::list(RouteNetlinkMessage::GetRule(request))?);
    }
    let mut sorted = Vec::new();
    for object in &objects {
        match object {
            RouteNetlinkMessage::NewLink(object) => sorted.push(("link", link(object, &names)?)),
            RouteNetlinkMessage::NewAddress(object) => {
                sorted.extend(address(object, &names)?.map(|line| ("address", line)));
            }
            RouteNetlinkMessage::NewRoute(object) => {
                sorted.extend(route(object, &names)?.map(|line| ("route", line)));
            }
            RouteNetlinkMessage::NewQueueDiscipline(object) => {
                let dev = names.get(object.header.index.cast_unsigned())?;
                sorted.push(("qdisc", discipline(object, dev)));
                filters(object, dev, snapshot)?;
            }
            // Only the order of rules has a meaning.
            RouteNetlinkMessage::NewRule(object) => {
                snapshot.add(&format!("rule {:?}", object.header.family), vec![rule(object)]);
            }
            _ => {}
        }
    }
    for name in SYSCTLS {
        // A kernel without IPv6 does not have the IPv6 sysctl.
        if let Ok(value) = fs::read_to_string(format!("/proc/sys/net/{name}")) {
            sorted.push(("sysctl", format!("{name} = {}", value.trim())));
        }
    }
    sorted.sort();
    sorted.into_iter().for_each(|(section, line)| snapshot.add(section, vec![line]));
    Ok(())
}

/// The names of links by their indices.
struct Names(HashMap<u32, String>);

impl Names {
    fn get(&self, index: u32) -> anyhow::Result<&str> {
        self.0.get(&index).map(String::as_str).with_context(|| format!("a link has come meanwhile: {index}"))
    }
}

fn index_and_name(object: &RouteNetlinkMessage) -> Option<(u32, String)> {
    let RouteNetlinkMessage::NewLink(link) = object else { return None };
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    });
    Some((link.header.index, name?))
}

/// Name, kind, master, MTU, administrative flags, the settings of a bridge port that plugins change, VLAN
/// filtering and alias.
fn link(link: &LinkMessage, names: &Names) -> anyhow::Result<String> {
    let (mut kind, mut master, mut mtu, mut settings) = ("-".to_owned(), "-", 0, String::new());
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Controller(index) => master = names.get(*index)?,
            LinkAttribute::Mtu(value) => mtu = *value,
            LinkAttribute::IfAlias(alias) => settings += &format!(" alias={alias}"),
            LinkAttribute::LinkInfo(all) => {
                for info in all {
                    match info {
                        LinkInfo::Kind(value) => kind = value.to_string(),
                        LinkInfo::Data(InfoData::Bridge(all)) => {
                            settings += &kept(all, |setting| matches!(setting, InfoBridge::VlanFiltering(_)))
                        }
                        LinkInfo::PortData(InfoPortData::BridgePort(all)) => {
                            settings += &kept(all, |setting| {
                                use InfoBridgePort::{Guard, HairpinMode, Isolated, Learning, UnicastFlood};
                                matches!(
                                    setting,
                                    HairpinMode(_) | Isolated(_) | Guard(_) | Learning(_) | UnicastFlood(_)
                                )
                            })
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let flags =
        link.header.flags & (LinkFlags::Up | LinkFlags::Promisc | LinkFlags::Allmulti | LinkFlags::Noarp);
    let name = names.get(link.header.index)?;
    Ok(format!("{name} kind={kind} master={master} mtu={mtu} flags={flags:?}{settings}"))
}

/// An address; none for link-local IPv6, which the kernel adds some time after the link has come up.
fn address(address: &AddressMessage, names: &Names) -> anyhow::Result<Option<String>> {
    // An IPv6 address has a local part only if it has a peer; IPv4 has always one.
    let (mut own, mut peer) = (None, None);
    for attribute in &address.attributes {
        match attribute {
            AddressAttribute::Local(ip) => own = Some(ip),
            AddressAttribute::Address(ip) => peer = Some(ip),
            _ => {}
        }
    }
    let own = own.or(peer).context("an address without an address")?.to_string();
    let header = &address.header;
    let line = || {
        anyhow::Ok(format!("{} {own}/{} scope={}", names.get(header.index)?, header.prefix_len, header.scope))
    };
    (!own.starts_with("fe80:")).then(line).transpose()
}

/// A route; none for multicast and link-local IPv6, whose time the kernel chooses.
fn route(route: &RouteMessage, names: &Names) -> anyhow::Result<Option<String>> {
    let (mut words, mut destination) = (String::new(), "default".to_owned());
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => destination = ip.to_string(),
            RouteAttribute::Destination(RouteAddress::Inet6(ip)) => destination = ip.to_string(),
            RouteAttribute::Oif(index) => words += &format!(" dev={}", names.get(*index)?),
            RouteAttribute::MultiPath(hops) => {
                for hop in hops {
                    words += &format!(
                        " dev={} {} {:?}",
                        names.get(hop.interface_index)?,
                        hop.hops,
                        hop.attributes
                    );
                }
            }
            RouteAttribute::CacheInfo(_) | RouteAttribute::Preference(_) => {}
            other => words += &format!(" {other:?}"),
        }
    }
    let header = &route.header;
    let line = format!(
        "{destination}/{}{words} {:?} protocol={} scope={} tos={}",
        header.destination_prefix_length, header.kind, header.protocol, header.scope, header.tos
    );
    Ok((!line.contains("fe80::") && destination != "ff00::").then_some(line))
}

fn rule(rule: &RuleMessage) -> String {
    let header = &rule.header;
    format!(
        "{:?} tos={} {:?} {}/{}{}",
        header.action,
        header.tos,
        header.flags,
        header.src_len,
        header.dst_len,
        kept(&rule.attributes, |_| true)
    )
}

fn discipline(discipline: &TcMessage, dev: &str) -> String {
    use TcAttribute::{Kind, Options};
    let attributes = kept(&discipline.attributes, |attribute| matches!(attribute, Kind(_) | Options(_)));
    let header = &discipline.header;
    format!("dev={dev} handle={} parent={}{attributes}", header.handle, header.parent)
}

/// Adds the filters of the queueing disciplines that plugins make for them.
fn filters(discipline: &TcMessage, dev: &str, snapshot: &mut Snapshot) -> anyhow::Result<()> {
    let is = |kind: &str| discipline.attributes.contains(&TcAttribute::Kind(kind.to_owned()));
    let hooks: &[&str] = match () {
        () if is("ingress") => &["ingress"],
        () if is("clsact") => &["ingress", "egress"],
        () => &[],
    };
    for hook in hooks {
        let shown = Machine.tool("tc", &["filter", "show", "dev", dev, hook]);
        if shown.is_err() && !Path::new("/sys/class/net").join(dev).exists() {
            continue; // The kernel has removed it meanwhile.
        }
        let lines = shown?.lines().map(|line| line.trim().to_owned()).collect();
        snapshot.add(&format!("filter {dev} {hook}"), lines);
    }
    Ok(())
}

/// The attributes that are of interest, as words.
fn kept<A: Debug>(attributes: &[A], is_kept: impl Fn(&A) -> bool) -> String {
    attributes
        .iter()
        .filter(|attribute| is_kept(attribute))
        .map(|attribute| format!(" {attribute:?}"))
        .collect()
}
