//! CHECK compares the interface of the container with `prevResult`, and that it is the device. Repair changes what differs.

use std::path::Path;

use cni_common::plugin::{AddRequest, Verb};
use cni_common::spec::CniError;
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::sysfs::{BusDevice, SYS};
use ferrule_kit::{check, ipam, repair as kit, socket};

use crate::config::{Conf, Selector};
use crate::state::{self, State};
use crate::vf::Vf;
use crate::vf_conf::VfConf;

/// Compares the attachment with `prevResult` and the state file.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let file = state::file(call.config.name(), call.container_id, call.ifname);
    let state = State::find(&file)?;
    let is_userspace = match conf.selector()? {
        // The link of a device that is selected by its name is in the container.
        Selector::Bus { id, key } => match BusDevice::find(Path::new(SYS), id, *key) {
            Ok(device) => device.is_userspace(),
            Err(_) if state.as_ref().is_some_and(|state| state.has_name(id)) => false,
            Err(error) => return Err(error),
        },
        // Only the kubelet knows which device it is. ADD writes a state file of a link.
        Selector::Resource(resource) if state.is_none() && resource.has_skipped(call) => {
            return check::prev_result(call).map(drop);
        }
        Selector::Resource(_) => state.as_ref().is_none_or(|state| state.is_userspace),
        _ => false,
    };
    if is_userspace {
        ipam::call(call.env, call.config, Verb::Check)?;
        check::prev_result(call)?;
        return on_vf(&conf.vf, state.as_ref(), "", |vf, _| vf.check(&conf.vf));
    }
    let (link, _) = check::container(call, None, &conf.link, true)?;
    on_vf(&conf.vf, state.as_ref(), &link.parent, |vf, _| vf.check(&conf.vf))?;
    is_device(state.as_ref(), &link)
}

/// Sets the device up, and adds the addresses and routes that it lacks, and the settings of a virtual function.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let state = State::find(&state::file(call.config.name(), call.container_id, call.ifname))?;
    let set = |vf: &Vf, host: &mut Socket| vf.apply(host, &conf.vf);
    if state.as_ref().is_some_and(|state| state.is_userspace) {
        return on_vf(&conf.vf, state.as_ref(), "", set);
    }
    let mut inside = kit::find(call, None, &conf.link)?;
    is_device(state.as_ref(), &inside.link)?;
    on_vf(&conf.vf, state.as_ref(), &inside.link.parent, set)?;
    inside.container.dad = conf.dad;
    inside.repair()
}

/// Checks that the link is the device. The reference writes no state file, but the alias.
fn is_device(state: Option<&State>, link: &Link) -> Result<(), CniError> {
    let name = state.map(|state| &state.name);
    let is_it = name.map_or(!link.alias.is_empty(), |name| link.alias == *name);
    check::ensure(is_it, || {
        let device =
            name.map_or("a device of the host".to_owned(), |name| format!("device {name:?} of the host"));
        format!("interface {:?} of the container is not {device}: its alias is {:?}", link.name, link.alias)
    })
}

/// Does this with the virtual function, if the configuration has settings of one. ADD has noted its PCI address if it has changed any;
/// `parent` is that of the link.
fn on_vf(
    conf: &VfConf,
    state: Option<&State>,
    parent: &str,
    work: impl FnOnce(&Vf, &mut Socket) -> Result<(), CniError>,
) -> Result<(), CniError> {
    if conf.is_empty() {
        return Ok(());
    }
    let noted = state.map(|state| state.vf.pci_id.as_str()).filter(|id| !id.is_empty());
    let mut host = socket::route()?;
    work(&Vf::find(&mut host, noted.unwrap_or(parent))?, &mut host)
}
