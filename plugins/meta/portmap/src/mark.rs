//! The packet mark that selects packets for masquerading, and the chains that set it.

use std::net::Ipv6Addr;

use ipnetwork::IpNetwork;

/// The bit of Kubernetes' mark, 0x4000.
pub const DEFAULT_BIT: u8 = 14;
/// The mark chain of Kubernetes' bit.
const DEFAULT_CHAIN: &str = "KUBE-MARK-MASQ";
/// Prefix of the mark chain of another bit; the bit's number follows.
const BIT_CHAIN: &str = "MARK-MASQ-";
/// Maximum length of a chain name in iptables.
const CHAIN_MAX: usize = 28;

/// The name of the mark chain of a bit: the chain of our table that sets it.
pub fn chain_of(bit: u8) -> String {
    if bit == DEFAULT_BIT { DEFAULT_CHAIN.to_owned() } else { format!("{BIT_CHAIN}{bit}") }
}

/// Checks `externalSetMarkChain`, the name of a chain of iptables that sets Kubernetes' bit.
///
/// # Errors
/// The name is not valid.
pub fn check_chain(name: &str) -> Result<(), String> {
    let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    match is_name && name.len() <= CHAIN_MAX {
        true => Ok(()),
        false => Err(format!("Invalid externalSetMarkChain: {name:?}")),
    }
}

/// The bit in the name of a mark chain; `None` if the name does not start with the prefix.
pub fn bit_of(chain: &str) -> Option<u8> {
    bit_number(chain.strip_prefix(BIT_CHAIN)?.parse().ok()?)
}

/// The number of a bit of the packet mark; `None` if it is not 0 to 31.
pub fn bit_number(bit: i64) -> Option<u8> {
    u8::try_from(bit).ok().filter(|bit| *bit < 32)
}

/// How connections to a host port are masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masquerade {
    /// The bit of the packet mark that selects the packets.
    pub bit: u8,
    /// Only connections from this network, which is the container's subnet, and from 127.0.0.0/8. Without
    /// masquerading, the replies would not pass the node. `None`: all connections.
    pub from: Option<IpNetwork>,
}

/// Separates the name of the mark chain from the network in the name of a masquerading chain.
const FROM: &str = "-from-";

impl Masquerade {
    /// The name of the masquerading chain, which marks the packets; the mark element of a host port jumps to it.
    pub fn chain_name(&self) -> String {
        let chain = chain_of(self.bit);
        match &self.from {
            None => chain,
            Some(network) => format!("{chain}{FROM}{}/{}", plain(network), network.prefix()),
        }
    }

    /// Decodes the name of a masquerading chain.
    pub fn of_chain(name: &str) -> Self {
        let parts =
            name.rsplit_once(FROM).and_then(|(mark, network)| Some((mark, Some(network_of(network)?))));
        let (mark, from) = parts.unwrap_or((name, None));
        Masquerade { bit: bit_of(mark).unwrap_or(DEFAULT_BIT), from }
    }
}

/// The network's address. IPv6 becomes 32 hexadecimal digits: `nft` allows no colon in a chain name.
fn plain(network: &IpNetwork) -> String {
    match network {
        IpNetwork::V4(v4) => v4.network().to_string(),
        IpNetwork::V6(v6) => format!("{:032x}", u128::from(v6.network())),
    }
}

fn network_of(text: &str) -> Option<IpNetwork> {
    let (address, prefix) = text.split_once('/')?;
    let v6 = || Some(Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?).into());
    IpNetwork::new(address.parse().ok().or_else(v6)?, prefix.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_chain_names() {
        assert_eq!([14, 13].map(chain_of), ["KUBE-MARK-MASQ", "MARK-MASQ-13"]);
        assert_eq!((bit_of("MARK-MASQ-13"), bit_of("MARK-MASQ-32"), bit_of("X")), (Some(13), None, None));
        assert_eq!(check_chain("MY-MARK"), Ok(()));
        for bad in ["-x", "a b", "hostports", "X\"", "ABCDEFGHIJKLMNOPQRSTUVWXYZABC"] {
            assert!(check_chain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn masquerading_chain_name_contains_the_network_and_decodes_to_it() {
        for (network, name) in [
            ("10.1.0.7/24", "KUBE-MARK-MASQ-from-10.1.0.0/24"),
            ("fd00::7/64", "KUBE-MARK-MASQ-from-fd000000000000000000000000000000/64"),
        ] {
            let network: IpNetwork = network.parse().unwrap();
            let masquerade = Masquerade { bit: DEFAULT_BIT, from: Some(network) };
            assert_eq!(masquerade.chain_name(), name);
            let read = Masquerade::of_chain(name);
            let from = read.from.unwrap();
            assert_eq!((from.ip(), from.prefix()), (network.network(), network.prefix()));
            assert_eq!(read.bit, DEFAULT_BIT);
        }
        let all = Masquerade { bit: 3, from: None };
        assert_eq!(Masquerade::of_chain("MARK-MASQ-3"), all);
    }
}
