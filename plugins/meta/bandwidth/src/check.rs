//! CHECK: compares everything that ADD made, this plugin's or the reference's, with the configuration.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::netlink::link::Link;
use ferrule_kernel::netlink::qdisc::{self, Qdisc};
use ferrule_kit::{check, socket};

use crate::config::{Conf, Limit};
use crate::plan;
use crate::shape::{self, Sizes};
use crate::state::{self, Filters};

/// Compares the attachment in the kernel with the configuration and `prevResult`.
///
/// # Errors
/// The first object that is missing or altered. The texts are the reference's where it has one.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let result = call
        .prev_result
        .as_ref()
        .ok_or_else(|| CniError::invalid_config("must be called as a chained plugin"))?;
    let owner = Attachment::from(call);
    let netns = call.sandbox.netns()?;
    let container = state::container(netns, call.ifname)?;
    let mut socket = socket::route()?;
    let filters = if conf.egress.is_some() { Filters::Expected } else { Filters::Omit };
    let (host, ifbs) = state::read(&mut socket, netns, &container, &owner, filters)?;
    let sizes = plan::sizes(&container, &host);
    if let Some(limit) = conf.ingress {
        compare(&host.link, host.root.as_ref(), limit, &conf, sizes)?;
    }
    let Some(limit) = conf.egress else { return Ok(()) };
    let name = &host.link.name;
    let ingress_qdisc = host
        .ingress_qdisc
        .as_ref()
        .ok_or_else(|| CniError::internal(format!("{name:?} has no ingress qdisc")))?;
    let ifb = plan::existing(&owner, &ifbs, &ingress_qdisc.filters)
        .ok_or_else(|| CniError::internal("get ifb device: Link not found"))?;
    check_ifb(ifb, result)?;
    let redirects = ingress_qdisc.filters.iter().any(|filter| filter.redirect == Some(ifb.index));
    check::ensure(redirects, || format!("{name:?} has no filter that redirects to {:?}", ifb.name))?;
    let root = socket.request(qdisc::get(ifb.index, qdisc::ROOT));
    let root = qdisc::read(root).context(|| format!("read the qdisc of {:?}", ifb.name))?;
    compare(ifb, root.as_ref(), limit, &conf, sizes)
}

fn check_ifb(ifb: &Link, result: &AddResult) -> Result<(), CniError> {
    let name = &ifb.name;
    check::ensure(ifb.is_up(), || format!("ifb device {name:?} is down"))?;
    let reported = result.interfaces.iter().find(|interface| interface.name == *name);
    let reported =
        reported.ok_or_else(|| CniError::internal(format!("prevResult has no ifb device {name:?}")))?;
    check::mac("ifb device", ifb, reported)
}

/// Checks that a link has the token bucket filter for `limit`. Accepts the reference's parameters too, of its
/// amd64 and arm64 builds: plugins may be replaced while containers run.
fn compare(
    link: &Link,
    root: Option<&Qdisc>,
    limit: Limit,
    conf: &Conf,
    sizes: Sizes,
) -> Result<(), CniError> {
    let Some(found) = plan::ours(root) else {
        let present = root.map_or("nothing", |root| root.kind.as_str());
        return Err(CniError::internal("Failed to find qdisc")
            .with_details(format!("expected tbf 1: on {:?}, found {present}", link.name)));
    };
    let expected = shape::tbf(limit, conf.numbers, sizes);
    let differences = shape::compare(&found, &expected);
    let reference = [shape::reference(limit), shape::reference_saturating(limit)];
    if differences.is_ok() || reference.contains(&found) {
        return Ok(());
    }
    let details = format!("on {:?}: found {found:?}, expected {expected:?}", link.name);
    differences.map_err(|text| CniError::internal(text).with_details(details))
}
