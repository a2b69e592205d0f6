//! Looks for what an [`Origin`] has left. Changes nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{FILTER, NAT, Programs};
use ferrule_kernel::netlink::stored_route::StoredRoute;
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kernel::nftables::{Family, Table, all_chains, probe};

use super::Origin;
use crate::cluster::configurations;

/// The tables of iptables.
pub const TABLES: [&str; 4] = [FILTER, NAT, "mangle", "raw"];
/// The families of tables that others make.
const FAMILIES: [Family; 3] = [Family::Ip, Family::Ip6, Family::Inet];
/// The main routing table.
const MAIN: u32 = 254;

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub struct Places<'p> {
    /// The folder of the network configurations.
    pub conf_dir: &'p Path,
    /// The usual folder of host-local.
    pub networks: &'p Path,
}

/// A thing that is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A network configuration.
    File(PathBuf),
    /// host-local's folder of a network.
    Store(PathBuf),
    /// A route.
    Route(StoredRoute),
    /// A link.
    Device(Link),
    /// A chain of iptables-nft.
    Chain(IpFamily, &'static str, String),
    /// A chain of iptables-legacy.
    Legacy(IpFamily, &'static str, String),
    /// A table of nf_tables.
    Table(Family, &'static str),
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thing::File(path) => write!(f, "conflist {}", path.display()),
            Thing::Store(path) => write!(f, "addresses in {}", path.display()),
            Thing::Route(route) => write!(f, "route to {} (protocol {})", route.dst, route.protocol),
            Thing::Device(link) => write!(f, "link {}", link.name),
            Thing::Chain(family, table, name) => write!(f, "chain {name} ({family}, table {table})"),
            Thing::Legacy(family, table, name) => write!(f, "chain {name} ({family}, legacy table {table})"),
            Thing::Table(family, name) => write!(f, "table {family} {name}"),
        }
    }
}

/// What an origin has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOvers {
    /// The origin.
    pub origin: &'static Origin,
    /// The objects, in the order in which they may be removed.
    pub things: Vec<Thing>,
    /// The pods that still use it: their links on the node.
    pub users: Vec<String>,
    /// Its process that runs in this network namespace, which would make everything again. Only asked for if something is left.
    pub process: Option<String>,
}

/// Looks for an origin's left-overs. Starts a process for each legacy table that the node has.
///
/// # Errors
/// Something cannot be listed. Then nothing is known.
pub fn find(
    origin: &'static Origin,
    places: Places<'_>,
    route: &mut Socket,
    netfilter: &mut Socket,
) -> Result<LeftOvers, CniError> {
    let mut things: Vec<Thing> = configurations(places.conf_dir)
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| origin.files.iter().any(|file| name == *file)))
        .map(Thing::File)
        .collect();
    let mut held = BTreeSet::new();
    let mut stores = Vec::new();
    for network in origin.networks {
        let store = origin.data_dir.map_or(places.networks, Path::new).join(network);
        if let Some(addresses) = addresses(&store).context(|| format!("read {}", store.display()))? {
            held.extend(addresses);
            stores.push(Thing::Store(store));
        }
    }
    let links = route.links(None).context(|| "list the links")?;
    let mut leads = Vec::new();
    for family in IpFamily::ALL {
        for found in route.routes(family, MAIN).context(|| "list the routes")? {
            if let (true, [link]) = (found.dst.prefix() == family.bits(), found.links.as_slice()) {
                leads.push((found.dst.ip(), *link));
            }
            if origin.protocol == Some(found.protocol) {
                things.push(Thing::Route(found));
            }
        }
    }
    things.extend(links.iter().filter(|link| origin.owns(link)).cloned().map(Thing::Device));
    chains(origin, netfilter, &mut things)?;
    things.extend(stores);
    if !things.iter().any(|thing| proves(origin, thing)) {
        things.clear();
    }
    let users = origin.users(&links, &leads, &held);
    // Of a network that has left nothing none is asked for: not everybody sees the node's processes.
    let process = match things.is_empty() {
        true => None,
        false => process(origin.programs).context(|| "look at the processes")?,
    };
    Ok(LeftOvers { origin, things, users, process })
}

/// Whether nothing but the origin makes such a thing. The plugin `bridge` makes a bridge of this name too, and a store has the name of
/// the network.
fn proves(origin: &Origin, thing: &Thing) -> bool {
    match thing {
        Thing::Device(link) => origin.bridge != Some(link.name.as_str()) || link.name != "cni0",
        Thing::Store(_) => origin.data_dir.is_some(),
        _ => true,
    }
}

fn chains(origin: &'static Origin, netfilter: &mut Socket, things: &mut Vec<Thing>) -> Result<(), CniError> {
    for family in IpFamily::ALL {
        let has_nft = probe(netfilter, Family::of(family)).is_ok();
        let mut list = |name: &'static str| -> Result<Vec<String>, CniError> {
            let table = Table::new(Family::of(family), name);
            let found = if has_nft { all_chains(netfilter, table) } else { Ok(Vec::new()) };
            Ok(found
                .context(|| format!("list the chains of {table}"))?
                .into_iter()
                .map(|(name, _)| name)
                .collect())
        };
        for table in TABLES {
            let its = list(table)?.into_iter().filter(|chain| origin.has_chain(chain));
            things.extend(its.map(|chain| Thing::Chain(family, table, chain)));
            if let Some(programs) = Programs::legacy(family, table) {
                let listing = programs.list().context(|| format!("list the legacy table {table}"))?;
                let its = listing.chains.into_iter().filter(|chain| origin.has_chain(chain));
                things.extend(its.map(|chain| Thing::Legacy(family, table, chain)));
            }
        }
    }
    for (name, family) in origin.tables.iter().flat_map(|name| FAMILIES.map(|family| (*name, family))) {
        let table = Table::new(family, name);
        let is_there = probe(netfilter, family).is_ok()
            && !all_chains(netfilter, table).context(|| format!("list the chains of {table}"))?.is_empty();
        if is_there {
            things.push(Thing::Table(family, name));
        }
    }
    Ok(())
}

/// The addresses that a store holds; `None` if there is no store.
fn addresses(store: &Path) -> io::Result<Option<Vec<IpAddr>>> {
    let entries = match fs::read_dir(store) {
        // Something else may have the name.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        entries => entries?,
    };
    let mut held = Vec::new();
    for entry in entries {
        held.extend(entry?.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()));
    }
    Ok(Some(held))
}

/// A process of one of these programs in this network namespace. One whose namespace or arguments cannot be read counts.
///
/// # Errors
/// This process does not see those of the node.
fn process(programs: &[&str]) -> io::Result<Option<String>> {
    let comm =
        |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).map(|text| text.trim_end().to_owned());
    // Otherwise a container may have its network, but not see its processes. A node that is a container itself has systemd.
    if comm("2").ok().as_deref() != Some("kthreadd") && comm("1").ok().as_deref() != Some("systemd") {
        return Err(io::Error::other(
            "/proc does not show the node's processes; run it in the node's PID namespace",
        ));
    }
    let own = fs::metadata("/proc/thread-self/ns/net")?.ino();
    for entry in fs::read_dir("/proc")? {
        let Ok(pid) = entry?.file_name().into_string() else { continue };
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process may end meanwhile.
        let Ok(name) = comm(&pid) else { continue };
        let is_here = || fs::metadata(format!("/proc/{pid}/ns/net")).map_or(true, |meta| meta.ino() == own);
        let runs = |program: &&&str| match program.split_once(' ') {
            None => **program == name,
            Some((first, arguments)) => first == name && begin(&pid, arguments),
        };
        if let Some(program) = programs.iter().find(runs).filter(|_| is_here()) {
            return Ok(Some(format!("{program} ({pid})")));
        }
    }
    Ok(None)
}

/// Whether a process has these first arguments, or they cannot be read.
fn begin(pid: &str, arguments: &str) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return true };
    let mut found = line.split(|byte| *byte == 0).skip(1);
    arguments.split(' ').all(|wanted| found.next() == Some(wanted.as_bytes()))
}
