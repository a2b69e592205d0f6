//! One resource of the configuration.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Invalid, Selector, decode, names, selector};

/// The most tokens of one pool: the kubelet takes at most 4 MiB in one list of devices.
const MAX_TOKENS: u32 = 10_000;
/// The most bytes of a device ID, which Kubernetes also puts into labels.
const MAX_ID: usize = 63;

/// The ID of a token.
pub fn token(resource: &str, number: u32) -> String {
    format!("{resource}-{number}")
}

/// One extended resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name for pods, such as `ferrule.dev/nic`.
    pub name: String,
    /// Where its devices come from.
    pub source: Source,
    /// Whether the NUMA node of a device stays untold.
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

/// Where the devices of a resource come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Devices of the node that match one of the selectors.
    Selectors(Vec<Selector>),
    /// Tokens for links that the CNI plugin makes.
    Pool(Pool),
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping with the key resourceName")]
struct Entry {
    resource_name: String,
    resource_prefix: Option<String>,
    #[serde(default)]
    device_type: DeviceType,
    #[serde(default)]
    exclude_topology: bool,
    #[serde(default)]
    health: Health,
    #[serde(default)]
    preferred_allocation: bool,
    #[serde(default)]
    pre_start_required: bool,
    #[serde(default)]
    allow_addresses: bool,
    #[serde(default)]
    additional_info: BTreeMap<String, BTreeMap<String, String>>,
    selectors: Option<Value>,
    pool: Option<Pool>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum DeviceType {
    #[default]
    NetDevice,
    AuxNetDevice,
}

/// Reads one element of `resourceList`.
pub(super) fn parse(entry: Value, prefix: &str) -> Result<Resource, Invalid> {
    let entry: Entry = decode(entry)?;
    let name = names::resource(entry.resource_prefix.as_deref().unwrap_or(prefix), &entry.resource_name)
        .map_err(Invalid)?;
    let source = match (entry.selectors, entry.pool) {
        (Some(selectors), None) => Source::Selectors(selector::parse(selectors, entry.device_type.is_aux())?),
        (None, Some(pool)) => Source::Pool(pool.checked(&entry.resource_name).map_err(Invalid)?),
        (None, None) => return Err(Invalid("it has neither selectors nor a pool".to_owned())),
        (Some(_), Some(_)) => return Err(Invalid("it has both selectors and a pool".to_owned())),
    };
    Ok(Resource {
        name,
        source,
        exclude_topology: entry.exclude_topology,
        health: entry.health,
        preferred_allocation: entry.preferred_allocation,
        pre_start_required: entry.pre_start_required,
        allow_addresses: entry.allow_addresses,
        additional_info: entry.additional_info,
    })
}

impl Resource {
    /// The name without its prefix.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// Whether containers get the device nodes of vhost-net and tun.
    pub fn needs_vhost_net(&self) -> bool {
        matches!(&self.source, Source::Selectors(all) if all.iter().any(|selector| selector.need_vhost_net))
    }
}

impl DeviceType {
    fn is_aux(self) -> bool {
        matches!(self, DeviceType::AuxNetDevice)
    }
}

impl Pool {
    fn checked(self, resource: &str) -> Result<Pool, String> {
        if self.count == 0 || self.count > MAX_TOKENS {
            return Err(format!("pool.count is {}, not 1 to {MAX_TOKENS}", self.count));
        }
        if token(resource, self.count - 1).len() > MAX_ID {
            return Err(format!(
                "the IDs of its tokens, such as {:?}, have more than {MAX_ID} bytes",
                token(resource, 0)
            ));
        }
        match (self.template, &self.master) {
            (Template::Veth, Some(master)) => Err(format!("a veth pool has no master, not {master:?}")),
            (Template::Veth, None) => Ok(self),
            (_, Some(master)) if !master.is_empty() => Ok(self),
            _ => Err("the pool has no master".to_owned()),
        }
    }
}
