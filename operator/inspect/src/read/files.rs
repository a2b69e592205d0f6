//! The files that plugins keep: reservations, leases, and state files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_dhcp::list::{self as dhcp, Listed};
use ferrule_dhcp::wire::Key;
use ferrule_flannel::state as flannel;
use ferrule_host_device::state::{FOLDER, State};
use ferrule_host_local::owner;
use ferrule_host_local::store::{Reserved, Store};
use ferrule_kit::state_file::{self, JSON, Seen, stem};
use ferrule_tuning::state as tuning;

use super::Scene;
use crate::model::{self, Kind, Maker, Object, Owner, Removal, Reservation, Shared, Sockets};

/// The reservations in the stores of all networks in all folders.
pub(super) fn reservations(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    for data_dir in &scene.data_dirs {
        state_file::can_list(data_dir)?;
        for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
            // No network's name starts with a dot; the folder `.ferrule` has the index.
            if let Ok(network) = entry.file_name().into_string()
                && !network.starts_with('.')
                && entry.path().is_dir()
            {
                let found = Store::new(data_dir.join(&network)).list()?.into_iter();
                objects.extend(found.map(|reserved| reservation(data_dir, &network, reserved)));
            }
        }
    }
    Ok(objects)
}

fn reservation(data_dir: &Path, network: &str, reserved: Reserved) -> Object {
    let (owner, maker) = match &reserved.owner {
        owner::Owner::Attachment { container_id, ifname } => {
            (Owner::container(container_id).with_ifname(ifname), Maker::Either)
        }
        owner::Owner::Container(container_id) => (Owner::container(container_id), Maker::Reference),
        owner::Owner::Empty | owner::Owner::Foreign => (Owner::default(), Maker::Either),
    };
    let maker = if reserved.is_marked { Maker::Ferrule } else { maker };
    let (ip, place) = (reserved.ip, reserved.path.display().to_string());
    let object = Object::new(Kind::Address, ip.to_string(), place, owner.on(network), maker);
    let object = Object { since: reserved.since, ..object };
    if object.owner.container.is_none() {
        // An administrator may keep the address free by it.
        return Object { facts: [("holder", "placeholder".to_owned())].into(), ..object };
    }
    let is_old = reserved.is_of_earlier_boot;
    let sign = is_old.then(|| model::State::Dead("reserved before the last boot".to_owned()));
    let (data_dir, network) = (data_dir.to_owned(), network.to_owned());
    let removal = Some(Removal::Reservation(Reservation { data_dir, network, reserved }));
    Object { sign, addresses: [ip].into(), removal, ..object }
}

/// The leases of all daemons. The reference's daemon keeps its leases in memory only.
pub(super) fn leases(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    for socket in &scene.dhcp_sockets {
        objects.extend(dhcp::list(socket).into_iter().map(|listed| lease(socket, listed, scene)));
    }
    Ok(objects)
}

fn lease(socket: &Path, lease: Listed, scene: &Scene) -> Object {
    let Key { network, container_id, ifname } = &lease.key;
    let owner = Owner::from(Attachment { network, container_id, ifname });
    let name = if lease.address.is_empty() { "no address yet" } else { &lease.address };
    let object =
        Object::new(Kind::Lease, name.to_owned(), lease.path.display().to_string(), owner, Maker::Ferrule);
    let removal = Shared::Lease((socket.to_owned(), lease.key.clone()));
    Object {
        since: modified(&lease.path),
        addresses: lease.address.parse().into_iter().collect(),
        facts: [("server", lease.server.clone())].into(),
        ..object
    }
    .in_namespace(&lease.netns, &scene.sight)
    .removed_with(removal)
}

/// The devices that `host-device` has moved. The reference keeps only an alias, in the container.
pub(super) fn devices(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    state_file::can_list(Path::new(FOLDER))?;
    let object = |state: State| {
        let State { network, container_id, ifname, .. } = &state;
        let owner = Owner::from(Attachment { network, container_id, ifname });
        let place = format!("{FOLDER}/{}.json", stem(container_id, ifname));
        let object = Object::new(Kind::Device, state.name.clone(), place, owner, Maker::Ferrule);
        let kind = if state.kind.is_empty() { "physical" } else { &state.kind };
        let mtu = state.mtu.to_string();
        let facts = [("kind", kind), ("mac", &state.mac), ("mtu", &mtu), ("pod", &state.pod)];
        let facts = facts.into_iter().chain([("resource", &*state.resource), ("id", &state.device_id)]);
        let known = facts.filter(|(_, value)| !value.is_empty());
        let facts = known.map(|(key, value)| (key, value.to_owned())).collect();
        Object { facts, ..object }
            .in_namespace(&state.netns, &scene.sight)
            .removed_with(Shared::Device(Box::new(state)))
    };
    Ok(State::list().map(object).collect())
}

/// The state files of `tuning` in all folders.
pub(super) fn of_tuning(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    scene.tuning_dirs.iter().try_for_each(|folder| state_file::can_list(folder))?;
    let object = |file: tuning::Listed| {
        let maker = if file.network.is_some() { Maker::Ferrule } else { Maker::Reference };
        let owner = Owner { network: file.network, ..Owner::container(&file.container_id) };
        let name = format!("attributes of {}", file.ifname);
        let since = modified(&file.path);
        Object {
            since,
            ..state_file(Kind::StateFile, name, file.path, owner.with_ifname(&file.ifname), maker)
        }
    };
    Ok(scene.tuning_dirs.iter().flat_map(|folder| tuning::list(folder)).map(object).collect())
}

/// The state files of `flannel` in all folders: ours and the reference's are alike. Those of the reference name no interface.
pub(super) fn of_flannel(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    scene.flannel_dirs.iter().try_for_each(|folder| state_file::can_list(folder))?;
    let object = |file: flannel::Listed| {
        let on = Owner::container(&file.container_id).on(&file.network);
        let known = scene.owners_of(&file.container_id).find(|owner| owner.network == on.network);
        let (owner, maker) = match &file.ifname {
            Some(ifname) => (on.with_ifname(ifname), Maker::Ferrule),
            None => (known.cloned().unwrap_or(on), Maker::Reference),
        };
        let (since, name) = (modified(&file.path), format!("configuration of {}", file.delegate));
        Object { since, ..state_file(Kind::FlannelState, name, file.path, owner, maker) }
    };
    Ok(scene.flannel_dirs.iter().flat_map(|folder| flannel::list(folder)).map(object).collect())
}

/// The state files of `tuning` and `host-device` that a killed ADD has not completed.
pub(super) fn pending(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let tuning = scene.tuning_dirs.iter().map(|folder| (folder.as_path(), '_'));
    let networks: BTreeSet<&str> = scene.owners.iter().filter_map(|owner| owner.network.as_deref()).collect();
    let mut objects = Vec::new();
    for (folder, separator) in tuning.chain([(Path::new(FOLDER), ':')]) {
        for (path, stem, network) in state_file::list_pending(folder, JSON, networks.iter().copied()) {
            // A long container ID of host-device is hashed: then the file stays.
            let Some((container, ifname)) = stem.rsplit_once(separator) else { continue };
            let owner = Owner::container(container).on(network).with_ifname(ifname);
            objects.push(state_file(Kind::PendingFile, format!("for {ifname}"), path, owner, Maker::Ferrule));
        }
    }
    Ok(objects)
}

pub(super) fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

pub(super) fn state_file(kind: Kind, name: String, path: PathBuf, owner: Owner, maker: Maker) -> Object {
    let object = Object::new(kind, name, path.display().to_string(), owner, maker);
    match Seen::now(&path) {
        Some(seen) => object.removed_with(Shared::File(seen)),
        None => object,
    }
}
