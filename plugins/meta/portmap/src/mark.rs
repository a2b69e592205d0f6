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

/// A mark with one bit, and the mark chain: the chain of our table that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    chain: String,
    bit: u8,
}

impl Default for Mark {
    fn default() -> Self {
        Mark { chain: DEFAULT_CHAIN.to_owned(), bit: DEFAULT_BIT }
    }
}

impl Mark {
    /// The mark for `markMasqBit`; `None` if the bit is not 0 to 31.
    pub fn bit(bit: u8) -> Option<Self> {
        match bit {
            DEFAULT_BIT => Some(Mark::default()),
            0..32 => Some(Mark { chain: format!("{BIT_CHAIN}{bit}"), bit }),
            _ => None,
        }
    }

    /// The mark for `externalSetMarkChain`: Kubernetes' bit, set by a chain with this name.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn chain(name: &str) -> Result<Self, String> {
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        // Reserved for chains of ours: lower-case names, and the names for other bits.
        let is_ours = name.starts_with(|c: char| c.is_ascii_lowercase()) || name.starts_with(BIT_CHAIN);
        if !is_name || is_ours || name.len() > CHAIN_MAX {
            return Err(format!("Invalid externalSetMarkChain: {name:?}"));
        }
        Ok(Mark { chain: name.to_owned(), bit: DEFAULT_BIT })
    }

    /// Decodes the name of a mark chain.
    pub fn of_chain(name: &str) -> Self {
        Mark { chain: name.to_owned(), bit: bit_of(name).unwrap_or(DEFAULT_BIT) }
    }

    /// The name of the mark chain.
    pub fn chain_name(&self) -> String {
        self.chain.clone()
    }

    /// The number of the bit.
    pub fn number(&self) -> u8 {
        self.bit
    }

    /// The value of the mark.
    pub fn value(&self) -> u32 {
        1 << self.bit
    }
}

/// The bit in the name of a mark chain; `None` if the name does not start with the prefix.
pub fn bit_of(chain: &str) -> Option<u8> {
    chain.strip_prefix(BIT_CHAIN)?.parse().ok().filter(|bit| *bit < 32)
}

/// Which connections to a host port are masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// No connection.
    Nothing,
    /// Connections from this network, which is the container's subnet, and from 127.0.0.0/8. Without
    /// masquerading, the replies would not pass the node.
    From(IpNetwork, Mark),
    /// All connections.
    All(Mark),
}

/// Separates the name of the mark chain from the network in the name of a masquerading chain.
const FROM: &str = "-from-";

impl Masquerade {
    /// The name of the masquerading chain, which marks the packets; the mark element of a host port jumps to
    /// it. `None` for [`Masquerade::Nothing`].
    pub fn chain_name(&self) -> Option<String> {
        match self {
            Masquerade::Nothing => None,
            Masquerade::All(mark) => Some(mark.chain_name()),
            Masquerade::From(network, mark) => {
                Some(format!("{}{FROM}{}/{}", mark.chain_name(), plain(network), network.prefix()))
            }
        }
    }

    /// The mark; `None` for [`Masquerade::Nothing`].
    pub fn mark(&self) -> Option<&Mark> {
        match self {
            Masquerade::Nothing => None,
            Masquerade::From(_, mark) | Masquerade::All(mark) => Some(mark),
        }
    }

    /// Decodes the name of a masquerading chain.
    pub fn of_chain(name: &str) -> Self {
        let parts = name.rsplit_once(FROM).and_then(|(mark, network)| Some((mark, network_of(network)?)));
        match parts {
            Some((mark, network)) => Masquerade::From(network, Mark::of_chain(mark)),
            None => Masquerade::All(Mark::of_chain(name)),
        }
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
    let address = match address.parse() {
        Ok(address) => address,
        Err(_) => Ipv6Addr::from(u128::from_str_radix(address, 16).ok()?).into(),
    };
    IpNetwork::new(address, prefix.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_chain_names() {
        assert_eq!(Mark::default().chain_name(), "KUBE-MARK-MASQ");
        let mark = Mark::bit(13).unwrap();
        assert_eq!((mark.chain_name(), mark.value()), ("MARK-MASQ-13".to_owned(), 0x2000));
        assert_eq!(Mark::of_chain("MARK-MASQ-13"), mark);
        let mark = Mark::chain("MY-MARK").unwrap();
        assert_eq!((mark.chain_name(), mark.value()), ("MY-MARK".to_owned(), 0x4000));
        assert_eq!(Mark::bit(32), None);
        for bad in ["-x", "a b", "hostports", "X\"", "MARK-MASQ-3", "ABCDEFGHIJKLMNOPQRSTUVWXYZABC"] {
            assert!(Mark::chain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn masquerading_chain_name_contains_the_network_and_decodes_to_it() {
        for (network, name) in [
            ("10.1.0.7/24", "KUBE-MARK-MASQ-from-10.1.0.0/24"),
            ("fd00::7/64", "KUBE-MARK-MASQ-from-fd000000000000000000000000000000/64"),
        ] {
            let network: IpNetwork = network.parse().unwrap();
            let from = Masquerade::From(network, Mark::default());
            assert_eq!(from.chain_name().as_deref(), Some(name));
            let Masquerade::From(read, mark) = Masquerade::of_chain(name) else { panic!("{name}") };
            assert_eq!((read.ip(), read.prefix()), (network.network(), network.prefix()));
            assert_eq!(mark.chain_name(), "KUBE-MARK-MASQ");
        }
        assert_eq!(Masquerade::of_chain("MARK-MASQ-3"), Masquerade::All(Mark::bit(3).unwrap()));
        assert_eq!(Masquerade::Nothing.chain_name(), None);
    }
}
