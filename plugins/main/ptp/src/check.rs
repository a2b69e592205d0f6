//! CHECK: compares both ends of the pair with `prevResult` and the configuration.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{CniError, Context as _};
use ferrule_kit::{check, socket, sysctl, veth};
use ferrule_masquerade as masquerade;

use crate::config::Conf;
use crate::neighbours::{self, End};
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
    let present = host.addresses(end.index).context(|| format!("list the addresses of {name:?}"))?;
    check::has_addresses("host interface", &end, &present, &plan::gateways(&plan.ips))?;
    check::ensure(!plan::needs_link_local(&plan.ips) || plan::has_link_local(&present), || {
        format!("host interface {name:?} has no link-local address: the host finds no IPv6 neighbour")
    })?;
    if let Some(reason) = neighbours::reason(&end, &plan.ips).context(|| "read arp_ignore")? {
        let inside = End { socket: &mut socket::route_in(call.sandbox.netns()?)?, link: &container };
        neighbours::check(reason, End { socket: &mut host, link: &end }, inside, &plan.ips)?;
    }
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
