//! What ADD gives the container's interface, from IPAM's result and the configuration. Nothing here touches
//! the kernel.

use std::time::Duration;

use cni_common::plugin::AddRequest;
use cni_common::spec::{AddResult, CniError, Dns, Interface, IpConfig, Route};
use ferrule_kernel::netlink::Link;
use ipnetwork::IpNetwork;

use crate::config::LinkConf;
use crate::route::restore_attributes;

/// Addresses, routes and DNS settings of the container.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The addresses, each with the gateway of its subnet.
    pub ips: Vec<IpConfig>,
    /// The routes as the result reports them: without a next hop if IPAM gave none.
    pub routes: Vec<Route>,
    /// Replaces the DNS settings of `prevResult`.
    pub dns: Option<Dns>,
    /// The container reaches even its own subnets through their gateways.
    pub point_to_point: bool,
    /// ADD also waits so long for an address from a router.
    pub wait_for_ra: Option<Duration>,
}

impl Plan {
    /// Completes IPAM's result by the configuration: `dns`, and the route attributes that a result before
    /// version 1.1.0 cannot carry. `None` means a network without IPAM.
    ///
    /// # Errors
    /// The reference's `IPAM plugin returned missing IP config` if `assigned` has no address.
    pub fn new(conf: &LinkConf, assigned: Option<AddResult>) -> Result<Self, CniError> {
        if assigned.as_ref().is_some_and(|assigned| assigned.ips.is_empty()) {
            return Err(CniError::internal("IPAM plugin returned missing IP config"));
        }
        let AddResult { ips, mut routes, dns, .. } = assigned.unwrap_or_default();
        restore_attributes(&mut routes, &conf.ipam_routes);
        let dns = conf.dns.clone().or(Some(dns).filter(|dns| !dns.is_empty()));
        Ok(Plan { ips, routes, dns, point_to_point: false, wait_for_ra: conf.wait_for_ra })
    }

    /// The addresses with their prefix lengths.
    pub fn addresses(&self) -> Vec<IpNetwork> {
        self.ips.iter().map(|ip| ip.address).collect()
    }

    /// The result of ADD: `prevResult`, if there is one, plus this attachment's links on the host and in the
    /// container, as they are after ADD.
    pub fn result(self, call: &AddRequest<'_>, host: &[&Link], container: &Link) -> AddResult {
        let mut result = call.prev_result.clone().unwrap_or_default();
        result.interfaces.extend(host.iter().map(|link| interface(link, "")));
        let index = i64::try_from(result.interfaces.len()).ok();
        result.interfaces.push(interface(container, call.sandbox.path()));
        result.ips.extend(self.ips.into_iter().map(|ip| IpConfig { interface: index, ..ip }));
        result.routes.extend(self.routes);
        result.dns = self.dns.unwrap_or(result.dns);
        result
    }
}

/// The link as a result reports it; `sandbox` is empty for a link on the host.
pub fn interface(link: &Link, sandbox: &str) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.to_string(),
        mtu: link.mtu,
        sandbox: sandbox.to_owned(),
        ..Interface::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_an_error_only_with_ipam() {
        let error = Plan::new(&LinkConf::default(), Some(AddResult::default())).unwrap_err();
        assert_eq!(error.msg, "IPAM plugin returned missing IP config");
        assert_eq!(Plan::new(&LinkConf::default(), None).unwrap(), Plan::default());
    }

    #[test]
    fn dns_of_the_configuration_replaces_ipams() {
        let dns = |domain: &str| Dns { domain: domain.to_owned(), ..Dns::default() };
        let ip = IpConfig { address: "10.1.2.9/24".parse().unwrap(), gateway: None, interface: None };
        let assigned = |dns| Some(AddResult { ips: vec![ip.clone()], dns, ..AddResult::default() });
        let conf = LinkConf { dns: Some(dns("conf")), ..LinkConf::default() };
        assert_eq!(Plan::new(&conf, assigned(dns("ipam"))).unwrap().dns, Some(dns("conf")));
        assert_eq!(Plan::new(&LinkConf::default(), assigned(dns("ipam"))).unwrap().dns, Some(dns("ipam")));
        assert_eq!(Plan::new(&LinkConf::default(), assigned(Dns::default())).unwrap().dns, None);
    }
}
