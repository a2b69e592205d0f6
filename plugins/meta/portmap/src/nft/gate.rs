//! The gate: the chain that decides which packets may use host ports. Nothing here asks the kernel.
//!
//! The base chains of the table jump to it, and it jumps to [`HOSTPORTS`]. It has two forms:
//!
//! ```text
//! chain local            meta mark & 0x4000 == 0x4000 return
//!                        fib daddr type local jump hostports
//! chain ipvs-inet-12     fib daddr type local meta mark & 0x1000 == 0x1000 meta mark set meta mark ^ 0x1000 jump hostports
//! ```
//!
//! The second form is for nodes where kube-proxy runs in IPVS mode, see [`services`](crate::services). The chain's name
//! says the form, the families and the bit, so one lookup by name tells whether the table has the right gate.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{destination_is_local, family, invert_mark_bit, mark_bit_is_set};
use ferrule_kernel::nftables::{Expr, Verdict};

use crate::mark::DEFAULT_BIT;

/// The chain that the gate jumps to.
pub const HOSTPORTS: &str = "hostports";
/// The name of the chain of [`Gate::Local`].
const LOCAL_CHAIN: &str = "local";

/// The families in which iptables decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// IPv4 only.
    Ip,
    /// IPv6 only.
    Ip6,
    /// Both.
    Inet,
}

impl Families {
    /// All of them.
    pub const ALL: [Families; 3] = [Families::Ip, Families::Ip6, Families::Inet];

    /// The families among IPv4 and IPv6; `None` if neither is.
    pub const fn of([v4, v6]: [bool; 2]) -> Option<Self> {
        match (v4, v6) {
            (true, true) => Some(Families::Inet),
            (true, false) => Some(Families::Ip),
            (false, true) => Some(Families::Ip6),
            (false, false) => None,
        }
    }

    /// Whether a family is among them.
    pub const fn has(self, family: IpFamily) -> bool {
        matches!(
            (self, family),
            (Families::Inet, _) | (Families::Ip, IpFamily::V4) | (Families::Ip6, IpFamily::V6)
        )
    }

    const fn name(self) -> &'static str {
        match self {
            Families::Ip => "ip",
            Families::Ip6 => "ip6",
            Families::Inet => "inet",
        }
    }
}

/// Which packets may use host ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// All packets to an address of the node, except those that carry Kubernetes' mark: they are for a Service.
    Local,
    /// In these families those packets to an address of the node in whose mark iptables set the bit, after kube-proxy's
    /// rules. In the other family as [`Gate::Local`].
    AfterServices {
        /// The families.
        families: Families,
        /// The bit of the packet mark, 0 to 31.
        bit: u8,
    },
}

/// The gate that the table in the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableGate {
    /// There is no table, or nothing leads to its chains.
    NoTable,
    /// A table of a version that had no gates. It lets the same packets pass as [`Gate::Local`] without its first rule.
    NoGate,
    /// This gate.
    Is(Gate),
}

impl TableGate {
    /// Whether iptables decides in a family.
    pub fn is_after_services(&self, family: IpFamily) -> bool {
        matches!(self, TableGate::Is(gate) if gate.is_after_services(family))
    }

    /// This gate; [`Gate::Local`] without a gate.
    pub(super) fn or_local(self) -> Gate {
        if let TableGate::Is(gate) = self { gate } else { Gate::Local }
    }

    /// The bit of the mark that the gate waits for.
    pub fn bit(&self) -> Option<u8> {
        match self {
            TableGate::Is(Gate::AfterServices { bit, .. }) => Some(*bit),
            _ => None,
        }
    }
}

impl Gate {
    /// The name of the chain.
    pub fn chain_name(&self) -> String {
        match self {
            Gate::Local => LOCAL_CHAIN.to_owned(),
            Gate::AfterServices { families, bit } => format!("ipvs-{}-{bit}", families.name()),
        }
    }

    /// The gate whose chain has this name.
    pub fn of_chain(name: &str) -> Option<Self> {
        if name == LOCAL_CHAIN {
            return Some(Gate::Local);
        }
        let (families, bit) = name.strip_prefix("ipvs-")?.split_once('-')?;
        let families = Families::ALL.into_iter().find(|all| all.name() == families)?;
        let bit = bit.parse().ok().filter(|bit| *bit < 32)?;
        Some(Gate::AfterServices { families, bit })
    }

    /// Whether iptables decides in a family.
    pub fn is_after_services(&self, family: IpFamily) -> bool {
        matches!(self, Gate::AfterServices { families, .. } if families.has(family))
    }

    /// The rules of the chain.
    pub fn rules(&self) -> Vec<Vec<Expr>> {
        match *self {
            Gate::Local => local(&[]),
            Gate::AfterServices { families: Families::Inet, bit } => vec![after_services(&[], bit)],
            Gate::AfterServices { families, bit } => {
                let [decided, other] = match families.has(IpFamily::V6) {
                    true => [IpFamily::V6, IpFamily::V4].map(family),
                    false => IpFamily::ALL.map(family),
                };
                let mut rules = vec![after_services(&decided, bit)];
                rules.extend(local(&other));
                rules
            }
        }
    }

    /// How many rules of the chain jump to [`HOSTPORTS`].
    pub fn jumps(&self) -> u32 {
        match self {
            Gate::Local | Gate::AfterServices { families: Families::Inet, .. } => 1,
            Gate::AfterServices { .. } => 2,
        }
    }
}

fn to_hostports() -> Expr {
    Expr::Verdict(Verdict::Jump(HOSTPORTS.to_owned()))
}

/// The rules of [`Gate::Local`], each behind the same condition.
fn local(condition: &[Expr]) -> Vec<Vec<Expr>> {
    vec![
        [condition, &mark_bit_is_set(DEFAULT_BIT), &[Expr::Verdict(Verdict::Return)]].concat(),
        [condition, &destination_is_local(), &[to_hostports()]].concat(),
    ]
}

/// The rule of the base chains in tables that older versions made: they had no gates.
pub(super) fn without_gate() -> Vec<Expr> {
    [&destination_is_local()[..], &[to_hostports()]].concat()
}

fn after_services(condition: &[Expr], bit: u8) -> Vec<Expr> {
    [condition, &destination_is_local(), &mark_bit_is_set(bit), &invert_mark_bit(bit), &[to_hostports()]]
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Gate> {
        let decided = Families::ALL.map(|families| Gate::AfterServices { families, bit: 12 });
        std::iter::once(Gate::Local).chain(decided)
    }

    #[test]
    fn the_name_says_the_gate() {
        assert_eq!(
            all().map(|gate| gate.chain_name()).collect::<Vec<_>>(),
            ["local", "ipvs-ip-12", "ipvs-ip6-12", "ipvs-inet-12"]
        );
        assert!(all().all(|gate| Gate::of_chain(&gate.chain_name()) == Some(gate)));
        for other in ["hostports", "ipvs-ip-32", "ipvs-arp-1", "ipvs-ip", "ipvs-ip-x"] {
            assert_eq!(Gate::of_chain(other), None, "{other}");
        }
    }

    #[test]
    fn every_jump_tests_for_a_local_destination_and_is_counted() {
        for gate in all() {
            let rules = gate.rules();
            let jumps: Vec<_> = rules.iter().filter(|rule| rule.last() == Some(&to_hostports())).collect();
            assert_eq!(jumps.len(), gate.jumps() as usize, "{gate:?}");
            assert!(jumps.iter().all(|rule| rule.contains(&destination_is_local()[0])), "{gate:?}");
        }
    }

    #[test]
    fn a_family_without_kube_proxy_keeps_the_local_form() {
        let gate = Gate::AfterServices { families: Families::Ip6, bit: 3 };
        assert!(gate.is_after_services(IpFamily::V6) && !gate.is_after_services(IpFamily::V4));
        let rules = gate.rules();
        assert!(rules[0].starts_with(&family(IpFamily::V6)) && rules[0].contains(&mark_bit_is_set(3)[2]));
        assert_eq!(rules[1..], local(&family(IpFamily::V4)));
    }
}
