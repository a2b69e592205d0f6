//! The iptables backend: the reference's chains and rules, added by one `iptables-restore` for each family, after one
//! `iptables-save`, under our lock.
//!
//! The rules of iptables-nft are deleted over netlink, without a process. Only the programs can read legacy tables. The
//! reference's rules are the same, so CHECK, DEL and GC handle them too.

mod rules;

use std::io;
use std::net::IpAddr;

use cni_common::spec::{CniError, Context, Failures};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{FILTER, Programs, Variant};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::matches::End;
use ferrule_kernel::nftables::{Error, Rule, delete_rules};
use ferrule_kernel::retry::Limit;
use ferrule_kit::check::ensure;
use ferrule_kit::lock;

use crate::forward_chain::{self, CNI_FORWARD, filter_table};
use crate::nft::Node;
use crate::plan::Plan;
use rules::Wanted;

const ATTEMPTS: Limit = Limit { attempts: 20, changes: "changes of the filter table" };

/// The programs of the node.
fn programs(family: IpFamily) -> io::Result<Programs> {
    Programs::of_node(family).map(|programs| programs.in_table(FILTER))
}

/// Whether the node has the programs of this family.
///
/// # Errors
/// The reason why it has not.
pub fn available(family: IpFamily) -> io::Result<()> {
    programs(family).map(drop)
}

/// Whether iptables alone can open the chains `FORWARD` of the node: there is one, in the variant of the programs, and none
/// in the other variant.
pub fn can_open(node: &Node, plan: &Plan) -> bool {
    let mut has_any = false;
    for family in plan.families() {
        let forward = [
            (Variant::Nft, node.iptables(family).has_forward),
            (Variant::Legacy, Programs::has_legacy(family, FILTER)),
        ];
        if forward.iter().all(|(_, is_there)| !is_there) {
            continue;
        }
        let Ok(programs) = programs(family) else { return false };
        if forward.iter().any(|(variant, is_there)| *is_there && *variant != programs.variant) {
            return false;
        }
        has_any = true;
    }
    has_any
}

fn wanted<'a>(plan: &'a Plan, addresses: &'a [IpAddr]) -> Wanted<'a> {
    Wanted { admin: &plan.conf.admin_chain, addresses, bridge: plan.policy(), mark_bit: plan.conf.mark_bit }
}

/// Adds the rules of the plan.
///
/// # Errors
/// Code 999 with the output of the failed program; code 11 if another process keeps the lock.
pub fn add(plan: &Plan) -> Result<(), CniError> {
    if let Some((bridge, policy)) = plan.policy().filter(|(bridge, _)| bridge.ends_with('+')) {
        let why = "iptables takes the + at the end of its name for a wildcard";
        return Err(CniError::internal(format!("ingressPolicy {policy} of bridge {bridge:?}: {why}")));
    }
    for family in plan.families() {
        let step = || format!("add the rules of {family} iptables");
        let programs = programs(family).context(step)?;
        let addresses = plan.of(family);
        let _lock = lock::iptables()?;
        let wanted = wanted(plan, &addresses);
        programs.change(ATTEMPTS, |listing| rules::lines(listing, &wanted)).context(step)?;
    }
    Ok(())
}

/// Compares the rules with the plan, and the forward chain if the rules are ours: the reference has none. They may be in the
/// legacy tables even if the node uses iptables-nft.
///
/// # Errors
/// Code 999 with the first missing rule.
pub fn check(plan: &Plan, is_ours: bool) -> Result<(), CniError> {
    for family in plan.families() {
        let step = || format!("list the rules of {family} iptables");
        let programs = programs(family).context(step)?;
        let mut listing = programs.list().context(step)?;
        if !listing.has_chain(CNI_FORWARD)
            && programs.variant != Variant::Legacy
            && let Some(legacy) = Programs::legacy(family, FILTER)
        {
            listing = legacy.list().context(step)?;
        }
        rules::check(&listing, &wanted(plan, &plan.of(family)))?;
        ensure(!is_ours || forward_chain::is_open(&listing), || {
            format!("chain {} of {family} iptables is missing or altered", forward_chain::CHAIN)
        })?;
    }
    Ok(())
}

/// Whether one of the addresses has rules.
///
/// # Errors
/// Code 999 if the rules cannot be listed.
pub fn has(socket: &mut Socket, node: &Node, addresses: &[IpAddr]) -> Result<bool, CniError> {
    for family in IpFamily::ALL {
        let step = || format!("list the rules of {family} iptables");
        if node.iptables(family).has_reference
            && !own_rules(socket, family, addresses).context(step)?.is_empty()
        {
            return Ok(true);
        }
        if let Some(legacy) = Programs::legacy(family, FILTER)
            && !rules::removal(&legacy.list().context(step)?, addresses).is_empty()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the rules of these addresses, of both variants. Legacy tables are read only if `processes` is true.
///
/// # Errors
/// Code 999 with all failed steps; every step is tried.
pub fn delete(
    socket: &mut Socket,
    node: &Node,
    addresses: &[IpAddr],
    processes: bool,
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for family in IpFamily::ALL {
        let addresses: Vec<IpAddr> =
            addresses.iter().copied().filter(|ip| IpFamily::of(*ip) == family).collect();
        if addresses.is_empty() {
            continue;
        }
        let step = || format!("remove the rules of {family} iptables");
        if node.iptables(family).has_reference {
            failures.keep(delete_nft(socket, family, &addresses).context(step));
        }
        if processes && let Some(programs) = forward_chain::legacy(family) {
            let outcome = programs.change(ATTEMPTS, |listing| rules::removal(listing, &addresses));
            failures.keep(outcome.context(step));
        }
    }
    failures.into_result()
}

fn delete_nft(socket: &mut Socket, family: IpFamily, addresses: &[IpAddr]) -> Result<(), Error> {
    let own = |socket: &mut Socket| {
        let own = own_rules(socket, family, addresses)?;
        Ok(own.into_iter().map(|rule| (CNI_FORWARD, rule)).collect())
    };
    delete_rules(socket, filter_table(family), own).map(drop)
}

/// The addresses that rules of the reference's chain let pass, of both variants. Starts a process only for a legacy table.
///
/// # Errors
/// Code 999 if the kernel refuses to list the chain, or with the output of the failed program.
pub fn addresses(socket: &mut Socket) -> Result<Vec<IpAddr>, CniError> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        let step = || format!("list the rules of {family} iptables");
        let rules =
            ferrule_kernel::nftables::rules(socket, filter_table(family), CNI_FORWARD).context(step)?;
        found.extend(rules.iter().filter(|rule| rule.accepts()).filter_map(Rule::source));
        if let Some(programs) = forward_chain::legacy(family) {
            found.extend(rules::sources(&programs.list().context(step)?));
        }
    }
    Ok(found)
}

/// The rules of these addresses in iptables-nft.
fn own_rules(socket: &mut Socket, family: IpFamily, addresses: &[IpAddr]) -> Result<Vec<Rule>, Error> {
    let is_own = |rule: &Rule, end| rule.address(end).is_some_and(|address| addresses.contains(&address));
    let mut found = ferrule_kernel::nftables::rules(socket, filter_table(family), CNI_FORWARD)?;
    found.retain(|rule| {
        let from = is_own(rule, End::Source) && !rule.has("match");
        let to = is_own(rule, End::Destination) && rule.has_match("conntrack");
        rule.accepts() && (from || to)
    });
    Ok(found)
}
