//! Backup files of `tuning`.

use std::fs;

use cni_common::spec::CniError;
use ferrule_kit::state_file;
use ferrule_tuning::backup;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};

/// Lists the files in all folders.
pub(super) fn read(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    scene.tuning_dirs.iter().try_for_each(|folder| state_file::can_list(folder))?;
    let files = scene.tuning_dirs.iter().flat_map(|folder| backup::list(folder));
    let object = |file: backup::Listed| {
        let owner = Owner {
            network: file.network.clone(),
            ifname: Some(file.ifname.clone()),
            ..Owner::container(&file.container_id)
        };
        let maker = if file.network.is_some() { Maker::Ferrule } else { Maker::Reference };
        let name = format!("attributes of {}", file.ifname);
        let object = Object::new(Kind::Backup, name, file.path.display().to_string(), owner, maker);
        let since = fs::metadata(&file.path).and_then(|meta| meta.modified()).ok();
        Object { since, ..object }.removed_by(move |_, is_dead| match file.path.exists() && is_dead() {
            true => state_file::remove_listed(&file.path).map(|()| true),
            false => Ok(false),
        })
    };
    Ok(files.map(object).collect())
}
