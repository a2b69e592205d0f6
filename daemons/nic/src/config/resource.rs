//! One resource of the configuration.

use std::collections::BTreeMap;

use ferrule_kubelet::name;
use serde::Deserialize;

use super::Selector;
use crate::device::Device;

/// The most tokens of one pool: the kubelet takes at most 4 MiB in one list of devices.
const MAX_TOKENS: u32 = 10_000;
/// The most bytes of a device ID, which Kubernetes also puts into labels.
const MAX_ID: usize = 63;

/// The ID of a token.
pub fn token(resource: &str, number: u32) -> String {
    format!("{resource}-{number}")
}

/// One extended resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a mapping with the key resourceName"
)]
pub struct Resource {
    /// Its name for pods, such as `ferrule.dev/nic`. The file has it without the prefix.
    #[serde(rename = "resourceName")]
    pub name: String,
    resource_prefix: Option<String>,
    /// Which devices of the node it has: those that match one of the selectors. Empty if there is a pool.
    pub selectors: Vec<Selector>,
    /// Tokens for links that the CNI plugin makes.
    pub pool: Option<Pool>,
    device_type: DeviceType,
    /// Whether the kubelet does not learn the NUMA node of a device.
    pub exclude_topology: bool,
    /// What makes a device healthy.
    pub health: Health,
    /// Whether to offer GetPreferredAllocation: devices of one NUMA node, and then of one physical function.
    pub preferred_allocation: bool,
    /// Whether the kubelet calls PreStartContainer before each start of a container.
    pub pre_start_required: bool,
    /// Whether a link with an address may be given away.
    pub allow_addresses: bool,
    /// More data for the container's environment: device ID, or `*` for all, then key and value.
    pub additional_info: BTreeMap<String, BTreeMap<String, String>>,
}

/// Tokens for links that the CNI plugin makes on one parent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// The kind of link.
    pub template: Template,
    /// The parent's name; a `veth` has none.
    pub master: Option<String>,
    /// How many tokens there are.
    pub count: u32,
}

/// The kind of link that a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Template {
    Macvlan,
    Ipvlan,
    Vlan,
    Veth,
}

/// What makes a device healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Health {
    /// That it is there.
    #[default]
    Presence,
    /// That its link has a carrier too, if it is up.
    Carrier,
    /// That the link of its physical function has a carrier too, if it is up.
    PfCarrier,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum DeviceType {
    #[default]
    NetDevice,
    AuxNetDevice,
}

impl Resource {
    /// The devices of a driver, with the driver's name.
    pub(super) fn of_driver(
        name: String,
        selectors: Vec<Selector>,
        device_type: DeviceType,
        health: Health,
        allow_addresses: bool,
    ) -> Resource {
        Resource { name, selectors, device_type, health, allow_addresses, ..Resource::default() }
    }

    /// Puts the prefix before the name, and checks the values of the file. The error names the wrong value.
    pub(super) fn check(&mut self, prefix: &str) -> Result<(), String> {
        let prefix = self.resource_prefix.as_deref().unwrap_or(prefix);
        self.name = format!("{prefix}/{}", self.name);
        name::check(&self.name)
            .map_err(|why| format!("the kubelet refuses the resource name {:?}: {why}", self.name))?;
        self.selectors.iter().try_for_each(Selector::check)?;
        match &self.pool {
            None if self.selectors.is_empty() => Err("it has neither selectors nor a pool".to_owned()),
            Some(_) if !self.selectors.is_empty() => Err("it has both selectors and a pool".to_owned()),
            None => Ok(()),
            Some(pool) => pool.check(self.short_name()),
        }
    }

    /// Checks that no earlier resource has its name, or its tokens' IDs.
    pub(super) fn check_against(&self, earlier: &[Resource]) -> Result<(), String> {
        for other in earlier.iter().filter(|other| other.short_name() == self.short_name()) {
            if other.name == self.name {
                return Err(format!("the resource {} is there twice", self.name));
            }
            if self.pool.is_some() && other.pool.is_some() {
                return Err(format!("its tokens would have the IDs of those of {}", other.name));
            }
        }
        Ok(())
    }

    /// Whether it takes the device.
    pub fn selects(&self, device: &Device) -> bool {
        let is_auxiliary = device.bus.as_ref().is_some_and(|bus| bus.auxiliary);
        is_auxiliary == (self.device_type == DeviceType::AuxNetDevice)
            && self.selectors.iter().any(|selector| selector.matches(device))
    }

    /// The name without its prefix.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// The file name of its socket.
    pub fn socket_name(&self) -> String {
        format!("{}.sock", self.name.replace('/', "_"))
    }

    /// Its short name as part of an environment variable: upper case, and each character that a shell does not accept becomes `_`.
    pub fn env_name(&self) -> String {
        self.short_name().to_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    }
}

impl Pool {
    fn check(&self, resource: &str) -> Result<(), String> {
        if self.count == 0 || self.count > MAX_TOKENS {
            return Err(format!("pool.count is {}, not 1 to {MAX_TOKENS}", self.count));
        }
        if token(resource, self.count - 1).len() > MAX_ID {
            let first = token(resource, 0);
            return Err(format!("the IDs of its tokens, such as {first:?}, have more than {MAX_ID} bytes"));
        }
        match (self.template, self.master.as_deref()) {
            (Template::Veth, Some(master)) => Err(format!("a veth pool has no master, not {master:?}")),
            (Template::Veth, None) => Ok(()),
            (_, None | Some("")) => Err("the pool has no master".to_owned()),
            _ => Ok(()),
        }
    }
}
