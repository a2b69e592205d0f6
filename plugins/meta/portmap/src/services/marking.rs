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
use ferrule_kernel::iptables::kernel::{delete_chain, families_with};
use ferrule_kernel::iptables::{Listing, NAT, OwnChain, Programs, legacy};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Expr, Verdict, xt};
use ferrule_kit::lock;

use super::KUBE_SERVICES;
use crate::mark;

/// The chain.
pub(super) const CHAIN: &str = "FERRULE-HOSTPORTS";
/// The chains that jump to it.
const PARENTS: [&str; 2] = ["PREROUTING", "OUTPUT"];
/// How many rules the chain has and how many jump to it, added up.
pub(super) const USES: u32 = 4;
const STEP: &str = "mark packets behind the rules of kube-proxy";

fn chain(bit: u8) -> OwnChain {
    let (node_port, mark) = (1_u32 << mark::DEFAULT_BIT, 1_u32 << bit);
    OwnChain {
        table: NAT,
        name: CHAIN,
        words: vec![
            format!("-m mark --mark {node_port:#x}/{node_port:#x} -j RETURN"),
            format!("-j MARK --set-xmark {mark:#x}/{mark:#x}"),
        ],
        rules: vec![
            vec![xt::mark_bit_is_set(mark::DEFAULT_BIT), Expr::Verdict(Verdict::Return)],
            vec![xt::set_mark_bit(bit)],
        ],
        parents: &PARENTS,
        jump_words: format!("-m addrtype --dst-type LOCAL -j {CHAIN}"),
        jump: vec![xt::destination_is_local(), Expr::Verdict(Verdict::Jump(CHAIN.to_owned()))],
        predecessors: &[KUBE_SERVICES],
        is_appended: true,
    }
}

/// Makes the chain in nf_tables, unless it is there already.
pub(super) fn add_nft(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<(), CniError> {
    chain(bit).add(socket, family).context(|| STEP)
}

/// Makes the chain in the listed legacy table, unless it is there already. Costs two processes.
pub(super) fn add_legacy(programs: &Programs, listing: &Listing, bit: u8) -> Result<(), CniError> {
    let chain = chain(bit);
    if chain.is_in(listing) {
        return Ok(());
    }
    let _lock = lock::iptables()?;
    chain.add_legacy(programs).context(|| STEP)
}

/// Whether the chain stands as it should, and behind the rules of kube-proxy, in either variant. A legacy table costs a
/// process.
pub(super) fn is_there(socket: &mut Socket, family: IpFamily, bit: u8) -> Result<bool, CniError> {
    let (step, chain) = (|| "find the chain that marks packets", chain(bit));
    if chain.is_in_kernel(socket, family).context(step)? {
        return Ok(true);
    }
    let Some(programs) = Programs::legacy(family, NAT) else { return Ok(false) };
    Ok(chain.is_in(&programs.list().context(step)?))
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

    #[test]
    fn lines_for_a_legacy_table() {
        let lines = chain(12).lines(&Listing::parse("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n"));
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
    }
}
