//! Makes the result of ADD from the leases, and compares leases with `prevResult`.

use cni_common::spec::addr::{parse_cidr, parse_ip};
use cni_common::spec::{AddResult, CniError, IpConfig, Route};

use crate::wire::Lease;

/// Scope of a route to a destination on the link: `RT_SCOPE_LINK`.
const SCOPE_LINK: u32 = 253;

/// The result of ADD with the leases of all families. `priority` is the metric of every route. Routes carry the server's MTU, which
/// results before 1.1.0 cannot express.
///
/// # Errors
/// The daemon sent an invalid address.
pub fn result_of(leases: &[Lease], priority: u32) -> Result<AddResult, CniError> {
    let mut result = AddResult::default();
    for lease in leases {
        take(&mut result, lease, priority)
            .map_err(|why| CniError::internal(format!("the lease of the DHCP daemon is invalid: {why}")))?;
    }
    Ok(result)
}

fn take(result: &mut AddResult, lease: &Lease, priority: u32) -> Result<(), String> {
    let gateway = lease.gateway.as_deref().map(parse_ip).transpose()?;
    result.ips.push(IpConfig { address: parse_cidr(&lease.address)?, gateway, interface: None });
    for route in &lease.routes {
        let gw = parse_ip(&route.gw)?;
        let scope = gw.is_unspecified().then_some(SCOPE_LINK);
        let route = Route::new(parse_cidr(&route.dst)?, Some(gw));
        result.routes.push(Route { priority, mtu: lease.mtu, scope, ..route });
    }
    let dns = &mut result.dns;
    for (all, more) in [(&mut dns.nameservers, &lease.nameservers), (&mut dns.search, &lease.search)] {
        for text in more {
            if !all.contains(text) {
                all.push(text.clone());
            }
        }
    }
    if dns.domain.is_empty() {
        dns.domain.clone_from(&lease.domain);
    }
    Ok(())
}

/// Checks that `prevResult` has the address of each lease.
///
/// # Errors
/// It lacks one.
pub fn compare(leases: &[Lease], result: &AddResult, ifname: &str) -> Result<(), CniError> {
    let leased = result_of(leases, 0)?;
    let has = |ip: &IpConfig| result.ips.iter().any(|found| found.address == ip.address);
    let Some(missing) = leased.ips.iter().find(|ip| !has(ip)) else { return Ok(()) };
    let msg = format!("dhcp: prevResult does not have the leased address {} of {ifname}", missing.address);
    Err(CniError::internal(msg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    fn lease() -> Lease {
        let route = |dst: &str, gw: &str| wire::Route { dst: dst.to_owned(), gw: gw.to_owned() };
        Lease {
            address: "10.0.0.5/24".to_owned(),
            gateway: Some("10.0.0.1".to_owned()),
            routes: vec![route("0.0.0.0/0", "10.0.0.1"), route("10.9.0.0/16", "0.0.0.0")],
            nameservers: vec!["10.0.0.2".to_owned()],
            domain: "example.com".to_owned(),
            search: vec!["a.example".to_owned()],
            mtu: 1400,
            ntp: Vec::new(),
        }
    }

    #[test]
    fn result() {
        let result = result_of(&[lease()], 50).unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.0.0.5/24");
        assert_eq!(result.ips[0].gateway.unwrap().to_string(), "10.0.0.1");
        let routes: Vec<_> = result.routes.iter().map(|r| (r.priority, r.mtu, r.scope)).collect();
        assert_eq!(routes, [(50, 1400, None), (50, 1400, Some(253))]);
        assert_eq!((&*result.dns.nameservers[0], &*result.dns.search[0]), ("10.0.0.2", "a.example"));
        assert!(result_of(&[Lease::default()], 0).is_err());
    }

    /// The names of both families, each one once.
    #[test]
    fn two_families() {
        let names = ["a.example", "b.example"].map(str::to_owned);
        let lease6 = Lease {
            address: "fd00::5/128".to_owned(),
            nameservers: vec!["fd00::2".to_owned()],
            search: names.to_vec(),
            ..Lease::default()
        };
        let result = result_of(&[lease(), lease6.clone()], 0).unwrap();
        let ips: Vec<_> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
        assert_eq!((ips, result.routes.len()), (vec!["10.0.0.5/24".to_owned(), "fd00::5/128".to_owned()], 2));
        assert_eq!(result.dns.nameservers, ["10.0.0.2", "fd00::2"]);
        assert_eq!((result.dns.domain.as_str(), result.dns.search), ("example.com", names.to_vec()));
        let only_v4 = result_of(&[lease()], 0).unwrap();
        let error = compare(&[lease(), lease6], &only_v4, "eth0").unwrap_err();
        assert!(error.msg.contains("fd00::5/128 of eth0"), "{}", error.msg);
    }

    #[test]
    fn check_compares_the_address() {
        let mut result = result_of(&[lease()], 0).unwrap();
        compare(&[lease()], &result, "eth0").unwrap();
        result.ips[0].address = "10.0.0.5/16".parse().unwrap();
        assert!(compare(&[lease()], &result, "eth0").is_err());
    }
}
