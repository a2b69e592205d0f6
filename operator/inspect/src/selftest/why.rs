//! The reasons of failures, with the remedies.

use ferrule_kernel::netlink::Link;
use ferrule_kernel::sysctl;
use ferrule_kit::socket;

use super::pods::Attached;
use crate::doctor::firewalls::Facts;
use crate::model::Sockets;

pub(super) const ATTACH: &str = "ferrule doctor looks for the cause; a plugin of another project may need a pod of Kubernetes, \
    which this test has not";
pub(super) const DETACH: &str = "run ferrule test again, or ferrule gc --yes";
pub(super) const REMOVED: &str = "something removes what the plugins make, such as a reload of nftables or of firewalld; ferrule \
    repair --yes makes it again for running containers";
pub(super) const MTU: &str = "set the key mtu of the network to what passes, or raise the MTU of the link";
pub(super) const NODE: &str =
    "ferrule-node status on both nodes says how they reach each other; look for a firewall between them";
pub(super) const WAY: &str = "a link between the nodes has a smaller MTU than ferrule-node assumes: raise it, or set --mtu of ferrule-node";
pub(super) const POLICY: &str = "ferrule check names altered rules of the table inet ferrule_pods, ferrule repair --yes makes them again; \
    a flowtable of another program forwards past all rules";
pub(super) const ISOLATED: &str = "another program has isolated them: bridge link set dev NAME isolated off";
const DROPS: &str =
    "add the plugin firewall to the network, or accept the packets of its subnet in this chain";
const UNKNOWN: &str =
    "ferrule doctor and ferrule check look for the cause; ferrule report packs what helps to find it";

/// The reason and the remedy for packets that do not arrive.
pub(super) fn of(checked: &Result<(), String>, seen: String, is_v4: bool) -> (String, String) {
    if let Err(why) = checked {
        return (format!("{seen}; {why}"), REMOVED.to_owned());
    }
    let forwarding = if is_v4 { "net/ipv4/ip_forward" } else { "net/ipv6/conf/all/forwarding" };
    if sysctl::read(forwarding).is_ok_and(|value| value == "0") {
        let name = forwarding.replace('/', ".");
        return (format!("{seen}; {name} is 0"), format!("sysctl -w {name}=1, also in /etc/sysctl.d"));
    }
    let facts = Sockets::open().and_then(|mut sockets| Facts::read(&mut sockets.netfilter));
    if let Some(chain) = facts.ok().and_then(|facts| facts.drops.into_iter().next()) {
        let reason = format!("{seen}; the chain {chain} drops forwarded packets that no rule accepts");
        return (reason, DROPS.to_owned());
    }
    (seen, UNKNOWN.to_owned())
}

/// The links of the node that the results of the pods name.
fn links(pods: &[Attached]) -> Vec<Link> {
    let mut links = socket::route().ok().and_then(|mut socket| socket.links(None).ok()).unwrap_or_default();
    let results = pods.iter().map(|pod| &pod.entry.sent.result);
    let of_pods = results.flat_map(|result| result["interfaces"].as_array().into_iter().flatten());
    let names: Vec<&str> = of_pods.filter_map(|link| link["name"].as_str()).collect();
    links.retain(|link| names.contains(&link.name.as_str()));
    links
}

/// The links on the way whose MTU is less than that of the pod, as the end of a sentence.
pub(super) fn narrow_links(pods: &[Attached], mtu: u32) -> String {
    let links = links(pods);
    let narrow = links.iter().filter(|link| link.mtu < mtu);
    narrow.map(|link| format!("; the MTU of {} is {}", link.name, link.mtu)).collect()
}

/// The ends of both pods if their bridge keeps them apart, as the end of a sentence.
pub(super) fn isolated(pods: &[Attached]) -> Option<String> {
    let links = links(pods);
    let apart = links.iter().filter(|link| link.port.isolated == Some(true)).map(|link| link.name.as_str());
    let apart: Vec<&str> = apart.collect();
    (apart.len() > 1).then(|| format!("; {} are isolated ports of a bridge", apart.join(" and ")))
}
