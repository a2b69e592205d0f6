//! CHECK: compares sysctls, link attributes and offload features with the configuration.

use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::CniError;
use ferrule_kernel::netlink::Link;
use ferrule_kit::check;
use ferrule_kit::container::Container;

use crate::config::Conf;
use crate::offload::Offload;
use crate::state::State;
use crate::sysctl::{self, Kept};

/// Compares the configured values. The host's end of a veth may have another MTU: the reference does not change it.
///
/// # Errors
/// The reference's text with the first difference.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, &call.env.args, call.ifname)?;
    check::prev_result(call)?;
    let netns = call.sandbox.netns()?;
    sysctl::check(netns, &conf.sysctls, &kept(call, &conf)?)?;
    if conf.keeps_link() {
        return Ok(());
    }
    let link = interface(&mut Container::open(netns, call.ifname)?, call.ifname)?;
    conf.link.check(&link)?;
    Offload::plan(netns, &link, &conf.offload)?.map_or(Ok(()), |offload| offload.check())
}

/// How the kernel showed sysctls at ADD. Without sysctls does not look for the file.
pub fn kept(call: &AddRequest<'_>, conf: &Conf) -> Result<Kept, CniError> {
    if conf.sysctls.is_empty() {
        return Ok(Kept::default());
    }
    let file = State::new(&conf.data_dir, &Attachment::from(call));
    Ok(file.read()?.map(|former| former.sysctl).unwrap_or_default())
}

/// The container's link.
pub fn interface(container: &mut Container<'_>, ifname: &str) -> Result<Link, CniError> {
    let missing = || CniError::internal(format!("Cannot find container link {ifname}"));
    container.interface()?.ok_or_else(missing)
}
