//! CHECK: compares the container's interface with `prevResult`, and that it is the device.

use std::path::Path;

use cni_common::plugin::{AddRequest, Verb};
use cni_common::spec::CniError;
use ferrule_kit::{check, ipam};

use crate::config::{Conf, Selector};
use crate::record::{self, Record};
use crate::sysfs::{BusDevice, SYS};

/// Compares the attachment with `prevResult` and the record.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    if let Selector::Bus { id, key } = conf.selector()?
        && BusDevice::find(Path::new(SYS), id, *key)?.is_userspace()
    {
        ipam::call(call.env, call.config, Verb::Check)?;
        return check::prev_result(call).map(drop);
    }
    let (link, _) = check::container_of_any_kind(call, &conf.link)?;
    let file = record::file(call.config.name(), call.container_id, call.ifname);
    // The reference writes no record, but the alias.
    let name = file.read()?.and_then(|bytes| Record::parse(&bytes)).map(|record| record.name);
    let is_it = name.as_ref().map_or(!link.alias.is_empty(), |name| link.alias == *name);
    check::ensure(is_it, || {
        let device =
            name.map_or("a device of the host".to_owned(), |name| format!("device {name:?} of the host"));
        format!("interface {:?} of the container is not {device}: its alias is {:?}", link.name, link.alias)
    })
}
