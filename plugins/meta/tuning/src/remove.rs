//! DEL and GC: restore the link's former attributes, and remove the state file.

use cni_common::netns::{ContainerNetns, Netns};
use cni_common::plugin::{Attachment, DelRequest, GcRequest};
use cni_common::remark;
use cni_common::spec::{CniError, Code, Failures};
use ferrule_kernel::netlink::Link;
use ferrule_kit::container::Container;
use ferrule_kit::socket;
use ferrule_kit::steps::run_all;

use crate::add::host_end;
use crate::attributes::mtu_step;
use crate::config::data_dir_of;
use crate::offload;
use crate::state::{self, Former, State};

/// Restores the link, and removes the file. Uses only `dataDir` of the configuration. Sysctls stay, as in the
/// reference.
///
/// A value that cannot be restored goes to stderr and does not fail DEL: the link is about to be deleted, and a
/// runtime would repeat a failed DEL forever. If DEL does not get as far as to send the values, the file stays for the next DEL:
/// a device of the node outlives the container.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let file = State::new(&data_dir_of(call.config), &Attachment::from(call));
    let netns = match call.netns {
        ContainerNetns::Open(netns) => netns,
        ContainerNetns::Gone => return file.remove(),
        ContainerNetns::Unknown(_) => return Ok(()),
    };
    if let Some(former) = file.read()? {
        let mut container = Container::open(netns, call.ifname)?;
        if let Some(link) = container.interface()? {
            restore(netns, container, &link, &former)?;
        }
    }
    file.remove()
}

/// Fails if it does not get as far as to send the values.
fn restore(
    netns: &Netns,
    mut container: Container<'_>,
    link: &Link,
    former: &Former,
) -> Result<(), CniError> {
    let ethtool = (!former.offload.is_empty()).then(|| socket::ethtool_in(netns)).transpose()?;
    let host = former.host_mtu.map_or(Ok(None), |_| host_end(netns, link))?;
    let mut failures = Failures::default();
    failures.keep(run_all(&mut container.socket, former.link.steps(link)));
    if let Some(mut ethtool) = ethtool {
        failures.keep(offload::restore(&mut ethtool, link, &former.offload));
    }
    if let (Some((mut socket, end)), Some(mtu)) = (host, former.host_mtu) {
        failures.keep(run_all(&mut socket, vec![mtu_step(&end, mtu)]));
    }
    match failures.into_result() {
        Err(error) if error.code != Code::TryAgainLater => {
            remark!("tuning: failed to restore {:?}: {error}", link.name);
            Ok(())
        }
        outcome => outcome,
    }
}

/// Removes the state files of attachments that are not valid. Their links went with their namespaces.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    state::collect(&data_dir_of(call.config), call.config.name(), call.valid)
}
