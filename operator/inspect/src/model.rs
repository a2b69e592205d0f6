//! What a node has: objects, their owners, and how each one is removed. The JSON of the views is their serialised form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_bridge::mac_spoof::plan::Chains;
use ferrule_claims::config::Conf;
use ferrule_dhcp::wire::Key;
use ferrule_firewall::nft::Owned;
use ferrule_host_device::state as device;
use ferrule_host_local::store::Reserved;
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::presence::Presence;
use ferrule_kit::socket;
use ferrule_kit::state_file::Seen;
use ferrule_policy::list::Announced;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::sight::Sight;
use crate::text::scaled;

/// The version of the schema of all JSON. It grows if a member disappears or changes its meaning.
pub const SCHEMA: u32 = 1;

/// What an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An address that host-local has reserved.
    #[default]
    Address,
    /// Host ports of one container in one layout.
    #[serde(rename = "host port")]
    HostPort,
    /// A rule or chain that masquerades.
    Masquerade,
    /// An address that the firewall lets pass.
    Firewall,
    /// The elements that isolate a pod for which `ferrule-node` has not decided yet.
    Undecided,
    /// Chains that drop frames with another source address.
    #[serde(rename = "mac spoof check")]
    MacSpoof,
    /// An IFB, which shapes what the container sends.
    Ifb,
    /// A qdisc of the host's end, which shapes what the container receives.
    Limit,
    /// The host's end of a pair, or a link in the container that has no end on the host.
    Link,
    /// A state file of `tuning`.
    #[serde(rename = "tuning backup")]
    StateFile,
    /// A state file of `flannel`.
    #[serde(rename = "flannel state")]
    FlannelState,
    /// A use of a VLAN device by a macvlan.
    #[serde(rename = "vlan user")]
    VlanUser,
    /// The state file of a device that `host-device` has moved.
    Device,
    /// A device that a pod has by a DRA claim.
    Claim,
    /// The driver's record of a DRA claim for a pod.
    #[serde(rename = "claim record")]
    ClaimRecord,
    /// A lease of the daemon `ferrule-dhcp`.
    Lease,
    /// A route of `ferrule-node` to the pods of another node.
    Route,
    /// A block of addresses that this node has of a network of many nodes.
    Block,
    /// A file that a killed ADD has not completed.
    #[serde(rename = "incomplete file")]
    PendingFile,
}

/// Whose plugin has made an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Maker {
    /// Ferrule's.
    Ferrule,
    /// The reference's.
    Reference,
    /// Both make the same object.
    #[default]
    Either,
}

/// The name of a variant in texts and JSON.
pub fn name(variant: &impl Serialize) -> String {
    json!(variant).as_str().unwrap_or_default().to_owned()
}

/// The known names of the attachment that an object belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Owner {
    /// CNI_CONTAINERID.
    pub container: Option<String>,
    /// The network.
    pub network: Option<String>,
    /// CNI_IFNAME.
    pub ifname: Option<String>,
}

impl Owner {
    /// The owner of everything of one container.
    pub fn container(id: &str) -> Self {
        Owner { container: Some(id.to_owned()), ..Owner::default() }
    }

    /// The owner with this network.
    #[must_use]
    pub fn on(self, network: &str) -> Self {
        Owner { network: Some(network.to_owned()), ..self }
    }

    /// The owner with this interface.
    #[must_use]
    pub fn with_ifname(self, ifname: &str) -> Self {
        Owner { ifname: Some(ifname.to_owned()), ..self }
    }

    /// The attachment, if all three names are known.
    pub fn attachment(&self) -> Option<Attachment<'_>> {
        Some(Attachment {
            network: self.network.as_deref()?,
            container_id: self.container.as_deref()?,
            ifname: self.ifname.as_deref()?,
        })
    }

    /// How many of network and interface are not known.
    pub fn unknown(&self) -> usize {
        [&self.network, &self.ifname].into_iter().filter(|name| name.is_none()).count()
    }

    /// Whether the other owner may be the same attachment: what both know is equal, and both know the container.
    pub fn may_be(&self, other: &Owner) -> bool {
        let agrees =
            |one: &Option<String>, two: &Option<String>| one.is_none() || two.is_none() || one == two;
        self.container.is_some()
            && self.container == other.container
            && agrees(&self.network, &other.network)
            && agrees(&self.ifname, &other.ifname)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(container) = &self.container else { return f.write_str("no known container") };
        write!(f, "container {container}")?;
        match (&self.ifname, &self.network) {
            (Some(ifname), Some(network)) => write!(f, " (interface {ifname} on network {network})"),
            (None, Some(network)) => write!(f, " (network {network})"),
            (Some(ifname), None) => write!(f, " (interface {ifname})"),
            (None, None) => Ok(()),
        }
    }
}

impl From<Attachment<'_>> for Owner {
    fn from(Attachment { network, container_id, ifname }: Attachment<'_>) -> Self {
        Owner::container(container_id).on(network).with_ifname(ifname)
    }
}

/// Whether the owner of an object is alive, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum State {
    /// It is, or may be soon.
    Alive(String),
    /// It is not; the proof.
    Dead(String),
    /// Not decided.
    Unknown(String),
}

impl State {
    /// Of the owner of the network namespace at this path.
    pub fn of_netns(path: &str, netns: Presence) -> Self {
        match netns {
            Presence::Present(_) => State::Alive(format!("namespace {path} exists")),
            Presence::Gone { is_missing: true } => State::Dead(format!("namespace {path} does not exist")),
            Presence::Gone { is_missing: false } => State::Dead(format!("{path} is no namespace any more")),
            Presence::Unknown => State::Unknown(format!("the state of namespace {path:?} is not known")),
        }
    }

    /// The state in one word.
    pub fn word(&self) -> &'static str {
        match self {
            State::Alive(_) => "alive",
            State::Dead(_) => "dead",
            State::Unknown(_) => "unknown",
        }
    }

    /// The reasons.
    pub fn reason(&self) -> &str {
        let (State::Alive(why) | State::Dead(why) | State::Unknown(why)) = self;
        why
    }
}

impl Default for State {
    fn default() -> Self {
        State::Unknown(String::new())
    }
}

/// One object on the node.
#[derive(Default, Serialize)]
pub struct Object {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: Owner,
    /// Its kind.
    pub kind: Kind,
    /// Its name, such as an address.
    pub name: String,
    /// Where it is: a file, a table, a link.
    pub place: String,
    /// Who has made it.
    pub maker: Maker,
    /// Since when it exists, if it is a file.
    #[serde(serialize_with = "seconds")]
    pub since: Option<SystemTime>,
    /// The container's addresses in it.
    pub addresses: BTreeSet<IpAddr>,
    /// More facts, such as a rate.
    pub facts: BTreeMap<&'static str, String>,
    /// Whether its owner is alive, once the node is judged.
    #[serde(flatten)]
    pub state: State,
    /// What the object itself says about that: a sign of life or a doubt decides, a proof of death must not be contradicted.
    #[serde(skip)]
    pub sign: Option<State>,
    /// Whether it serves any container that has its addresses, not only its owner.
    #[serde(skip)]
    pub is_by_address: bool,
    /// The link that a link of its container would be on.
    #[serde(skip)]
    pub parent: Option<u32>,
    /// How to remove it; `None` for an object that is never a leak.
    #[serde(skip)]
    pub removal: Option<Removal>,
}

impl Object {
    /// An object that gc leaves alone.
    pub fn new(kind: Kind, name: String, place: String, owner: Owner, maker: Maker) -> Self {
        Object { kind, name, place, owner, maker, ..Object::default() }
    }

    /// The object with what the namespace at this path says about its owner. That the namespace is gone is no proof by itself.
    #[must_use]
    pub fn in_namespace(self, path: &str, sight: &Sight) -> Self {
        let state = State::of_netns(path, sight.netns(path));
        Object { sign: Some(state).filter(|state| !matches!(state, State::Dead(_))), ..self }
    }

    /// The object that is removed together with others of its kind.
    #[must_use]
    pub fn removed_with(self, shared: Shared) -> Self {
        Object { removal: Some(Removal::Shared(shared)), ..self }
    }

    /// Whether it would be a leak without its owner, and the owner shows no sign of life.
    pub fn may_be_leak(&self) -> bool {
        self.removal.is_some() && !matches!(self.state, State::Alive(_))
    }

    /// The port of the host, and the target in the container, of all host ports in the name.
    pub fn host_ports(&self) -> impl Iterator<Item = (&str, &str)> {
        let ports = (self.kind == Kind::HostPort).then(|| self.name.split(", ")).into_iter().flatten();
        ports.map(|port| port.split_once(" -> ").unwrap_or((port, "")))
    }

    /// The rate of a limit.
    pub fn rate(&self, unit: &str) -> String {
        scaled(self.fact("rate"), 1000, unit)
    }

    /// A fact, or an empty text.
    pub fn fact(&self, key: &str) -> &str {
        self.facts.get(key).map_or("", String::as_str)
    }
}

/// The sockets on the host that readers and removals share. A dump that objects changed in is an error. Closing one after a
/// removal waits for the kernel.
pub struct Sockets {
    /// Links, addresses, qdiscs.
    pub route: Socket,
    /// nf_tables.
    pub netfilter: Socket,
}

impl Sockets {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Code 999 if the kernel gives none.
    pub fn open() -> Result<Self, CniError> {
        let whole = Socket::with_whole_dumps;
        Ok(Sockets { route: whole(socket::route()?), netfilter: whole(socket::netfilter()?) })
    }
}

/// How an object is removed.
pub enum Removal {
    /// Many addresses that host-local has reserved share the evidence, and the holds of the lock.
    Reservation(Reservation),
    /// Many of one kind share the evidence, and the change.
    Shared(Shared),
}

/// How a plugin removes many objects of one kind, by what names each of them.
#[derive(Clone, Debug)]
pub enum Shared {
    /// Host ports in our table: the owner's label.
    HostPorts(String),
    /// Host ports in the reference's table: the container.
    HostPortsOfReference(String),
    /// Host ports in chains of iptables: network and container.
    HostPortChains((String, String)),
    /// Rules that masquerade: their comment.
    Masquerade(String),
    /// A chain of iptables that masquerades.
    MasqueradeChain(String),
    /// An address that only our table opens, and the owner's label.
    Firewall((IpAddr, String)),
    /// An address that the reference's rules in iptables open.
    FirewallOfReference(IpAddr),
    /// Chains against MAC spoofing.
    MacSpoof(Chains),
    /// An IFB.
    Ifb(Link),
    /// An address that iptables or firewalld opens, and the owner's label.
    FirewallOpened((Owned, String)),
    /// A state file as it was listed.
    File(Seen),
    /// A lease: the daemon's socket, and the attachment.
    Lease((PathBuf, Key)),
    /// A device that `host-device` has moved.
    Device(Box<device::State>),
    /// A user of a VLAN device, by its alternative name.
    VlanUser(String),
    /// A record of a claim.
    ClaimRecord(Box<Recorded>),
    /// A pod for which `ferrule-node` has not decided.
    Undecided(Announced),
}

/// A record of a claim.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The places, and the driver that has written it.
    pub conf: Conf,
    /// The pod's UID.
    pub pod: String,
    /// The claim's UID.
    pub claim: String,
}

/// An address that host-local has reserved.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The folder of all networks.
    pub data_dir: PathBuf,
    /// The network.
    pub network: String,
    /// The address and its file.
    pub reserved: Reserved,
}

/// Writes a path, which may be no UTF-8.
pub(crate) fn shown<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// Writes a time as seconds since 1970.
pub(crate) fn seconds<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    let since_1970 = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since_1970.map(|time| time.as_secs()).serialize(serializer)
}
