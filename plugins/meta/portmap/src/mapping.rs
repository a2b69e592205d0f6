//! One port mapping: decoded from JSON, then checked.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use cni_common::remark;
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

/// A checked mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The transport protocol.
    pub proto: Proto,
    /// The host address; an unspecified one (`0.0.0.0` or `::`) stands for all addresses of its family, `None` for all
    /// addresses of both families.
    pub host_ip: Option<IpAddr>,
    /// The host port, not 0.
    pub host_port: u16,
    /// The container port, not 0.
    pub container_port: u16,
}

impl Mapping {
    /// The host address to match in a family. Outer `None`: the mapping does not apply to the family. Inner
    /// `None`: any address of the host.
    pub fn host_ip_in(&self, family: IpFamily) -> Option<Option<IpAddr>> {
        match self.host_ip {
            Some(ip) if IpFamily::of(ip) != family => None,
            ip => Some(ip.filter(|ip| !ip.is_unspecified())),
        }
    }
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
                remark!("portMappings[{index}]: {self}");
                format!("Invalid {kind} port number: {number}")
            })
        };
        let container_port = port("container", self.container_port)?;
        let host_port = port("host", self.host_port)?;
        let proto = Proto::parse(&self.protocol)
            .ok_or_else(|| bad(format!("Invalid protocol: {:?} is not tcp, udp or sctp", self.protocol)))?;
        let host_ip = match self.host_ip.as_str() {
            "" => None,
            text => Some(parse_ip(text).map_err(|_| bad(format!("Invalid host IP: {text:?}")))?),
        };
        let host_ip = match host_ip {
            // No connection has such a destination.
            Some(ip) if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) => {
                return Err(bad(format!("Invalid host IP: {ip} is a multicast or broadcast address")));
            }
            host_ip => host_ip,
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
    fn protocols_in_any_case_and_host_ips() {
        let host_ip = |text: &str| wire(1, 65535, "tCP", text).check(0).unwrap().host_ip;
        assert_eq!(host_ip(""), None);
        assert_eq!(host_ip("::ffff:192.0.2.1"), "192.0.2.1".parse().ok());
        for text in ["224.0.0.1", "ff02::1", "255.255.255.255"] {
            let refused = wire(1, 1, "tcp", text).check(0).unwrap_err();
            assert!(refused.contains(&format!("{text} is a multicast or broadcast address")), "{refused}");
        }
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
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        for (text, v4, v6) in [
            ("", Some(None), Some(None)),
            ("0.0.0.0", Some(None), None),
            ("::", None, Some(None)),
            ("192.0.2.1", Some(Some(one)), None),
        ] {
            let mapping = wire(1, 1, "tcp", text).check(0).unwrap();
            assert_eq!(IpFamily::ALL.map(|family| mapping.host_ip_in(family)), [v4, v6], "{text}");
        }
    }
}
