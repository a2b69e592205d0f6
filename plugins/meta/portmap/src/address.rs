//! Selects the container addresses that host ports lead to.

use cni_common::spec::AddResult;
use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

/// The first IPv4 and the first IPv6 address of the container's interface, each with its prefix length, see
/// [`AddResult::ips_of`].
pub fn pick(result: &AddResult, ifname: &str) -> Vec<IpNetwork> {
    let first = |family| {
        result.ips_of(ifname).map(|ip| ip.address).find(|address| IpFamily::of(address.ip()) == family)
    };
    IpFamily::ALL.into_iter().filter_map(first).collect()
}

#[cfg(test)]
mod tests {
    use cni_common::spec::{Interface, IpConfig};

    use super::*;

    fn ip(address: &str, interface: Option<i64>) -> IpConfig {
        IpConfig { address: address.parse().unwrap(), gateway: None, interface }
    }

    #[test]
    fn first_address_of_each_family_of_the_interface() {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        let mut result = AddResult {
            interfaces: vec![
                interface("cni0", ""),
                interface("eth0", "/run/netns/x"),
                interface("eth1", "/x"),
            ],
            ips: vec![
                ip("10.0.0.1/24", Some(0)),
                ip("10.1.0.2/24", Some(2)),
                ip("10.2.0.2/24", Some(1)),
                ip("fd00::2/64", Some(9)),
                ip("10.3.0.2/24", None),
            ],
            ..AddResult::default()
        };
        let picked = |result: &AddResult, ifname| -> Vec<String> {
            pick(result, ifname).iter().map(ToString::to_string).collect()
        };
        assert_eq!(picked(&result, "eth0"), ["10.2.0.2/24", "fd00::2/64"]);
        assert_eq!(picked(&result, "eth1"), ["10.1.0.2/24", "fd00::2/64"]);
        assert_eq!(picked(&result, "eth2"), ["10.3.0.2/24", "fd00::2/64"]);
        result.ips[3].interface = Some(-1);
        assert_eq!(picked(&result, "eth0")[1], "fd00::2/64");
        result.ips.clear();
        assert!(pick(&result, "eth0").is_empty());
    }
}
