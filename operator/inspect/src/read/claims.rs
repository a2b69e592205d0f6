//! DRA claims: the devices that pods have by them, and the driver's records.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Code, NetConf};
use ferrule_claims::config::Conf;
use ferrule_claims::{NAME, pod};
use ferrule_kit::state_file::{self, JSON};
use ferrule_kubelet::claims::{Attached, Record, Step};

use super::Scene;
use super::files::{modified, state_file as object_of_file};
use crate::cache::Cache;
use crate::model::{Kind, Maker, Object, Owner, Sockets, State};
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
    let (mut objects, found) = (BTreeMap::new(), OnceCell::new());
    for conf in places(&scene.cache) {
        let failed = |error: std::io::Error| CniError::new(Code::Io, error.to_string());
        for pod in conf.records.pods().map_err(failed)? {
            for claim in conf.records.claims_of(&pod).map_err(failed)? {
                let path = conf.records.path().join(&pod).join(format!("{claim}{JSON}"));
                objects.entry(path).or_insert_with_key(|path| {
                    let found = found.get_or_init(|| processes(&scene.sight, &Names::default()));
                    of_record(&conf, path, (&pod, &claim), (&scene.cache, found))
                });
            }
        }
    }
    Ok(objects.into_values().collect())
}

fn of_record(
    conf: &Conf,
    path: &Path,
    (pod, claim): (&str, &str),
    (cache, processes): (&Cache, &Result<Vec<Process>, String>),
) -> Object {
    let read = conf.records.read(pod, claim).ok().flatten();
    let name = read.as_ref().map_or_else(
        || claim.to_owned(),
        |Record { claim, .. }| format!("{}/{}", claim.namespace, claim.name),
    );
    let of_pod = read.as_ref().map(|record| format!("{}/{}", record.claim.namespace, record.pod.name));
    let devices = read
        .as_ref()
        .map(|record| record.devices.iter().map(|one| one.link.name.as_str()).collect::<Vec<_>>().join(" "));
    let facts = [
        ("pod", of_pod.unwrap_or_default()),
        ("uid", pod.to_owned()),
        ("devices", devices.unwrap_or_default()),
    ];
    let object =
        Object::new(Kind::ClaimRecord, name, path.display().to_string(), Owner::default(), Maker::Ferrule);
    let driver = read.map_or_else(|| conf.driver.clone(), |record| record.driver);
    let sign =
        alive_by_sandbox(pod, cache, processes).unwrap_or_else(|| by_kubelet(conf, &driver, pod, claim));
    let (pod, claim, conf) = (pod.to_owned(), claim.to_owned(), conf.clone());
    Object { since: modified(path), facts: facts.into(), sign: Some(sign), ..object }.removed_by(
        move |_, is_dead| {
            let failed = |error| CniError::new(Code::Io, format!("remove the record: {error}"));
            let records = conf.records.lock().map_err(failed)?;
            let is_named = || !matches!(by_kubelet(&conf, &driver, &pod, &claim), State::Dead(_));
            if !is_dead() || is_named() {
                return Ok(false);
            }
            records.remove(&pod, &claim).map_err(failed)
        },
    )
}

/// What the kubelet says of a claim of the pod.
fn by_kubelet(conf: &Conf, driver: &str, pod_uid: &str, claim_uid: &str) -> State {
    let conf = Conf { driver: driver.to_owned(), ..conf.clone() };
    let path = conf.kubelet_state();
    match pod::kubelet_state(&conf) {
        Err(error) => State::Unknown(error.msg),
        Ok(None) => State::Unknown(format!("there is no {}", path.display())),
        Ok(Some(state)) if state.of_pod(pod_uid).any(|claim| claim.uid == claim_uid) => {
            State::Alive(format!("the kubelet's {} names the claim", path.display()))
        }
        Ok(Some(_)) => State::Dead(format!("the kubelet's {} does not name the claim", path.display())),
    }
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
