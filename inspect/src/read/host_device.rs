//! Devices that `host-device` has moved, by their records. The reference keeps only an alias, in the container.

use std::path::Path;

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_host_device::record::{FOLDER, Record, stem};
use ferrule_host_device::remove;
use ferrule_kit::state_file;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};

/// Lists the records.
pub(super) fn read(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    state_file::can_list(Path::new(FOLDER))?;
    let object = |record: Record| {
        let Record { network, container_id, ifname, .. } = &record;
        let owner = Owner::from(Attachment { network, container_id, ifname });
        let place = format!("{FOLDER}/{}.json", stem(container_id, ifname));
        let object = Object::new(Kind::Device, record.name.clone(), place, owner, Maker::Ferrule);
        let kind = if record.kind.is_empty() { "physical" } else { &record.kind };
        let mut facts = vec![("kind", kind.to_owned()), ("mac", record.mac.clone())];
        facts.push(("mtu", record.mtu.to_string()));
        let of_resource = [("resource", &record.resource), ("id", &record.device_id), ("pod", &record.pod)];
        let known = of_resource.into_iter().filter(|(_, value)| !value.is_empty());
        facts.extend(known.map(|(key, value)| (key, value.clone())));
        let sandbox = scene.sight.sandbox(&record.netns);
        Object { facts, ..object }
            .in_namespace(&record.netns, &sandbox)
            .removed_by(move |_, is_dead| remove::give_back_if(&record, is_dead))
    };
    Ok(Record::all().map(object).collect())
}
