//! Waits until the kernel answers neighbour solicitations for new IPv6 addresses.
//!
//! Neighbours solicit an address through its solicited-node multicast group. The kernel joins that group in a
//! work queue that takes the RTNL lock: at once on an idle machine, milliseconds later on one that starts and
//! stops containers. A solicitation that arrives earlier is lost, and the neighbour repeats it after one
//! second.

use std::net::Ipv6Addr;
use std::thread;
use std::time::{Duration, Instant};

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::observer;
use ipnetwork::IpNetwork;

/// After this time ADD goes on: the address will answer a little later.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Waits until the link has joined the groups of all IPv6 addresses in `addresses`.
pub fn wait(socket: &mut Socket, link: u32, addresses: &[IpNetwork]) {
    let wanted: Vec<Ipv6Addr> = addresses.iter().filter_map(group).collect();
    if wanted.is_empty() {
        return;
    }
    let end = Instant::now() + TIMEOUT;
    let mut pause = Duration::from_micros(50);
    while let Ok(joined) = socket.groups(link) {
        if wanted.iter().all(|group| joined.contains(group)) || Instant::now() >= end {
            return;
        }
        observer::step("wait for IPv6 addresses", || thread::sleep(pause));
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// The address's solicited-node group (RFC 4291, section 2.7.1); `None` for IPv4.
fn group(address: &IpNetwork) -> Option<Ipv6Addr> {
    let IpNetwork::V6(v6) = address else { return None };
    let [.., high, low] = v6.ip().segments();
    Some(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_ends_in_the_addresss_last_three_bytes() {
        let group = |text: &str| group(&text.parse().unwrap()).map(|group| group.to_string());
        assert_eq!(group("2001:db8::12ab:3456/64").as_deref(), Some("ff02::1:ffab:3456"));
        assert_eq!(group("10.1.2.3/24"), None);
    }
}
