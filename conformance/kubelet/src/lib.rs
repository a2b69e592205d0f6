//! A kubelet for tests of device plugins, and another one for DRA drivers ([`DraKubelet`]). It registers, lists and allocates as a kubelet does, and can be killed, restarted
//! and set to the behaviour of different releases ([`Knobs`]). It books devices as a node's status would show them
//! ([`Kubelet::capacity`], [`Kubelet::allocatable`]); its clock for that is the test's.
//!
//! Methods block; the kubelet runs in a thread of its own. Failures of the test's own set-up panic.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod book;
mod connection;
mod dra;
mod life;
mod pod_resources;

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrule_nic_proto::v1beta1::device_plugin_client::DevicePluginClient;
use ferrule_nic_proto::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty, PreStartContainerRequest,
    PreferredAllocationRequest,
};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub use dra::{DraKubelet, DraRelease, Outcomes, Plugin};
pub use ferrule_nic_proto::dra::v1::Device as ClaimedDevice;
pub use ferrule_nic_proto::health::v1::DeviceHealth;
pub use ferrule_nic_proto::podresources::{ContainerDevices, ContainerResources, PodResources};
pub use pod_resources::{Entries, Get, Lister, PodResourcesSocket, Release, pod};

use book::Book;
use life::Life;

/// The behaviour that differs between releases, and faults.
#[derive(Clone, Debug, Default)]
pub struct Knobs {
    /// How long Register takes besides the call of the plugin.
    pub delay: Duration,
    /// Register fails with this text.
    pub refusal: Option<String>,
    /// The next calls of Register find their connections closed.
    pub hang_ups: u32,
    /// Register succeeds, and nothing follows.
    pub deaf: bool,
    /// Whether the end of an older stream ends the newest registration too (1.25 to 1.35).
    pub client_race: bool,
}

impl Knobs {
    /// Kubernetes 1.26 and later.
    pub fn new() -> Knobs {
        Knobs::default()
    }
}

/// The kubelet. Dropping it is a kill.
#[derive(Debug)]
pub struct Kubelet {
    folder: PathBuf,
    /// For the next start.
    pub knobs: Knobs,
    book: Arc<Book>,
    pods: Lister,
    life: Option<Life>,
}

impl Kubelet {
    /// A kubelet that does not run yet, with this device plugin folder.
    pub fn new(folder: impl Into<PathBuf>, knobs: Knobs) -> Kubelet {
        Kubelet { folder: folder.into(), knobs, book: Arc::default(), pods: Lister::default(), life: None }
    }

    /// A kubelet that runs.
    pub fn started(folder: impl Into<PathBuf>, knobs: Knobs) -> Kubelet {
        let mut kubelet = Kubelet::new(folder, knobs);
        kubelet.start();
        kubelet
    }

    /// Makes the folder, wipes it and serves on a new socket there.
    pub fn start(&mut self) {
        assert!(self.life.is_none(), "it runs already");
        fs::create_dir_all(&self.folder).unwrap();
        self.wipe();
        self.life = Some(Life::start(&self.folder, self.knobs.clone(), self.book.clone(), self.pods.clone()));
    }

    /// Ends all connections at once. The socket's file stays and refuses connections.
    pub fn kill(&mut self) {
        drop(self.life.take());
    }

    /// [`Kubelet::kill`] and [`Kubelet::start`].
    pub fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// Removes the sockets from the folder, as a start does, except the socket of a running kubelet.
    pub fn wipe(&self) {
        for entry in fs::read_dir(&self.folder).unwrap().flatten() {
            let is_own = self.life.is_some() && entry.file_name() == "kubelet.sock";
            if entry.file_type().unwrap().is_socket() && !is_own {
                // The plugin may have removed it meanwhile.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The socket that registered the resource last.
    pub fn endpoint(&self, resource: &str) -> PathBuf {
        self.book.endpoint(resource).expect("the resource was never registered")
    }

    /// How many devices the node has.
    pub fn capacity(&self, resource: &str) -> usize {
        self.book.capacity(resource)
    }

    /// How many devices the node can give to pods.
    pub fn allocatable(&self, resource: &str) -> usize {
        self.book.allocatable(resource)
    }

    /// The last list, by ID.
    pub fn devices(&self, resource: &str) -> Vec<Device> {
        self.book.devices(resource)
    }

    /// The IDs of the last list, and whether each is healthy.
    pub fn health(&self, resource: &str) -> Vec<(String, bool)> {
        let device = |device: Device| (device.id, device.health == "Healthy");
        self.devices(resource).into_iter().map(device).collect()
    }

    /// How often Register was called for the resource, with success or not.
    pub fn registrations(&self, resource: &str) -> usize {
        self.book.registrations(resource)
    }

    /// How many lists have come for the resource.
    pub fn lists(&self, resource: &str) -> usize {
        self.book.lists(resource)
    }

    /// Moves the clock of the books: five minutes after a plugin is lost the node forgets its devices.
    pub fn advance(&self, time: Duration) {
        self.book.advance(time);
    }

    /// PodResources, at `pod-resources/kubelet.sock` in the folder above the device plugin folder.
    pub fn pods(&self) -> &Lister {
        &self.pods
    }

    /// Allocate for one container.
    pub fn allocate(&self, resource: &str, ids: &[&str]) -> Result<ContainerAllocateResponse, Status> {
        let request =
            AllocateRequest { container_requests: vec![ContainerAllocateRequest { device_ids: owned(ids) }] };
        self.call(resource, async |mut plugin| {
            let answer = plugin.allocate(request).await?.into_inner();
            answer.container_responses.into_iter().next().ok_or(Status::internal("no container"))
        })
    }

    /// GetDevicePluginOptions.
    pub fn options(&self, resource: &str) -> Result<DevicePluginOptions, Status> {
        let call =
            async |mut plugin: DevicePluginClient<Channel>| plugin.get_device_plugin_options(Empty {}).await;
        self.call(resource, call).map(tonic::Response::into_inner)
    }

    /// GetPreferredAllocation for one container.
    pub fn preferred(
        &self,
        resource: &str,
        free: &[&str],
        must: &[&str],
        size: i32,
    ) -> Result<Vec<String>, Status> {
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_ids: owned(free),
                must_include_device_ids: owned(must),
                allocation_size: size,
            }],
        };
        self.call(resource, async |mut plugin| {
            let answer = plugin.get_preferred_allocation(request).await?.into_inner();
            let first =
                answer.container_responses.into_iter().next().ok_or(Status::internal("no container"))?;
            Ok(first.device_ids)
        })
    }

    /// PreStartContainer.
    pub fn pre_start(&self, resource: &str, ids: &[&str]) -> Result<(), Status> {
        let request = PreStartContainerRequest { device_ids: owned(ids) };
        self.call(resource, async |mut plugin| plugin.pre_start_container(request).await).map(drop)
    }

    fn call<T>(
        &self,
        resource: &str,
        call: impl AsyncFnOnce(DevicePluginClient<Channel>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let socket = self.endpoint(resource);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { call(DevicePluginClient::new(dial(&socket).await?)).await })
    }
}

/// Connects to a plugin.
async fn dial(socket: &Path) -> Result<Channel, Status> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let channel = tokio::time::timeout(Duration::from_secs(10), endpoint.connect()).await;
    let failed =
        |why: &dyn std::fmt::Display| Status::unknown(format!("failed to dial device plugin: {why}"));
    channel.map_err(|_| failed(&"context deadline exceeded"))?.map_err(|error| failed(&error))
}

fn owned(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}
