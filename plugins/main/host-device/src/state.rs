//! The state file of a moved device: what DEL needs to give it back as it was.
//!
//! ADD writes it before it moves the device. It is a file below `/run`, as the device's place is: after a reboot the
//! kernel finds the device anew. The reference keeps only the device's name, as the link's alias.

use std::path::Path;

use cni_common::netns::ContainerNetns;
use cni_common::plugin::AddRequest;
use cni_common::spec::{CniError, Context as _, Json};
use ferrule_kernel::netlink::link::{IFF_ALLMULTI, IFF_PROMISC};
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{Link, Mac, Socket, addr};
use ferrule_kit::state_file::{self, JSON, StateFile, stem};
use serde::{Deserialize, Serialize};

use crate::identity::{self, Identity, OtherEnd};
use crate::vf::Former;

/// The flags of a link that let it receive packets for others.
pub const MODES: u32 = IFF_PROMISC | IFF_ALLMULTI;
/// The folder of the state files.
pub const FOLDER: &str = "/run/cni/host-device";

/// The attachment, and the device's state on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct State {
    /// The network's name.
    pub network: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_IFNAME.
    pub ifname: String,
    /// CNI_NETNS.
    pub netns: String,
    /// The pod as `NAMESPACE/NAME`, if the device is one of a resource; as the next one.
    pub pod: String,
    /// The resource that the kubelet has given it from.
    pub resource: String,
    /// Its ID on a bus, or that of the device plugin; empty if a name or an address has selected it.
    pub device_id: String,
    /// The device's name on the host, which is its alias in the container.
    pub name: String,
    /// Its kind; empty for a physical device.
    pub kind: String,
    /// What tells it from other links of its kind.
    pub identity: Identity,
    /// Its alias; usually empty.
    pub alias: String,
    /// Its alternative names.
    pub alt_names: Vec<String>,
    /// Its hardware address; empty if unknown.
    pub mac: String,
    /// Its MTU in bytes; 0 if unknown.
    pub mtu: u32,
    /// The index of the bridge or bond that it was a port of; 0 for none.
    pub master: u32,
    /// Whether it was up.
    pub up: bool,
    /// Its promiscuous and all-multicast mode, as [`MODES`] of the flags; `None` if unknown.
    pub modes: Option<u32>,
    /// The length of its transmit queue in packets; `None` if unknown.
    pub tx_queue_len: Option<u32>,
    /// Its addresses, as the kernel describes them.
    pub addresses: Vec<Vec<u8>>,
    /// The routes through it that someone has added, as the kernel describes them.
    pub routes: Vec<Vec<u8>>,
    /// What ADD has changed of a virtual function.
    pub vf: Former,
    /// It belongs to a program and has no link. Its name is its PCI address.
    pub is_userspace: bool,
    /// The policy routing rules that the container has got, as the kernel describes those of the host.
    pub rules: Vec<Vec<u8>>,
}

impl State {
    /// The state of the device now.
    ///
    /// # Errors
    /// Addresses or routes cannot be listed.
    pub fn take(call: &AddRequest<'_>, host: &mut Socket, link: &Link) -> Result<State, CniError> {
        let failed = |what| format!("list the {what} of {:?}", link.name);
        let addresses = addr::descriptions(host.request(addr::list(link.index)), link.index);
        let routes = host.routes_through(link.index);
        Ok(State {
            kind: link.kind.clone(),
            // An ADD that was killed has left its own alias.
            alias: if link.alias == link.name { String::new() } else { link.alias.clone() },
            identity: Identity::of(link),
            alt_names: link.alt_names.clone(),
            mtu: link.mtu,
            master: link.master.unwrap_or_default(),
            up: link.is_up(),
            modes: Some(link.flags & MODES),
            tx_queue_len: Some(link.tx_queue_len),
            addresses: addresses.context(|| failed("addresses"))?,
            routes: routes
                .context(|| failed("routes"))?
                .into_iter()
                .map(StoredRoute::into_description)
                .collect(),
            mac: mac_of(link),
            ..State::of_attachment(call, &link.name)
        })
    }

    /// The attachment, and the device's name.
    pub fn of_attachment(call: &AddRequest<'_>, name: &str) -> State {
        State {
            network: call.config.name().to_owned(),
            container_id: call.container_id.to_owned(),
            ifname: call.ifname.to_owned(),
            netns: call.sandbox.path().to_owned(),
            name: name.to_owned(),
            ..State::default()
        }
    }

    /// What is known of a device that the reference has moved: its name.
    pub fn of(name: &str, link: &Link) -> State {
        State { name: name.to_owned(), kind: link.kind.clone(), mac: mac_of(link), ..State::default() }
    }

    /// The state in a file; `None` if the content is something else.
    pub fn parse(bytes: &[u8]) -> Option<State> {
        Json::parse(bytes).ok()?.decode().ok().filter(|state: &State| !state.name.is_empty())
    }

    /// The state in the file of an attachment, if it exists.
    ///
    /// # Errors
    /// Code 5 if the file cannot be read.
    pub fn find(file: &StateFile) -> Result<Option<State>, CniError> {
        Ok(file.read()?.and_then(|bytes| State::parse(&bytes)))
    }

    /// The states of all attachments.
    pub fn list() -> impl Iterator<Item = State> {
        state_file::list(Path::new(FOLDER), JSON).filter_map(|(_, bytes)| State::parse(&bytes))
    }

    /// The file of the state.
    pub fn file(&self) -> StateFile {
        file(&self.network, &self.container_id, &self.ifname)
    }

    /// Writes the file, without addresses that have a lifetime: it will have ended when DEL runs.
    ///
    /// # Errors
    /// Code 5 if the file cannot be written.
    pub fn save(&self) -> Result<(), CniError> {
        let is_permanent = |one: &Vec<u8>| addr::parse(one).is_some_and(|a| a.flags & addr::PERMANENT != 0);
        let mut saved = self.clone();
        saved.addresses.retain(is_permanent);
        let bytes = serde_json::to_vec(&saved).context(|| "encode the state of the device")?;
        self.file().write(&bytes)
    }

    /// The routes.
    pub fn routes(&self) -> impl Iterator<Item = StoredRoute> {
        self.routes.iter().filter_map(|description| StoredRoute::parse(description))
    }

    /// The container's namespace.
    pub fn open_netns(&self) -> ContainerNetns {
        ContainerNetns::open_other(&self.netns).0
    }

    /// Whether the kernel removes the device with the namespace. A physical one comes back to the host.
    pub fn is_virtual(&self) -> bool {
        !self.kind.is_empty()
    }

    /// Whether the link of the container may be the device, whose other end is at `other_end`.
    pub fn is(&self, link: &Link, other_end: OtherEnd) -> bool {
        if self.identity.index != 0 {
            return self.identity.proves(&self.kind, link, other_end);
        }
        let is_marked = link.alias == self.name || self.has_mac(link.mac) || self.has_mac(link.permanent_mac);
        link.kind == self.kind && is_marked && identity::of_unknown(link, other_end).is_some()
    }

    /// Whether no other link can be the device, if [`State::is`] permits this one.
    pub fn is_surely(&self, link: &Link) -> bool {
        match &self.identity {
            Identity { index: 0, .. } => link.kind.is_empty() && link.alias == self.name,
            identity if identity.is_physical() => identity.has_permanent_mac_of(link),
            identity => identity.index == link.index,
        }
    }

    /// How much speaks for one of several links that [`State::is`] permits.
    pub fn rank(&self, link: &Link, other_end: OtherEnd) -> impl Ord + use<> {
        let best = (link.alias == self.name, link.name == self.ifname);
        (identity::of_unknown(link, other_end), self.identity.rank(link), best)
    }

    /// Whether the link of the host is the device. Its alias remains from the container, which cannot make a link of the host
    /// but may have marked another device.
    pub fn is_on_host(&self, link: &Link) -> bool {
        let is_marked = link.alias == self.name
            && (link.name == self.name || link.name == self.ifname || is_fallback_name(&link.name));
        let is_possible = !self.identity.is_physical() || self.identity.has_parent_of(link);
        is_marked && is_possible || self.identity.is_on_node(&self.kind, link)
    }

    /// Whether the link, which is the device under its name on the host, has been given back already. The container may have
    /// removed the alias of a physical device, but the kernel has set that down.
    pub fn is_restored(&self, link: &Link) -> bool {
        let is_as_before = link.alias == self.alias && (link.is_up() || !self.up);
        link.alias != self.name && self.has_mac(link.mac) && (!self.identity.is_physical() || is_as_before)
    }

    /// Whether the device had this name or alternative name on the host.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.alt_names.iter().any(|one| one == name)
    }

    /// Whether this hardware address is the device's.
    pub fn has_mac(&self, mac: Mac) -> bool {
        !self.mac.is_empty() && self.mac == mac.to_string()
    }
}

fn mac_of(link: &Link) -> String {
    if link.mac.is_zero() { String::new() } else { link.mac.to_string() }
}

/// The state file of an attachment.
pub fn file(network: &str, container_id: &str, ifname: &str) -> StateFile {
    StateFile::new(Path::new(FOLDER), &stem(container_id, ifname), JSON, network)
}

/// Whether the name is `dev` and a number (`default_device_exit_net` in net/core/dev.c).
pub fn is_fallback_name(name: &str) -> bool {
    let digits = name.strip_prefix("dev").unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_whole_record() {
        let state = State {
            name: "ens1".to_owned(),
            mtu: 1500,
            up: true,
            addresses: vec![vec![2, 24, 255], vec![10]],
            ..State::default()
        };
        assert_eq!(State::parse(&serde_json::to_vec(&state).unwrap()), Some(state));
        for broken in ["", "{", "{}", r#"{"name":5}"#] {
            assert_eq!(State::parse(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn names_that_the_kernel_gives() {
        assert!(is_fallback_name("dev7") && is_fallback_name("dev4294967295"));
        assert!(!is_fallback_name("dev") && !is_fallback_name("devx7") && !is_fallback_name("net1"));
    }
}
