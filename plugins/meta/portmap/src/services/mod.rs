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
use ferrule_kernel::iptables::{Listing, Programs};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Chain, chains};
use ferrule_kernel::sysctl;

use crate::flows;
use crate::mapping::Proto;
use crate::nft::{self, Families, Gate, TableGate};

/// The dummy link on which kube-proxy keeps the addresses of Services in IPVS mode.
const LINK: &str = "kube-ipvs0";
/// The chain of kube-proxy in iptables' nat table.
const KUBE_SERVICES: &str = "KUBE-SERVICES";
/// The default of `ipvsMarkBit`. Not used by Kubernetes (14, 15), the reference's portmap (13), Cilium (8 to
/// 11), Calico (16 to 31) and the AWS plugin (7).
pub const DEFAULT_BIT: u8 = 12;
/// The default if `markMasqBit` is [`DEFAULT_BIT`].
pub const SECOND_BIT: u8 = 11;

/// Whether Service addresses are local: the link of kube-proxy's IPVS mode exists.
pub fn are_local() -> bool {
    sysctl::exists(&format!("net/ipv4/conf/{LINK}"))
}

/// Adapts the table, if there is one, and the rules of iptables to the mode of kube-proxy. Returns the gate that
/// a table must have. ADD passes its `ipvsMarkBit`; without one, the bit of the present gate stays.
///
/// # Errors
/// Code 999 if the rules of iptables or the table cannot be read or written.
pub fn adapt(socket: &mut Socket, bit: Option<u8>) -> Result<Gate, CniError> {
    adapt_after(socket, bit, Look::Quick)
}

/// How to check rules that an earlier call has written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Counts the rules in nf_tables; assumes that rules in a legacy table are unchanged.
    Quick,
    /// Compares all rules; starts a process for each legacy table.
    Close,
}

fn adapt_after(socket: &mut Socket, bit: Option<u8>, look: Look) -> Result<Gate, CniError> {
    let present = nft::gate(socket)?;
    if bit.is_none() && present == TableGate::NoTable {
        return Ok(Gate::Local);
    }
    let wanted = if are_local() { behind_services(socket, present, bit, look)? } else { Gate::Local };
    if matches!(present, TableGate::NoTable) || present == TableGate::Is(wanted) {
        return Ok(wanted);
    }
    nft::switch(socket, wanted)?;
    match (wanted, present) {
        (Gate::AfterServices { .. }, _) => forget_stolen_flows(socket)?,
        (Gate::Local, TableGate::Is(_)) => marking::remove(socket)?,
        (Gate::Local, _) => {}
    }
    Ok(wanted)
}

/// As [`adapt`], for GC: also compares the rules that earlier calls have written to iptables, and removes them if
/// no gate needs them. A killed call may have left them.
///
/// # Errors
/// As [`adapt`].
pub fn collect(socket: &mut Socket) -> Result<(), CniError> {
    adapt_after(socket, None, Look::Close)?;
    match nft::gate(socket)? {
        TableGate::Is(Gate::AfterServices { .. }) => Ok(()),
        _ => marking::remove(socket),
    }
}

/// Deletes the UDP flows of host ports. Before the switch, a host port may have taken flows of clients of a
/// Service. The flows of its own clients are made again by their next packet.
fn forget_stolen_flows(socket: &mut Socket) -> Result<(), CniError> {
    let mut host_ports = nft::host_ports(socket)?;
    host_ports.retain(|host_port| host_port.key.proto == Proto::Udp);
    flows::delete_after_removal(socket, &host_ports);
    Ok(())
}

/// Makes iptables mark packets in each family that kube-proxy serves. Returns the gate that tests for the mark.
fn behind_services(
    socket: &mut Socket,
    present: TableGate,
    bit: Option<u8>,
    look: Look,
) -> Result<Gate, CniError> {
    let bit = bit.or(present.bit()).unwrap_or(DEFAULT_BIT);
    let chains = Chains::look(socket)?;
    let mut families = [false; 2];
    for family in IpFamily::ALL {
        let is_set_up =
            look == Look::Quick && present.bit() == Some(bit) && present.is_after_services(family);
        let is_served = match chains.variant(family, is_set_up)? {
            Variant::None => false,
            Variant::KnownLegacy => true,
            Variant::Nft if is_set_up && chains.is_marking_complete(family) => true,
            Variant::Nft => marking::add_nft(socket, family, bit).map(|()| true)?,
            Variant::Legacy(programs, listing) => {
                marking::add_legacy(&programs, &listing, bit).map(|()| true)?
            }
        };
        families[family as usize] = is_served;
    }
    Ok(Families::of(families).map_or(Gate::Local, |families| Gate::AfterServices { families, bit }))
}

/// What nf_tables has of kube-proxy's chain and of ours, for IPv4 and IPv6.
struct Chains {
    services: [bool; 2],
    marking: [Option<Chain>; 2],
}

impl Chains {
    fn look(socket: &mut Socket) -> Result<Self, CniError> {
        let wanted =
            IpFamily::ALL.map(|family| [(table(family), KUBE_SERVICES), (table(family), marking::CHAIN)]);
        let found = chains(socket, wanted.as_flattened()).context(|| "look for the rules of kube-proxy")?;
        let at = |index: usize| found.get(index).copied().flatten();
        Ok(Chains { services: [at(0).is_some(), at(2).is_some()], marking: [at(1), at(3)] })
    }

    fn is_marking_complete(&self, family: IpFamily) -> bool {
        self.marking[family as usize].is_some_and(|chain| chain.uses == marking::USES)
    }

    /// Where kube-proxy's rules of a family stand.
    fn variant(&self, family: IpFamily, is_set_up: bool) -> Result<Variant, CniError> {
        if self.services[family as usize] {
            return Ok(Variant::Nft);
        }
        let Some(programs) = Programs::legacy(family) else {
            if self.services == [false; 2] && Programs::has_legacy_table(family) {
                return Err(CniError::internal(format!(
                    "kube-proxy runs in IPVS mode ({LINK} exists), and only iptables-legacy can read its rules, but that is \
                     not on the PATH: host ports would take the traffic of Services"
                )));
            }
            return Ok(Variant::None);
        };
        if is_set_up {
            return Ok(Variant::KnownLegacy);
        }
        let listing = Listing::parse(&programs.save().context(|| "look for the rules of kube-proxy")?);
        Ok(if listing.has_chain(KUBE_SERVICES) { Variant::Legacy(programs, listing) } else { Variant::None })
    }
}

/// Where the rules of kube-proxy stand, in one family.
enum Variant {
    /// Nowhere: kube-proxy has not written any yet, does not serve this family, or is gone.
    None,
    /// In nf_tables, written by iptables-nft.
    Nft,
    /// In a legacy table, listed here.
    Legacy(Programs, Listing),
    /// In a legacy table, with ours behind them. Only a process could look again.
    KnownLegacy,
}

/// Checks that the table's gate fits the mode of kube-proxy.
///
/// # Errors
/// Code 999 if host ports come before Services, or if iptables does not set the mark that the gate tests for.
pub fn check(socket: &mut Socket, gate: TableGate) -> Result<(), CniError> {
    let chains = if are_local() { Some(Chains::look(socket)?) } else { None };
    for family in IpFamily::ALL {
        if let (true, Some(bit)) = (gate.is_after_services(family), gate.bit()) {
            if !marking::is_there(socket, family, bit)? {
                return Err(CniError::internal(format!(
                    "{family} host ports are closed: chain {} in iptables' nat table, which opens them behind the rules of \
                     kube-proxy, is missing, altered, or not behind {KUBE_SERVICES}",
                    marking::CHAIN
                )));
            }
        } else if let Some(chains) = &chains
            && !matches!(chains.variant(family, false)?, Variant::None)
        {
            return Err(CniError::internal(format!(
                "{family} host ports take the traffic of Services: kube-proxy has begun to run in IPVS mode ({LINK} exists); \
                 the next ADD, DEL or GC corrects this"
            )));
        }
    }
    Ok(())
}
