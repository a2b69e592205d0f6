//! The plan: the wanted state of this node's kernel and files.

mod guard;
mod interest;
mod make;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::netlink::Mac;
use ipnetwork::IpNetwork;

pub use interest::Interest;
pub use make::{Facts, Former, Plan, State, make};

/// The plan for one state of the cluster and of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The ways to the pods of other nodes, by podCIDR.
    pub routes: BTreeMap<IpNetwork, Way>,
    /// The addresses to remove, each with its link: this node's own from before, in a podCIDR that another node has now, and those of
    /// a bridge without ports in its own podCIDR.
    pub stale: BTreeSet<(u32, IpAddr)>,
    /// The VXLAN device; `None` if no node needs it.
    pub vxlan: Option<Vxlan>,
    /// The WireGuard device; `None` in other modes.
    pub wireguard: Option<WireGuard>,
    /// The masquerade table; `None` if this node needs none.
    pub masquerade: Option<Masquerade>,
    /// The table that guards this node's pods and its VXLAN; `None` if nothing is to be guarded.
    pub guard: Option<Guard>,
    /// The conflist's values; `None` while this node has no podCIDR, or was refused its own.
    pub pods: Option<Pods>,
}

/// How packets get to the pods of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The node is on the link with this index.
    Direct {
        /// The node's address.
        via: IpAddr,
        link: u32,
    },
    /// Through [`crate::names::VXLAN`], to this inner address, which is on the link (`onlink`).
    Vxlan(IpAddr),
    /// Through [`crate::names::WIREGUARD`].
    WireGuard,
}

/// The VXLAN device and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The VNI.
    pub id: u32,
    /// The UDP port, here and at the peers.
    pub port: u16,
    /// This node's outer address.
    pub local: IpAddr,
    pub mac: Mac,
    pub mtu: u32,
    /// The device's own addresses, /32 and /128: the first addresses of this node's podCIDRs.
    pub addresses: Vec<IpNetwork>,
    /// Sorted by name.
    pub peers: Vec<VxlanPeer>,
}

/// A node that is reached by VXLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanPeer {
    pub name: String,
    /// The MAC address of its device.
    pub mac: Mac,
    /// Its outer address, of the same family as [`Vxlan::local`].
    pub outer: IpAddr,
    /// Its inner addresses, the first of each podCIDR: the gateways of [`Way::Vxlan`].
    pub inner: Vec<IpAddr>,
}

/// The WireGuard device and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireGuard {
    /// The UDP port here.
    pub port: u16,
    pub mtu: u32,
    /// The device's own addresses, as those of [`Vxlan::addresses`].
    pub addresses: Vec<IpNetwork>,
    /// Sorted by name.
    pub peers: Vec<WireGuardPeer>,
}

/// A node that is reached by WireGuard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireGuardPeer {
    pub name: String,
    pub key: [u8; 32],
    /// Its outer address and port.
    pub endpoint: SocketAddr,
    /// Its podCIDRs: the allowed addresses, and no others.
    pub allowed: Vec<IpNetwork>,
}

/// Packets from `own` get the node's address, except those to `cluster` and `exclude`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// This node's podCIDRs, of the families that `--masquerade` names.
    pub own: Vec<IpNetwork>,
    /// The networks of the cluster, sorted; they may overlap.
    pub cluster: Vec<IpNetwork>,
    /// Excluded networks, sorted; they may overlap.
    pub exclude: Vec<IpNetwork>,
}

/// Which packets this node takes from its pods, and from VXLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Whether pods may send with their own addresses only.
    pub sources: bool,
    /// Sources that each pod may have besides.
    pub allow: Vec<IpNetwork>,
    /// The names of links that belong to no pod.
    pub uplinks: BTreeSet<String>,
    /// `None` in modes without VXLAN.
    pub vxlan: Option<GuardedVxlan>,
}

/// Whom VXLAN takes packets from, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardedVxlan {
    /// The UDP port.
    pub port: u16,
    /// The InternalIPs of all Nodes, also of this one.
    pub nodes: BTreeSet<IpAddr>,
    /// The VNI of this node's device and its outer address, if it has one.
    pub device: Option<(u32, IpAddr)>,
    /// The inner sources of each other node by its outer address: its podCIDRs, its InternalIPs and [`Guard::allow`].
    pub owned: BTreeSet<(IpAddr, IpNetwork)>,
}

/// The conflist's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// This node's podCIDRs, in the order of the Node object.
    pub networks: Vec<IpNetwork>,
    pub mtu: u32,
}
