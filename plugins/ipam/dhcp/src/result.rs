//! Makes the result of ADD from a lease, and compares a lease with `prevResult`.

use cni_common::spec::addr::{parse_cidr, parse_ip};
use cni_common::spec::{AddResult, CniError, Dns, IpConfig, Route};

use crate::wire::Lease;

/// Scope of a route to a destination on the link: `RT_SCOPE_LINK`.
const SCOPE_LINK: u32 = 253;

/// The result of ADD. `priority` is the metric of every route. Routes carry the server's MTU, which results before 1.1.0
/// cannot express.
///
/// # Errors
/// The daemon sent an invalid address.
pub fn result_of(lease: &Lease, priority: u32) -> Result<AddResult, CniError> {
    let invalid = |why: String| CniError::internal(format!("the lease of the DHCP daemon is invalid: {why}"));
    let gateway = lease.gateway.as_deref().map(parse_ip).transpose().map_err(invalid)?;
    let address =
        IpConfig { address: parse_cidr(&lease.address).map_err(invalid)?, gateway, interface: None };
    let mut routes = Vec::with_capacity(lease.routes.len());
    for route in &lease.routes {
        let dst = parse_cidr(&route.dst).map_err(invalid)?;
        let gw = parse_ip(&route.gw).map_err(invalid)?;
        let scope = gw.is_unspecified().then_some(SCOPE_LINK);
        routes.push(Route { priority, mtu: lease.mtu, scope, ..Route::new(dst, Some(gw)) });
    }
    let dns = Dns {
        nameservers: lease.nameservers.clone(),
        domain: lease.domain.clone(),
        search: lease.search.clone(),
        options: Vec::new(),
    };
    Ok(AddResult { ips: vec![address], routes, dns, ..AddResult::default() })
}

/// Checks that `prevResult` has the address of the lease.
///
/// # Errors
/// It has another address or none.
pub fn compare(lease: &Lease, result: &AddResult, ifname: &str) -> Result<(), CniError> {
    let leased = result_of(lease, 0)?;
    let has = |ip: &IpConfig| result.ips.iter().any(|found| found.address == ip.address);
    if leased.ips.iter().all(has) {
        return Ok(());
    }
    let msg = format!("dhcp: prevResult does not have the leased address {} of {ifname}", lease.address);
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
        let result = result_of(&lease(), 50).unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.0.0.5/24");
        assert_eq!(result.ips[0].gateway.unwrap().to_string(), "10.0.0.1");
        let routes: Vec<_> = result.routes.iter().map(|r| (r.priority, r.mtu, r.scope)).collect();
        assert_eq!(routes, [(50, 1400, None), (50, 1400, Some(253))]);
        assert_eq!((&*result.dns.nameservers[0], &*result.dns.search[0]), ("10.0.0.2", "a.example"));
        assert!(result_of(&Lease::default(), 0).is_err());
    }

    #[test]
    fn check_compares_the_address() {
        let mut result = result_of(&lease(), 0).unwrap();
        compare(&lease(), &result, "eth0").unwrap();
        result.ips[0].address = "10.0.0.5/16".parse().unwrap();
        assert!(compare(&lease(), &result, "eth0").is_err());
    }
}
