//! The decoders of what everybody on the link can send, as functions of any bytes. For the fuzzer.

use ferrule_dhcp::wire::Options;

use crate::lease::Lease;
use crate::message::Client;
use crate::settings::is_host;

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
    assert!(
        names.flat_map(|name| name.chars()).all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
    );
}
