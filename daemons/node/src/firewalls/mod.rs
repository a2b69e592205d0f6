//! Firewalls that drop the packets of pods: an accept in a table of ours does not help against a drop in another one. So the daemon names
//! them, and the command that lets the pods pass.

mod nft;
mod walk;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{FILTER, Listing, Programs};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::message::Received;
use ferrule_kernel::nftables::notice::{base_of, chain_of};
use ferrule_kernel::nftables::{self, BaseChain, Family, HookPoint, Rule, Table};
use ipnetwork::IpNetwork;

use self::walk::Chains;

/// The names of our own tables begin so.
const OWN: &str = "ferrule";
/// What the host ends of pods' links are called.
const VETH: &str = "veth";
/// How many networks a command names.
const NAMED: usize = 6;

/// Packets of pods.
pub struct Pods<'a> {
    /// A podCIDR of this node.
    network: IpNetwork,
    /// The bridges that pods may be on.
    bridges: &'a [String],
}

fn is_link(name: &str, is_prefix: bool, bridges: &[String]) -> bool {
    name.starts_with(VETH)
        || is_prefix && VETH.starts_with(name)
        || bridges.iter().any(|bridge| bridge == name || is_prefix && bridge.starts_with(name))
}

/// The firewalls that drop packets of pods, and the podCIDRs of these pods.
type Found = BTreeMap<Firewall, BTreeSet<IpNetwork>>;

/// A firewall.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Firewall {
    Firewalld,
    Ufw,
    Iptables(IpFamily),
    Legacy(IpFamily),
    /// The family, the table and the chain.
    Table(&'static str, String, String),
}

/// The chains of other programs on the hook `forward`. A change there may be the end of a fault, or a new one.
#[derive(Default)]
pub struct Watched {
    chains: BTreeSet<(u8, String, String)>,
    /// Tables with a chain that may drop everything. That of iptables only while it does: Docker and kube-proxy change it all the time.
    tables: BTreeSet<(u8, String)>,
}

impl Watched {
    /// Whether a message of nf_tables is about one of the chains, or about a new one.
    pub fn has(&self, message: &Received<'_>) -> bool {
        chain_of(message).is_some_and(|(family, table, chain)| {
            let is_new = || base_of(message).is_some_and(|base| base.is_on(HookPoint::Forward));
            let is_own = table.starts_with(OWN);
            !is_own
                && (self.tables.contains(&(family, table.clone()))
                    || is_new()
                    || self.chains.contains(&(family, table, chain)))
        })
    }
}

/// What drops the packets of pods, by the firewall's name, and the text. `pods`: the podCIDRs of this node; `all`: those of all nodes.
///
/// # Errors
/// The kernel refuses a request.
pub fn faults(
    socket: &mut Socket,
    pods: &[IpNetwork],
    all: &[IpNetwork],
    bridges: &[String],
) -> Result<(Vec<(String, String)>, Watched)> {
    let (mut found, mut watched) = (Found::new(), Watched::default());
    let is_foreign =
        |chain: &BaseChain| chain.base.is_on(HookPoint::Forward) && !chain.table.1.starts_with(OWN);
    for BaseChain { table: (family, table), name, base } in
        nftables::base_chains(socket)?.into_iter().filter(is_foreign)
    {
        watched.chains.insert((family as u8, table.clone(), name.clone()));
        let place = Table::new(family, &table);
        let is_end = |rule: &Rule| rule.is_unconditional() && rule.verdict().is_some();
        // Tables of Services may have a hundred thousand rules.
        if !base.drops && !nftables::rules(socket, place, &name)?.iter().any(is_end) {
            continue;
        }
        let mut is_watched = table != FILTER;
        let rules = nftables::all_rules(socket, place)?;
        for network in of_family(pods, family) {
            let pods = Pods { network, bridges };
            let mut chains = Chains::from([(name.clone(), Vec::new())]);
            for (chain, rule) in &rules {
                chains.entry(chain.clone()).or_default().push(nft::step(rule, &pods));
            }
            if walk::is_dropped(&chains, &name, base.drops) {
                is_watched = true;
                found.entry(Firewall::of(family, &table, &name, &chains)).or_default().insert(network);
            }
        }
        if is_watched {
            watched.tables.insert((family as u8, table));
        }
    }
    Ok((texts(&found, all), watched))
}

/// As [`faults`], for iptables-legacy. Costs a process.
///
/// # Errors
/// A program fails.
pub fn legacy_fault(
    programs: &Programs,
    network: IpNetwork,
    all: &[IpNetwork],
    bridges: &[String],
) -> Result<Vec<(String, String)>> {
    let text = programs.save()?;
    let chains = words::chains(&Listing::of(FILTER, &text), &Pods { network, bridges });
    let mut found = Found::new();
    if walk::is_dropped(&chains, "FORWARD", text.lines().any(|line| line.starts_with(":FORWARD DROP "))) {
        let family = IpFamily::of(network.ip());
        let firewall = if has_ufw(&chains) { Firewall::Ufw } else { Firewall::Legacy(family) };
        found.entry(firewall).or_default().insert(network);
    }
    Ok(texts(&found, all))
}

fn of_family(pods: &[IpNetwork], family: Family) -> Vec<IpNetwork> {
    let is_of =
        |network: &&IpNetwork| family == Family::Inet || family == Family::of(IpFamily::of(network.ip()));
    pods.iter().filter(is_of).copied().collect()
}

fn has_ufw(chains: &Chains) -> bool {
    chains.keys().any(|chain| ["ufw-before-forward", "ufw6-before-forward"].contains(&chain.as_str()))
}

impl Firewall {
    fn of(family: Family, table: &str, chain: &str, chains: &Chains) -> Firewall {
        let ip = match family {
            Family::Ip if table == FILTER && chain == "FORWARD" => Some(IpFamily::V4),
            Family::Ip6 if table == FILTER && chain == "FORWARD" => Some(IpFamily::V6),
            _ => None,
        };
        match ip {
            Some(_) if has_ufw(chains) => Firewall::Ufw,
            Some(ip) => Firewall::Iptables(ip),
            None if table == "firewalld" => Firewall::Firewalld,
            None => Firewall::Table(name(family), table.to_owned(), chain.to_owned()),
        }
    }

    fn about(&self) -> String {
        match self {
            Firewall::Firewalld => "firewalld".to_owned(),
            Firewall::Ufw => "ufw".to_owned(),
            Firewall::Iptables(family) => format!("FORWARD {family}"),
            Firewall::Legacy(family) => format!("FORWARD {family} legacy"),
            Firewall::Table(family, table, chain) => format!("{family} {table} {chain}"),
        }
    }

    fn text(&self, networks: &BTreeSet<IpNetwork>, all: &[IpNetwork]) -> String {
        let each = |networks: &mut dyn Iterator<Item = &IpNetwork>,
                    command: &dyn Fn(&IpNetwork) -> String,
                    with: &str| {
            networks.take(NAMED).map(command).collect::<Vec<String>>().join(with)
        };
        let own = |command: &dyn Fn(&IpNetwork) -> String| each(&mut networks.iter(), command, " && ");
        match self {
            Firewall::Firewalld => {
                let families: Vec<IpFamily> =
                    networks.iter().map(|network| IpFamily::of(network.ip())).collect();
                let mut sources = all.iter().filter(|network| families.contains(&IpFamily::of(network.ip())));
                let options = each(&mut sources, &|network| format!("--add-source={network}"), " ");
                format!(
                    "firewalld drops the packets of pods; firewall-cmd --permanent --zone=trusted {options} && firewall-cmd --reload lets them pass, if the zone has the podCIDRs of all nodes"
                )
            }
            Firewall::Ufw => {
                let commands =
                    own(&|network| format!("ufw route allow from {network} && ufw route allow to {network}"));
                format!("ufw drops the packets of pods; {commands} lets them pass")
            }
            Firewall::Iptables(family) => iptables(program(*family), own),
            Firewall::Legacy(family) => iptables(&format!("{}-legacy", program(*family)), own),
            Firewall::Table(family, table, chain) => {
                let commands = own(&|network| {
                    let ip = match IpFamily::of(network.ip()) {
                        IpFamily::V4 => "ip",
                        IpFamily::V6 => "ip6",
                    };
                    let insert = |end: &str| {
                        format!("nft insert rule {family} {table} {chain} {ip} {end} {network} accept")
                    };
                    format!("{} && {}", insert("saddr"), insert("daddr"))
                });
                format!(
                    "the chain {chain} of table {family} {table} drops the packets of pods; {commands} lets them pass, until its file, such as /etc/nftables.conf, is loaded again: write the rules there too"
                )
            }
        }
    }
}

fn iptables(program: &str, own: impl Fn(&dyn Fn(&IpNetwork) -> String) -> String) -> String {
    let commands = own(&|network| {
        format!("{program} -I FORWARD -s {network} -j ACCEPT && {program} -I FORWARD -d {network} -j ACCEPT")
    });
    format!("a rule in FORWARD of {program} drops the packets of pods; {commands} lets them pass")
}

fn texts(found: &Found, all: &[IpNetwork]) -> Vec<(String, String)> {
    found.iter().map(|(firewall, networks)| (firewall.about(), firewall.text(networks, all))).collect()
}

fn name(family: Family) -> &'static str {
    match family {
        Family::Ip => "ip",
        Family::Ip6 => "ip6",
        _ => "inet",
    }
}

/// The program for rules of this family.
pub fn program(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    }
}
