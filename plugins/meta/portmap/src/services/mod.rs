//! Lets Services come before host ports when kube-proxy runs in IPVS mode.
//!
//! In this mode kube-proxy puts all Service addresses on the link `kube-ipvs0`, which makes them addresses of the
//! node. So a rule that tests for a local destination also matches packets to Services, and no nf_tables
//! expression tells on which link a local address is. kube-proxy decides in iptables' nat table:
//! `KUBE-SERVICES` accepts packets to a Service, and marks packets to a NodePort with 0x4000. An accept ends
//! only iptables' own chain, so our chain at priority -99 still sees these packets.
//!
//! While the link exists, iptables therefore decides. The module `marking` appends a rule to PREROUTING and
//! OUTPUT that sets a bit of the packet mark. A packet that `KUBE-SERVICES` accepts never reaches that rule.
//! The [`Gate`] of our table lets only packets with this bit use host ports, and clears the bit. No list of
//! addresses is kept, so none can be out of date: Services come first as soon as kube-proxy has written their
//! rules.
//!
//! On a node without the link, ADD and DEL cost one `stat` of a file in `/proc/sys` more.

mod marking;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::kernel::table;
use ferrule_kernel::iptables::{Listing, NAT, Programs};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Chain, chains};

use crate::config::SERVICES_BIT;
use crate::flows;
use crate::kube_proxy::{self, LINK};
use crate::mapping::Proto;
use crate::nft::{self, Gate};
use crate::plan::HostPort;

/// The chain of kube-proxy in iptables' nat table.
const KUBE_SERVICES: &str = "KUBE-SERVICES";
/// Adapts the table, if there is one, and the rules of iptables to the mode of kube-proxy. Returns the gate that
/// a table must have. ADD passes its `ipvsMarkBit`; without one, the bit of the present gate stays. Assumes that rules in a
/// legacy table that an earlier call has written are unchanged.
///
/// # Errors
/// Code 999 if the rules of iptables or the table cannot be read or written.
pub fn adapt(socket: &mut Socket, bit: Option<u8>) -> Result<Gate, CniError> {
    adapt_after(socket, bit, true)
}

/// As [`adapt`]. Unless `is_quick`, compares all rules that an earlier call has written, by a process for each legacy table.
fn adapt_after(socket: &mut Socket, bit: Option<u8>, is_quick: bool) -> Result<Gate, CniError> {
    let present = nft::gate(socket)?;
    if bit.is_none() && present.is_none() {
        return Ok(Gate::LOCAL);
    }
    let known = present.filter(|_| is_quick);
    let bit = bit.or(present.and_then(|gate| gate.bit())).unwrap_or(SERVICES_BIT);
    let wanted = if kube_proxy::is_ipvs() { behind_services(socket, known, bit)? } else { Gate::LOCAL };
    if present.is_none_or(|present| present == wanted) {
        return Ok(wanted);
    }
    nft::switch(socket, wanted)?;
    if wanted == Gate::LOCAL {
        marking::remove(socket)?;
    } else {
        forget_stolen_flows(socket)?;
    }
    Ok(wanted)
}

/// As [`adapt`], for GC: also compares the rules that earlier calls have written to iptables, and removes them if
/// no gate needs them. A killed call may have left them.
///
/// # Errors
/// As [`adapt`].
pub fn collect(socket: &mut Socket) -> Result<(), CniError> {
    adapt_after(socket, None, false)?;
    match nft::gate(socket)?.and_then(|gate| gate.bit()) {
        Some(_) => Ok(()),
        None => marking::remove(socket),
    }
}

/// As [`adapt`], for repair: also compares the rules that earlier calls have written to iptables. `bit` is for a table
/// without a gate; else the bit of the gate stays.
///
/// # Errors
/// As [`adapt`].
pub fn repair(socket: &mut Socket, bit: u8) -> Result<Gate, CniError> {
    let present = nft::gate(socket)?.and_then(|gate| gate.bit());
    adapt_after(socket, present.or(Some(bit)), false)
}

/// Deletes the UDP flows of host ports. Before the switch, a host port may have taken flows of clients of a
/// Service. The flows of its own clients are made again by their next packet.
fn forget_stolen_flows(socket: &mut Socket) -> Result<(), CniError> {
    let host_ports = nft::list(socket)?.into_iter().map(|owned| owned.host_port);
    let udp: Vec<HostPort> = host_ports.filter(|host_port| host_port.key.proto == Proto::Udp).collect();
    flows::delete_after_removal(socket, &udp);
    Ok(())
}

/// Makes iptables mark packets in each family that kube-proxy serves. Returns the gate that tests for the mark. `known` is a gate
/// whose rules in a legacy table need no comparison.
fn behind_services(socket: &mut Socket, known: Option<Gate>, bit: u8) -> Result<Gate, CniError> {
    let chains = Chains::read(socket)?;
    let mut families = [false; 2];
    for family in IpFamily::ALL {
        let is_known = known.is_some_and(|gate| gate.bit_in(family) == Some(bit));
        let place = chains.place(family, is_known)?;
        match &place {
            None | Some(Place::KnownLegacy) => {}
            Some(Place::Nft) if is_known && chains.is_marking_complete(family) => {}
            Some(Place::Nft) => marking::add_nft(socket, family, bit)?,
            Some(Place::Legacy(programs, listing)) => marking::add_legacy(programs, listing, bit)?,
        }
        families[family as usize] = place.is_some();
    }
    Ok(Gate::new(families, bit))
}

/// What nf_tables has of kube-proxy's chain and of ours, for IPv4 and IPv6.
struct Chains {
    services: [bool; 2],
    marking: [Option<Chain>; 2],
}

impl Chains {
    fn read(socket: &mut Socket) -> Result<Self, CniError> {
        let wanted =
            IpFamily::ALL.map(|family| [(table(family), KUBE_SERVICES), (table(family), marking::CHAIN)]);
        let found = chains(socket, wanted.as_flattened()).context(|| "find the rules of kube-proxy")?;
        let at = |index: usize| found.get(index).copied().flatten();
        Ok(Chains { services: [at(0).is_some(), at(2).is_some()], marking: [at(1), at(3)] })
    }

    fn is_marking_complete(&self, family: IpFamily) -> bool {
        self.marking[family as usize].is_some_and(|chain| chain.uses == marking::USES)
    }

    /// Where kube-proxy's rules of a family stand. `None`: kube-proxy has not written any yet, does not serve this family, or
    /// is gone.
    fn place(&self, family: IpFamily, is_known: bool) -> Result<Option<Place>, CniError> {
        if self.services[family as usize] {
            return Ok(Some(Place::Nft));
        }
        let Some(programs) = Programs::legacy(family, NAT) else {
            if self.services == [false; 2] && Programs::has_legacy(family, NAT) {
                return Err(CniError::internal(format!(
                    "kube-proxy runs in IPVS mode ({LINK} exists), and only iptables-legacy can read its rules, but that is \
                     not on the PATH: host ports would take the traffic of Services"
                )));
            }
            return Ok(None);
        };
        if is_known {
            return Ok(Some(Place::KnownLegacy));
        }
        let listing = programs.list().context(|| "find the rules of kube-proxy")?;
        Ok(listing.has_chain(KUBE_SERVICES).then_some(Place::Legacy(programs, listing)))
    }
}

/// Where the rules of kube-proxy stand, in one family.
enum Place {
    /// In nf_tables, written by iptables-nft.
    Nft,
    /// In a legacy table, listed here.
    Legacy(Programs, Listing),
    /// In a legacy table, with ours behind them. Only a process could read it again.
    KnownLegacy,
}

/// Checks that the table's gate fits the mode of kube-proxy.
///
/// # Errors
/// Code 999 if host ports come before Services, or if iptables does not set the mark that the gate tests for.
pub fn check(socket: &mut Socket, gate: Gate) -> Result<(), CniError> {
    let chains = if kube_proxy::is_ipvs() { Some(Chains::read(socket)?) } else { None };
    for family in IpFamily::ALL {
        if let Some(bit) = gate.bit_in(family) {
            if !marking::is_there(socket, family, bit)? {
                return Err(CniError::internal(format!(
                    "{family} host ports are closed: chain {} in iptables' nat table, which opens them behind the rules of \
                     kube-proxy, is missing, altered, or not behind {KUBE_SERVICES}",
                    marking::CHAIN
                )));
            }
        } else if let Some(chains) = &chains
            && chains.place(family, false)?.is_some()
        {
            return Err(CniError::internal(format!(
                "{family} host ports take the traffic of Services: kube-proxy has begun to run in IPVS mode ({LINK} exists); \
                 the next ADD, DEL or GC corrects this"
            )));
        }
    }
    Ok(())
}
