//! Says in the log which pod has got a device: Allocate does not know, PodResources does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrule_nic_proto::podresources::ListPodResourcesRequest;
use ferrule_nic_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::connect;

/// The most bytes of the list: Multus reads as many.
const MOST: usize = 16 << 20;
/// How long the kubelet may take for the list.
const LIMIT: Duration = Duration::from_secs(5);
/// The kubelet lists the pod when its admission is over.
const ADMISSION: Duration = Duration::from_millis(500);

/// Resource and device of each pod, as `namespace/name, container`.
pub type Owners = BTreeMap<(String, String), String>;

/// Which pod has which device of these resources.
pub async fn owners(socket: &Path, resources: &[String]) -> Result<Owners, String> {
    let call = async {
        let client = PodResourcesListerClient::new(connect(socket).await?);
        let mut client = client.max_decoding_message_size(MOST);
        let list = client.list(ListPodResourcesRequest {}).await;
        list.map_err(|status| status.message().to_owned())
    };
    let list = timeout(LIMIT, call).await.map_err(|_| "no answer".to_owned())??.into_inner();
    let mut owners = Owners::new();
    for pod in list.pod_resources {
        for container in pod.containers {
            let owner = format!("pod {}/{}, container {}", pod.namespace, pod.name, container.name);
            for devices in container.devices {
                let ids =
                    devices.device_ids.into_iter().filter(|_| resources.contains(&devices.resource_name));
                owners.extend(ids.map(|id| ((devices.resource_name.clone(), id), owner.clone())));
            }
        }
    }
    Ok(owners)
}

/// After each Allocate writes a line for each device that has a new owner.
pub async fn name_pods(socket: PathBuf, resources: Vec<String>, mut allocated: watch::Receiver<u64>) {
    let mut known = Owners::new();
    while allocated.changed().await.is_ok() {
        sleep(ADMISSION).await;
        allocated.mark_unchanged();
        match owners(&socket, &resources).await {
            Ok(owners) => {
                for (key, owner) in owners.iter().filter(|(key, owner)| known.get(*key) != Some(*owner)) {
                    log!("{}: device {}: {owner}", key.0, key.1);
                }
                known = owners;
            }
            Err(error) => log!("PodResources does not tell the pods: {error}"),
        }
    }
}
