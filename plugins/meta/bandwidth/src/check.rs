//! CHECK: compares everything that ADD made, this plugin's or the reference's, with the configuration.

use cni_common::netns::Netns;
use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{AddResult, CniError, Context, Interface};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::link::Link;
use ferrule_kernel::netlink::qdisc::{self, Qdisc};
use ferrule_kit::{check, socket};

use crate::config::{Conf, Limit};
use crate::rates::Rates;
use crate::state::{self, Filters, Host, Ifbs};
use crate::{owner, plan, shape};

/// Compares the attachment in the kernel with the configuration and `prevResult`.
///
/// # Errors
/// The first object that is missing or altered. The texts are the reference's where it has one.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let mut found = Found::of(call)?;
    found.check_ingress()?;
    found.check_egress()
}

/// What CHECK and repair know of an attachment.
pub struct Found<'a> {
    /// The limits: those of `ferrule shape`, else those of the configuration.
    pub conf: Conf,
    /// Whether ADD has made an IFB, so that `prevResult` has it.
    pub has_reported_ifb: bool,
    /// The attachment.
    pub owner: Attachment<'a>,
    /// The container's link.
    pub container: Link,
    /// The host's end.
    pub host: Host,
    /// The IFBs.
    pub ifbs: Ifbs,
    /// A route netlink socket on the host.
    pub socket: Socket,
    result: &'a AddResult,
}

impl<'a> Found<'a> {
    /// Reads configuration and state.
    pub fn of(call: &'a AddRequest<'_>) -> Result<Self, CniError> {
        let conf = Conf::read(call.config)?;
        let result = call.prev_result.as_ref();
        let result = result.ok_or_else(|| CniError::invalid_config("must be called as a chained plugin"))?;
        Found::read(conf, result, Attachment::from(call), call.sandbox.netns()?)
    }

    /// Reads the state.
    pub fn read(
        configured: Conf,
        result: &'a AddResult,
        owner: Attachment<'a>,
        netns: &Netns,
    ) -> Result<Self, CniError> {
        let container = state::container(netns, owner.ifname)?;
        let mut socket = socket::route()?;
        let has_reported_ifb = configured.egress.is_some();
        let filters = if has_reported_ifb { Filters::Expected } else { Filters::Omit };
        let (mut host, mut ifbs) = state::read(&mut socket, netns, &container, &owner, filters)?;
        let conf = Rates::parse(&host.link.alias).map_or(configured, |rates| rates.apply(configured));
        if conf.egress.is_some() && !has_reported_ifb {
            (host, ifbs) = state::read(&mut socket, netns, &container, &owner, Filters::Expected)?;
        }
        Ok(Found { conf, has_reported_ifb, owner, container, host, ifbs, socket, result })
    }

    /// Checks the limit of traffic to the container.
    pub fn check_ingress(&self) -> Result<(), CniError> {
        let check = |limit| self.compare(&self.host.link, self.host.root.as_ref(), limit);
        self.conf.ingress.map_or(Ok(()), check)
    }

    /// Checks the limit of traffic from the container.
    pub fn check_egress(&mut self) -> Result<(), CniError> {
        if self.conf.egress.is_none() {
            return Ok(());
        }
        let name = &self.host.link.name;
        let ingress_qdisc = self
            .host
            .ingress_qdisc
            .as_ref()
            .ok_or_else(|| CniError::internal(format!("{name:?} has no ingress qdisc")))?;
        let ifb = plan::existing(&self.owner, &self.ifbs, &ingress_qdisc.filters)
            .ok_or_else(|| CniError::internal("get ifb device: Link not found"))?;
        check::ensure(ifb.is_up(), || format!("ifb device {:?} is down", ifb.name))?;
        if self.has_reported_ifb {
            check::mac("ifb device", ifb, self.reported(&ifb.name)?)?;
        }
        let redirects = ingress_qdisc.filters.iter().any(|filter| filter.redirect == Some(ifb.index));
        check::ensure(redirects, || format!("{name:?} has no filter that redirects to {:?}", ifb.name))?;
        let ifb = ifb.clone();
        self.check_ifb_qdisc(&ifb)
    }

    /// Checks the qdisc of the IFB.
    pub fn check_ifb_qdisc(&mut self, ifb: &Link) -> Result<(), CniError> {
        let root = self.socket.request(qdisc::get(ifb.index, qdisc::ROOT));
        let root = qdisc::read(root).context(|| format!("read the qdisc of {:?}", ifb.name))?;
        self.conf.egress.map_or(Ok(()), |limit| self.compare(ifb, root.as_ref(), limit))
    }

    /// The interface of this name in `prevResult`.
    fn reported(&self, name: &str) -> Result<&'a Interface, CniError> {
        let reported = self.result.interfaces.iter().find(|interface| interface.name == name);
        reported.ok_or_else(|| CniError::internal(format!("prevResult has no ifb device {name:?}")))
    }

    /// The IFB in `prevResult`.
    pub fn reported_ifb(&self) -> Result<&'a Interface, CniError> {
        let shared = owner::shared_name(&self.owner);
        self.reported(&owner::own_name(&self.owner)).or_else(|_| self.reported(&shared))
    }

    /// Checks that a link has the token bucket filter for `limit`. Accepts the reference's parameters too, of its
    /// amd64 and arm64 builds: plugins may be replaced while containers run. Accepts those for another MTU: a later plugin
    /// of the chain or an operator may have changed it since.
    fn compare(&self, link: &Link, root: Option<&Qdisc>, limit: Limit) -> Result<(), CniError> {
        let Some(found) = plan::ours(root) else {
            let present = root.map_or("nothing", |root| root.kind.as_str());
            return Err(CniError::internal("Failed to find qdisc")
                .with_details(format!("expected tbf 1: on {:?}, found {present}", link.name)));
        };
        let sizes = plan::sizes(&self.container, &self.host);
        let expected = shape::tbf(limit, self.conf.numbers, sizes);
        let differences = shape::compare(&found, &expected);
        let reference = [shape::reference(limit), shape::reference_saturating(limit)];
        if differences.is_ok()
            || reference.contains(&found)
            || shape::is_of_other_mtu(&found, limit, self.conf.numbers, sizes.gso)
        {
            return Ok(());
        }
        let details = format!("on {:?}: found {found:?}, expected {expected:?}", link.name);
        differences.map_err(|text| CniError::internal(text).with_details(details))
    }
}
