//! One port mapping: decoded from JSON, then checked.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_common::spec::addr::parse_ip;
use ferrule_kernel::conntrack;
use ferrule_kernel::ip::IpFamily;
use serde::Deserialize;

/// A transport protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proto {
    /// SCTP.
    Sctp,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Proto {
    const ALL: [Proto; 3] = [Proto::Tcp, Proto::Udp, Proto::Sctp];

    /// The IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Proto::Tcp => 6,
            Proto::Udp => conntrack::UDP,
            Proto::Sctp => conntrack::SCTP,
        }
    }

    /// The name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
            Proto::Sctp => "sctp",
        }
    }

    /// The protocol with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Proto::ALL.into_iter().find(|proto| proto.number() == number)
    }

    /// The protocol with this name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Proto::ALL.into_iter().find(|proto| proto.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The host addresses that a mapping applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIp {
    /// All addresses of both families.
    Any,
    /// All IPv4 addresses (`0.0.0.0`) or all IPv6 addresses (`::`).
    AnyOf(IpFamily),
    /// One address.
    One(IpAddr),
}

impl HostIp {
    /// The host address to match in a family. Outer `None`: the mapping does not apply to the family. Inner
    /// `None`: any address of the host.
    pub fn in_family(self, family: IpFamily) -> Option<Option<IpAddr>> {
        match self {
            HostIp::Any => Some(None),
            HostIp::AnyOf(all) => (all == family).then_some(None),
            HostIp::One(ip) => (IpFamily::of(ip) == family).then_some(Some(ip)),
        }
    }
}

/// A checked mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The transport protocol.
    pub proto: Proto,
    /// The host addresses.
    pub host_ip: HostIp,
    /// The host port, not 0.
    pub host_port: u16,
    /// The container port, not 0.
    pub container_port: u16,
}

/// A mapping as the runtime sends it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WireMapping {
    host_port: i64,
    container_port: i64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

impl WireMapping {
    /// Checks the mapping, which has position `index` in its list.
    ///
    /// # Errors
    /// A text that ends with the mapping itself. The reference's tests compare the whole text about a port
    /// number, so in that case the mapping goes to standard error.
    pub fn check(&self, index: usize) -> Result<Mapping, String> {
        let bad = |what: String| format!("{what} (portMappings[{index}]: {self})");
        let port = |kind: &str, number: i64| {
            u16::try_from(number).ok().filter(|port| *port != 0).ok_or_else(|| {
                eprintln!("portMappings[{index}]: {self}");
                format!("Invalid {kind} port number: {number}")
            })
        };
        let container_port = port("container", self.container_port)?;
        let host_port = port("host", self.host_port)?;
        let proto = Proto::parse(&self.protocol)
            .ok_or_else(|| bad(format!("Invalid protocol: {:?} is not tcp, udp or sctp", self.protocol)))?;
        let host_ip = match self.host_ip.as_str() {
            "" => HostIp::Any,
            text => match parse_ip(text).map_err(|_| bad(format!("Invalid host IP: {text:?}")))? {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED) => HostIp::AnyOf(IpFamily::V4),
                IpAddr::V6(Ipv6Addr::UNSPECIFIED) => HostIp::AnyOf(IpFamily::V6),
                ip => HostIp::One(ip),
            },
        };
        Ok(Mapping { proto, host_ip, host_port, container_port })
    }
}

impl fmt::Display for WireMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WireMapping { host_port, container_port, protocol, host_ip } = self;
        write!(
            f,
            "hostIP {host_ip:?}, hostPort {host_port}, containerPort {container_port}, protocol {protocol:?}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(host_port: i64, container_port: i64, protocol: &str, host_ip: &str) -> WireMapping {
        let (protocol, host_ip) = (protocol.to_owned(), host_ip.to_owned());
        WireMapping { host_port, container_port, protocol, host_ip }
    }

    #[test]
    fn protocols_in_any_case_and_kinds_of_host_ip() {
        let host_ip = |text: &str| wire(1, 65535, "tCP", text).check(0).unwrap().host_ip;
        assert_eq!(host_ip(""), HostIp::Any);
        assert_eq!(host_ip("0.0.0.0"), HostIp::AnyOf(IpFamily::V4));
        assert_eq!(host_ip("::"), HostIp::AnyOf(IpFamily::V6));
        assert_eq!(host_ip("::ffff:192.0.2.1"), HostIp::One("192.0.2.1".parse().unwrap()));
        for proto in ["SCTP", "sctp", "Udp"] {
            assert!(wire(1, 1, proto, "").check(0).is_ok());
        }
    }

    #[test]
    fn error_names_the_field_and_quotes_the_mapping() {
        for (mapping, what) in [
            (wire(0, 80, "tcp", ""), "Invalid host port number: 0"),
            (wire(70000, 80, "tcp", ""), "Invalid host port number: 70000"),
            (wire(80, -1, "tcp", ""), "Invalid container port number: -1"),
            (wire(80, 65536, "tcp", ""), "Invalid container port number: 65536"),
            (wire(80, 80, "", ""), "Invalid protocol: \"\" is not tcp, udp or sctp (portMappings[3]: "),
            (wire(80, 80, "icmp", ""), "Invalid protocol: \"icmp\""),
            (wire(80, 80, "tcp", "localhost"), "Invalid host IP: \"localhost\" (portMappings[3]: "),
            (wire(80, 80, "tcp", "10.0.0.0/8"), "Invalid host IP"),
        ] {
            let error = mapping.check(3).unwrap_err();
            if what.contains("port number") {
                assert_eq!(error, what);
            } else {
                assert!(error.starts_with(what) && error.ends_with(&format!("{mapping})")), "{error}");
            }
        }
    }

    #[test]
    fn host_ip_in_each_family() {
        assert_eq!(HostIp::Any.in_family(IpFamily::V6), Some(None));
        assert_eq!(HostIp::AnyOf(IpFamily::V6).in_family(IpFamily::V4), None);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(HostIp::One(one).in_family(IpFamily::V4), Some(Some(one)));
        assert_eq!(HostIp::One(one).in_family(IpFamily::V6), None);
    }
}
