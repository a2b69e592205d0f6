//! Permanent neighbour entries on both ends, for nodes whose kernel answers no ARP request for the gateway.
//!
//! With `arp_ignore` 2 the kernel answers only for an address whose subnet has the sender, and the gateway has the prefix length 32. With 8
//! it never answers. Namespaces inherit both from the node, so the node needs an entry for the container, too. Where the kernel answers,
//! there are no entries: a chained plugin may change the MAC address of the container.

use std::io;
use std::net::IpAddr;

use cni_common::spec::{CniError, Context as _, IpConfig};
use ferrule_kernel::netlink::neighbour::{Neighbour, Table};
use ferrule_kernel::netlink::{Link, Mac, Socket};
use ferrule_kernel::{sorted, sysctl};
use ferrule_kit::check;
use ferrule_kit::steps::{Step, UndoStack};
use nix::errno::Errno;

const ALL: &str = "net/ipv4/conf/all/arp_ignore";

/// An end of the pair, and a socket in its namespace.
pub struct End<'a> {
    /// Its socket.
    pub socket: &'a mut Socket,
    /// The link.
    pub link: &'a Link,
}

/// The value of `arp_ignore` on the host's end with which a container with these addresses needs the entries; `None` if it needs none.
///
/// # Errors
/// The sysctl cannot be read.
pub fn reason(host: &Link, ips: &[IpConfig]) -> io::Result<Option<u32>> {
    if !ips.iter().any(|ip| ip.address.is_ipv4()) {
        return Ok(None);
    }
    let all = sysctl::read(ALL)?.parse().unwrap_or_default();
    // The kernel takes the greater one.
    Ok(Some(host.arp_ignore.max(all)).filter(|value| matches!(value, 2 | 8)))
}

/// The neighbours of the container and those of the node.
fn wanted(host: Mac, container: Mac, ips: &[IpConfig]) -> [Vec<Neighbour>; 2] {
    let v4 = || ips.iter().filter(|ip| ip.address.is_ipv4());
    let entries = |mac, list: Vec<IpAddr>| {
        let entry = |ip| Neighbour { table: Table::Neighbours, mac, ip, is_permanent: true };
        list.into_iter().map(entry).collect()
    };
    let gateways = sorted(v4().filter_map(|ip| ip.gateway));
    [entries(host, gateways), entries(container, v4().map(|ip| ip.address.ip()).collect())]
}

/// Sets the entries.
///
/// # Errors
/// The kernel's.
pub fn set(host: End<'_>, container: End<'_>, ips: &[IpConfig]) -> Result<(), CniError> {
    let [inside, outside] = wanted(host.link.mac, container.link.mac, ips);
    for (End { socket, link }, entries) in [(container, inside), (host, outside)] {
        let step = |entry: &Neighbour| {
            Step::new(format!("set the neighbour {} of {:?}", entry.ip, link.name), entry.set(link.index))
        };
        // Removing the link undoes these.
        UndoStack::default().run(socket, entries.iter().map(step).collect())?;
    }
    Ok(())
}

/// Checks that both ends have the entries that they need by this value of `arp_ignore`.
///
/// # Errors
/// The first one that is missing or has another MAC address.
pub fn check(reason: u32, host: End<'_>, container: End<'_>, ips: &[IpConfig]) -> Result<(), CniError> {
    let [inside, outside] = wanted(host.link.mac, container.link.mac, ips);
    for (what, End { socket, link }, entries) in [("container", container, inside), ("host", host, outside)] {
        for entry in entries {
            let found = match socket.neighbour(link.index, entry.ip) {
                // A kernel before 5.0 finds no single entry.
                Err(error) if error.errno == Errno::EOPNOTSUPP => continue,
                found => {
                    found.context(|| format!("look up the neighbour {} of {:?}", entry.ip, link.name))?
                }
            };
            check::ensure(found == Some(entry), || {
                format!(
                    "the {what} has no permanent neighbour entry for {} with the MAC address {}: arp_ignore of the node is \
                     {reason}",
                    entry.ip, entry.mac
                )
            })?;
        }
    }
    Ok(())
}
