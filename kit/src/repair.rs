//! Repair: makes again what CHECK refuses at the container's interface and at the host's end of its pair. Sound objects stay.

use cni_common::plugin::AddRequest;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::link::{self, IFF_UP};
use ferrule_kernel::netlink::{Link, Mac, Socket};

use crate::check::{self, Inside};
use crate::config::LinkConf;
use crate::plan::Plan;
use crate::steps::Step;
use crate::veth;

/// Runs CHECK of the IPAM plugin, then finds the container's interface as CHECK does.
///
/// # Errors
/// IPAM's, if the address belongs to another container now; or there is no such interface: only ADD makes one.
pub fn find<'a>(
    call: &'a AddRequest<'_>,
    kind: Option<&str>,
    conf: &LinkConf,
) -> Result<Inside<'a>, CniError> {
    Inside::find(call, kind, conf, |ifname| {
        format!("the container has no interface {ifname:?}, start the container again")
    })
}

impl Inside<'_> {
    /// Sets the interface up, and adds the addresses and routes that it lacks.
    ///
    /// # Errors
    /// The kernel's.
    pub fn repair(&mut self) -> Result<(), CniError> {
        let routes = self.missing_routes()?;
        let is_up = self.container.keep_down || self.link.is_up();
        if is_up && self.has_addresses().is_ok() && self.accepts_ra().is_ok() && routes.is_empty() {
            return Ok(());
        }
        let Plan { ips, point_to_point, wait_for_ra, .. } = &self.plan;
        let (point_to_point, wait_for_ra) = (*point_to_point, *wait_for_ra);
        let plan = Plan { ips: ips.clone(), routes, dns: None, point_to_point, wait_for_ra };
        self.container.completes = true;
        self.link = self.container.configure(self.link.index, &plan)?;
        self.container.wait(&self.link, &plan.addresses())
    }
}

/// The host's end of the container's `link`, and the steps that set it up and give it the MAC address of `prevResult`. The returned
/// link has this address already.
///
/// # Errors
/// It is not on the host, or has another name there.
pub fn host_end(
    host: &mut Socket,
    call: &AddRequest<'_>,
    link: &Link,
) -> Result<(Link, Vec<Step>), CniError> {
    let missing = || {
        CniError::internal(format!(
            "interface {:?} has no other end on the host, start the container again",
            link.name
        ))
    };
    let mut end = veth::host_end(host, call.sandbox.netns()?, link)?.ok_or_else(missing)?;
    let reported = check::host_interface(check::prev_result(call)?, &end)?;
    let mut steps = Vec::new();
    if let Ok(mac) = reported.mac.parse::<Mac>()
        && mac != end.mac
    {
        steps
            .push(Step::new(format!("set the MAC address of {:?}", end.name), link::set_mac(end.index, mac)));
        end.mac = mac;
    }
    if !end.is_up() {
        steps.push(Step::new(format!("set {:?} up", end.name), link::set_flags(end.index, IFF_UP, IFF_UP)));
    }
    Ok((end, steps))
}
