//! The readers: each lists the objects of one plugin or one kind, by a fixed number of dumps. A new one is a file here and
//! a row in [`READERS`].

mod container_links;
mod dhcp;
mod drafts;
mod firewall;
mod host_device;
mod links;
mod mac_spoof;
mod masquerade;
mod portmap;
mod store;
mod tuning;
mod vlan_users;

use std::net::IpAddr;
use std::path::PathBuf;

use cni_common::spec::CniError;
use ferrule_kernel::netlink::Link;
use ferrule_kernel::netlink::link::Counters;
use ferrule_kernel::netlink::qdisc::Listed;

use crate::cache::{Cache, Entry};
use crate::model::{Object, Owner, Sockets};
use crate::named::Named;
use crate::scene::Sandbox;
use crate::sight::Sight;

/// What readers have in common.
#[derive(Debug)]
pub struct Scene {
    /// What this process sees of the node.
    pub sight: Sight,
    /// libcni's cache.
    pub cache: Cache,
    /// The folders of host-local.
    pub data_dirs: Vec<PathBuf>,
    /// The folders of `tuning`.
    pub tuning_dirs: Vec<PathBuf>,
    /// The sockets of `ferrule-dhcp`.
    pub dhcp_sockets: Vec<PathBuf>,
    /// The links of the node, with their counters if these were asked for.
    pub links: Vec<(Link, Option<Counters>)>,
    /// The qdiscs of the node.
    pub qdiscs: Vec<Listed>,
    /// The attachments that the cache and the readers so far have named.
    pub owners: Named<Owner>,
    /// The networks that they have named.
    pub networks: Vec<String>,
}

impl Scene {
    /// The attachments whose three names are known.
    pub fn attachments(&self) -> impl Iterator<Item = (&Owner, cni_common::plugin::Attachment<'_>)> {
        self.owners.iter().filter_map(|owner| Some((owner, owner.attachment()?)))
    }

    /// The attachment of the cache that has an address, a live one if there are several.
    pub fn owner_of(&self, address: IpAddr) -> Option<&Owner> {
        let has = |entry: &&Entry| entry.addresses.contains(&address);
        let is_live = |entry: &&Entry| matches!(entry.sandbox, Sandbox::Live(_));
        let mut entries = self.cache.entries.iter().filter(has);
        entries.clone().find(is_live).or_else(|| entries.next()).map(|entry| &entry.owner)
    }
}

/// A reader.
pub type Reader = fn(&mut Sockets, &Scene) -> Result<Vec<Object>, CniError>;

/// All readers. The first ones name attachments that later ones recognise by a hash.
pub const READERS: [(&str, Reader); 12] = [
    ("reservations of host-local", store::read),
    ("host ports", portmap::read),
    ("backup files of tuning", tuning::read),
    ("leases of dhcp", dhcp::read),
    ("records of host-device", host_device::read),
    ("incomplete files", drafts::read),
    ("links and qdiscs", links::read),
    ("users of VLAN devices", vlan_users::read),
    ("links in containers", container_links::read),
    ("masquerade rules", masquerade::read),
    ("firewall addresses", firewall::read),
    ("rules against MAC spoofing", mac_spoof::read),
];
