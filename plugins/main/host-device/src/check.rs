//! CHECK: compares the container's interface with `prevResult`, and that it is the device.

use std::path::Path;

use cni_common::plugin::{AddRequest, Verb};
use cni_common::spec::CniError;
use ferrule_kit::sysfs::{BusDevice, SYS};
use ferrule_kit::{check, ipam};

use crate::config::{Conf, Selector};
use crate::state::{self, State};

/// Compares the attachment with `prevResult` and the state file.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let file = state::file(call.config.name(), call.container_id, call.ifname);
    let state = State::find(&file)?;
    let is_userspace = match conf.selector()? {
        // The link of a device that is selected by its name is in the container.
        Selector::Bus { id, key } => match BusDevice::find(Path::new(SYS), id, *key) {
            Ok(device) => device.is_userspace(),
            Err(_) if state.as_ref().is_some_and(|state| state.name == *id) => false,
            Err(error) => return Err(error),
        },
        // Only the kubelet knows which device it is. ADD writes a state file of a link.
        Selector::Resource(resource) if state.is_none() && resource.has_skipped(call) => {
            return check::prev_result(call).map(drop);
        }
        Selector::Resource(_) => state.is_none(),
        _ => false,
    };
    if is_userspace {
        ipam::call(call.env, call.config, Verb::Check)?;
        return check::prev_result(call).map(drop);
    }
    let (link, _) = check::container(call, None, &conf.link, true)?;
    // The reference writes no state file, but the alias.
    let name = state.map(|state| state.name);
    let is_it = name.as_ref().map_or(!link.alias.is_empty(), |name| link.alias == *name);
    check::ensure(is_it, || {
        let device =
            name.map_or("a device of the host".to_owned(), |name| format!("device {name:?} of the host"));
        format!("interface {:?} of the container is not {device}: its alias is {:?}", link.name, link.alias)
    })
}
