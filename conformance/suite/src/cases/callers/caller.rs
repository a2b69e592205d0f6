//! The caller: a runtime that calls the folder's plugins on the test's node.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::recordings::CID;
use crate::call::TIMEOUT;
use crate::kernel;
use crate::layout::addresses;
use crate::outcome::{Stop, TestResult, ensure, mismatch, skip};
use crate::plugin_under_test::{Description, Role};
use crate::test_context::TestContext;
use cni_lab::{NodeRuntime, Place as _, Pod, eventually};
use cni_runner::{Attachment, Error, Failure, HeldOpen, Network, TookTooLong, ValidAttachment, Version};

/// The operations of a runtime on the test's node. A plugin's failure is a mismatch; an error of the runtime
/// itself is not.
pub(super) struct Caller<'l> {
    test: &'l TestContext<'l>,
    runtime: NodeRuntime<'l>,
}

impl<'l> Caller<'l> {
    pub(super) fn new(test: &'l TestContext<'l>) -> Result<Caller<'l>, Stop> {
        Caller::with_folders(test, &[])
    }

    /// With additional folders of plugins.
    pub(super) fn with_folders(test: &'l TestContext<'l>, more: &[PathBuf]) -> Result<Caller<'l>, Stop> {
        let folders = [test.plugin.dir.clone()].into_iter().chain(more.iter().cloned());
        let mut runtime = test.node()?.runtime(folders);
        runtime.runtime.timeout = Some(TIMEOUT);
        Ok(Caller { test, runtime })
    }

    /// The version of a caller's configurations, or the test run's version if that is older. Skips the test
    /// case if the plugins do not support it.
    pub(super) fn version_of(&self, recorded: Version) -> Result<Version, Stop> {
        let version = recorded.min(self.test.version);
        if !self.test.plugin.versions.contains(&version) {
            return skip(format!("these plugins do not support the caller's version {version}"));
        }
        Ok(version)
    }

    /// Whether the folder has this plugin with this version and the kernel supports it.
    pub(super) fn has(&self, plugin: &str, version: Version) -> Result<bool, Stop> {
        let (links, qdiscs): (&[&str], &[&str]) = match plugin {
            "bandwidth" => (&["veth", "ifb"], &["tbf", "ingress"]),
            _ => (&["veth"], &[]),
        };
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let needs = Description {
            role: Role::Chain,
            config: Map::new(),
            delegates: false,
            rewrites: false,
            setup: Vec::new(),
            daemons: Vec::new(),
            interface: None,
            tools: Vec::new(),
            links: owned(links),
            qdiscs: owned(qdiscs),
            file: None,
        };
        match kernel::has_all(&needs) {
            Err(Stop::Skip(_)) => return Ok(false),
            other => other?,
        }
        if self.test.plugin.neighbour(plugin).is_none() {
            return Ok(false);
        }
        let answer = judged(self.runtime.version(plugin))?;
        Ok(answer["supportedVersions"]
            .as_array()
            .is_some_and(|all| all.contains(&version.to_string().into())))
    }

    /// A network with this bridge, and with bandwidth and portmap if present.
    pub(super) fn chain(&self, name: &str, version: Version, bridge: Value) -> Result<Network, Stop> {
        let mut plugins = vec![bridge];
        for (plugin, capability) in [("bandwidth", "bandwidth"), ("portmap", "portMappings")] {
            if self.has(plugin, version)? {
                plugins.push(json!({"type": plugin, "capabilities": {capability: true}}));
            }
        }
        let list = json!({"name": name, "cniVersion": version.to_string(), "plugins": plugins});
        Ok(Network::from_value(&list)?)
    }

    pub(super) fn add(&self, network: &Network, attachment: &Attachment) -> Result<Value, Stop> {
        judged(self.runtime.add(network, attachment))
    }

    /// Calls ADD, which must fail with this code.
    pub(super) fn refused_add(&self, network: &Network, attachment: &Attachment, code: u64) -> TestResult {
        match self.runtime.add(network, attachment) {
            Ok(result) => mismatch(format!("ADD to fail with code {code}"), result),
            Err(error) if error.code() == Some(code) => Ok(()),
            Err(error) => judged(Err(error)),
        }
    }

    pub(super) fn check(&self, network: &Network, attachment: &Attachment) -> TestResult {
        judged(self.runtime.check(network, attachment))
    }

    pub(super) fn del(&self, network: &Network, attachment: &Attachment) -> TestResult {
        judged(self.runtime.del(network, attachment))
    }

    pub(super) fn gc(&self, network: &Network, valid: Option<&[ValidAttachment]>) -> TestResult {
        judged(self.runtime.gc(network, valid))
    }

    pub(super) fn status(&self, network: &Network) -> TestResult {
        judged(self.runtime.status(network))
    }

    pub(super) fn version(&self, plugin: &str) -> Result<Value, Stop> {
        judged(self.runtime.version(plugin))
    }

    /// Removes an attachment from the runtime's cache.
    pub(super) fn forget(&self, network: &Network, attachment: &Attachment) -> Result<(), Stop> {
        let file = self.runtime.runtime.cache.file(&network.name, attachment);
        self.test.node()?.sh(&format!("rm -f {}", file.display()))?;
        Ok(())
    }

    /// Expects exactly these addresses in host-local's store.
    pub(super) fn reserved(&self, network: &str, expected: &[&str]) -> TestResult {
        let mut names = self.test.node()?.list_dir(format!("/var/lib/cni/networks/{network}"))?;
        names.retain(|name| name != "lock" && !name.starts_with("last_reserved_ip."));
        ensure(
            names == expected,
            format!("reserved addresses of the network {network}: {expected:?}"),
            format!("{names:?}"),
        )
    }
}

/// Converts a plugin's failure to a mismatch.
fn judged<T>(result: Result<T, Error>) -> Result<T, Stop> {
    let error = match result {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    match error.plugin().map(|plugin| &plugin.failure) {
        Some(Failure::NotRun(why)) if !why.is::<TookTooLong>() && !why.is::<HeldOpen>() => {}
        Some(_) => return mismatch("the plugins of the chain to succeed", error),
        None => {}
    }
    Err(Stop::Broken(error.into()))
}

/// A bridge configuration with gateway, masquerading and host-local.
pub(super) fn bridge(device: &str, subnet: &str) -> Value {
    json!({
        "type": "bridge", "bridge": device, "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}})
}

/// The first address of a result, without the prefix length.
pub(super) fn address(result: &Value) -> Result<String, Stop> {
    let all = addresses(result);
    match all.first().and_then(|address| address.split('/').next()) {
        Some(address) => Ok(address.to_owned()),
        None => mismatch("a result with an address", result),
    }
}

/// Expects a reply to ping from an address, within 5 seconds.
pub(super) fn reaches(pod: &Pod, address: &str) -> TestResult {
    kernel::tools(&["ping"])?;
    // A bridge port does not forward immediately.
    let reached = || pod.sh(&format!("ping -c 1 -W 1 {address}")).is_ok();
    ensure(
        eventually(Duration::from_secs(5), reached),
        format!("a ping reply from {address} to the pod"),
        "no reply",
    )
}

/// Expects that a pod no longer has this interface.
pub(super) fn is_without(pod: &Pod, ifname: &str) -> TestResult {
    ensure(
        pod.sh(&format!("ip link show {ifname}")).is_err(),
        format!("no interface {ifname}"),
        "it still exists",
    )
}

/// The container ID of the recordings with one digit replaced.
pub(super) fn container_id(round: u8) -> String {
    CID.replacen("11906f9e", &format!("11906f9{round}"), 1)
}
