//! Prepare writes a record of each claim before the kubelet starts the pod; unprepare removes it when the pod is gone.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ferrule_kubelet::claims::folder::Locked;
use ferrule_kubelet::claims::{Claimed, Folder, Record, Ref, is_uid};
use ferrule_nic_proto::dra::v1::{Claim, Device};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::claim::{self, Node};
use super::cluster::Cluster;
use crate::plan::Nic;

/// How long a call may take; the kubelet gives up after 45 s.
const LIMIT: Duration = Duration::from_secs(35);
/// How many claims are read at once.
const AT_ONCE: usize = 8;

/// The claim's UID, and the result or why it failed.
pub(super) type Outcome<T> = (String, Result<T, String>);

pub(super) struct Preparer {
    pub(super) driver: String,
    /// The node's name, which is also the pool's.
    pub(super) node: String,
    pub(super) cluster: Arc<Cluster>,
    pub(super) folder: Folder,
    pub(super) nics: watch::Receiver<Arc<Vec<Nic>>>,
}

impl Preparer {
    /// Writes the records of these claims. Returns an outcome for each.
    pub(super) async fn prepare(&self, claims: Vec<Claim>) -> Vec<Outcome<Vec<Device>>> {
        let deadline = Instant::now() + LIMIT;
        let one = async |claim: Claim| {
            let (name, uid) = (format!("{}/{}", claim.namespace, claim.name), claim.uid.clone());
            let outcome = match timeout_at(deadline, self.record(claim, deadline)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(format!("not prepared within {} s", LIMIT.as_secs())),
            };
            match &outcome {
                Ok(record) => log!("{}: claim {name}: prepared {}", self.driver, describe(record)),
                Err(why) => log!("{}: claim {name}: cannot prepare it: {why}", self.driver),
            }
            (uid, outcome.map(|record| record.devices.iter().map(device).collect()))
        };
        stream::iter(claims).map(one).buffer_unordered(AT_ONCE).collect().await
    }

    /// Removes the records of these claims, which may be gone from the API server.
    pub(super) async fn unprepare(&self, claims: Vec<Claim>) -> Vec<Outcome<()>> {
        let mut outcomes = Vec::new();
        for claim in claims {
            let (folder, uid) = (self.folder.clone(), claim.uid.clone());
            let name = format!("{}/{}", claim.namespace, claim.name);
            let removed = blocking(move || remove_all(&folder, &claim.uid)).await;
            match &removed {
                Ok(0) => {}
                Ok(_) => log!("{}: claim {name}: unprepared", self.driver),
                Err(why) => log!("{}: claim {name}: cannot unprepare it: {why}", self.driver),
            }
            outcomes.push((uid, removed.map(drop)));
        }
        outcomes
    }

    async fn record(&self, claim: Claim, deadline: Instant) -> Result<Record, String> {
        if !is_uid(&claim.uid) {
            return Err(format!("{:?} is no UID", claim.uid));
        }
        let claims: Api<ResourceClaim> = Api::namespaced(self.cluster.client().await?, &claim.namespace);
        let found = self.cluster.ask(claims.get(&claim.name)).await?;
        let asked = Ref { namespace: claim.namespace, name: claim.name, uid: claim.uid };
        let nics = self.nics.borrow().clone();
        let node = Node { driver: &self.driver, pool: &self.node, nics: &nics };
        let record = claim::record(&found, &asked, node)?;
        let (folder, written, driver) = (self.folder.clone(), record.clone(), self.driver.clone());
        let write = move || {
            let locked = folder.lock()?;
            for stray in locked.strays()? {
                log!("{driver}: passes over {}, which is no folder of a pod: remove it", stray.display());
            }
            // The kubelet has got its answer, and may have prepared the claim for the next pod.
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            write(&locked, &written)
        };
        blocking(write).await?;
        Ok(record)
    }
}

/// Writes the record, and removes those of pods that had the claim before.
fn write(locked: &Locked<'_>, record: &Record) -> io::Result<()> {
    let Record { pod, claim, .. } = record;
    if locked.read(&pod.uid, &claim.uid).ok().flatten().as_ref() != Some(record) {
        locked.write(record)?;
    }
    let former: Vec<String> = locked.pods()?.into_iter().filter(|other| *other != pod.uid).collect();
    remove(locked, &former, &claim.uid).map(drop)
}

/// Removes the records of the claim. Returns how many there were.
fn remove_all(folder: &Folder, claim_uid: &str) -> io::Result<usize> {
    if !is_uid(claim_uid) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{claim_uid:?} is no UID")));
    }
    let locked = folder.lock()?;
    remove(&locked, &locked.pods()?, claim_uid)
}

/// Removes the records of the claim for these pods. Returns how many there were.
fn remove(locked: &Locked<'_>, pods: &[String], claim_uid: &str) -> io::Result<usize> {
    let mut count = 0;
    for pod in pods {
        count += usize::from(locked.remove(pod, claim_uid)?);
    }
    Ok(count)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, String> {
    match spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn device(claimed: &Claimed) -> Device {
    // The kubelet knows requests without their alternatives.
    let request = claimed.request.split('/').next().unwrap_or_default();
    Device {
        request_names: vec![request.to_owned()],
        pool_name: claimed.pool.clone(),
        device_name: claimed.device.clone(),
        ..Device::default()
    }
}

fn describe(record: &Record) -> String {
    let devices: Vec<&str> = record.devices.iter().map(|claimed| claimed.device.as_str()).collect();
    format!("{} for the pod {}/{}", devices.join(", "), record.claim.namespace, record.pod.name)
}
