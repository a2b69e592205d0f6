//! `ferrule shape`: new rates for a running container. First the alias of the host's end gets them, so that a later repair completes
//! what a killed call has begun.

use cni_common::netns::Netns;
use cni_common::plugin::Attachment;
use cni_common::spec::{AddResult, CniError, Context, NetConf};
use ferrule_kernel::netlink::{Link, ifb};

use crate::check::Found;
use crate::config::Conf;
use crate::del::remove;
use crate::plan;
use crate::rates::{Rate, Rates};
use crate::state::Host;

/// The new rates; `None` leaves that direction as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change {
    /// To the container.
    pub ingress: Option<Rate>,
    /// From the container.
    pub egress: Option<Rate>,
}

/// Changes the rates of an attachment. `result` is that of the whole chain. Returns the limits that the container has now.
///
/// # Errors
/// Another program has an alias at the host's end, and those of repair.
pub fn change(
    config: &NetConf,
    result: &AddResult,
    owner: Attachment<'_>,
    netns: &Netns,
    change: Change,
) -> Result<Conf, CniError> {
    let configured = Conf::read(config)?;
    let mut found = Found::read(configured, result, owner, netns)?;
    let rates = found.change_alias(change)?;
    found.remove_ended(rates.apply(configured))?;
    found = Found::read(configured, result, owner, netns)?;
    found.repair()?;
    Ok(found.conf)
}

impl Found<'_> {
    fn change_alias(&mut self, change: Change) -> Result<Rates, CniError> {
        let Link { index, name, alias, .. } = &self.host.link;
        let present = if alias.is_empty() { Some(Rates::default()) } else { Rates::parse(alias) };
        let foreign = || CniError::internal(format!("{name:?} has the alias of another program: {alias:?}"));
        let present = present.ok_or_else(foreign)?;
        let rates = Rates {
            ingress: change.ingress.map_or(present.ingress, Rate::bits),
            egress: change.egress.map_or(present.egress, Rate::bits),
        };
        let set = self.socket.request(ifb::set_alias(*index, &rates.alias()));
        set.context(|| format!("set the alias of {name:?}"))?;
        Ok(rates)
    }

    /// Removes the objects of a direction that has no limit any more.
    fn remove_ended(&mut self, conf: Conf) -> Result<(), CniError> {
        let has_ended = |before: bool, after: bool| before && !after;
        let ingress = has_ended(self.conf.ingress.is_some(), conf.ingress.is_some());
        let egress = has_ended(self.conf.egress.is_some(), conf.egress.is_some());
        let filters =
            self.host.ingress_qdisc.iter().flat_map(|qdisc| qdisc.filters.clone()).collect::<Vec<_>>();
        let ifb = plan::existing(&self.owner, &self.ifbs, &filters).filter(|_| egress);
        let ended = Host {
            link: Link { alias: String::new(), ..self.host.link.clone() },
            root: self.host.root.clone().filter(|_| ingress),
            ingress_qdisc: self.host.ingress_qdisc.clone().filter(|_| egress),
        };
        remove(&mut self.socket, &self.owner, Some(&ended), &ifb.into_iter().collect::<Vec<_>>())
    }
}
