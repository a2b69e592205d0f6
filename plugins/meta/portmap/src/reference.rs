//! The tables `ip cni_hostport` and `ip6 cni_hostport` of the reference's nftables backend.
//!
//! Chain `hostports` has the rules of host ports. Up to version 1.8, those for one host address are in chain
//! `hostip_hostports`. Chain `masquerading` has the masquerading rules. The comment of each rule is only the
//! container ID, without network and interface. Therefore DEL deletes all rules of the container, as the
//! reference does.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Context, ValidAttachment};
use ferrule_kernel::ip::{IpFamily, from_octets, octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::matches::{End, address, destination_is_local};
use ferrule_kernel::nftables::{
    self, Batch, ChainType, CmpOp, Error, Expr, Family, Hook, HookPoint, MetaKey, PayloadBase, Policy,
    Register, Rule, Table, Verdict, all_chains, delete_rules, rules,
};
use ferrule_kernel::sorted;
use ferrule_kit::check::ensure;
use ferrule_kit::dead;
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::mapping::Proto;
use crate::mark::Masquerade;
use crate::plan::{HostPort, Key, MapSet, Plan};

/// The table of a family.
const fn table(family: IpFamily) -> Table<'static> {
    Table::new(Family::of(family), "cni_hostport")
}

/// The chain with the rules of host ports.
pub const HOSTPORTS: &str = "hostports";
/// The chain with the rules for one host address, before version 1.9.
pub const OLD_HOSTPORTS: &str = "hostip_hostports";
/// The base chain with the masquerading rules.
pub const MASQUERADING: &str = "masquerading";
/// The chain that jumps to [`OLD_HOSTPORTS`] and [`HOSTPORTS`].
const ALL: &str = "hostports_all";
const CHAINS: [&str; 3] = [HOSTPORTS, OLD_HOSTPORTS, MASQUERADING];

/// The directory in which libcni keeps the results of attachments, in files `NETWORK-CONTAINER-INTERFACE`.
const RESULTS: &str = "/var/lib/cni/results";

/// The chains that tell whether the tables exist.
pub fn chains() -> [(Table<'static>, String); 2] {
    IpFamily::ALL.map(|family| (table(family), HOSTPORTS.to_owned()))
}

/// The tables that exist.
fn present(socket: &mut Socket) -> Result<Vec<Table<'static>>, Error> {
    let tables = IpFamily::ALL.map(table);
    let found = nftables::chains(socket, &tables.map(|table| (table, HOSTPORTS)))?;
    Ok(tables.into_iter().zip(found).filter_map(|(table, chain)| chain.map(|_| table)).collect())
}

/// Deletes the rules of a container and returns its host ports.
///
/// # Errors
/// Code 999 if the kernel refuses a request.
pub fn delete(socket: &mut Socket, container_id: &str) -> Result<Vec<HostPort>, CniError> {
    delete_dead(socket, &[container_id.to_owned()], &mut || vec![true]).map(|(_, host_ports)| host_ports)
}

/// Deletes the rules of those of these containers whom `are_dead` names after the rules have been read, by one answer for each.
/// Returns whether each had rules that are deleted, and their host ports.
///
/// # Errors
/// As [`delete`].
pub fn delete_dead(
    socket: &mut Socket,
    containers: &[String],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<(Vec<bool>, Vec<HostPort>), CniError> {
    let of_dead = |found: &BTreeSet<String>| dead::confirmed_names(containers, found, are_dead);
    let deleted = delete_where(socket, |comment| containers.iter().any(|one| one == comment), of_dead)
        .context(|| "remove host ports of the reference plugin")?;
    let of = |container: &String| deleted.iter().any(|rule| rule.comment.as_ref() == Some(container));
    let removed = containers.iter().map(of).collect();
    Ok((removed, deleted.iter().filter_map(decode_rule).collect()))
}

/// Deletes the rules of containers without valid attachment. The rules do not name the network, so rules stay
/// if libcni has a cached result of the container for any network. Without the directory of results, all
/// rules stay.
///
/// # Errors
/// As [`delete`].
pub fn gc(socket: &mut Socket, valid: &[ValidAttachment]) -> Result<Vec<HostPort>, CniError> {
    let step = || "remove unused host ports of the reference plugin";
    if present(socket).context(step)?.is_empty() {
        return Ok(Vec::new());
    }
    let Some(results) = results(Path::new(RESULTS)) else { return Ok(Vec::new()) };
    let valid = Attachment::containers(valid);
    let is_alive =
        |id: &str| valid.contains(id) || results.iter().any(|name| name.contains(&format!("-{id}-")));
    let deleted = delete_where(socket, |comment| !is_alive(comment), BTreeSet::clone).context(step)?;
    Ok(deleted.iter().filter_map(decode_rule).collect())
}

fn results(folder: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(folder).ok()?;
    Some(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Deletes the rules whose comment is wanted and among those that `dead` returns of the found ones, before each batch.
fn delete_where(
    socket: &mut Socket,
    is_wanted: impl Fn(&str) -> bool,
    mut dead: impl FnMut(&BTreeSet<String>) -> BTreeSet<String>,
) -> Result<Vec<Rule>, Error> {
    let mut deleted = Vec::new();
    for table in present(socket)? {
        deleted.extend(delete_rules(socket, table, |socket| {
            let mut wanted = Vec::new();
            for chain in CHAINS {
                let found = rules(socket, table, chain)?.into_iter();
                let found = found.filter(|rule| rule.comment.as_deref().is_some_and(&is_wanted));
                wanted.extend(found.map(|rule| (chain, rule)));
            }
            let found: BTreeSet<String> =
                wanted.iter().filter_map(|(_, rule)| rule.comment.clone()).collect();
            let dead = if found.is_empty() { found } else { dead(&found) };
            wanted.retain(|(_, rule)| rule.comment.as_ref().is_some_and(|comment| dead.contains(comment)));
            Ok(wanted)
        })?);
    }
    Ok(deleted)
}

/// All containers that have rules, each rule with its host port, if it is one.
///
/// # Errors
/// Code 999 if the kernel refuses to list a chain.
pub fn list(socket: &mut Socket) -> Result<Vec<(String, Option<HostPort>)>, CniError> {
    let step = || "list host ports of the reference plugin";
    let mut found = Vec::new();
    for table in present(socket).context(step)? {
        for chain in CHAINS {
            let rules = rules(socket, table, chain).context(step)?;
            let commented = |rule: &Rule| Some((rule.comment.clone()?, decode_rule(rule)));
            found.extend(rules.iter().filter_map(commented));
        }
    }
    Ok(found)
}

/// Whether a container has rules in these tables.
///
/// # Errors
/// Code 999 if the kernel refuses to list a chain.
pub fn has(socket: &mut Socket, container_id: &str) -> Result<bool, CniError> {
    Ok(list(socket)?.iter().any(|(container, _)| container == container_id))
}

/// Checks that the tables have a rule for each host port of the plan, the jumps to these rules, and a
/// masquerading rule in each family.
///
/// # Errors
/// Code 999 with the first missing rule.
pub fn check(socket: &mut Socket, conf: &Conf, plan: &Plan<'_>) -> Result<(), CniError> {
    let container_id = plan.owner.container_id;
    let step = || "check host ports of the reference plugin";
    let found = list(socket)?;
    let found: Vec<&HostPort> = found
        .iter()
        .filter(|(id, _)| id == container_id)
        .filter_map(|(_, host_port)| host_port.as_ref())
        .collect();
    for wanted in &plan.host_ports {
        let is_it = |found: &&HostPort| {
            let (a, b) = (&found.key, &wanted.key);
            (a.host_ip, a.proto, a.port, found.target) == (b.host_ip, b.proto, b.port, wanted.target)
        };
        ensure(found.iter().any(is_it), || {
            format!("missing hostport rules in \"hostports\" chain: {} to {}", wanted.key, wanted.target)
        })?;
    }
    for family in sorted(plan.host_ports.iter().map(|wanted| wanted.key.map_set.family)) {
        let table = table(family);
        for hook in ["prerouting", "output"] {
            let found = rules(socket, table, hook).context(step)?;
            ensure(found.iter().any(|rule| rule.jump_target().is_some()), || {
                format!("chain {hook:?} of table {table} has no jump to the host ports")
            })?;
        }
        let masquerading = rules(socket, table, MASQUERADING).context(step)?;
        let is_own = |rule: &Rule| rule.comment.as_deref() == Some(container_id);
        ensure(!conf.snat || masquerading.iter().any(is_own), || {
            "missing hostport rules in \"masquerading\" chain".to_owned()
        })?;
    }
    Ok(())
}

/// Decodes the rule of a host port: `[ip daddr A] P dport N dnat to T:M`.
pub fn decode_rule(rule: &Rule) -> Option<HostPort> {
    let (mut host_ip, mut proto, mut port, mut constants) = (None, None, None, Vec::new());
    let steps = rule.decode()?;
    for pair in steps.windows(2) {
        match (&pair[0], &pair[1]) {
            (Expr::Immediate { value, .. }, _) => constants.push(value),
            (Expr::Meta { key: MetaKey::L4Proto, .. }, Expr::Cmp { op: CmpOp::Eq, value, .. }) => {
                proto = Proto::from_number(*value.first()?);
            }
            (Expr::Payload { base, offset, .. }, Expr::Cmp { op: CmpOp::Eq, value, .. }) => {
                match (base, offset) {
                    (PayloadBase::Transport, 2) => port = Some(u16_of(value)?),
                    (PayloadBase::Network, 16 | 24) => host_ip = Some(from_octets(value)?),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let (Some(Expr::Dnat { .. }), [address, to_port]) = (steps.last(), constants.as_slice()) else {
        return None;
    };
    let target = SocketAddr::new(from_octets(address)?, u16_of(to_port)?);
    let map_set = MapSet { family: IpFamily::of(target.ip()), id: None };
    let key = Key { map_set, host_ip, proto: proto?, port: port? };
    Some(HostPort { key, target, masquerade: None })
}

/// The rule of a host port, as the reference has `nft` write it, preceded by `conditions`.
pub fn rule(host_port: &HostPort, conditions: &[Expr]) -> Vec<Expr> {
    let cmp = |value: Vec<u8>| Expr::Cmp { register: Register::R1, op: CmpOp::Eq, value };
    let mut steps = conditions.to_vec();
    if let Some(ip) = host_port.key.host_ip {
        steps.extend(address(End::Destination, CmpOp::Eq, ip.into()));
    }
    let port = Register::word(4);
    steps.extend([
        Expr::Meta { key: MetaKey::L4Proto, to: Register::R1 },
        cmp(vec![host_port.key.proto.number()]),
        Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to: Register::R1 },
        cmp(host_port.key.port.to_be_bytes().to_vec()),
        Expr::Immediate { to: Register::R1, value: octets(host_port.target.ip()) },
        Expr::Immediate { to: port, value: host_port.target.port().to_be_bytes().to_vec() },
        Expr::Dnat { family: host_port.key.map_set.family, address: Register::R1, port },
    ]);
    steps
}

/// The masquerading rules for a container's address.
pub fn masquerade_rules(pod: IpAddr, masquerade: &Masquerade) -> Vec<Vec<Expr>> {
    let sources: Vec<IpNetwork> = match masquerade.from {
        None => vec![cni_common::spec::addr::default_route(pod)],
        Some(_) if pod.is_ipv4() => vec![pod.into(), IpAddr::from([127, 0, 0, 1]).into()],
        Some(_) => vec![pod.into()],
    };
    let rule = |source| {
        let mut steps = address(End::Source, CmpOp::Eq, source);
        steps.extend(address(End::Destination, CmpOp::Eq, pod.into()));
        steps.push(Expr::Masquerade { flags: 0 });
        steps
    };
    sources.into_iter().map(rule).collect()
}

/// Adds the missing chains of a family's table, with their jumps, to the batch.
///
/// # Errors
/// Code 999 if the kernel refuses to list the chains.
pub fn create_missing(
    socket: &mut Socket,
    batch: &mut Batch,
    family: IpFamily,
) -> Result<Table<'static>, CniError> {
    let table = table(family);
    let present = all_chains(socket, table).context(|| format!("list the chains of table {table}"))?;
    let jump = |to: &str| Expr::Verdict(Verdict::Jump(to.to_owned()));
    let nat = |point, priority| {
        let (chain_type, policy) = (ChainType::Nat, Policy::Accept);
        Some(Hook { chain_type, point, priority, policy })
    };
    let local = || vec![[&destination_is_local()[..], &[jump(ALL)]].concat()];
    batch.add_table(table, Some("CNI portmap plugin"));
    for (name, hook, rules) in [
        (HOSTPORTS, None, Vec::new()),
        (OLD_HOSTPORTS, None, Vec::new()),
        (ALL, None, vec![vec![jump(OLD_HOSTPORTS)], vec![jump(HOSTPORTS)]]),
        ("prerouting", nat(HookPoint::Prerouting, -100), local()),
        ("output", nat(HookPoint::Output, -100), local()),
        (MASQUERADING, nat(HookPoint::Postrouting, 100), Vec::new()),
    ] {
        if !present.iter().any(|(present, _)| present == name) {
            batch.add_chain(table, name, hook, None);
            for rule in rules {
                batch.add_rule(table, name, &rule, None);
            }
        }
    }
    Ok(table)
}

fn u16_of(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.first_chunk()?))
}
