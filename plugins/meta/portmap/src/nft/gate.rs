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
//! says the form, the families and the bit, so one request by name tells whether the table has the right gate.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{destination_is_local, family, invert_mark_bit, mark_bit_is_set};
use ferrule_kernel::nftables::{Expr, Verdict};

use crate::mark::{DEFAULT_BIT, bit_number};

/// The chain that the gate jumps to.
pub const HOSTPORTS: &str = "hostports";
/// The name of the chain of [`Gate::LOCAL`].
const LOCAL_CHAIN: &str = "local";
/// How the other chains name the families in which iptables decides.
const FAMILIES: [(&str, [bool; 2]); 3] =
    [("ip", [true, false]), ("ip6", [false, true]), ("inet", [true, true])];

/// Which packets may use host ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Whether iptables decides, for IPv4 and IPv6: then only those packets to an address of the node may use host ports in
    /// whose mark iptables set the bit, after kube-proxy's rules. In the other family all packets to an address of the node
    /// may, except those that carry Kubernetes' mark: they are for a Service.
    after_services: [bool; 2],
    /// The bit of the packet mark, 0 to 31; `None` if iptables decides in no family.
    bit: Option<u8>,
}

impl Gate {
    /// The gate of a node without kube-proxy's IPVS mode.
    pub const LOCAL: Gate = Gate { after_services: [false; 2], bit: None };

    /// The gate if iptables decides in these families, IPv4 and IPv6, by this bit.
    pub fn new(after_services: [bool; 2], bit: u8) -> Self {
        Gate { after_services, bit: (after_services != [false; 2]).then_some(bit) }
    }

    /// The bit that lets packets through the gate in a family; `None` if iptables does not decide there.
    pub fn bit_in(&self, family: IpFamily) -> Option<u8> {
        self.bit.filter(|_| self.after_services[family as usize])
    }

    /// The bit that lets packets through the gate.
    pub fn bit(&self) -> Option<u8> {
        self.bit
    }

    /// The name of the chain.
    pub fn chain_name(&self) -> String {
        let families = FAMILIES.iter().find(|(_, families)| *families == self.after_services);
        match (families, self.bit) {
            (Some((name, _)), Some(bit)) => format!("ipvs-{name}-{bit}"),
            _ => LOCAL_CHAIN.to_owned(),
        }
    }

    /// The gate whose chain has this name.
    pub fn of_chain(name: &str) -> Option<Self> {
        if name == LOCAL_CHAIN {
            return Some(Gate::LOCAL);
        }
        let (families, bit) = name.strip_prefix("ipvs-")?.split_once('-')?;
        let (_, families) = FAMILIES.iter().find(|(name, _)| *name == families)?;
        Some(Gate::new(*families, bit_number(bit.parse().ok()?)?))
    }

    /// The rules of the chain. They test for the family if the families differ.
    pub fn rules(&self) -> Vec<Vec<Expr>> {
        if self.after_services == [false; 2] || self.after_services == [true; 2] {
            return rules(&[], self.bit);
        }
        IpFamily::ALL.into_iter().flat_map(|ip| rules(&family(ip), self.bit_in(ip))).collect()
    }
}

/// The rules behind a condition: iptables decides by this bit, or does not.
fn rules(condition: &[Expr], bit: Option<u8>) -> Vec<Vec<Expr>> {
    let local = destination_is_local();
    let enter = [Expr::Verdict(Verdict::Jump(HOSTPORTS.to_owned()))];
    match bit {
        Some(bit) => {
            vec![[condition, &local, &mark_bit_is_set(bit), &invert_mark_bit(bit), &enter].concat()]
        }
        None => {
            let is_for_service =
                [condition, &mark_bit_is_set(DEFAULT_BIT), &[Expr::Verdict(Verdict::Return)]];
            vec![is_for_service.concat(), [condition, &local, &enter].concat()]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Gate> {
        let decided = FAMILIES.map(|(_, families)| Gate::new(families, 12));
        std::iter::once(Gate::LOCAL).chain(decided)
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
        assert_eq!(Gate::new([false; 2], 12), Gate::LOCAL);
    }

    #[test]
    fn every_jump_tests_for_a_local_destination() {
        for gate in all() {
            let enter = Expr::Verdict(Verdict::Jump(HOSTPORTS.to_owned()));
            let rules = gate.rules();
            let mut jumps = rules.iter().filter(|rule| rule.last() == Some(&enter)).peekable();
            assert!(jumps.peek().is_some(), "{gate:?}");
            assert!(jumps.all(|rule| rule.contains(&destination_is_local()[0])), "{gate:?}");
        }
    }

    #[test]
    fn a_family_without_kube_proxy_keeps_the_local_form() {
        let gate = Gate::new([false, true], 3);
        assert_eq!((gate.bit_in(IpFamily::V6), gate.bit_in(IpFamily::V4)), (Some(3), None));
        let found = gate.rules();
        assert_eq!(found[..2], rules(&family(IpFamily::V4), None));
        assert!(found[2].starts_with(&family(IpFamily::V6)) && found[2].contains(&mark_bit_is_set(3)[2]));
    }
}
