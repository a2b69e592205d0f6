//! The readers: each lists the objects of one plugin or one kind, by a fixed number of dumps. A new one is a function here
//! and a row in [`READERS`].

mod blocks;
mod claims;
mod files;
mod links;
mod nodes;
mod policy;
mod rules;

pub(crate) use self::claims::remove as remove_records;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::Link;
use ferrule_kernel::netlink::link::Counters;
use ferrule_kernel::netlink::qdisc::Listed;

use crate::cache::{Cache, Entry, Pairs};
use crate::model::{Object, Owner, Sockets};
use crate::sight::Sight;

/// What readers have in common.
#[derive(Debug)]
pub struct Scene {
    /// What this process sees of the node.
    pub sight: Sight,
    /// libcni's cache.
    pub cache: Cache,
    /// The folders of host-local.
    pub data_dirs: BTreeSet<PathBuf>,
    /// The folders of `tuning`.
    pub tuning_dirs: BTreeSet<PathBuf>,
    /// The folders of `flannel`.
    pub flannel_dirs: BTreeSet<PathBuf>,
    /// The folders with ledgers of `shared`.
    pub ledgers: BTreeSet<PathBuf>,
    /// The sockets of `ferrule-dhcp`.
    pub dhcp_sockets: BTreeSet<PathBuf>,
    /// The links of the node, with their counters if these were asked for.
    pub links: Vec<(Link, Option<Counters>)>,
    /// Those of them that may be a host's end.
    pub pairs: Pairs,
    /// The qdiscs of the node.
    pub qdiscs: Vec<Listed>,
    /// The owners that the cache and the readers so far have named.
    pub owners: BTreeSet<Owner>,
}

impl Scene {
    /// The attachments whose three names are known.
    pub fn attachments(&self) -> impl Iterator<Item = (&Owner, Attachment<'_>)> {
        self.owners.iter().filter_map(|owner| Some((owner, owner.attachment()?)))
    }

    /// The same by a name that a plugin derives from the attachment.
    pub fn owners_by(&self, name: impl Fn(&Attachment<'_>) -> String) -> HashMap<String, Owner> {
        self.attachments().map(|(owner, attachment)| (name(&attachment), owner.clone())).collect()
    }

    /// All owners of a container, who are sorted by it first.
    pub fn owners_of(&self, container: &str) -> impl Iterator<Item = &Owner> {
        let first = Owner::container(container);
        let later = self.owners.range(&first..);
        later.take_while(move |owner| owner.container == first.container)
    }

    /// The attachment of the cache that has an address, a live one if there are several.
    pub fn owner_of(&self, address: IpAddr) -> Option<&Owner> {
        let has = |entry: &&Entry| entry.addresses.contains(&address);
        let is_live = |entry: &&Entry| entry.netns_state.inode().is_some();
        let mut entries = self.cache.entries.iter().filter(has);
        entries.clone().find(is_live).or_else(|| entries.next()).map(|entry| &entry.owner)
    }
}

/// A reader.
pub type Reader = fn(&mut Sockets, &Scene) -> Result<Vec<Object>, CniError>;

/// All readers. The first ones name attachments that later ones recognise by a hash.
pub const READERS: [(&str, Reader); 18] = [
    ("reservations of host-local and shared", files::reservations),
    ("host ports", rules::host_ports),
    ("state files of tuning", files::of_tuning),
    ("state files of flannel", files::of_flannel),
    ("leases of dhcp", files::leases),
    ("state files of host-device", files::devices),
    ("devices of claims", claims::attached),
    ("records of claims", claims::records),
    ("incomplete files", files::pending),
    ("links and qdiscs", links::on_host),
    ("users of VLAN devices", links::vlan_users),
    ("links in containers", links::in_containers),
    ("routes to other nodes", nodes::routes),
    ("blocks of shared", blocks::blocks),
    ("masquerade rules", rules::masquerade),
    ("firewall addresses", rules::firewall),
    ("rules against MAC spoofing", rules::mac_spoof),
    ("pods without a decision on policies", policy::undecided),
];
