//! What a node has: objects, their owners, and how each one is removed.

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_kit::socket;

use crate::scene::Sandbox;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An address that host-local has reserved.
    Address,
    /// Host ports of one container in one layout.
    HostPort,
    /// A rule or chain that masquerades.
    Masquerade,
    /// An address that the firewall lets pass.
    Firewall,
    /// Chains that drop frames with another source address.
    MacSpoof,
    /// An IFB, which shapes what the container sends.
    Ifb,
    /// A qdisc of the host's end, which shapes what the container receives.
    Limit,
    /// The host's end of a pair, or a link in the container that has no end on the host.
    Link,
    /// A backup file of `tuning`.
    Backup,
    /// A use of a VLAN device by a macvlan.
    VlanUser,
    /// The record of a device that `host-device` has moved.
    Device,
    /// A lease of the daemon `ferrule-dhcp`.
    Lease,
    /// A file that a killed ADD has not completed.
    Draft,
}

impl Kind {
    /// Its name in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Address => "address",
            Kind::HostPort => "host port",
            Kind::Masquerade => "masquerade",
            Kind::Firewall => "firewall",
            Kind::MacSpoof => "mac spoof check",
            Kind::Ifb => "ifb",
            Kind::Limit => "limit",
            Kind::Link => "link",
            Kind::Backup => "tuning backup",
            Kind::VlanUser => "vlan user",
            Kind::Device => "device",
            Kind::Lease => "lease",
            Kind::Draft => "incomplete file",
        }
    }
}

/// Whose plugin has made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Ferrule's.
    Ferrule,
    /// The reference's.
    Reference,
    /// Both make the same object.
    Either,
}

impl Maker {
    /// Its name in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Maker::Ferrule => "ferrule",
            Maker::Reference => "reference",
            Maker::Either => "either",
        }
    }
}

/// The known names of the attachment that an object belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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

    /// The attachment, if all three names are known.
    pub fn attachment(&self) -> Option<Attachment<'_>> {
        Some(Attachment {
            network: self.network.as_deref()?,
            container_id: self.container.as_deref()?,
            ifname: self.ifname.as_deref()?,
        })
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
    fn from(attachment: Attachment<'_>) -> Self {
        let Attachment { network, container_id, ifname } = attachment;
        Owner { ifname: Some(ifname.to_owned()), ..Owner::container(container_id).on(network) }
    }
}

/// One object on the node.
#[derive(Debug)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its name, such as an address.
    pub name: String,
    /// Where it is: a file, a table, a link.
    pub place: String,
    /// Whose it is.
    pub owner: Owner,
    /// Who has made it.
    pub maker: Maker,
    /// Since when it exists, if it is a file.
    pub since: Option<SystemTime>,
    /// The container's addresses in it.
    pub addresses: Vec<IpAddr>,
    /// More facts, such as a rate.
    pub facts: Vec<(&'static str, String)>,
    /// Whether it serves any container that has its addresses, not only its owner.
    pub is_by_address: bool,
    /// The link that a link of its container would be on.
    pub parent: Option<u32>,
    /// What proves that its owner is alive.
    pub alive: Option<String>,
    /// What proves by itself that its owner is not.
    pub dead: Option<String>,
    /// Why it is not known whether its owner is alive.
    pub doubt: Option<String>,
    /// How to remove it; `None` for an object that is never a leak.
    pub removal: Option<Removal>,
}

impl Object {
    /// An object that gc leaves alone.
    pub fn new(
        kind: Kind,
        name: impl Into<String>,
        place: impl Into<String>,
        owner: Owner,
        maker: Maker,
    ) -> Self {
        Object {
            kind,
            name: name.into(),
            place: place.into(),
            owner,
            maker,
            since: None,
            addresses: Vec::new(),
            facts: Vec::new(),
            is_by_address: false,
            parent: None,
            alive: None,
            dead: None,
            doubt: None,
            removal: None,
        }
    }

    /// The object with what the namespace at this path says about its owner. That the namespace is gone is no proof by itself.
    #[must_use]
    pub fn in_namespace(self, path: &str, sandbox: &Sandbox) -> Self {
        match sandbox {
            Sandbox::Live(_) => Object { alive: Some(format!("namespace {path} exists")), ..self },
            Sandbox::Gone(_) => self,
            Sandbox::Unknown => {
                Object { doubt: Some(format!("the state of namespace {path:?} is not known")), ..self }
            }
        }
    }

    /// The object with the way to remove it.
    #[must_use]
    pub fn removed_by(
        self,
        remove: impl Fn(&mut Sockets, &mut dyn FnMut() -> bool) -> Result<bool, CniError> + 'static,
    ) -> Self {
        Object { removal: Some(Removal(Box::new(remove))), ..self }
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

type Remove = dyn Fn(&mut Sockets, &mut dyn FnMut() -> bool) -> Result<bool, CniError>;

/// Removes one object by its plugin's own code: takes the plugin's lock, asks whether the owner is still dead, removes.
/// Returns whether it has removed something.
pub struct Removal(Box<Remove>);

impl Removal {
    /// Removes the object.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn run(&self, sockets: &mut Sockets, is_dead: &mut dyn FnMut() -> bool) -> Result<bool, CniError> {
        (self.0)(sockets, is_dead)
    }
}

impl fmt::Debug for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Removal")
    }
}
