//! The WireGuard device, its key and its peers.

mod kernel;
mod key;
mod peers;

use std::path::Path;

use anyhow::{Context as _, Result};
use ferrule_kernel::netlink::link::NewLink;
use ferrule_kernel::netlink::{LinkId, Socket};

use self::kernel::Kernel;
use self::key::Key;
use self::peers::Peers;
use crate::device;
use crate::plan::WireGuard;

pub use crate::cluster::{key_text, parse_key};
pub use crate::names::{KEY_ANNOTATION as ANNOTATION, WIREGUARD as LINK};

const KIND: &str = "wireguard";

/// Makes the device and its peers as wanted.
pub struct Part {
    route: Socket,
    kernel: Kernel,
    private_key: Key,
    public_key: Key,
    known: Option<Known>,
    /// The lines about peers that are left out, each logged once.
    refused: Vec<String>,
}

/// The device as the last [`Part::sync`] left it.
struct Known {
    link: u32,
    /// Without peers.
    settings: WireGuard,
    peers: Peers,
}

impl Part {
    /// Reads or makes the key file. Makes the device, which computes the public key.
    ///
    /// # Errors
    /// The file cannot be read, has no key, or cannot be made. The kernel has no WireGuard.
    pub fn open(key: &Path) -> Result<Self> {
        let private_key = key::read_or_make(key)?;
        let (mut route, mut kernel) = (Socket::route()?, Kernel::open()?);
        let link = match route.link(LinkId::Name(LINK))? {
            // Keeps the addresses of a device that carries traffic.
            Some(link) if link.kind == KIND => link.index,
            _ => device::ensure(&mut route, &new_link(0), &[])?,
        };
        let present = kernel.device(link)?;
        if present.private_key != private_key {
            kernel.set_key_and_port(link, &private_key, present.port)?;
        }
        let public_key = kernel.device(link)?.public_key;
        Ok(Part { route, kernel, private_key, public_key, known: None, refused: Vec::new() })
    }

    /// The public key in base64.
    pub fn public_key(&self) -> String {
        key_text(&self.public_key)
    }

    /// The next [`Part::sync`] looks at the device: a link or an address has changed. The kernel says nothing about peers.
    pub fn suspect(&mut self) {
        self.known = None;
    }

    /// Blocks for some milliseconds. A change of one node is one request, if the device is as the last call left it.
    ///
    /// # Errors
    /// The kernel refuses the device or a peer. The next call tries again.
    pub fn sync(&mut self, wanted: &WireGuard) -> Result<()> {
        let settings = WireGuard { peers: Vec::new(), ..wanted.clone() };
        let known = self.known.take().filter(|known| known.settings == settings);
        let (link, is_known, present) = match known {
            Some(known) => (known.link, true, known.peers),
            None => {
                let link = device::ensure(&mut self.route, &new_link(settings.mtu), &settings.addresses)?;
                let present = self.kernel.device(link).with_context(|| format!("read {LINK}"))?;
                if (present.private_key, present.port) != (self.private_key, settings.port) {
                    self.kernel.set_key_and_port(link, &self.private_key, settings.port)?;
                }
                (link, false, present.peers)
            }
        };
        let (peers, refused) = peers::of(&wanted.peers, &self.public_key, &present);
        refused.iter().filter(|line| !self.refused.contains(line)).for_each(|line| log!("{line}"));
        self.refused = refused;
        let present = if is_known { present } else { peers::with_endpoints(present, &peers) };
        let (gone, new) = peers::changes(&present, &peers);
        self.kernel.change(link, &gone, &new)?;
        self.known = Some(Known { link, settings, peers });
        Ok(())
    }
}

fn new_link(mtu: u32) -> NewLink<'static> {
    NewLink { kind: KIND, name: LINK, mtu, ..NewLink::default() }
}

/// Removes the device. Returns its name for the report. The key file stays.
pub fn cleanup() -> Result<Vec<String>> {
    Ok(device::remove(&mut Socket::route()?, LINK, KIND)?.into_iter().collect())
}
