//! One port mapping: read from the wire, checked once and for all.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_common::spec::addr::parse_ip;
use ferrule_kernel::conntrack;
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

    /// Its number.
    pub const fn number(self) -> u8 {
        match self {
            Proto::Tcp => 6,
            Proto::Udp => conntrack::UDP,
            Proto::Sctp => conntrack::SCTP,
        }
    }

    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
            Proto::Sctp => "sctp",
        }
    }

    /// The protocol of that number.
    pub fn from_number(number: u8) -> Option<Self> {
        Proto::ALL.into_iter().find(|proto| proto.number() == number)
    }

    /// The protocol of that name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Proto::ALL.into_iter().find(|proto| proto.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which of the host's addresses a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIp {
    /// All of both families.
    Any,
    /// All of IPv4 (`0.0.0.0`), or of IPv6 (`::`).
    AnyOf {
        /// IPv6.
        v6: bool,
    },
    /// This one.
    One(IpAddr),
}

impl HostIp {
    /// For a pod's address of that family: `None` if the mapping is not for the family, else the one address of the host,
    /// or none for any.
    pub fn in_family(self, v6: bool) -> Option<Option<IpAddr>> {
        match self {
            HostIp::Any => Some(None),
            HostIp::AnyOf { v6: family } => (family == v6).then_some(None),
            HostIp::One(ip) => (ip.is_ipv6() == v6).then_some(Some(ip)),
        }
    }
}

/// A checked mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The protocol.
    pub proto: Proto,
    /// The host's address.
    pub host_ip: HostIp,
    /// The host's port.
    pub host_port: u16,
    /// The container's port.
    pub container_port: u16,
}

/// A mapping as a runtime sends it.
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
    /// Checks the mapping, the `index`-th of its list.
    ///
    /// # Errors
    /// What is wrong, in the reference's words where it has any, and with the mapping itself.
    pub fn check(&self, index: usize) -> Result<Mapping, String> {
        let bad = |what: String| format!("{what} (portMappings[{index}]: {self})");
        let port = |number: i64| u16::try_from(number).ok().filter(|port| *port != 0);
        let container_port = port(self.container_port)
            .ok_or_else(|| bad(format!("Invalid container port number: {}", self.container_port)))?;
        let host_port = port(self.host_port)
            .ok_or_else(|| bad(format!("Invalid host port number: {}", self.host_port)))?;
        let proto = Proto::parse(&self.protocol)
            .ok_or_else(|| bad(format!("Invalid protocol: {:?} is none of tcp, udp, sctp", self.protocol)))?;
        let host_ip = match self.host_ip.as_str() {
            "" => HostIp::Any,
            text => match parse_ip(text).map_err(|_| bad(format!("Invalid host IP: {text:?}")))? {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED) => HostIp::AnyOf { v6: false },
                IpAddr::V6(Ipv6Addr::UNSPECIFIED) => HostIp::AnyOf { v6: true },
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
    fn protocols_in_any_case_and_all_kinds_of_host_addresses() {
        let host_ip = |text: &str| wire(1, 65535, "tCP", text).check(0).unwrap().host_ip;
        assert_eq!(host_ip(""), HostIp::Any);
        assert_eq!(host_ip("0.0.0.0"), HostIp::AnyOf { v6: false });
        assert_eq!(host_ip("::"), HostIp::AnyOf { v6: true });
        assert_eq!(host_ip("::ffff:192.0.2.1"), HostIp::One("192.0.2.1".parse().unwrap()));
        for proto in ["SCTP", "sctp", "Udp"] {
            assert!(wire(1, 1, proto, "").check(0).is_ok());
        }
    }

    #[test]
    fn an_error_names_what_is_wrong_and_the_mapping() {
        for (mapping, what) in [
            (wire(0, 80, "tcp", ""), "Invalid host port number: 0 (portMappings[3]: "),
            (wire(70000, 80, "tcp", ""), "Invalid host port number: 70000 (portMappings[3]: "),
            (wire(80, -1, "tcp", ""), "Invalid container port number: -1 (portMappings[3]: "),
            (wire(80, 65536, "tcp", ""), "Invalid container port number: 65536 (portMappings[3]: "),
            (wire(80, 80, "", ""), "Invalid protocol: \"\" is none of tcp, udp, sctp (portMappings[3]: "),
            (wire(80, 80, "icmp", ""), "Invalid protocol: \"icmp\""),
            (wire(80, 80, "tcp", "localhost"), "Invalid host IP: \"localhost\" (portMappings[3]: "),
            (wire(80, 80, "tcp", "10.0.0.0/8"), "Invalid host IP"),
        ] {
            let error = mapping.check(3).unwrap_err();
            assert!(error.starts_with(what), "{error}");
            assert!(error.ends_with(&format!("{mapping})")), "{error}");
        }
    }

    #[test]
    fn families() {
        assert_eq!(HostIp::Any.in_family(true), Some(None));
        assert_eq!(HostIp::AnyOf { v6: true }.in_family(false), None);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(HostIp::One(one).in_family(false), Some(Some(one)));
        assert_eq!(HostIp::One(one).in_family(true), None);
    }
}
