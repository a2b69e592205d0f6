//! Repair: both ends of the pair, the host's routes and masquerading, as ADD makes them.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::CniError;
use ferrule_kit::steps::UndoStack;
use ferrule_kit::{repair, socket, sysctl};
use ferrule_masquerade as masquerade;

use crate::add::connect_host;
use crate::config::Conf;

/// Makes again what CHECK refuses.
///
/// # Errors
/// The pair is gone, or the kernel's.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let mut inside = repair::find(call, Some(conf.kind), &conf.link)?;
    inside.plan.point_to_point = true;
    let mut host = socket::route()?;
    let (end, steps) = repair::host_end(&mut host, call, &inside.link)?;
    UndoStack::default().run(&mut host, steps)?;
    inside.repair()?;
    connect_host(&mut host, &end, &inside.plan)?;
    let addresses = inside.plan.addresses();
    sysctl::ensure_forwarding(&mut host, &addresses)?;
    if let Some(wanted) = &conf.masquerade {
        masquerade::repair(&mut socket::netfilter()?, wanted, &Attachment::from(call), &addresses)?;
    }
    Ok(())
}
