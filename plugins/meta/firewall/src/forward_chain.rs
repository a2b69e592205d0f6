//! The forward chain: it opens `FORWARD` of iptables for packets that our table marks.
//!
//! ```text
//! -A FORWARD -j FERRULE-FORWARD
//! -A FERRULE-FORWARD -m mark --mark 0x100000/0x100000 -j ACCEPT
//! ```
//!
//! A chain of its own can be looked up by name; its use counter tells that its rule and the jump exist. The jump is behind those
//! of the reference's chains, so that an operator's `CNI-ADMIN` and the policies of bridges come first; without these it is the first
//! rule.

use cni_common::remark;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{FILTER, Listing, OwnChain, Programs};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::matches::mark_bit_is_set;
use ferrule_kernel::nftables::{Error, Expr, Family, Rule, Table, Verdict, chains, rules, xt};
use ferrule_kit::check::ensure;
use ferrule_kit::lock;

/// The chain of iptables that the kernel calls for forwarded packets.
pub const FORWARD: &str = "FORWARD";
/// The reference's chain with the rules of the containers.
pub const CNI_FORWARD: &str = "CNI-FORWARD";
/// The reference's chain that separates bridges: packets from a guarded bridge to another link go on to the next one.
pub const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
/// The forward chain.
pub const CHAIN: &str = "FERRULE-FORWARD";
/// One rule in the chain, and one jump to it.
pub const USES: u32 = 2;
/// The table `filter` of iptables-nft.
pub const fn filter_table(family: IpFamily) -> Table<'static> {
    Table::new(Family::of(family), "filter")
}

const STEP: &str = "open the chain FORWARD of iptables";

/// The rule of the chain as iptables-nft writes it, and as `nft` writes it for kernels without the extensions of iptables.
fn accept(bit: u8) -> [Vec<Expr>; 2] {
    let accept = Expr::Verdict(Verdict::Accept);
    [vec![xt::mark_bit_is_set(bit), accept.clone()], [&mark_bit_is_set(bit)[..], &[accept]].concat()]
}

fn chain(bit: u8, accept: Vec<Expr>) -> OwnChain {
    let mark = 1_u32 << bit;
    OwnChain {
        table: FILTER,
        name: CHAIN,
        words: vec![format!("-m mark --mark {mark:#x}/{mark:#x} -j ACCEPT")],
        rules: vec![accept],
        parents: &[FORWARD],
        jump_words: format!("-j {CHAIN}"),
        jump: vec![Expr::Verdict(Verdict::Jump(CHAIN.to_owned()))],
        predecessors: &[CNI_FORWARD, STAGE_1],
        is_appended: false,
    }
}

fn legacy_chain(bit: u8) -> OwnChain {
    chain(bit, Vec::new())
}

/// Makes the chain in iptables-nft, over netlink.
///
/// # Errors
/// Code 999 if the kernel refuses it.
pub fn add(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<(), CniError> {
    let [compatible, native] = accept(bit);
    let mut added = chain(bit, compatible).add(socket, family);
    // ENOENT: the kernel has no extension of that name.
    if added.as_ref().is_err_and(Error::is_not_found) {
        added = chain(bit, native).add(socket, family);
    }
    added.context(|| STEP)
}

/// Makes the chain in iptables-legacy, which costs two processes.
///
/// # Errors
/// Code 999 with the output of the failed program; code 11 if another process keeps the lock.
pub fn add_legacy(programs: &Programs, bit: u8) -> Result<(), CniError> {
    let _lock = lock::iptables()?;
    legacy_chain(bit).add_legacy(programs).context(|| STEP)
}

/// The lines for `iptables-restore` that make the chain; none if it is complete.
pub fn lines(listing: &Listing, bit: u8) -> Vec<String> {
    legacy_chain(bit).lines(listing)
}

/// Whether FORWARD jumps to the chain, and this accepts packets by their mark. Each network may have another bit; the last ADD wins.
pub fn is_open(listing: &Listing) -> bool {
    let mut rules = listing.rules_of(CHAIN);
    rules.any(|rule| rule.argument("--mark").is_some() && rule.argument("-j") == Some("ACCEPT"))
        && listing.jumps_to(CHAIN).any(|rule| rule.chain == FORWARD)
}

/// Checks the chain in iptables-nft: its rule, the jump, and that no rule before the jump drops everything. Another program may have
/// made `FORWARD` since the ADD; that needs no opening until it drops everything.
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

/// Checks the chain in iptables-legacy, which costs a process.
///
/// # Errors
/// Code 999 with the missing rule.
pub fn check_legacy(programs: &Programs, family: IpFamily, bit: u8) -> Result<(), CniError> {
    let listing = programs.list().context(|| format!("list the rules of {family} iptables-legacy"))?;
    ensure(legacy_chain(bit).is_in(&listing), || {
        format!("expected FORWARD rule [-j {CHAIN}] not found in {family} iptables-legacy")
    })
}

/// The programs of iptables-legacy, if the network namespace has its table `filter`.
pub fn legacy(family: IpFamily) -> Option<Programs> {
    let found = Programs::legacy(family, FILTER);
    if found.is_none() && Programs::has_legacy(family, FILTER) {
        remark!(
            "{family} has rules of iptables-legacy, which is not on the PATH: they may drop packets of containers"
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jump_comes_behind_the_chains_of_the_reference() {
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
