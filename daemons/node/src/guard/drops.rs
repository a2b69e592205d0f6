//! What the table has dropped, for metrics and `status`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use ferrule_daemon::Metrics;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables;
use serde::Serialize;

use super::layout::{OFFENDERS, TABLE};
use crate::cluster::single;
use crate::kernel::Local;

/// Packets since the table was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Drops {
    /// By the chain that dropped them: see [`layout`](super::layout). Empty without the table.
    chains: BTreeMap<String, u64>,
    /// Those with a source that is not the pod's, by the link of the pod. A link is forgotten an hour after its last packet.
    links: BTreeMap<String, u64>,
}

/// A pod that has sent with sources that are not its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offender {
    pub link: String,
    /// Its own.
    pub addresses: Vec<IpAddr>,
    /// How many were dropped.
    pub packets: u64,
}

fn drops() -> Result<Drops> {
    let mut socket = Socket::netfilter()?;
    let mut drops = Drops::default();
    for (chain, rule) in nftables::all_rules(&mut socket, TABLE)? {
        if let Some(packets) = rule.packets() {
            *drops.chains.entry(chain).or_default() += packets;
        }
    }
    for element in nftables::elements(&mut socket, TABLE, OFFENDERS)? {
        let name = element.key.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        drops.links.insert(name, element.packets.unwrap_or_default());
    }
    Ok(drops)
}

/// The pods that have sent with other sources, from the kernel.
///
/// # Errors
/// The kernel refuses, for example because the caller may not ask.
pub fn offenders() -> Result<Vec<Offender>> {
    let links = drops()?.links;
    let local = match links.is_empty() {
        true => Local::default(),
        false => Local::read(&mut Socket::route()?.with_whole_dumps())?,
    };
    let offender = |(link, packets): (String, u64)| {
        let index = local.links.iter().find(|(_, found)| found.name == link).map(|(index, _)| *index);
        let routes =
            local.routes.iter().filter(|route| index.is_some_and(|index| route.links.contains(&index)));
        let addresses = routes.map(|route| route.dst).filter(|dst| *dst == single(dst.ip()));
        Offender { link, addresses: addresses.map(|dst| dst.ip()).collect(), packets }
    };
    Ok(links.into_iter().map(offender).collect())
}

/// The lines of `/metrics`. Without an answer of the kernel there are none.
pub fn metrics() -> String {
    drops().map(|drops| text(&drops)).unwrap_or_default()
}

fn text(drops: &Drops) -> String {
    let mut metrics = Metrics::new("ferrule_node_guard_");
    // A pod cannot choose the name of its link on the node, but an administrator may.
    let is_plain = |name: &&String| name.chars().all(|c| c.is_ascii_graphic() && !"\"\\".contains(c));
    let plain = |counts: &BTreeMap<String, u64>| -> Vec<(String, u64)> {
        { counts.iter() }
            .filter(|(name, _)| is_plain(name))
            .map(|(name, count)| (name.clone(), *count))
            .collect()
    };
    let is_active = u64::from(!drops.chains.is_empty());
    metrics.one("active", "gauge", "1 if the table that checks packets is there.", is_active);
    let chains = ("drops_total", "counter", "Dropped packets by the chain of the table.");
    metrics.add(chains, "chain", plain(&drops.chains));
    let links =
        ("forged_total", "counter", "Dropped packets whose source is not the pod's, by the pod's link.");
    metrics.add(links, "link", plain(&drops.links));
    metrics.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_chains_and_links() {
        let links = BTreeMap::from([("veth1".to_owned(), 2), ("bad\"link".to_owned(), 1)]);
        let drops = Drops { chains: BTreeMap::from([("forged".to_owned(), 3)]), links };
        let text = text(&drops);
        for line in [
            "ferrule_node_guard_active 1",
            "ferrule_node_guard_drops_total{chain=\"forged\"} 3",
            "ferrule_node_guard_forged_total{link=\"veth1\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!text.contains("bad"), "{text}");
    }
}
