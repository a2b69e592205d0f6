//! Writes the pod's interface into the status of its claim: name, MAC address, IP addresses. ADD leaves them in the attached files.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrule_kubelet::claims::folder::read_file;
use ferrule_kubelet::claims::{Attached, Ref};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::cluster::Cluster;

/// How long changes are collected: ADD writes its file twice.
const WINDOW: Duration = Duration::from_millis(50);
/// When a report that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// The statuses that no repetition changes: forbidden; not found; another claim has the name; invalid.
const FINAL: [u16; 4] = [403, 404, 409, 422];
/// The most addresses of a device that the API server takes.
const MAX_IPS: usize = 16;

pub(super) struct Reporter {
    pub(super) cluster: Arc<Cluster>,
    pub(super) driver: String,
    pub(super) folder: PathBuf,
}

impl Reporter {
    /// Reports until `changes` of the folder end.
    pub(super) async fn run(self, mut changes: watch::Receiver<u64>) {
        let (mut reported, mut problem) = (HashMap::new(), String::new());
        loop {
            let found = reports(&self.folder, &self.driver).unwrap_or_else(|error| {
                log!("{}: cannot read the attached files: {error}", self.driver);
                BTreeMap::new()
            });
            reported.retain(|uid, _| found.contains_key(uid));
            let mut is_done = true;
            for (uid, (claim, devices)) in found {
                if reported.get(&uid) == Some(&devices) {
                    continue;
                }
                match self.report(&claim, &devices).await {
                    Ok(()) => {
                        for (device, count) in cut(&devices) {
                            self.log(&claim, &format!("it has {MAX_IPS} of the {count} addresses of {device}: the API server takes no more"));
                        }
                        reported.insert(uid, devices);
                    }
                    Err(why) => {
                        is_done = false;
                        if why != problem {
                            self.log(&claim, &why);
                            problem = why;
                        }
                    }
                }
            }
            let changed = async {
                let outcome = changes.changed().await;
                tokio::time::sleep(WINDOW).await;
                outcome
            };
            let ended = match is_done {
                true => changed.await.is_err(),
                false => timeout(RETRY, changed).await.is_ok_and(|outcome| outcome.is_err()),
            };
            if ended {
                return;
            }
        }
    }

    async fn report(&self, claim: &Ref, devices: &[Value]) -> Result<(), String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.cluster.client().await?, &claim.namespace);
        let status = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": shortened(devices)}});
        let params = PatchParams::apply(&self.driver).force();
        let patch = Patch::Apply(&status);
        let request = claims.patch_status(&claim.name, &params, &patch);
        match self.cluster.ask(request).await {
            Err(refusal) if FINAL.contains(&refusal.code) => {
                self.log(claim, &refusal.text);
                Ok(())
            }
            outcome => outcome.map(drop).map_err(String::from),
        }
    }

    fn log(&self, claim: &Ref, why: &str) {
        log!("{}: the status of the claim {}/{}: {why}", self.driver, claim.namespace, claim.name);
    }
}

/// The entries with as many addresses as the API server takes.
fn shortened(devices: &[Value]) -> Vec<Value> {
    let mut devices = devices.to_vec();
    for device in &mut devices {
        if let Some(ips) = device["networkData"]["ips"].as_array_mut() {
            ips.truncate(MAX_IPS);
        }
    }
    devices
}

/// The devices with more addresses than that, and how many they have.
fn cut(devices: &[Value]) -> impl Iterator<Item = (&str, usize)> {
    let count = |device: &Value| device["networkData"]["ips"].as_array().map_or(0, Vec::len);
    devices
        .iter()
        .map(move |device| (device["device"].as_str().unwrap_or_default(), count(device)))
        .filter(|(_, count)| *count > MAX_IPS)
}

/// For each claim, by UID, the entries of our devices.
fn reports(folder: &Path, driver: &str) -> io::Result<BTreeMap<String, (Ref, Vec<Value>)>> {
    let mut reports: BTreeMap<String, (Ref, Vec<Value>)> = BTreeMap::new();
    for attached in attached(folder)? {
        if attached.driver != driver || !attached.is_complete() {
            continue;
        }
        for step in &attached.steps {
            let Some(outcome) = &step.outcome else { continue };
            let device = json!({"driver": driver, "pool": step.pool, "device": step.device, "networkData":
                {"interfaceName": step.if_name, "hardwareAddress": outcome.mac, "ips": outcome.ips}});
            let (_, devices) =
                reports.entry(step.claim.uid.clone()).or_insert_with(|| (step.claim.clone(), Vec::new()));
            // A sandbox that was replaced may have left its file: the newer one counts. The API server refuses a device that is there twice.
            devices.retain(|other| other["device"] != device["device"]);
            devices.push(device);
        }
    }
    Ok(reports)
}

/// The attached files, the newest at the end. Those that are torn, gone meanwhile or of another version are left out.
pub(super) fn attached(folder: &Path) -> io::Result<Vec<Attached>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let is_json = path.extension().is_some_and(|end| end == "json");
        match read_file(&path) {
            _ if !is_json => {}
            Ok(bytes) => {
                let written = entry.metadata().and_then(|metadata| metadata.modified()).ok();
                let parsed = bytes.and_then(|bytes| Attached::parse(&bytes).ok().flatten());
                all.extend(parsed.map(|attached| (written, attached)));
            }
            Err(error) => log!("passes over an attached file: {error}"),
        }
    }
    all.sort_by_key(|(written, _)| *written);
    Ok(all.into_iter().map(|(_, attached)| attached).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_addresses_are_reported_and_the_rest_is_told() {
        let device = |name: &str, count: usize| {
            let ips: Vec<String> = (0..count).map(|n| format!("10.0.0.{n}/24")).collect();
            json!({"device": name, "networkData": {"interfaceName": "net1", "ips": ips}})
        };
        let devices = [device("eth1", 16), device("eth2", 20)];
        assert_eq!(cut(&devices).collect::<Vec<_>>(), [("eth2", 20)]);
        assert_eq!(shortened(&devices), [device("eth1", 16), device("eth2", 16)]);
    }
}
