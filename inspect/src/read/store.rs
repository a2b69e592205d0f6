//! host-local's reservations.

use std::fs;

use cni_common::spec::CniError;
use ferrule_host_local::owner::Holder;
use ferrule_host_local::survey;
use ferrule_kit::state_file;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};

/// Reads the stores of all networks in all folders.
pub(super) fn read(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    for data_dir in &scene.data_dirs {
        state_file::can_list(data_dir)?;
        for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
            // No network's name starts with a dot; the folder `.ferrule` has the index.
            let Ok(network) = entry.file_name().into_string() else { continue };
            if network.starts_with('.') || !entry.path().is_dir() {
                continue;
            }
            for reserved in survey::list(data_dir, &network)? {
                let owner = match &reserved.holder {
                    Holder::Attachment { container_id, ifname } => {
                        Owner { ifname: Some(ifname.clone()), ..Owner::container(container_id) }
                    }
                    Holder::Container(container_id) => Owner::container(container_id),
                    Holder::Empty | Holder::Foreign => Owner::default(),
                };
                let is_placeholder = owner.container.is_none();
                let maker = match &reserved.holder {
                    _ if reserved.is_marked => Maker::Ferrule,
                    Holder::Container(_) => Maker::Reference,
                    _ => Maker::Either,
                };
                let place = reserved.path.display().to_string();
                let object =
                    Object::new(Kind::Address, reserved.ip.to_string(), place, owner.on(&network), maker);
                let old = reserved.is_of_earlier_boot && !is_placeholder;
                let object = Object {
                    since: reserved.since,
                    addresses: vec![reserved.ip],
                    dead: old.then(|| "reserved before the last boot".to_owned()),
                    ..object
                };
                if is_placeholder {
                    // An administrator may keep the address free by it.
                    let facts = vec![("holder", "placeholder".to_owned())];
                    objects.push(Object { addresses: Vec::new(), facts, ..object });
                    continue;
                }
                let (data_dir, network) = (data_dir.clone(), network.clone());
                objects.push(object.removed_by(move |_, is_dead| {
                    survey::release(&data_dir, &network, reserved.ip, &reserved.holder, is_dead)
                }));
            }
        }
    }
    Ok(objects)
}
