//! State files of `tuning` and `host-device` that a killed ADD has not completed.

use std::path::Path;

use cni_common::spec::CniError;
use ferrule_host_device::record::FOLDER;
use ferrule_kit::state_file;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};

/// Lists the files.
pub(super) fn read(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let folders =
        scene.tuning_dirs.iter().map(|folder| (folder.as_path(), '_')).chain([(Path::new(FOLDER), ':')]);
    let mut objects = Vec::new();
    for (folder, separator) in folders {
        for (path, stem, network) in state_file::drafts(folder, scene.networks.iter().map(String::as_str)) {
            // A long container ID of host-device is hashed: then the file stays.
            let Some((container, ifname)) = stem.rsplit_once(separator) else { continue };
            let owner = Owner { ifname: Some(ifname.to_owned()), ..Owner::container(container).on(network) };
            let place = path.display().to_string();
            let object = Object::new(Kind::Draft, format!("for {ifname}"), place, owner, Maker::Ferrule);
            objects.push(object.removed_by(move |_, is_dead| match path.exists() && is_dead() {
                true => state_file::remove_listed(&path).map(|()| true),
                false => Ok(false),
            }));
        }
    }
    Ok(objects)
}
