//! The packet that is walked.

use std::net::IpAddr;

use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::PayloadBase;

/// Bytes, of which some are not known.
pub(super) type Bytes = Vec<Option<u8>>;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
/// SYN alone.
const SYN: u8 = 2;
/// The types of an echo request.
const ECHO: (u8, u8) = (8, 128);

/// The first packet of a flow: after the translation of its destination, before that of its source. ICMP is an echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// From where.
    pub source: IpAddr,
    /// To where; of the same family.
    pub destination: IpAddr,
    /// The protocol's number.
    pub protocol: u8,
    /// The destination port of TCP, UDP and SCTP.
    pub port: u16,
    /// The name of the link on which it comes, if that is known.
    pub input: Option<String>,
}

impl Packet {
    /// Its family.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.source)
    }

    /// Bytes of a header; those behind what is known of it are not known.
    pub(super) fn payload(&self, base: PayloadBase, offset: u32, len: u32) -> Bytes {
        let header = match base {
            PayloadBase::Link => Bytes::new(),
            PayloadBase::Network => self.network(),
            PayloadBase::Transport => self.transport(),
        };
        (offset..offset.saturating_add(len.min(256)))
            .map(|at| header.get(at as usize).copied().flatten())
            .collect()
    }

    fn network(&self) -> Bytes {
        let (before, protocol) = match self.family() {
            IpFamily::V4 => (12, 9),
            IpFamily::V6 => (8, 6),
        };
        let mut header = vec![None; before];
        header[protocol] = Some(self.protocol);
        header.extend([self.source, self.destination].into_iter().flat_map(octets).map(Some));
        header
    }

    fn transport(&self) -> Bytes {
        let port = self.port.to_be_bytes().map(Some);
        match self.protocol {
            TCP => {
                let mut header = vec![None; 14];
                header[2..4].copy_from_slice(&port);
                header[13] = Some(SYN);
                header
            }
            UDP | SCTP => [[None; 2], port].concat(),
            ICMP => vec![Some(ECHO.0), Some(0)],
            ICMPV6 => vec![Some(ECHO.1), Some(0)],
            _ => Bytes::new(),
        }
    }
}
