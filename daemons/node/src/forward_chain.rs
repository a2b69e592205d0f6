//! A chain in `FORWARD` of iptables, where that drops packets: Docker, ufw and others set its policy. An accept in a table of ours
//! would not help against a drop in another one. What the chain cannot open is named: see [`crate::firewalls`].
//!
//! ```text
//! -A FORWARD -j FERRULE-NODE
//! -A FERRULE-NODE -s PODCIDR -j ACCEPT
//! -A FERRULE-NODE -d PODCIDR -j ACCEPT
//! ```
//!
//! It has the podCIDRs of all nodes: a node port of this node may lead to a pod of another node, for a client outside of the cluster.
//! Neighbours are one network.
//!
//! The jump comes last, so what the administrator and Docker reject stays rejected.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{FILTER, OwnChain, Programs};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::message::Received;
use ferrule_kernel::nftables::matches::{End, address};
use ferrule_kernel::nftables::notice::chain_of;
use ferrule_kernel::nftables::{self, Batch, CmpOp, Expr, Family, Rule, Table, Verdict};
use ferrule_kernel::notices::Messages;
use ferrule_kit::lock;
use ipnetwork::IpNetwork;

use crate::firewalls::{self, Watched, program};
use crate::listener::Listener;

const FORWARD: &str = "FORWARD";
const CHAIN: &str = "FERRULE-NODE";

/// What does not work: what it is about, and the text.
type Faults = Vec<(String, String)>;

/// The chains of both families, and the kernel's messages about them.
pub(crate) struct Part {
    socket: Socket,
    /// The port of `socket`: the kernel's messages name it for our own changes.
    port: u32,
    listener: Listener,
    /// The networks of the last [`Part::sync`], and what it could not open; `None` if another program may have changed the chains.
    known: Option<([Vec<IpNetwork>; 2], Faults)>,
    /// The chains of other programs.
    watched: Watched,
    /// The time of the last look at everything.
    looked: Option<Instant>,
    /// The faults in iptables-legacy.
    legacy: Faults,
}

/// How long the last look at everything counts. iptables-legacy starts processes and sends no message, and the daemon does not follow each
/// chain of other programs.
const LOOK: Duration = Duration::from_secs(10);

impl Part {
    /// Subscribes to the kernel's messages. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel has no nf_tables.
    pub(crate) fn open() -> Result<Self> {
        let listener = Messages::of_ruleset().context("listen to changes of nf_tables")?;
        let mut socket = Socket::netfilter()?;
        Ok(Part {
            port: socket.port()?,
            socket,
            listener: Listener::new(listener)?,
            known: None,
            watched: Watched::default(),
            looked: None,
            legacy: Faults::new(),
        })
    }

    /// Makes the chain where `FORWARD` drops packets, and removes it elsewhere. Returns what it cannot open. `pods`: the podCIDRs of this
    /// node. `others`: those of the other nodes. `bridges`: the links that pods may be behind.
    ///
    /// # Errors
    /// The kernel refuses a request, or a program of iptables-legacy fails.
    pub(crate) fn sync(
        &mut self,
        pods: &[IpNetwork],
        others: &BTreeSet<IpNetwork>,
        bridges: &[String],
    ) -> Result<Faults> {
        let all = merged(pods.iter().chain(others).copied().collect());
        if self.looked.is_none_or(|looked| looked.elapsed() > LOOK) {
            self.looked = Some(Instant::now());
            self.known = None;
            self.legacy.clear();
            for family in IpFamily::ALL {
                self.legacy.extend(legacy(family, &of(family, pods), &of(family, &all), bridges)?);
            }
        }
        let networks = [pods.to_vec(), all];
        let faults = match self.known.take().filter(|(known, _)| *known == networks) {
            Some((_, faults)) => faults,
            None => {
                let [pods, all] = &networks;
                for family in IpFamily::ALL {
                    self.open_forward(family, !of(family, pods).is_empty(), &of(family, all))?;
                }
                let (faults, watched) = firewalls::faults(&mut self.socket, pods, all, bridges)?;
                self.watched = watched;
                faults
            }
        };
        self.known = Some((networks, faults.clone()));
        Ok([faults, self.legacy.clone()].concat())
    }

    /// The same in iptables-nft.
    fn open_forward(&mut self, family: IpFamily, has_pods: bool, all: &[IpNetwork]) -> Result<()> {
        let table = table(family);
        let found = nftables::chains(&mut self.socket, &[(table, FORWARD), (table, CHAIN)])?;
        let [forward, ours] = found.as_slice() else { return Ok(()) };
        let drops = forward.as_ref().and_then(|chain| chain.base).is_some_and(|base| base.drops);
        if drops && has_pods {
            chain(all).add(&mut self.socket, family).context("open FORWARD of iptables")?;
        } else if ours.is_some() {
            remove(&mut self.socket, family)?;
        }
        Ok(())
    }

    /// Ends when another program has changed one of the chains. Safe to cancel.
    pub(crate) async fn disturbed(&mut self) {
        let (own, watched) = (self.port, &self.watched);
        let is_it = |(family, table, chain): (u8, String, String)| {
            [Family::Ip as u8, Family::Ip6 as u8].contains(&family)
                && table == FILTER
                && [FORWARD, CHAIN].contains(&chain.as_str())
        };
        let is_damage = |message: &Received<'_>| {
            message.port != own && (chain_of(message).is_some_and(is_it) || watched.has(message))
        };
        self.listener.hear(is_damage).await;
        self.known = None;
    }
}

/// The same addresses in as few networks as can be.
fn merged(networks: BTreeSet<IpNetwork>) -> Vec<IpNetwork> {
    let whole = |network: IpNetwork, prefix: u8| {
        let network = IpNetwork::new(network.ip(), prefix).ok()?;
        IpNetwork::new(network.network(), prefix).ok()
    };
    let mut merged: Vec<IpNetwork> = Vec::new();
    for mut network in networks {
        if merged.last().is_some_and(|last| last.contains(network.ip())) {
            continue;
        }
        while let (Some(last), Some(prefix)) = (merged.last(), network.prefix().checked_sub(1))
            && last.prefix() == network.prefix()
            && let Some(both) = whole(network, prefix)
            && both.contains(last.ip())
        {
            merged.pop();
            network = both;
        }
        merged.push(network);
    }
    merged
}

fn of(family: IpFamily, pods: &[IpNetwork]) -> Vec<IpNetwork> {
    pods.iter().copied().filter(|network| IpFamily::of(network.ip()) == family).collect()
}

fn table(family: IpFamily) -> Table<'static> {
    Table::new(Family::of(family), FILTER)
}

fn chain(pods: &[IpNetwork]) -> OwnChain {
    let ends = [(End::Source, "-s"), (End::Destination, "-d")];
    let each = || pods.iter().flat_map(|network| ends.map(|(end, option)| (*network, end, option)));
    OwnChain {
        table: FILTER,
        name: CHAIN,
        words: each().map(|(network, _, option)| format!("{option} {network} -j ACCEPT")).collect(),
        rules: each()
            .map(|(network, end, _)| {
                [address(end, CmpOp::Eq, network), vec![Expr::Verdict(Verdict::Accept)]].concat()
            })
            .collect(),
        parents: &[FORWARD],
        jump_words: format!("-j {CHAIN}"),
        jump: vec![Expr::Verdict(Verdict::Jump(CHAIN.to_owned()))],
        predecessors: &[],
        is_appended: true,
    }
}

/// The same in iptables-legacy, if the node has its tables and programs. Costs processes.
fn legacy(family: IpFamily, pods: &[IpNetwork], all: &[IpNetwork], bridges: &[String]) -> Result<Faults> {
    let (Some(programs), Some(own)) = (Programs::legacy(family, FILTER), pods.first()) else {
        return Ok(Faults::new());
    };
    if programs.save()?.lines().any(|line| line.starts_with(":FORWARD DROP ")) {
        let _lock = lock::iptables()?;
        chain(all).add_legacy(&programs).context("open FORWARD of iptables-legacy")?;
    }
    firewalls::legacy_fault(&programs, *own, all, bridges)
}

/// Removes the chain of a family and the jumps to it. Returns whether there was one.
fn remove(socket: &mut Socket, family: IpFamily) -> Result<bool> {
    let table = table(family);
    if nftables::chains(socket, &[(table, CHAIN)])? == [None] {
        return Ok(false);
    }
    let mut batch = Batch::new();
    let is_jump = |rule: &&Rule| rule.jump_target().is_some_and(|target| target == CHAIN);
    for jump in nftables::rules(socket, table, FORWARD)?.iter().filter(is_jump) {
        batch.delete_rule(table, FORWARD, jump.handle);
    }
    batch.flush_chain(table, CHAIN).delete_chain(table, CHAIN);
    batch.commit(socket).with_context(|| format!("remove the chain {CHAIN} of {family}"))?;
    Ok(true)
}

/// Removes the chains. Returns their names for the report.
pub(crate) fn cleanup() -> Result<Vec<String>> {
    let mut socket = Socket::netfilter()?;
    let mut removed = Vec::new();
    for family in IpFamily::ALL {
        if nftables::probe(&mut socket, Family::of(family)).is_ok() && remove(&mut socket, family)? {
            removed.push(format!("chain {CHAIN} of {}", program(family)));
        }
        if let Some(programs) = Programs::legacy(family, FILTER)
            && programs.list()?.has_chain(CHAIN)
        {
            let lines = [format!("-D {FORWARD} -j {CHAIN}"), format!("-F {CHAIN}"), format!("-X {CHAIN}")];
            let _lock = lock::iptables()?;
            programs.restore(&lines)?;
            removed.push(format!("chain {CHAIN} of {}-legacy", program(family)));
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_network() {
        for (networks, expected) in [
            ("", ""),
            ("10.244.1.0/24", "10.244.1.0/24"),
            ("10.244.1.0/24 10.244.2.0/24 10.244.3.0/24", "10.244.1.0/24 10.244.2.0/23"),
            (
                "10.244.0.0/24 10.244.1.0/24 10.244.2.0/24 10.244.3.0/24 fd00::/64 fd00:0:0:1::/64",
                "10.244.0.0/22 fd00::/63",
            ),
            ("10.0.0.0/8 10.244.1.0/24 11.0.0.0/8", "10.0.0.0/7"),
            ("0.0.0.0/1 128.0.0.0/1 ::/0", "0.0.0.0/0 ::/0"),
        ] {
            let parse =
                |text: &str| text.split_whitespace().map(|network| network.parse().unwrap()).collect();
            let expected: Vec<IpNetwork> =
                expected.split_whitespace().map(|network| network.parse().unwrap()).collect();
            assert_eq!(merged(parse(networks)), expected, "{networks}");
        }
    }
}
