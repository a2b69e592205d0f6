//! Repair: both ends of the pair, the host's routes, neighbours and masquerading, as ADD makes them.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{CniError, Context as _};
use ferrule_kit::address_wait::wait_for_groups;
use ferrule_kit::steps::UndoStack;
use ferrule_kit::{repair, socket, sysctl};
use ferrule_masquerade as masquerade;

use crate::add::{add_addresses, add_routes};
use crate::config::Conf;
use crate::neighbours::{self, End};
use crate::plan;

/// Makes again what CHECK refuses.
///
/// # Errors
/// The pair is gone, or the kernel's.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let mut inside = repair::find(call, Some(conf.kind), &conf.link)?;
    inside.plan.point_to_point = true;
    let mut host = socket::route()?;
    let (end, mut steps) = repair::host_end(&mut host, call, &inside.link)?;
    let present = host.addresses(end.index).context(|| format!("list the addresses of {:?}", end.name))?;
    let (ips, mut wanted) = (&inside.plan.ips, plan::gateways(&inside.plan.ips));
    wanted.extend(
        (plan::needs_link_local(ips) && !plan::has_link_local(&present)).then(|| plan::link_local(end.mac)),
    );
    steps.extend(add_addresses(&end, &wanted));
    steps.extend(add_routes(&end, &inside.plan));
    UndoStack::default().run(&mut host, steps)?;
    inside.repair()?;
    wait_for_groups(&mut host, end.index, &wanted);
    if neighbours::reason(&end, &inside.plan.ips).context(|| "read arp_ignore")?.is_some() {
        let container = End { socket: &mut inside.container.socket, link: &inside.link };
        neighbours::set(End { socket: &mut host, link: &end }, container, &inside.plan.ips)?;
    }
    let addresses = inside.plan.addresses();
    sysctl::ensure_forwarding(&mut host, &addresses)?;
    if let Some(wanted) = &conf.masquerade {
        masquerade::repair(&mut socket::netfilter()?, wanted, &Attachment::from(call), &addresses)?;
    }
    Ok(())
}
