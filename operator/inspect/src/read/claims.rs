//! DRA claims: the devices that pods have by them, and the driver's records.

use std::borrow::Borrow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Code, NetConf};
use ferrule_claims::config::Conf;
use ferrule_claims::{NAME, pod};
use ferrule_kit::state_file::{self, JSON};
use ferrule_kubelet::claims::{Attached, Folder, KubeletState, Locked, Record, Step};

use super::Scene;
use super::files::{modified, state_file as object_of_file};
use crate::cache::Cache;
use crate::model::{Kind, Maker, Object, Owner, Recorded, Shared, Sockets, State};
use crate::scene::{Names, Process, processes};

/// Where the claims of the node are: the default places, and those that cached configurations name.
fn places(cache: &Cache) -> Vec<Conf> {
    let mut found: Vec<Conf> = Vec::new();
    for entry in &cache.entries {
        let plugins = entry.plugins().into_iter().filter(|plugin| plugin["type"] == NAME);
        let configs = plugins.filter_map(|plugin| NetConf::parse(entry.request(plugin).into_bytes()).ok());
        found.extend(configs.filter_map(|config| Conf::read(&config).ok()));
    }
    found.push(Conf::default());
    found.dedup();
    found
}

/// The devices in the attached files: one object for each.
pub(super) fn attached(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = BTreeMap::new();
    for Conf { attached, .. } in places(&scene.cache) {
        state_file::can_list(&attached)?;
        for (path, bytes) in state_file::list(&attached, JSON) {
            let Ok(Some(file)) = Attached::parse(&bytes) else { continue };
            for step in &file.steps {
                objects.insert((path.clone(), step.if_name.clone()), of_step(&path, &file, step, scene));
            }
        }
    }
    Ok(objects.into_values().collect())
}

fn of_step(path: &Path, file: &Attached, step: &Step, scene: &Scene) -> Object {
    let Attached { container_id, pod, .. } = file;
    // As in the files of the plugins that ADD has called.
    let network =
        step.plugins.first().and_then(|plugin| plugin.get("name")?.as_str()).unwrap_or(&file.network);
    let owner = Owner::from(Attachment { network, container_id, ifname: &step.if_name });
    let claim = format!("{}/{}", step.claim.namespace, step.claim.name);
    let ips = step.outcome.iter().flat_map(|outcome| &outcome.ips);
    let facts = [
        ("claim", claim),
        ("id", step.device.clone()),
        ("pod", format!("{}/{}", step.claim.namespace, pod.name)),
        ("driver", file.driver.clone()),
        ("pool", step.pool.clone()),
        ("request", step.request.clone()),
    ];
    Object {
        since: modified(path),
        addresses: ips.filter_map(|ip| ip.split('/').next()?.parse().ok()).collect(),
        facts: facts.into(),
        ..object_of_file(Kind::Claim, step.link.clone(), path.to_owned(), owner, Maker::Ferrule)
    }
    .in_namespace(&file.netns, &scene.sight)
}

/// The records. One is a leak if the kubelet's state does not name the claim, and the pod has no sandbox.
pub(super) fn records(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let (mut objects, found, mut kubelet) = (BTreeMap::new(), OnceCell::new(), Kubelet::default());
    for conf in places(&scene.cache) {
        let failed = |error: std::io::Error| CniError::new(Code::Io, error.to_string());
        for pod in conf.records.pods().map_err(failed)? {
            for claim in conf.records.claims_of(&pod).map_err(failed)? {
                // A file is a record only by its content. ferrule-nic names the others.
                let Ok(Some(record)) = conf.records.read(&pod, &claim) else { continue };
                let path = conf.records.path().join(&pod).join(format!("{claim}{JSON}"));
                objects.entry(path).or_insert_with_key(|path| {
                    let found = found.get_or_init(|| processes(&scene.sight, &Names::default()));
                    of_record(&conf, path, record, (&scene.cache, found), &mut kubelet)
                });
            }
        }
    }
    Ok(objects.into_values().collect())
}

fn of_record(
    conf: &Conf,
    path: &Path,
    Record { claim, pod, devices, driver, .. }: Record,
    (cache, processes): (&Cache, &Result<Vec<Process>, String>),
    kubelet: &mut Kubelet,
) -> Object {
    let name = format!("{}/{}", claim.namespace, claim.name);
    let devices: Vec<&str> = devices.iter().map(|one| one.link.name.as_str()).collect();
    let facts = [
        ("pod", format!("{}/{}", claim.namespace, pod.name)),
        ("uid", pod.uid.clone()),
        ("devices", devices.join(" ")),
    ];
    let object =
        Object::new(Kind::ClaimRecord, name, path.display().to_string(), Owner::default(), Maker::Ferrule);
    let recorded = Recorded { conf: Conf { driver, ..conf.clone() }, pod: pod.uid, claim: claim.uid };
    let sign = alive_by_sandbox(&recorded.pod, cache, processes).unwrap_or_else(|| kubelet.state(&recorded));
    let removal = Shared::ClaimRecord(Box::new(recorded));
    Object { since: modified(path), facts: facts.into(), sign: Some(sign), ..object }.removed_with(removal)
}

/// What the kubelet has written, by file and driver. Each file is read once.
#[derive(Default)]
struct Kubelet(BTreeMap<(PathBuf, String), Result<Option<KubeletState>, CniError>>);

impl Kubelet {
    /// What it says of a claim of the pod.
    fn state(&mut self, Recorded { conf, pod, claim }: &Recorded) -> State {
        let path = conf.kubelet_state();
        let read = || pod::kubelet_state(conf);
        match self.0.entry((path.clone(), conf.driver.clone())).or_insert_with(read) {
            Err(error) => State::Unknown(error.msg.clone()),
            Ok(None) => State::Unknown(format!("there is no {}", path.display())),
            Ok(Some(state)) if state.of_pod(pod).any(|one| one.uid == *claim) => {
                State::Alive(format!("the kubelet's {} names the claim", path.display()))
            }
            Ok(Some(_)) => State::Dead(format!("the kubelet's {} does not name the claim", path.display())),
        }
    }
}

/// Removes the records whom `are_dead` names by one answer for each, and whose claims the kubelet does not name: both are asked under the
/// locks of the folders. Returns for each whether it was there and is removed.
///
/// # Errors
/// Code 5 if a folder cannot be locked.
pub(crate) fn remove(
    records: &[impl Borrow<Recorded>],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<Result<bool, CniError>>, CniError> {
    let failed = |error| CniError::new(Code::Io, format!("remove the record: {error}"));
    let records: Vec<&Recorded> = records.iter().map(Borrow::borrow).collect();
    let folders: BTreeMap<&Path, &Folder> =
        records.iter().map(|one| (one.conf.records.path(), &one.conf.records)).collect();
    let locks: Result<BTreeMap<&Path, Locked<'_>>, CniError> =
        folders.into_iter().map(|(path, folder)| Ok((path, folder.lock().map_err(failed)?))).collect();
    let (locks, dead, mut kubelet) = (locks?, are_dead(), Kubelet::default());
    let outcome = |(recorded, is_dead): (&Recorded, bool)| match locks.get(recorded.conf.records.path()) {
        Some(folder) if is_dead && matches!(kubelet.state(recorded), State::Dead(_)) => {
            folder.remove(&recorded.pod, &recorded.claim).map_err(failed)
        }
        _ => Ok(false),
    };
    Ok(records.into_iter().zip(dead).map(outcome).collect())
}

/// A cached result, an attached file or a process that names the pod.
fn alive_by_sandbox(pod: &str, cache: &Cache, processes: &Result<Vec<Process>, String>) -> Option<State> {
    let is_of_pod = |(key, value): &(String, String)| key == "K8S_POD_UID" && value == pod;
    if let Some(entry) = cache.entries.iter().find(|entry| entry.sent.cni_args.iter().any(is_of_pod)) {
        return Some(State::Alive(format!("{} names the pod", entry.file.display())));
    }
    // In the name of a control group of systemd, dashes are underscores.
    let names = [pod.to_owned(), pod.replace('-', "_")];
    match processes {
        Err(why) => Some(State::Unknown(why.clone())),
        Ok(found) => {
            let is_of_pod = |one: &&Process| names.iter().any(|name| one.cgroup.contains(name));
            if let Some(Process { pid, name, .. }) = found.iter().find(is_of_pod) {
                return Some(State::Alive(format!("process {pid} ({name}) is in the pod")));
            }
            let unread = found.iter().filter(|one| one.cgroup.is_empty());
            unread.filter_map(|one| one.unjudged.clone()).next().map(State::Unknown)
        }
    }
}
