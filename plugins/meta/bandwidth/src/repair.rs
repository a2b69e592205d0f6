//! Repair: the steps of ADD for the directions that CHECK refuses. A qdisc that CHECK accepts stays as it is, and packets in it.

use cni_common::plugin::AddRequest;
use cni_common::spec::{CniError, Interface};
use ferrule_kernel::netlink::{Link, ifb};
use ferrule_kernel::retry::retry;
use ferrule_kit::steps::Failed;

use crate::add::{ATTEMPTS, execute};
use crate::check::Found;
use crate::del::redirects_to;
use crate::owner::{self, Whose};
use crate::plan::{Egress, Plan};
use crate::{config::Conf, gc};

/// Makes again what CHECK refuses.
///
/// # Errors
/// The container has no veth to this node any more, or another program has the root qdisc or the IFB's name.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let attempt = || {
        let mut found = Found::of(call)?;
        if let Some(useless) = found.useless_ifb().cloned()
            && gc::remove(&mut found.socket, &[useless], &mut || vec![true])?.contains(&true)
        {
            found = Found::of(call)?;
        }
        found.repair()
    };
    retry(ATTEMPTS, |failed: &Failed| failed.is_race, attempt).map_err(|failed| failed.error)
}

impl Found<'_> {
    /// ADD of the directions that CHECK refuses.
    pub fn repair(&mut self) -> Result<(), Failed> {
        let (ingress, egress) = (self.check_ingress(), self.check_egress());
        let damaged = Conf {
            ingress: self.conf.ingress.filter(|_| ingress.is_err()),
            egress: self.conf.egress.filter(|_| egress.is_err()),
            ..self.conf
        };
        let mut plan = Plan::new(&damaged, &self.owner, &self.container, &self.host, &self.ifbs)?;
        if let Some(egress) = &mut plan.egress {
            if self.has_reported_ifb {
                self.name(egress, self.reported_ifb()?)?;
            }
            let present = self.ifbs().find(|ifb| Some(ifb.index) == egress.existing).cloned();
            if present.is_some_and(|ifb| self.check_ifb_qdisc(&ifb).is_ok()) {
                egress.tbf = None;
            }
        }
        execute(&mut self.socket, &plan).map(drop)
    }

    fn ifbs(&self) -> impl Iterator<Item = &Link> {
        self.ifbs.shared.iter().chain(&self.ifbs.own)
    }

    /// An IFB with the name in `prevResult` that no filter uses: one that a killed call has made, or one with another hardware
    /// address, which the kernel cannot change.
    fn useless_ifb(&self) -> Option<&Link> {
        let reported = self.reported_ifb().ok().filter(|_| self.has_reported_ifb)?;
        let is_useless = |link: &&Link| {
            let is_other = || !reported.mac.eq_ignore_ascii_case(&link.mac.to_string());
            let is_damaged = match owner::whose(&self.owner, link) {
                Whose::Own(_) => is_other(),
                Whose::Nobodys => true,
                Whose::Other => false,
            };
            link.name == reported.name
                && link.kind == ifb::KIND
                && is_damaged
                && !redirects_to(&self.host, link.index)
        };
        self.ifbs().find(is_useless)
    }

    /// Gives a new IFB the name and the hardware address in `prevResult`.
    fn name(&self, egress: &mut Egress, reported: &Interface) -> Result<(), CniError> {
        egress.mac = reported.mac.parse().ok();
        let taken = self.ifbs().find(|link| link.name == reported.name);
        match taken.filter(|link| Some(link.index) != egress.existing) {
            Some(link) => {
                let Link { name, kind, alias, .. } = link;
                Err(CniError::internal(format!(
                    "the name {name:?} belongs to another link: {kind}, alias {alias:?}"
                )))
            }
            None => {
                egress.name.clone_from(&reported.name);
                Ok(())
            }
        }
    }
}
