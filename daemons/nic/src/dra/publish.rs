//! Keeps the node's ResourceSlices up to date. Each pass lists them and takes the missing steps. A watch starts the next pass, for
//! example after the kubelet has deleted them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferrule_daemon::Pauses;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::cluster::{Cluster, Refusal};
use super::slices::{Owner, Step, chunks, is_tainted, steps};
use crate::plan::Nic;

/// How long changes are collected before a pass.
const WINDOW: Duration = Duration::from_millis(200);
/// The longest time between two passes, should the watch miss a change.
const REFRESH: Duration = Duration::from_secs(300);
/// The seconds after which the API server ends a watch.
const WATCH: u32 = 290;
/// The pauses after failures.
const PAUSES: Pauses = Pauses::millis(500, 30_000);
/// The status of a request for an object that does not exist.
const NOT_FOUND: u16 = 404;

pub(super) struct Publisher {
    pub(super) cluster: Arc<Cluster>,
    pub(super) driver: String,
    pub(super) node: String,
    pub(super) nics: watch::Receiver<Arc<Vec<Nic>>>,
    /// Whether the API server keeps the taints of devices.
    has_taints: bool,
    /// By slice name: the version in the API server's answer, and the devices as sent. The API server drops fields that it does not know.
    sent: HashMap<String, (String, Vec<Device>)>,
}

impl Publisher {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        driver: String,
        node: String,
        nics: watch::Receiver<Arc<Vec<Nic>>>,
    ) -> Publisher {
        Publisher { cluster, driver, node, nics, has_taints: true, sent: HashMap::new() }
    }

    /// Publishes until the list of devices ends.
    pub(super) async fn run(mut self) {
        let (mut failures, mut reported) = (0_u32, String::new());
        loop {
            match self.pass().await {
                Ok((slices, version)) => {
                    (failures, reported) = (0, String::new());
                    if !self.wait(&slices, &version).await {
                        return;
                    }
                    sleep(WINDOW).await;
                }
                Err(problem) => {
                    // A problem that stays is reported once.
                    if problem != reported {
                        log!("{}: the ResourceSlices: {problem}", self.driver);
                        reported = problem;
                    }
                    failures = failures.saturating_add(1);
                    if let Ok(Err(_)) = timeout(PAUSES.after(failures), self.nics.wait_for(|_| false)).await {
                        return;
                    }
                }
            }
        }
    }

    fn selector(&self) -> String {
        format!("spec.nodeName={},spec.driver={}", self.node, self.driver)
    }

    /// One pass. Returns the slices' client and the version of the list.
    async fn pass(&mut self) -> Result<(Api<ResourceSlice>, String), String> {
        let client = self.cluster.client().await?;
        let owner = self.owner(client.clone()).await?;
        let slices: Api<ResourceSlice> = Api::all(client);
        let params = ListParams::default().fields(&self.selector());
        let list = self.cluster.ask(slices.list(&params)).await?;
        let nics = self.nics.borrow_and_update().clone();
        let existing: Vec<ResourceSlice> = list.items.into_iter().map(|slice| self.as_sent(slice)).collect();
        let wanted = chunks(&self.driver, &nics, self.has_taints);
        let todo = steps(&owner, &wanted, &existing);
        let is_change = !todo.is_empty();
        for step in todo {
            self.take(&slices, step).await?;
        }
        if !self.has_taints && wanted.iter().flatten().any(is_tainted) {
            return Err("the API server drops taints of devices: leaves unhealthy ones out".to_owned());
        }
        if is_change {
            let count = wanted.iter().map(Vec::len).sum::<usize>();
            log!("{}: published {count} devices in {} ResourceSlices", self.driver, wanted.len());
        }
        Ok((slices, list.metadata.resource_version.unwrap_or_default()))
    }

    async fn owner(&self, client: Client) -> Result<Owner, String> {
        let node = self.cluster.ask(Api::<Node>::all(client).get(&self.node)).await;
        let node = node.map_err(|refusal| format!("the Node {:?}: {}", self.node, refusal.text))?;
        let uid = node.metadata.uid.unwrap_or_default();
        Ok(Owner { driver: self.driver.clone(), node: self.node.clone(), uid })
    }

    /// The slice with the devices as sent, if its version is that of the answer.
    fn as_sent(&self, mut slice: ResourceSlice) -> ResourceSlice {
        if let Some((version, devices)) = slice.metadata.name.as_ref().and_then(|name| self.sent.get(name))
            && slice.metadata.resource_version.as_ref() == Some(version)
        {
            slice.spec.devices = Some(devices.clone());
        }
        slice
    }

    async fn take(&mut self, slices: &Api<ResourceSlice>, step: Step) -> Result<(), Refusal> {
        let post = PostParams::default();
        let (sent, got) = match step {
            Step::Delete(name) => {
                let outcome = self.cluster.ask(slices.delete(&name, &DeleteParams::default())).await;
                return match outcome {
                    Err(refusal) if refusal.code != NOT_FOUND => Err(refusal),
                    _ => Ok(()),
                };
            }
            Step::Create(slice) => {
                let got = self.cluster.ask(slices.create(&post, &slice)).await?;
                (slice, got)
            }
            Step::Replace(slice) => {
                let name = slice.metadata.name.clone().unwrap_or_default();
                let got = self.cluster.ask(slices.replace(&name, &post, &slice)).await?;
                (slice, got)
            }
        };
        let tainted =
            |slice: &ResourceSlice| slice.spec.devices.iter().flatten().filter(|one| is_tainted(one)).count();
        self.has_taints &= tainted(&sent) == tainted(&got);
        let version = got.metadata.resource_version.unwrap_or_default();
        let devices = sent.spec.devices.unwrap_or_default();
        self.sent.insert(sent.metadata.name.unwrap_or_default(), (version, devices));
        Ok(())
    }

    /// Waits until a pass is due. `false` if the list of devices has ended.
    async fn wait(&mut self, slices: &Api<ResourceSlice>, version: &str) -> bool {
        let params = WatchParams::default().fields(&self.selector()).timeout(WATCH);
        let (sent, mut nics) = (&self.sent, self.nics.clone());
        let foreign = async {
            let Ok(events) = self.cluster.ask(slices.watch(&params, version)).await else {
                // The next pass reports the problem.
                return sleep(PAUSES.first).await;
            };
            let mut events = std::pin::pin!(events);
            while let Some(Ok(event)) = events.next().await {
                let is_own = match &event {
                    WatchEvent::Bookmark(_) => true,
                    WatchEvent::Added(slice) | WatchEvent::Modified(slice) => {
                        let known = slice.metadata.name.as_ref().and_then(|name| sent.get(name));
                        slice.metadata.resource_version.as_ref() == known.map(|(version, _)| version)
                    }
                    _ => false,
                };
                if !is_own {
                    return;
                }
            }
            // The API server has ended it, or is away.
            sleep(PAUSES.first).await;
        };
        tokio::select! {
            () = foreign => true,
            changed = nics.changed() => changed.is_ok(),
            () = sleep(REFRESH) => true,
        }
    }
}
