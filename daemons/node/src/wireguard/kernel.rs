//! The requests of the kernel's family `wireguard`.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::generic::{Family, HEADER};
use ferrule_kernel::netlink::message::F_DUMP;
use ipnetwork::IpNetwork;
use netlink_packet_core::{Emitable as _, ParseableParametrized as _};
use netlink_packet_generic::{GenlFamily as _, GenlHeader};
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute, WireguardCmd,
    WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
};

use super::key::Key;
use super::peers::{Peer, Peers};

/// Peers in one request: a list has at most 64 KiB, and a peer with two networks takes some 150 bytes.
const PER_REQUEST: usize = 100;

/// A device in the kernel's answer.
#[derive(Default)]
pub(super) struct Device {
    pub(super) private_key: Key,
    pub(super) public_key: Key,
    pub(super) port: u16,
    pub(super) peers: Peers,
}

pub(super) struct Kernel(Family);

impl Kernel {
    pub(super) fn open() -> Result<Self> {
        Family::open("wireguard").map(Kernel).context("the kernel has no WireGuard (module wireguard)")
    }

    fn request(&mut self, attributes: Vec<WireguardAttribute>, cmd: WireguardCmd) -> Result<Vec<Vec<u8>>> {
        let message = WireguardMessage { cmd, attributes };
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let flags = if cmd == WireguardCmd::GetDevice { F_DUMP } else { 0 };
        let request = self.0.encoded(message.command(), flags, &bytes);
        Ok(self.0.socket.request(request)?)
    }

    pub(super) fn device(&mut self, link: u32) -> Result<Device> {
        let bodies = self.request(vec![WireguardAttribute::IfIndex(link)], WireguardCmd::GetDevice)?;
        let mut device = Device::default();
        for body in bodies {
            let header = GenlHeader { cmd: WireguardCmd::GetDevice.into(), version: 1 };
            let attributes = body.get(HEADER..).unwrap_or_default();
            let message = WireguardMessage::parse_with_param(attributes, header)
                .context("decode the kernel's answer")?;
            message.attributes.into_iter().for_each(|attribute| device.add(attribute));
        }
        Ok(device)
    }

    pub(super) fn set_key_and_port(&mut self, link: u32, key: &Key, port: u16) -> Result<()> {
        use WireguardAttribute::{IfIndex, ListenPort, PrivateKey};
        let attributes = vec![IfIndex(link), PrivateKey(*key), ListenPort(port)];
        self.request(attributes, WireguardCmd::SetDevice).context("set key and port").map(drop)
    }

    /// Removes some peers and sets others.
    pub(super) fn change(&mut self, link: u32, gone: &[Key], new: &Peers) -> Result<()> {
        let peers: Vec<WireguardPeer> = gone.iter().map(gone_peer).chain(new.iter().map(new_peer)).collect();
        for part in peers.chunks(PER_REQUEST) {
            let attributes =
                vec![WireguardAttribute::IfIndex(link), WireguardAttribute::Peers(part.to_vec())];
            self.request(attributes, WireguardCmd::SetDevice).context("change the peers")?;
        }
        Ok(())
    }
}

impl Device {
    fn add(&mut self, attribute: WireguardAttribute) {
        match attribute {
            WireguardAttribute::PrivateKey(key) => self.private_key = key,
            WireguardAttribute::PublicKey(key) => self.public_key = key,
            WireguardAttribute::ListenPort(port) => self.port = port,
            WireguardAttribute::Peers(peers) => peers.iter().for_each(|peer| self.add_peer(peer)),
            _ => {}
        }
    }

    /// The kernel sends a peer with many networks in several messages.
    fn add_peer(&mut self, attributes: &WireguardPeer) {
        let (mut key, mut endpoint, mut allowed) = (None, None, BTreeSet::new());
        for attribute in &attributes.0 {
            match attribute {
                WireguardPeerAttribute::PublicKey(found) => key = Some(*found),
                WireguardPeerAttribute::Endpoint(found) => endpoint = Some(*found),
                WireguardPeerAttribute::AllowedIps(found) => allowed.extend(found.iter().filter_map(network)),
                _ => {}
            }
        }
        let Some(key) = key else { return };
        let peer = self.peers.entry(key).or_insert(Peer { endpoint, allowed: BTreeSet::new() });
        peer.allowed.append(&mut allowed);
    }
}

fn gone_peer(key: &Key) -> WireguardPeer {
    use WireguardPeerAttribute::{Flags, PublicKey};
    WireguardPeer(vec![PublicKey(*key), Flags(WireguardPeerFlags::RemoveMe)])
}

fn new_peer((key, peer): (&Key, &Peer)) -> WireguardPeer {
    use WireguardPeerAttribute::{AllowedIps, Endpoint, Flags, PublicKey};
    let mut attributes = vec![PublicKey(*key), Flags(WireguardPeerFlags::ReplaceAllowedIps)];
    attributes.extend(peer.endpoint.map(Endpoint));
    attributes.push(AllowedIps(peer.allowed.iter().map(allowed_ip).collect()));
    WireguardPeer(attributes)
}

fn allowed_ip(network: &IpNetwork) -> WireguardAllowedIp {
    use WireguardAllowedIpAttr::{Cidr, Family, IpAddr};
    let family = match IpFamily::of(network.ip()) {
        IpFamily::V4 => WireguardAddressFamily::Ipv4,
        IpFamily::V6 => WireguardAddressFamily::Ipv6,
    };
    WireguardAllowedIp(vec![Family(family), IpAddr(network.network()), Cidr(network.prefix())])
}

fn network(allowed: &WireguardAllowedIp) -> Option<IpNetwork> {
    let address = allowed.0.iter().find_map(|attribute| match attribute {
        WireguardAllowedIpAttr::IpAddr(address) => Some(*address),
        _ => None,
    })?;
    let prefix = allowed.0.iter().find_map(|attribute| match attribute {
        WireguardAllowedIpAttr::Cidr(prefix) => Some(*prefix),
        _ => None,
    })?;
    IpNetwork::new(address, prefix).ok()
}
