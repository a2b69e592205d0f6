//! The chain of iptables' nat table that marks packets for the gate, behind the rules of kube-proxy.
//!
//! ```text
//! -A PREROUTING -m addrtype --dst-type LOCAL -j FERRULE-HOSTPORTS        (and the same in OUTPUT)
//! -A FERRULE-HOSTPORTS -m mark --mark 0x4000/0x4000 -j RETURN            for a NodePort
//! -A FERRULE-HOSTPORTS -j MARK --or-mark 0x1000
//! ```
//!
//! kube-proxy puts its jump before all others whenever it is missing. So rules that are appended stay behind it.

use cni_common::spec::{CniError, Context, Failures};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::kernel::{delete_chain, families_with, jumps, table};
use ferrule_kernel::iptables::{Listing, Programs, Rule, legacy};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, Expr, Verdict, chains, generation, rules, xt};
use ferrule_kernel::retry::retry;
use ferrule_kit::lock;

use super::KUBE_SERVICES;
use crate::mark;
use crate::nft::ATTEMPTS;

/// The chain.
pub(super) const CHAIN: &str = "FERRULE-HOSTPORTS";
/// The chains that jump to it.
const PARENTS: [&str; 2] = ["PREROUTING", "OUTPUT"];
/// How many rules the chain has and how many jump to it, added up.
pub(super) const USES: u32 = 4;
const STEP: &str = "mark packets behind the rules of kube-proxy";

/// The chain's rules, as iptables-nft would write them.
fn native(bit: u8) -> [Vec<Expr>; 2] {
    [
        vec![xt::mark_bit_is_set(mark::DEFAULT_BIT), Expr::Verdict(Verdict::Return)],
        vec![xt::set_mark_bit(bit)],
    ]
}

fn native_jump() -> [Expr; 2] {
    [xt::destination_is_local(), Expr::Verdict(Verdict::Jump(CHAIN.to_owned()))]
}

/// The chain's rules and the jumps to it, in the words of iptables.
fn words(bit: u8) -> [Rule; 4] {
    let node_port = 1_u32 << mark::DEFAULT_BIT;
    let mark = 1_u32 << bit;
    let jump = |parent| Rule::new(parent, &format!("-m addrtype --dst-type LOCAL -j {CHAIN}"));
    [
        Rule::new(CHAIN, &format!("-m mark --mark {node_port:#x}/{node_port:#x} -j RETURN")),
        Rule::new(CHAIN, &format!("-j MARK --set-xmark {mark:#x}/{mark:#x}")),
        jump(PARENTS[0]),
        jump(PARENTS[1]),
    ]
}

/// Makes the chain in nf_tables, unless it is there already.
pub(super) fn add_nft(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<(), CniError> {
    let outcome = retry(ATTEMPTS, Error::is_outdated, || {
        let generation = generation(socket)?;
        if is_in_nft(socket, family, bit)? {
            return Ok(());
        }
        nft_batch(socket, family, bit)?.commit_at(socket, generation)
    });
    outcome.context(|| STEP)
}

fn nft_batch(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<Batch, Error> {
    let table = table(family);
    let mut batch = Batch::new();
    if chains(socket, &[(table, CHAIN)])? == [None] {
        batch.add_chain(table, CHAIN, None, None);
    } else {
        batch.flush_chain(table, CHAIN);
    }
    for rule in native(bit) {
        batch.add_rule(table, CHAIN, &rule, None);
    }
    for parent in PARENTS {
        for jump in jumps(socket, family, parent, CHAIN)? {
            batch.delete_rule(table, parent, jump.handle);
        }
        batch.add_rule(table, parent, &native_jump(), None);
    }
    Ok(batch)
}

/// Makes the chain in the listed legacy table, unless it is there already. Costs one process.
pub(super) fn add_legacy(programs: &Programs, listing: &Listing, bit: u8) -> Result<(), CniError> {
    if is_in_listing(listing, bit) {
        return Ok(());
    }
    let _lock = lock::iptables()?;
    let listing = Listing::parse(&programs.save().context(|| STEP)?);
    if is_in_listing(&listing, bit) {
        return Ok(());
    }
    programs.restore(&legacy_lines(&listing, bit)).context(|| STEP)
}

fn legacy_lines(listing: &Listing, bit: u8) -> Vec<String> {
    let command = if listing.has_chain(CHAIN) { "-F" } else { "-N" };
    let mut lines = vec![format!("{command} {CHAIN}")];
    lines.extend(listing.jumps_to(CHAIN).map(|rule| rule.line("-D")));
    lines.extend(words(bit).iter().map(|rule| rule.line("-A")));
    lines
}

/// Whether the chain stands as it should, and behind the rules of kube-proxy, in either variant. A legacy table costs a
/// process.
pub(super) fn is_there(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<bool, CniError> {
    let step = || "look for the chain that marks packets";
    if is_in_nft(socket, family, bit).context(step)? {
        return Ok(true);
    }
    let Some(programs) = Programs::legacy(family) else { return Ok(false) };
    let saved = programs.save().context(step)?;
    Ok(is_in_listing(&Listing::parse(&saved), bit))
}

fn is_in_nft(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<bool, Error> {
    let found: Vec<_> = rules(socket, table(family), CHAIN)?.iter().map(|rule| rule.decode()).collect();
    if found != native(bit).map(Some) {
        return Ok(false);
    }
    for parent in PARENTS {
        let rules = rules(socket, table(family), parent)?;
        let targets: Vec<_> = rules.iter().map(|rule| rule.jump_target().unwrap_or_default()).collect();
        if !is_last(&targets) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_in_listing(listing: &Listing, bit: u8) -> bool {
    let [first, second, ..] = words(bit);
    let is_right = |parent: &&'static str| {
        let targets: Vec<_> =
            listing.rules_of(parent).map(|rule| rule.argument("-j").unwrap_or_default().to_owned()).collect();
        is_last(&targets)
    };
    listing.rules_of(CHAIN).eq([&first, &second]) && PARENTS.iter().all(is_right)
}

/// Whether among these targets of a chain's rules ours comes once, and behind kube-proxy's.
fn is_last(targets: &[String]) -> bool {
    let at = |chain: &str| targets.iter().position(|target| target == chain);
    let once = targets.iter().filter(|target| *target == CHAIN).count() == 1;
    once && at(KUBE_SERVICES) < at(CHAIN)
}

/// Removes the chain from both families and both variants. A legacy table costs a process, and a second one if the chain is
/// there.
pub(super) fn remove(socket: &mut Socket) -> Result<(), CniError> {
    let step = || "remove the chain that marks packets";
    let mut failures = Failures::default();
    for family in failures.keep(families_with(socket, &[CHAIN]).context(step)).unwrap_or_default() {
        failures.keep(delete_chain(socket, family, &PARENTS, CHAIN).context(step));
    }
    failures.keep(legacy::remove(|_| vec![CHAIN.to_owned()]).context(step));
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBE_PROXY: &str = "*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -m comment --comment x -j KUBE-SERVICES\n\
                              -A OUTPUT -m comment --comment x -j KUBE-SERVICES\n";

    fn with(lines: &[String]) -> Listing {
        let own = lines.iter().filter(|line| line.starts_with("-A")).map(String::as_str);
        Listing::parse(&format!(
            "{KUBE_PROXY}:{CHAIN} - [0:0]\n{}\nCOMMIT\n",
            own.collect::<Vec<_>>().join("\n")
        ))
    }

    #[test]
    fn what_is_written_to_a_legacy_table_is_found_right() {
        let lines = legacy_lines(&Listing::parse(KUBE_PROXY), 12);
        assert_eq!(
            lines,
            [
                "-N FERRULE-HOSTPORTS",
                "-A FERRULE-HOSTPORTS -m mark --mark 0x4000/0x4000 -j RETURN",
                "-A FERRULE-HOSTPORTS -j MARK --set-xmark 0x1000/0x1000",
                "-A PREROUTING -m addrtype --dst-type LOCAL -j FERRULE-HOSTPORTS",
                "-A OUTPUT -m addrtype --dst-type LOCAL -j FERRULE-HOSTPORTS",
            ]
        );
        let listing = with(&lines);
        assert!(is_in_listing(&listing, 12) && !is_in_listing(&listing, 11));
        assert!(!is_in_listing(&with(&lines[..4]), 12), "OUTPUT has no jump");
        let again = legacy_lines(&listing, 12);
        assert_eq!(again[..2], ["-F FERRULE-HOSTPORTS".to_owned(), lines[3].replacen("-A", "-D", 1)]);
    }

    #[test]
    fn the_jump_has_to_come_once_and_behind_kube_proxys() {
        let is_last =
            |targets: &[&str]| super::is_last(&targets.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        assert!(is_last(&[KUBE_SERVICES, "DOCKER", CHAIN]) && is_last(&[CHAIN]));
        assert!(!is_last(&[CHAIN, KUBE_SERVICES]) && !is_last(&[KUBE_SERVICES]));
        assert!(!is_last(&[KUBE_SERVICES, CHAIN, CHAIN]));
    }
}
