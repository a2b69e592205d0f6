//! Repair: sets the sysctls, offload features and link attributes that CHECK refuses. The state file keeps the values from
//! before ADD, and gets the kernel's form of the sysctls. The host's end of a veth stays as it is, since CHECK does not compare it.

use cni_common::plugin::AddRequest;
use cni_common::spec::CniError;
use ferrule_kit::container::Container;
use ferrule_kit::steps::UndoStack;

use crate::add::keep;
use crate::check::{interface, kept};
use crate::config::Conf;
use crate::offload::Offload;
use crate::{allowlist, sysctl};

/// Sets what has another value.
///
/// # Errors
/// The allowlist forbids a sysctl, or the kernel refuses a value.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, &call.env.args, call.ifname)?;
    let netns = call.sandbox.netns()?;
    let sysctls = sysctl::differing(netns, &conf.sysctls, &kept(call, &conf)?)?;
    allowlist::check(&sysctls)?;
    let written = sysctl::write(netns, &sysctls)?;
    if !written.kept.is_empty() {
        keep(call, &conf, written.kept)?;
    }
    if conf.keeps_link() {
        return Ok(());
    }
    let mut container = Container::open(netns, call.ifname)?;
    let link = interface(&mut container, call.ifname)?;
    if let Some(mut offload) = Offload::plan(netns, &link, &conf.offload)?
        && offload.check().is_err()
    {
        offload.apply()?;
    }
    UndoStack::default().run(&mut container.socket, conf.link.differing(&link).steps(&link))?;
    Ok(())
}
