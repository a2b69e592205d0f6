//! The VXLAN device: its peers' FDB entries and neighbours. It learns nothing from packets.

mod entries;

use std::future::pending;

use anyhow::{Context as _, Result};
use ferrule_kernel::netlink::link::NewLink;
use ferrule_kernel::netlink::neighbour::{self, Change};
use ferrule_kernel::netlink::{LinkData, Socket};
use ferrule_kernel::notices::Messages;

use self::entries::Entries;
use crate::device;
use crate::listener::Listener;
use crate::plan::Vxlan;

pub use crate::names::VXLAN as LINK;
const KIND: &str = "vxlan";

/// Makes the device and the entries of its peers as wanted, or removes the device.
pub struct Part {
    socket: Socket,
    /// `None` without a device.
    listener: Option<Listener>,
    known: Option<Known>,
    /// The device was removed.
    is_gone: bool,
}

/// The device as the last [`Part::sync`] left it.
struct Known {
    link: u32,
    /// Without peers.
    settings: Vxlan,
    entries: Entries,
}

impl Part {
    pub fn open() -> Result<Self> {
        Ok(Part { socket: Socket::route()?, listener: None, known: None, is_gone: false })
    }

    /// The next [`Part::sync`] looks at the device: a link or an address has changed.
    pub fn suspect(&mut self) {
        (self.known, self.is_gone) = (None, false);
    }

    /// Blocks for some milliseconds. A change of one node is one request, if the device is as the last call left it. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses the device or an entry. The next call tries again.
    pub fn sync(&mut self, wanted: Option<&Vxlan>) -> Result<()> {
        let known = self.known.take();
        let Some(wanted) = wanted else {
            self.listener = None;
            if !self.is_gone {
                device::remove(&mut self.socket, LINK, KIND)?;
                self.is_gone = true;
            }
            return Ok(());
        };
        self.is_gone = false;
        if self.listener.is_none() {
            let messages =
                Messages::of_route(&[neighbour::GROUP]).context("listen to changes of neighbours")?;
            self.listener = Some(Listener::new(messages)?);
        }
        let settings = Vxlan { peers: Vec::new(), ..wanted.clone() };
        let (link, present) = match known.filter(|known| known.settings == settings) {
            Some(known) => (known.link, known.entries),
            None => {
                let Vxlan { id, port, local, mac, mtu, .. } = settings;
                let data = LinkData::Vxlan { id, local: Some(local), port, learning: false };
                let new = NewLink { kind: KIND, name: LINK, mac: Some(mac), mtu, data, ..NewLink::default() };
                let link = device::ensure(&mut self.socket, &new, &settings.addresses)?;
                let mut present = self.socket.neighbours(link)?;
                present.retain(|entry| entry.is_permanent);
                (link, present.into_iter().map(|entry| (entry.key(), entry)).collect())
            }
        };
        let entries = entries::of(&wanted.peers);
        let (gone, new) = entries::changes(&present, &entries);
        let changes = gone.map(|entry| entry.delete(link)).chain(new.map(|entry| entry.set(link))).collect();
        device::send(&mut self.socket, changes).with_context(|| format!("change the peers of {LINK}"))?;
        self.known = Some(Known { link, settings, entries });
        Ok(())
    }

    /// Ends when another program has changed the entries of the device; the next [`Part::sync`] then looks at it. Safe to cancel.
    pub async fn disturbed(&mut self) {
        let (Some(listener), Some(known)) = (&mut self.listener, &self.known) else { return pending().await };
        let is_damage = |change: Change| entries::is_damage(known.link, &known.entries, &change);
        listener.hear(|message| Change::parse(message).is_some_and(is_damage)).await;
        self.known = None;
    }
}

/// Removes the device. Returns its name for the report.
pub fn cleanup() -> Result<Vec<String>> {
    Ok(device::remove(&mut Socket::route()?, LINK, KIND)?.into_iter().collect())
}
