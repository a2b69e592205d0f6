//! CHECK: compares both ends of the pair with `prevResult` and the configuration.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{CniError, Context as _};
use ferrule_kit::{check, socket, sysctl, veth};
use ferrule_masquerade as masquerade;

use crate::config::Conf;
use crate::plan;

/// Compares the attachment with `prevResult` and the configuration.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let (container, plan) = check::container(call, Some(conf.kind), &conf.link, true)?;
    let mut host = socket::route()?;
    let missing = || CniError::internal(format!("interface {:?} has no other end on the host", call.ifname));
    let end = veth::host_end(&mut host, call.sandbox.netns()?, &container)?.ok_or_else(missing)?;
    let name = &end.name;
    check::mac("host interface", &end, check::host_interface(check::prev_result(call)?, &end)?)?;
    check::ensure(end.is_up(), || format!("host interface {name:?} is down"))?;
    check::addresses(&mut host, "host interface", &end, &plan::gateways(&plan.ips))?;
    let addresses = plan.addresses();
    for ip in addresses.iter().map(|address| address.ip()) {
        let route = host.route_to(ip).context(|| format!("look up the route to {ip}"))?;
        check::ensure(route.is_some_and(|route| route.oif == Some(end.index)), || {
            format!("the host's route to {ip} does not lead to {name:?}")
        })?;
    }
    sysctl::check_forwarding(&mut host, &addresses)?;
    if let Some(wanted) = &conf.masquerade {
        masquerade::ensure(&mut socket::netfilter()?, wanted, &Attachment::from(call), &addresses)?;
    }
    Ok(())
}
