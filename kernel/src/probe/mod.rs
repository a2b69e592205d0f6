//! Asks on a link whether a host has an address: by ARP (RFC 5227) or as duplicate address detection does (RFC 4862).

mod frame;

pub use frame::owner;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read as _};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, MsgFlags, sendto};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::ip::IpFamily;
use crate::netlink::{Link, Mac};

/// How often a question is sent: a frame may be lost.
const ROUNDS: u32 = 3;
/// More addresses at once would fill the queue of the socket.
pub const MOST: usize = 64;
/// `ETH_P_ARP` and `ETH_P_IPV6`.
const PROTOCOLS: [u16; 2] = [0x0806, 0x86dd];
/// The longest frame that counts.
const FRAME: u32 = 256;

/// The owners of those addresses that a host on the link has. Asks for each address three times in this time, one family after the
/// other, and returns early if all have an owner. The link is in the namespace of the calling thread and is up. Hosts that the kernel reaches without the link do
/// not hear the question: the link's own addresses, and macvlan or ipvlan devices that were made on it.
///
/// Closing the socket waits for an RCU grace period.
///
/// # Errors
/// There are more than [`MOST`] addresses, the link is gone or down or is no Ethernet, or the process lacks `CAP_NET_RAW`.
pub fn probe(link: &Link, addresses: &[IpAddr], time: Duration) -> io::Result<BTreeMap<IpAddr, Mac>> {
    if addresses.len() > MOST {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("more than {MOST} addresses")));
    }
    let families = IpFamily::ALL.map(|family| {
        let of_family = addresses.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
        (family, of_family.collect::<BTreeSet<IpAddr>>())
    });
    let asked = families.iter().filter(|(_, addresses)| !addresses.is_empty());
    let pause = time / ROUNDS / u32::try_from(asked.clone().count().max(1)).unwrap_or(1);
    let mut owners = BTreeMap::new();
    for (family, addresses) in asked {
        ask(link, *family, addresses, pause, &mut owners)?;
    }
    Ok(owners)
}

fn ask(
    link: &Link,
    family: IpFamily,
    addresses: &BTreeSet<IpAddr>,
    pause: Duration,
    owners: &mut BTreeMap<IpAddr, Mac>,
) -> io::Result<()> {
    let (mut socket, to) = open(link, family)?;
    let is_known = |owners: &BTreeMap<IpAddr, Mac>| addresses.iter().all(|ip| owners.contains_key(ip));
    for _ in 0..ROUNDS {
        for ip in addresses.iter().filter(|ip| !owners.contains_key(ip)) {
            sendto(socket.as_raw_fd(), &frame::question(link.mac, *ip), &to, MsgFlags::empty())?;
        }
        let until = Instant::now() + pause;
        while !is_known(owners) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            let mut frame = [0; FRAME as usize];
            let len = match socket.read(&mut frame) {
                Ok(len) => len,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some((ip, mac)) = frame::owner(&frame[..len])
                && addresses.contains(&ip)
                && mac != link.mac
            {
                owners.insert(ip, mac);
            }
        }
    }
    Ok(())
}

/// A socket that gets the link's answers, and where it sends. The filter binds it: bind(2) waits for an RCU grace period.
fn open(link: &Link, family: IpFamily) -> io::Result<(Socket, LinkAddr)> {
    let is_link = |address: &LinkAddr| address.ifindex() == link.index as usize;
    let to = getifaddrs()?.filter_map(|one| one.address?.as_link_addr().copied()).find(is_link);
    let to = to.filter(|to| to.addr() == Some(link.mac.0) && link.mac.is_unicast());
    let unusable =
        || io::Error::new(ErrorKind::NotFound, format!("{} is gone or is no Ethernet link", link.name));
    let to = to.ok_or_else(unusable)?;
    let protocol = Protocol::from(i32::from(PROTOCOLS[family as usize].to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    socket.attach_filter(&answers(link.index))?;
    Ok((socket, to))
}

/// The ARP messages and neighbour advertisements of this link (classic BPF).
fn answers(index: u32) -> [SockFilter; 10] {
    let op = SockFilter::new;
    // SKF_AD_OFF + SKF_AD_IFINDEX of linux/filter.h.
    let interface = 0xffff_f000 + 8;
    [
        op(0x20, 0, 0, interface), // ld: the interface's index
        op(0x15, 0, 7, index),
        op(0x28, 0, 0, 12), // ldh: the protocol
        op(0x15, 4, 0, 0x0806),
        op(0x30, 0, 0, 14 + 6), // ldb: the next header
        op(0x15, 0, 3, 58),
        op(0x30, 0, 0, 14 + 40), // ldb: the type of the ICMPv6 message
        op(0x15, 0, 1, 136),
        op(0x06, 0, 0, FRAME), // ret: so many bytes
        op(0x06, 0, 0, 0),     // ret: nothing
    ]
}
