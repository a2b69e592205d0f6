//! IPv6 addresses that are there and do not answer yet.
//!
//! Neighbours ask for an address by a multicast group that follows from it. The kernel joins that group in a work queue, which
//! shares a lock with all that is done to links anywhere on the machine: at once on an idle one, milliseconds later on one
//! that starts and stops containers. A question that comes in between is lost, and asked again after a whole second.

use std::net::Ipv6Addr;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::netlink::Socket;
use ipnetwork::IpNetwork;

/// After this the address will answer a little late, which is no reason to fail.
const PATIENCE: Duration = Duration::from_millis(500);

/// Waits until the link answers for those of its addresses that are of IPv6.
pub fn wait(socket: &mut Socket, link: u32, addresses: &[IpNetwork]) {
    let wanted: Vec<Ipv6Addr> = addresses.iter().filter_map(group).collect();
    if wanted.is_empty() {
        return;
    }
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(50);
    while let Ok(joined) = socket.groups(link) {
        if wanted.iter().all(|group| joined.contains(group)) || Instant::now() >= end {
            return;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// The solicited-node group (RFC 4291, section 2.7.1).
fn group(address: &IpNetwork) -> Option<Ipv6Addr> {
    let IpNetwork::V6(v6) = address else { return None };
    let [.., high, low] = v6.ip().segments();
    Some(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_has_the_last_three_bytes() {
        let group = |text: &str| group(&text.parse().unwrap()).map(|group| group.to_string());
        assert_eq!(group("2001:db8::12ab:3456/64").as_deref(), Some("ff02::1:ffab:3456"));
        assert_eq!(group("10.1.2.3/24"), None);
    }
}
