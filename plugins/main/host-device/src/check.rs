//! CHECK: compares the container's interface with `prevResult`, and that it is the device.

use std::path::Path;

use cni_common::plugin::{AddRequest, Verb};
use cni_common::spec::CniError;
use ferrule_kit::sysfs::{BusDevice, SYS};
use ferrule_kit::{check, ipam};

use crate::config::{Conf, Selector};
use crate::record::{self, Record};

/// Compares the attachment with `prevResult` and the record.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let file = record::file(call.config.name(), call.container_id, call.ifname);
    let record = file.read()?.and_then(|bytes| Record::parse(&bytes));
    let is_userspace = match conf.selector()? {
        // The link of a device that is selected by its name is in the container.
        Selector::Bus { id, key } => match BusDevice::find(Path::new(SYS), id, *key) {
            Ok(device) => device.is_userspace(),
            Err(_) if record.as_ref().is_some_and(|record| record.name == *id) => false,
            Err(error) => return Err(error),
        },
        // Only the kubelet knows which device it is. ADD writes a record of a link.
        Selector::Resource(resource) if record.is_none() && resource.has_skipped(call) => {
            return check::prev_result(call).map(drop);
        }
        Selector::Resource(_) => record.is_none(),
        _ => false,
    };
    if is_userspace {
        ipam::call(call.env, call.config, Verb::Check)?;
        return check::prev_result(call).map(drop);
    }
    let (link, _) = check::container_of_any_kind(call, &conf.link)?;
    // The reference writes no record, but the alias.
    let name = record.map(|record| record.name);
    let is_it = name.as_ref().map_or(!link.alias.is_empty(), |name| link.alias == *name);
    check::ensure(is_it, || {
        let device =
            name.map_or("a device of the host".to_owned(), |name| format!("device {name:?} of the host"));
        format!("interface {:?} of the container is not {device}: its alias is {:?}", link.name, link.alias)
    })
}
