//! The gate: the chain that opens `FORWARD` of iptables for packets that our table marks.
//!
//! ```text
//! -A FORWARD -j FERRULE-FORWARD
//! -A FERRULE-FORWARD -m mark --mark 0x100000/0x100000 -j ACCEPT
//! ```
//!
//! A chain of its own can be looked up by name; its use counter tells that its rule and the jump exist. The jump is behind those
//! of the reference's chains, so that an operator's `CNI-ADMIN` and the policies of bridges come first; without these it is the first
//! rule.

use std::io;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{FILTER, Listing, Programs, Rule as Words, is_conflict};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::matches::mark_bit_is_set;
use ferrule_kernel::nftables::{Batch, Error, Expr, Rule, Verdict, chains, generation, rules, xt};
use ferrule_kernel::retry::{Limit, retry};
use ferrule_kit::check::ensure;
use ferrule_kit::lock;

use crate::iptables::{self, STAGE_1};
use crate::nft::filter_table;

/// The chain of iptables that the kernel calls for forwarded packets.
pub const FORWARD: &str = "FORWARD";
/// The gate's chain.
pub const CHAIN: &str = "FERRULE-FORWARD";
/// One rule in the chain, and one jump to it.
pub const USES: u32 = 2;
const STEP: &str = "open the chain FORWARD of iptables";
const ATTEMPTS: Limit = Limit { attempts: 50, changes: "ruleset changes" };

/// The rule of the chain as iptables-nft writes it, and as `nft` writes it for kernels without the extensions of iptables.
fn accept(bit: u8) -> [Vec<Expr>; 2] {
    let accept = Expr::Verdict(Verdict::Accept);
    [vec![xt::mark_bit_is_set(bit), accept.clone()], [&mark_bit_is_set(bit)[..], &[accept]].concat()]
}

fn jump() -> Expr {
    Expr::Verdict(Verdict::Jump(CHAIN.to_owned()))
}

/// Whether the rule that jumps to this chain must come before the gate.
fn comes_first(target: &str) -> bool {
    matches!(target, iptables::FORWARD | STAGE_1)
}

/// Makes the gate in iptables-nft, over netlink.
///
/// # Errors
/// Code 999 if the kernel refuses it.
pub fn add(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<(), CniError> {
    let [compatible, native] = accept(bit);
    let mut made = add_with(socket, family, &compatible);
    // ENOENT: the kernel has no extension of that name.
    if made.as_ref().is_err_and(Error::is_not_found) {
        made = add_with(socket, family, &native);
    }
    made.context(|| STEP)
}

fn add_with(socket: &mut Socket, family: IpFamily, accept: &[Expr]) -> Result<(), Error> {
    let table = filter_table(family);
    retry(ATTEMPTS, Error::is_outdated, || {
        let generation = generation(socket)?;
        let present = rules(socket, table, FORWARD)?;
        let mut batch = Batch::new();
        if chains(socket, &[(table, CHAIN)])? == [None] {
            batch.add_chain(table, CHAIN, None, None);
        } else {
            batch.flush_chain(table, CHAIN);
        }
        batch.add_rule(table, CHAIN, accept, None);
        let leads_to =
            |rule: &&Rule, is_it: &dyn Fn(&str) -> bool| rule.jump_target().is_some_and(|t| is_it(&t));
        for old in present.iter().filter(|rule| leads_to(rule, &|target| target == CHAIN)) {
            batch.delete_rule(table, FORWARD, old.handle);
        }
        let before = present.iter().rev().find(|rule| leads_to(rule, &comes_first));
        batch.insert_rule(table, FORWARD, &[jump()], before.map(|rule| rule.handle));
        batch.commit_at(socket, generation)
    })
}

/// Makes the gate in iptables-legacy, which costs two processes.
///
/// # Errors
/// Code 999 with the output of the failed program; code 11 if another process keeps the lock.
pub fn add_legacy(programs: &Programs, bit: u8) -> Result<(), CniError> {
    let _lock = lock::iptables()?;
    let outcome = retry(ATTEMPTS, is_conflict, || -> io::Result<()> {
        let lines = lines(&programs.list()?, bit);
        if lines.is_empty() { Ok(()) } else { programs.restore(&lines) }
    });
    outcome.context(|| STEP)
}

/// The rule of the chain, and the jump to it, in the words of iptables.
fn words(bit: u8) -> [Words; 2] {
    let mark = 1_u32 << bit;
    let accept = format!("-m mark --mark {mark:#x}/{mark:#x} -j ACCEPT");
    [Words::new(CHAIN, &accept), Words::new(FORWARD, &format!("-j {CHAIN}"))]
}

/// The lines for `iptables-restore` that complete the gate; none if it is complete.
pub fn lines(listing: &Listing, bit: u8) -> Vec<String> {
    if is_in(listing, bit) {
        return Vec::new();
    }
    let [accept, jump] = words(bit);
    let command = if listing.has_chain(CHAIN) { "-F" } else { "-N" };
    let mut lines = vec![format!("{command} {CHAIN}"), accept.line("-A")];
    lines.extend(listing.jumps_to(CHAIN).map(|old| old.line("-D")));
    // The positions after the old jumps are gone.
    let targets = listing.rules_of(FORWARD).map(|rule| rule.argument("-j").unwrap_or_default());
    let others = targets.filter(|target| *target != CHAIN).zip(1..);
    let before = others.filter(|(target, _)| comes_first(target)).map(|(_, position)| position).last();
    lines.push(Words { chain: format!("{FORWARD} {}", before.unwrap_or(0) + 1), ..jump }.line("-I"));
    lines
}

fn is_in(listing: &Listing, bit: u8) -> bool {
    let [accept, jump] = words(bit);
    listing.rules_of(CHAIN).eq([&accept]) && listing.jumps_to(CHAIN).eq([&jump])
}

/// Checks the gate in iptables-nft: its rule, the jump, and that no rule before the jump drops everything. Another program may have
/// made `FORWARD` since the ADD; it needs no gate until it drops everything.
///
/// # Errors
/// Code 999 with the missing rule.
pub fn check(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<(), CniError> {
    let step = || format!("list the rules of {family} iptables");
    let table = filter_table(family);
    let forward = rules(socket, table, FORWARD).context(step)?;
    let bases = chains(socket, &[(table, CHAIN), (table, FORWARD)]).context(step)?;
    let drops = bases.iter().flatten().any(|chain| chain.base.is_some_and(|base| base.drops));
    if bases.first() == Some(&None) && !drops && !forward.iter().any(Rule::drops_everything) {
        return Ok(());
    }
    let found = rules(socket, table, CHAIN).context(step)?;
    let wanted = accept(bit);
    let is_right = matches!(&found[..], [rule] if rule.decode().is_some_and(|rule| wanted.contains(&rule)));
    // Rules that a program of iptables has added also have a counter, and newer ones compare the mark without an extension.
    let is_right = is_right
        || matches!(&found[..], [rule] if rule.accepts() && (rule.has("meta") || rule.has_match("mark")));
    ensure(is_right, || format!("chain {CHAIN} of {family} iptables is missing or altered"))?;
    let position = forward.iter().position(|rule| rule.jump_target().as_deref() == Some(CHAIN));
    ensure(position.is_some(), || {
        format!("expected FORWARD rule [-j {CHAIN}] not found in {family} iptables")
    })?;
    let drops_all = forward.iter().take(position.unwrap_or_default()).any(Rule::drops_everything);
    ensure(!drops_all, || {
        format!("a rule before [-j {CHAIN}] in FORWARD of {family} iptables drops all packets")
    })
}

/// Checks the gate in iptables-legacy, which costs a process.
///
/// # Errors
/// Code 999 with the missing rule.
pub fn check_legacy(programs: &Programs, family: IpFamily, bit: u8) -> Result<(), CniError> {
    let listing = programs.list().context(|| format!("list the rules of {family} iptables-legacy"))?;
    ensure(is_in(&listing, bit), || {
        format!("expected FORWARD rule [-j {CHAIN}] not found in {family} iptables-legacy")
    })
}

/// The programs of iptables-legacy, if the network namespace has its table `filter`.
pub fn legacy(family: IpFamily) -> Option<Programs> {
    let found = Programs::legacy_of(family, FILTER);
    if found.is_none() && Programs::has_legacy(family, FILTER) {
        eprintln!(
            "{family} has rules of iptables-legacy, which is not on the PATH: they may drop packets of containers"
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_comes_behind_the_chains_of_the_reference() {
        let listing =
            |rules: &str| Listing::of(FILTER, &format!("*filter\n:FORWARD DROP [0:0]\n{rules}COMMIT\n"));
        let accept = "-A FERRULE-FORWARD -m mark --mark 0x100000/0x100000 -j ACCEPT";
        assert_eq!(
            lines(&listing(""), 20),
            ["-N FERRULE-FORWARD", accept, "-I FORWARD 1 -j FERRULE-FORWARD"]
        );
        let theirs = "-A FORWARD -j DOCKER-USER\n-A FORWARD -m comment --comment x -j CNI-FORWARD\n-A FORWARD -j DROP\n";
        assert_eq!(lines(&listing(theirs), 20).last().unwrap(), "-I FORWARD 3 -j FERRULE-FORWARD");
        // A second jump, or a rule with another bit, is replaced.
        let ours = format!(":FERRULE-FORWARD - [0:0]\n-A FORWARD -j FERRULE-FORWARD\n{theirs}{accept}\n");
        assert_eq!(lines(&listing(&ours), 20), [""; 0]);
        assert_eq!(lines(&listing(&ours), 21)[0], "-F FERRULE-FORWARD");
        let twice = format!("{ours}-A FORWARD -j FERRULE-FORWARD\n");
        let wanted = [
            "-D FORWARD -j FERRULE-FORWARD",
            "-D FORWARD -j FERRULE-FORWARD",
            "-I FORWARD 3 -j FERRULE-FORWARD",
        ];
        assert_eq!(lines(&listing(&twice), 20)[2..], wanted);
    }
}
