//! The decoders of what everybody on the link can send, as functions of any bytes. For the fuzzer.

use ferrule_dhcp::wire::{Key, Options};

use crate::lease::Lease;
use crate::message::Client;
use crate::settings::is_host;
use crate::v6;

/// A frame of a container's link.
pub fn frame(bytes: &[u8]) {
    let _ = crate::frame::parse(bytes);
}

/// An answer to the client 02:00:00:00:00:01, and the lease of it.
pub fn message(bytes: &[u8]) {
    let options = Options { request: (1..=254).collect(), ..Options::default() };
    let client = Client { mac: [2, 0, 0, 0, 0, 1], id: Vec::new(), options };
    let Some(reply) = crate::message::parse(&client, bytes) else { return };
    let Ok(lease) = Lease::of(&reply, Some(24), client.mac, 0) else { return };
    assert!(is_host(lease.address) && is_host(lease.server) && lease.address != lease.server);
    assert!(lease.renew_at <= lease.rebind_at && lease.rebind_at <= lease.expires_at);
    let names = lease.settings.search.iter().chain([&lease.settings.domain]);
    assert!(names.into_iter().all(|name| is_plain(name)));
}

/// A message to the DHCPv6 client of the container `c1` with `eth0` on the network `net`, and the lease of it.
pub fn message6(bytes: &[u8]) {
    let key = Key { network: "net".to_owned(), container_id: "c1".to_owned(), ifname: "eth0".to_owned() };
    let client = v6::message::Client::new(&key, true);
    let Some(reply) = v6::message::parse(&client, bytes) else { return };
    let Ok(lease) = v6::lease::Lease::of(&reply, None, 0) else { return };
    assert!(v6::settings::is_host(lease.address) && lease.expires_at > 0);
    assert!(lease.renew_at <= lease.rebind_at && lease.rebind_at <= lease.expires_at);
    assert!(lease.settings.search.iter().all(|name| is_plain(name)));
}

/// Whether a name can do no harm in `resolv.conf`.
fn is_plain(name: &str) -> bool {
    name.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
}
