//! The health endpoint: a namespace in a pod's place, attached by the plugins, and its other side, which the node forwards to. These
//! calls block, so a process of its own makes them.

mod chain;
mod layout;
mod netns;
mod reserve;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::file;
use ferrule_kernel::netlink::link;
use ferrule_kernel::netns_file;
use ipnetwork::IpNetwork;
use nix::sched::{CloneFlags, setns};
use nix::unistd::getppid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::chain::{Attachment, IFNAME};
pub use self::layout::{Place, links};
use self::layout::{count, free};
pub(super) use self::netns::is_namespace;
use self::reserve::is_ours;
pub(super) use self::reserve::used;

/// The namespaces, also for `ip netns exec`.
pub const NETNS: [&str; 2] = ["/run/netns/ferrule-health", "/run/netns/ferrule-health-2"];
/// The names of the containers.
const CONTAINERS: [&str; 2] = ["ferrule-node-health", "ferrule-node-health-2"];

/// Files in the daemon's folder.
const RECORD: &str = "health.json";
const PENDING: &str = "health.new";
const LOCK: &str = "health.lock";
/// host-local's store of the endpoint.
const DATA: &str = "health";

/// What the daemon wants of the process that does the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Request {
    /// The daemon's folder.
    pub state: PathBuf,
    /// The folder of the plugins.
    pub plugins: PathBuf,
    /// The node's root file system as the daemon sees it. Its first process has the mounts in which runtimes call plugins.
    pub root: Option<PathBuf>,
    /// `None` to remove the endpoint.
    pub wanted: Option<Wanted>,
    /// The process ID of the daemon, if it has started this process.
    pub daemon: Option<i32>,
}

/// The endpoint that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The pods' conflist.
    pub conflist: Value,
    /// The podCIDRs.
    pub networks: Vec<String>,
    /// host-local's store of the pods.
    pub store: PathBuf,
}

impl Wanted {
    /// The podCIDRs.
    pub fn networks(&self) -> impl Iterator<Item = IpNetwork> {
        self.networks.iter().filter_map(|network| network.parse().ok())
    }
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// It is there.
    Made(Endpoint),
    /// It is gone. Whether one was there.
    Removed(bool),
    /// There is none, and why: pods need the addresses.
    Denied(String),
    /// The plugins refuse it, as they would a pod.
    Refused(String),
    /// It failed.
    Failed(String),
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its addresses, for each podCIDR.
    pub places: Vec<Place>,
    /// The node's ends of its link and of that of the other side.
    pub links: Vec<String>,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<String> = self.places.iter().map(|place| place.address.to_string()).collect();
        write!(f, "{} on {}", addresses.join(" "), self.links.first().map_or("?", String::as_str))
    }
}

/// What was made, for DEL.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    wanted: Wanted,
    places: Vec<Place>,
    conflists: Vec<Value>,
    /// Empty until everything is made.
    results: Vec<Value>,
}

/// The process: reads the request, and prints the outcome.
///
/// # Errors
/// The streams do not work.
pub fn serve() -> Result<()> {
    let request: Request = serde_json::from_reader(io::stdin().lock())?;
    serde_json::to_writer(io::stdout().lock(), &perform(&request))?;
    Ok(())
}

/// Does the work. The process must have one thread.
pub(super) fn perform(request: &Request) -> Outcome {
    work(request).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}

fn work(request: &Request) -> Result<Outcome> {
    if let Some(root) = &request.root {
        let path = root.join("proc/1/ns/mnt");
        let mounts = File::open(&path).with_context(|| path.display().to_string())?;
        setns(mounts, CloneFlags::CLONE_NEWNS).with_context(|| format!("enter {}", path.display()))?;
    }
    if request.wanted.is_none() && !request.state.exists() {
        return Ok(Outcome::Removed(false));
    }
    fs::create_dir_all(&request.state)?;
    let lock = file::open_lock(&request.state.join(LOCK), 0o644)?;
    // One that a former daemon has started works on.
    lock.lock()?;
    if request.daemon.is_some_and(|daemon| getppid().as_raw() != daemon) {
        bail!("the daemon has ended: cleanup may have removed everything");
    }
    let worker = Worker { state: &request.state, plugins: &request.plugins };
    match &request.wanted {
        None => worker.remove().map(Outcome::Removed),
        Some(wanted) => worker.ensure(wanted),
    }
}

/// Whether the endpoint may keep its addresses: they are reserved for it, and pods have others.
pub(super) fn is_kept(endpoint: &Endpoint, wanted: &Wanted, store: &Path, used: &BTreeSet<IpAddr>) -> bool {
    endpoint.places.iter().flat_map(Place::addresses).all(|ip| is_ours(store, ip))
        && wanted.networks().all(|network| free(network, used) > 0)
}

/// Whether an endpoint may take addresses.
pub(super) fn has_room(wanted: &Wanted, used: &BTreeSet<IpAddr>) -> bool {
    let count = count(&wanted.conflist);
    wanted.networks().all(|network| layout::has_room(network, used, count))
}

struct Worker<'a> {
    state: &'a Path,
    plugins: &'a Path,
}

impl Worker<'_> {
    fn ensure(&self, wanted: &Wanted) -> Result<Outcome> {
        let used = reserve::used(&wanted.store).with_context(|| wanted.store.display().to_string())?;
        if let Some(record) = self.record()
            && record.wanted == *wanted
            && self.is_sound(&record)
        {
            match wanted.networks().find(|network| free(*network, &used) == 0) {
                None => return Ok(Outcome::Made(record.endpoint())),
                Some(network) => {
                    self.remove()?;
                    return Ok(Outcome::Denied(format!("{network}: pods need the last addresses")));
                }
            }
        }
        self.remove()?;
        reserve::release(&wanted.store, &BTreeSet::new())?;
        let used = reserve::used(&wanted.store)?;
        self.make(wanted, used).or_else(|error| {
            // The next attempt begins anew.
            let _ = self.remove();
            let error = match error.downcast::<Denied>() {
                Ok(Denied(why)) => return Ok(Outcome::Denied(why)),
                Err(error) => error,
            };
            error.downcast::<Refused>().map(|Refused(why)| Outcome::Refused(why))
        })
    }

    /// Whether everything is still in its place.
    fn is_sound(&self, record: &Record) -> bool {
        let reserved = record.addresses().all(|ip| is_ours(&record.wanted.store, ip));
        let links = record.endpoint().links;
        let inside = NETNS.iter().take(record.conflists.len());
        record.results.len() == record.conflists.len()
            && reserved
            && inside.clone().all(|path| netns::has_link(Path::new(path), IFNAME).unwrap_or(false))
            && links.iter().all(|name| link::exists(name).unwrap_or(false))
            && self
                .attachments(&record.conflists)
                .zip(&record.results)
                .all(|(one, result)| one.check(result).is_ok())
    }

    fn make(&self, wanted: &Wanted, mut used: BTreeSet<IpAddr>) -> Result<Outcome> {
        let count = count(&wanted.conflist);
        let mut places = Vec::new();
        for network in wanted.networks() {
            if !layout::has_room(network, &used, count) {
                bail!(Denied(format!("{network} has too few free addresses: they are left to the pods")));
            }
            let mut chosen = Vec::new();
            while chosen.len() < count {
                let ip = *layout::choose(network, &used, 1).first().context("no address is free")?;
                used.insert(ip);
                if reserve::reserve(&wanted.store, ip)
                    .with_context(|| format!("reserve {ip} in {}", wanted.store.display()))?
                {
                    chosen.push(ip);
                }
            }
            places.push(Place {
                network: network.to_string(),
                gateway: crate::cluster::gateway(network),
                address: chosen[0],
                forwarded: chosen.get(1).copied(),
            });
        }
        if places.is_empty() {
            bail!(Denied("this node has no podCIDR".to_owned()));
        }
        let data = self.state.join(DATA);
        let mut conflists = vec![layout::endpoint(&wanted.conflist, &places, &data)];
        conflists.extend(layout::other_side(&wanted.conflist, &places, &data));
        let mut record = Record { wanted: wanted.clone(), places, conflists, results: Vec::new() };
        // DEL needs it if this process is killed from here on.
        self.write(&record)?;
        let mut results = Vec::new();
        for (attachment, path) in self.attachments(&record.conflists).zip(NETNS) {
            netns::make(Path::new(path))?;
            match attachment.add() {
                Ok(result) => results.push(result),
                Err(error) => bail!(Refused(format!("{error:#}"))),
            }
        }
        record.results = results;
        self.write(&record)?;
        Ok(Outcome::Made(record.endpoint()))
    }

    fn attachments<'a>(&'a self, conflists: &'a [Value]) -> impl Iterator<Item = Attachment<'a>> {
        conflists.iter().zip(CONTAINERS).zip(NETNS).map(|((conflist, container), netns)| Attachment {
            plugins: self.plugins,
            container,
            netns: Path::new(netns),
            conflist,
        })
    }

    /// Removes what the record names. Returns whether anything was there.
    fn remove(&self) -> Result<bool> {
        let record = self.record();
        let mut failure = Ok(());
        if let Some(record) = &record {
            let results = record.results.iter().map(Some).chain(std::iter::repeat(None));
            for (attachment, result) in self.attachments(&record.conflists).zip(results) {
                failure = failure.and(attachment.del(result));
            }
        }
        let mut was_there = record.is_some();
        for path in NETNS {
            was_there |= netns_file::remove(Path::new(path)).with_context(|| format!("remove {path}"))?;
        }
        // An address goes last: its link must be gone. The kernel has removed the links with the namespaces.
        if let Some(record) = &record {
            reserve::release(&record.wanted.store, &BTreeSet::new())?;
        }
        let _ = fs::remove_dir_all(self.state.join(DATA));
        for name in [RECORD, PENDING] {
            gone(fs::remove_file(self.state.join(name))).with_context(|| format!("remove {name}"))?;
        }
        if let Err(error) = failure {
            log!("remove the health endpoint: {error:#}");
        }
        Ok(was_there)
    }

    fn record(&self) -> Option<Record> {
        serde_json::from_slice(&file::read(&self.state.join(RECORD)).ok()?).ok()
    }

    fn write(&self, record: &Record) -> Result<()> {
        let bytes = serde_json::to_vec(record)?;
        file::replace(&self.state.join(RECORD), &self.state.join(PENDING), 0o600, &bytes)
            .context("write the record of the health endpoint")
    }
}

/// Removes the file of the lock, after everything else.
pub(super) fn forget(state: &Path) -> io::Result<()> {
    gone(fs::remove_file(state.join(LOCK)))
}

fn gone(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

impl Record {
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.places.iter().flat_map(Place::addresses)
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { places: self.places.clone(), links: self.results.iter().filter_map(host_end).collect() }
    }
}

/// The node's end of the pair, by a plugin's result: the link before that of the container. The bridge comes first.
fn host_end(result: &Value) -> Option<String> {
    let is_on_host = |link: &&Value| link["sandbox"].as_str().is_none_or(str::is_empty);
    let link = result["interfaces"].as_array()?.iter().take_while(is_on_host).last()?;
    link["name"].as_str().map(str::to_owned)
}

/// The plugins refuse it.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Pods need the addresses.
#[derive(Debug)]
struct Denied(String);

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Denied {}
