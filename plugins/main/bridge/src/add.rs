//! ADD: address, bridge, veth pair, container, gateway, masquerading.
//!
//! A failed ADD undoes its steps in reverse order. The bridge, its addresses and forwarding stay: another ADD
//! may already rely on them.

use cni_common::netns::Netns;
use cni_common::plugin::{AddRequest, Delegate};
use cni_common::spec::version::Layout;
use cni_common::spec::{AddResult, CniError, Interface};
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::{masquerade, socket};
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::container::{Container, Setup};
use crate::device;
use crate::plan::Plan;
use crate::solicited;
use crate::veth;
use cni_common::plugin::Attachment;

/// The links of a finished attachment, as they are after ADD.
struct Links {
    bridge: Link,
    port: Link,
    container: Link,
}

/// Attaches the container to the bridge.
///
/// # Errors
/// The error of the first step that failed, after everything made for this attachment has been removed.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let ipam = Delegate::ipam(call.env, call.config)?;
    if ipam.is_none() && call.version.layout() == Layout::PerFamily {
        return Err(CniError::invalid_config(format!(
            "cannot convert: no valid IP addresses: a network without ipam needs cniVersion 0.3.0 or later, not {}",
            call.version
        )));
    }
    let attachment = Attachment::from(call);
    let netns = call.sandbox.netns()?;
    let mut container = Container::open(netns, call.ifname)?;
    // Check before IPAM ADD: a second ADD must fail without IPAM DEL, which would release the address of the
    // first ADD.
    if container.interface()?.is_some() {
        let host = veth::host_ends(&attachment).next().map_or(String::new(), |end| end.name);
        return Err(veth::name_taken(call.ifname, &host));
    }
    let Some(ipam) = ipam else {
        let links = attach(netns, &mut container, attachment, &conf, None)?;
        return Ok(describe(call, &conf, links, Plan::default(), AddResult::default()));
    };
    let assigned = ipam.add(call.version)?;
    let dns = AddResult { dns: assigned.dns.clone(), ..AddResult::default() };
    let attached = Plan::new(&conf, assigned)
        .and_then(|plan| Ok((attach(netns, &mut container, attachment, &conf, Some(&plan))?, plan)))
        .inspect_err(|_| ipam.undo());
    let (links, plan) = attached?;
    Ok(describe(call, &conf, links, plan, dns))
}

fn attach(
    netns: &Netns,
    container: &mut Container<'_>,
    attachment: Attachment<'_>,
    conf: &Conf,
    plan: Option<&Plan>,
) -> Result<Links, CniError> {
    let mut host = socket::route()?;
    let bridge = device::ensure(&mut host, conf)?;
    let port = veth::create(&mut host, &bridge, netns, attachment, conf)?;
    let connected = connect(&mut host, container, attachment, conf, plan, &bridge, &port);
    connected.inspect_err(|_| veth::remove(&mut host, &port))
}

fn connect(
    host: &mut Socket,
    container: &mut Container<'_>,
    attachment: Attachment<'_>,
    conf: &Conf,
    plan: Option<&Plan>,
    bridge: &Link,
    port: &Link,
) -> Result<Links, CniError> {
    let addresses: Vec<IpNetwork> =
        plan.map(|plan| plan.ips.iter().map(|ip| ip.address).collect()).unwrap_or_default();
    let routes = plan.map(Plan::installed_routes).unwrap_or_default();
    let setup = Setup { addresses, routes };
    let index = port.peer.ok_or_else(|| CniError::internal(format!("{:?} has no peer", port.name)))?;
    let end = container.configure(index, &setup)?;
    if let Some(plan) = plan
        && conf.is_gateway
    {
        device::ensure_gateways(host, bridge, &plan.gateways(), conf.force_address)?;
        device::ensure_forwarding(&setup.addresses)?;
        solicited::wait(host, bridge.index, &plan.gateways());
    }
    solicited::wait(&mut container.socket, end.index, &setup.addresses);
    let (port, bridge) = veth::settle(host, port, bridge)?;
    if conf.ip_masq {
        let mut netfilter = socket::netfilter()?;
        masquerade::add(&mut netfilter, &attachment, &setup.addresses)?;
    }
    Ok(Links { bridge, port, container: end })
}

/// The result: `prevResult`, if there is one, plus this attachment.
fn describe(call: &AddRequest<'_>, conf: &Conf, links: Links, plan: Plan, ipam: AddResult) -> AddResult {
    let mut result = call.prev_result.clone().unwrap_or_default();
    let interface = |link: &Link, sandbox: &str| Interface {
        name: link.name.clone(),
        mac: link.mac.to_string(),
        mtu: link.mtu,
        sandbox: sandbox.to_owned(),
        ..Interface::default()
    };
    result.interfaces.push(interface(&links.bridge, ""));
    result.interfaces.push(interface(&links.port, ""));
    let container = i64::try_from(result.interfaces.len()).ok();
    result.interfaces.push(interface(&links.container, call.sandbox.path()));
    result.ips.extend(plan.ips.into_iter().map(|mut ip| {
        ip.interface = container;
        ip
    }));
    result.routes.extend(plan.routes);
    if let Some(dns) = &conf.dns {
        result.dns = dns.clone();
    } else if !ipam.dns.is_empty() {
        result.dns = ipam.dns;
    }
    result
}
