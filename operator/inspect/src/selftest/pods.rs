//! The pods of the test: attaches and detaches them as a runtime does, with an entry as in libcni's cache, but in a folder of its own,
//! from before the ADD until after the DEL. So a test that was killed can be undone.
//!
//! # References
//! AddNetworkList and DelNetworkList in libcni/api.go.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use cni_common::netns::Netns;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::link::{IFF_UP, exists, set_flags};
use ferrule_kernel::netlink::{Link, LinkId};
use ferrule_kernel::{file, netns_file};
use ferrule_kit::{netns, socket};
use itertools::Itertools as _;
use serde_json::{Map, Value, json};

use super::outside::{LINK, NAME, netns_path};
use crate::cache::{Cache, Entry, KIND, Sent};
use crate::doctor::networks::Network;
use crate::model::Owner;
use crate::process;
use crate::sight::Sight;

/// The container IDs of the two pods, and of the one that `policy` isolates.
const PODS: [&str; 3] = ["ferrule-test-a", "ferrule-test-b", ISOLATED];
pub(super) const ISOLATED: &str = "ferrule-test-c";
/// The entries of the pods. The runtime's folder is not touched: gc would take an empty one for that of a runtime without pods.
const RECORDS: &str = "/run/ferrule-test";
/// The interface.
const IFNAME: &str = "eth0";
/// How long the kernel may take to take a namespace apart.
const APART: Duration = Duration::from_secs(2);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// The port of a pod that the host port leads to.
pub(super) const PORT: u16 = 18080;
/// The limit of what a pod receives, in bit/s.
pub(super) const RATE: u64 = 16_000_000;
/// Its burst in bit.
pub(super) const BURST: u64 = 1_000_000;

/// Where the plugins are.
pub(super) struct Site<'o> {
    pub(super) path: &'o [PathBuf],
    pub(super) limit: Duration,
}

/// What the runtime gives to a pod: the values of capabilities.
#[derive(Clone, Debug, Default)]
pub(super) struct Rights {
    /// The host port, on the address of the node in the subnet of [`outside`].
    pub(super) host_port: Option<(IpAddr, u16)>,
    /// Whether what it receives is limited.
    pub(super) is_limited: bool,
}

/// What the network's plugins can do. Without an address of the node that nobody else reaches, no host port opens.
pub(super) fn capabilities(network: &Network, host: Option<IpAddr>) -> Rights {
    let has = |name: &str| network.plugins.iter().any(|plugin| plugin["capabilities"][name] == true);
    // In the range that Linux gives to no client.
    let host_port = host.filter(|_| has("portMappings")).map(|host| (host, 28080));
    Rights { host_port, is_limited: has("bandwidth") }
}

impl Rights {
    fn args(&self) -> Map<String, Value> {
        let mut args = Map::new();
        if let Some((host, port)) = self.host_port {
            let mapping = json!({"hostPort": port, "containerPort": PORT, "protocol": "tcp", "hostIP": host});
            args.insert("portMappings".to_owned(), json!([mapping]));
        }
        if self.is_limited {
            args.insert("bandwidth".to_owned(), json!({"ingressRate": RATE, "ingressBurst": BURST}));
        }
        args
    }
}

/// An attached pod.
pub(super) struct Attached {
    pub(super) entry: Entry,
    pub(super) netns: Netns,
    /// Its link.
    pub(super) link: Link,
}

impl Attached {
    /// Its address of a family.
    pub(super) fn address(&self, is_v4: bool) -> Option<IpAddr> {
        self.entry.addresses.iter().copied().find(|address| address.is_ipv4() == is_v4)
    }

    pub(super) fn told(pods: &[Attached]) -> String {
        pods.iter().map(|pod| pod.entry.addresses.iter().join(",")).join(" and ")
    }
}

impl Site<'_> {
    /// Attaches both pods; the second one has the rights.
    ///
    /// # Errors
    /// The step that failed. What was made stays.
    pub(super) fn attach(&self, network: &Network, rights: &Rights) -> Result<[Attached; 2], String> {
        let [a, b, _] = PODS;
        Ok([self.add(network, a, None, &Rights::default())?, self.add(network, b, None, rights)?])
    }

    /// Attaches a pod of a namespace of Kubernetes.
    ///
    /// # Errors
    /// As [`Site::attach`].
    pub(super) fn attach_isolated(&self, network: &Network, namespace: &str) -> Result<Attached, String> {
        self.add(network, ISOLATED, Some(namespace), &Rights::default())
    }

    fn add(
        &self,
        network: &Network,
        pod: &str,
        namespace: Option<&str>,
        rights: &Rights,
    ) -> Result<Attached, String> {
        let path = netns_path(pod);
        let of_pod = namespace.map(|namespace| [("K8S_POD_NAMESPACE", namespace), ("K8S_POD_NAME", pod)]);
        let cni_args = [("IgnoreUnknown", "1")].into_iter().chain(of_pod.into_iter().flatten());
        let config = json!({"name": network.name, "cniVersion": network.version, "plugins": network.plugins});
        let sent = Sent {
            cni_args: cni_args.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            capability_args: rights.args(),
            result: Value::Null,
        };
        let mut entry = Entry {
            owner: Owner::container(pod).on(&network.name).with_ifname(IFNAME),
            netns: path.display().to_string(),
            config: Arc::new(config),
            sent,
            ..Entry::default()
        };
        entry.file = Path::new(RECORDS).join(format!("{}-{pod}-{IFNAME}", network.name));
        write(&entry)?;
        netns_file::make(&path).map_err(|error| format!("make the namespace {}: {error}", path.display()))?;
        let netns = Netns::open(&entry.netns).map_err(|error| error.to_string())?;
        netns::enter(&netns, loopback).map_err(|error| error.to_string())?;
        for plugin in network.plugins.clone() {
            let answer = self.call("ADD", &entry, &plugin, true)?;
            let result = serde_json::from_str(&answer);
            entry.sent.result =
                result.map_err(|error| format!("{}: its result is no JSON: {error}", plugin["type"]))?;
        }
        write(&entry)?;
        let entry = Entry { addresses: crate::cache::addresses(&entry.sent.result), ..entry };
        let link = netns::enter(&netns, link).map_err(|error| error.to_string())?;
        Ok(Attached { entry, netns, link })
    }

    /// Calls CHECK of all plugins.
    pub(super) fn check(&self, entry: &Entry) -> Result<(), String> {
        entry.plugins().into_iter().try_for_each(|plugin| self.call("CHECK", entry, plugin, true).map(drop))
    }

    /// Calls DEL of all plugins, each also if another one fails.
    fn del(&self, entry: &Entry) -> Result<(), String> {
        let has_netns = netns_path(entry.owner.container.as_deref().unwrap_or_default()).exists();
        let calls =
            entry.plugins().into_iter().rev().map(|plugin| self.call("DEL", entry, plugin, has_netns));
        let failed: Vec<String> = calls.filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    fn call(&self, verb: &str, entry: &Entry, plugin: &Value, has_netns: bool) -> Result<String, String> {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", entry.owner.container.as_deref().unwrap_or_default()),
            ("CNI_IFNAME", entry.owner.ifname.as_deref().unwrap_or_default()),
            ("CNI_NETNS", if has_netns { &entry.netns } else { "" }),
            ("CNI_ARGS", &entry.args()),
        ];
        let name = plugin["type"].as_str().unwrap_or_default();
        let ended = process::call(self.path, name, &variables, &entry.request(plugin), self.limit);
        ended.map(|ended| ended.stdout).map_err(|why| format!("{verb} of {name}: {why}"))
    }
}

/// Brings `lo` up, as runtimes do.
fn loopback() -> Result<(), CniError> {
    let mut socket = socket::route()?;
    let lo = socket.link(LinkId::Name("lo")).context(|| "find lo".to_owned())?;
    let index = lo.map_or(1, |lo| lo.index);
    socket.request(set_flags(index, IFF_UP, IFF_UP)).context(|| "bring lo up".to_owned()).map(drop)
}

fn link() -> Result<Link, CniError> {
    let link = socket::route()?.link(LinkId::Name(IFNAME)).context(|| format!("find {IFNAME}"))?;
    link.ok_or_else(|| CniError::internal(format!("the pod has no link {IFNAME}")))
}

/// Writes the entry of the cache, as libcni does.
fn write(entry: &Entry) -> Result<(), String> {
    let Entry { owner, netns, config, sent, file, .. } = entry;
    let document = json!({"kind": KIND, "containerId": owner.container, "networkName": owner.network, "ifName": owner.ifname,
        "netns": netns, "config": BASE64_STANDARD.encode(config.to_string()), "cniArgs": sent.cni_args,
        "capabilityArgs": sent.capability_args, "result": sent.result});
    let written = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
        file::replace(file, &file::pending_beside(file), 0o600, document.to_string().as_bytes())
    });
    written.map_err(|error| format!("write {}: {error}", file.display()))
}

/// What a test has left: entries of the cache with its container IDs, and its namespaces.
#[derive(Debug, Default)]
pub(crate) struct LeftOver {
    entries: Vec<Entry>,
    namespaces: Vec<PathBuf>,
}

impl LeftOver {
    pub(crate) fn find(sight: &Sight) -> LeftOver {
        let mut entries = Cache::read(Path::new(RECORDS), sight).entries;
        entries.retain(|entry| PODS.iter().any(|pod| entry.owner.container.as_deref() == Some(pod)));
        let paths = PODS.into_iter().chain([NAME]).map(netns_path);
        LeftOver { entries, namespaces: paths.filter(|path| fs::symlink_metadata(path).is_ok()).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.namespaces.is_empty()
    }

    /// Detaches the pods by their recorded configurations and removes their namespaces.
    pub(super) fn remove(&self, site: &Site<'_>) -> Result<(), String> {
        for entry in &self.entries {
            site.del(entry)?;
        }
        self.forget()
    }

    /// Ends the namespaces: what their pods had is then a leak like any other. Waits a moment for the kernel, which takes them apart
    /// later.
    pub(crate) fn end(&self) -> Result<(), String> {
        let remove = |path: &PathBuf| {
            netns_file::remove(path).map(drop).map_err(|error| format!("remove {}: {error}", path.display()))
        };
        self.namespaces.iter().try_for_each(remove)?;
        let end = Instant::now() + APART;
        while matches!(exists(LINK), Ok(true)) && Instant::now() < end {
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Removes the namespaces, and the folder of the entries.
    pub(crate) fn forget(&self) -> Result<(), String> {
        self.end()?;
        // A killed test may have left a pending file too.
        match fs::remove_dir_all(RECORDS) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("remove {RECORDS}: {error}")),
            _ => Ok(()),
        }
    }
}
