//! `ferrule shape`: other rates for a running container, by the code of `bandwidth`.

use std::path::PathBuf;

use cni_common::netns::{ContainerNetns, Netns};
use cni_common::plugin::{DelRequest, Environment};
use cni_common::spec::{CniError, NetConf};
use ferrule_bandwidth::PLUGIN;
use ferrule_bandwidth::change::{Change, change};
use ferrule_bandwidth::rates::Rate;
use ferrule_kit::lock;
use itertools::Itertools as _;
use serde_json::Value;

use crate::cache::{Cache, Entry};
use crate::model::State;
use crate::node::NOT_WHOLE;
use crate::repair::LOCK;
use crate::scene::lacks;
use crate::sight::{self, Sight};
use crate::why::is_container;

/// Whose limits change.
#[derive(Clone, Debug)]
pub struct Options {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
    /// The container's ID or its beginning, or its pod.
    pub container: String,
    /// The interface, if the container has several that bandwidth may limit.
    pub ifname: Option<String>,
    /// The new rates.
    pub change: Change,
}

/// Changes the limits. Returns a line with the new ones.
///
/// # Errors
/// This process does not see the node or lacks a right, no interface or more than one has the name, or the kernel's error.
pub fn run(options: &Options) -> Result<String, CniError> {
    let sight = Sight::of_check(options.init, &options.results);
    let not_whole = sight.partial.as_ref().map(|why| format!("{NOT_WHOLE}: {why}"));
    let elsewhere = sight.is_elsewhere.then(|| "this is not the node's network namespace".to_owned());
    let right = lacks(&sight::read("/proc/thread-self/status").unwrap_or_default());
    if let Some(why) = not_whole.or(elsewhere).or(right.map(|right| format!("no {right}"))) {
        return Err(CniError::internal(why));
    }
    let cache = Cache::read(&options.results, &sight);
    let (entry, plugin) = only(&cache, options)?;
    if let State::Dead(why) | State::Unknown(why) = entry.state() {
        return Err(CniError::internal(format!("{}: {why}", entry.owner)));
    }
    let _lock = lock::take(LOCK.as_ref(), 0o600)?;
    let config = NetConf::parse(entry.request(plugin).into_bytes())?;
    let version = config.version(PLUGIN.spec_versions)?;
    let nameless = || CniError::internal(format!("{}: its cached result lacks a name", entry.file.display()));
    let owner = entry.owner.attachment().ok_or_else(nameless)?;
    let result = config.prev_result(version)?.unwrap_or_default();
    let netns = Netns::open(&entry.netns).map_err(|error| CniError::internal(error.to_string()))?;
    let changed = change(&config, &result, owner, &netns, options.change);
    if let Ok(false) = entry.file.try_exists() {
        // A DEL has come in between, and may have missed new objects.
        let env = Environment::default();
        let (container_id, ifname, netns) =
            (owner.container_id, owner.ifname, &ContainerNetns::open(&entry.netns));
        let call = DelRequest {
            config: &config,
            version,
            env: &env,
            container_id,
            ifname,
            netns,
            prev_result: None,
        };
        (PLUGIN.del)(&call)?;
        return Err(CniError::internal(format!("{} was deleted meanwhile", entry.owner)));
    }
    let conf = changed?;
    let [ingress, egress] = [conf.ingress, conf.egress]
        .map(|limit| limit.map_or(Rate::Configured, |limit| Rate::Bits(limit.rate)));
    Ok(format!("{}: ingress {ingress}, egress {egress}", entry.owner))
}

/// The one interface that the options name, with its plugin.
fn only<'c>(cache: &'c Cache, options: &Options) -> Result<(&'c Entry, &'c Value), CniError> {
    let Options { container: who, ifname, .. } = options;
    let is_named = |entry: &&Entry| {
        is_container(who, &entry.owner, Some(entry)) && (ifname.is_none() || *ifname == entry.owner.ifname)
    };
    let shaped = |entry: &'c Entry| {
        let plugin = entry.plugins().into_iter().find(|plugin| plugin["type"] == PLUGIN.name)?;
        Some((entry, plugin))
    };
    let found: Vec<_> = cache.entries.iter().filter(is_named).filter_map(shaped).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(CniError::internal(format!(
            "no running container {who:?} has the plugin bandwidth in its network"
        ))),
        _ => {
            let owners = found.iter().map(|(entry, _)| &entry.owner).join("; ");
            Err(CniError::internal(format!(
                "{who:?} is more than one interface, choose by --ifname or the whole ID: {owners}"
            )))
        }
    }
}
