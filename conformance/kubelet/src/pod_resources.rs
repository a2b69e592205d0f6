//! PodResources v1: which pod has which devices, in the shapes of different releases, and with the faults of a busy kubelet.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use ferrule_nic_proto::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use ferrule_nic_proto::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse,
    NumaNode, PodResources, TopologyInfo,
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::connection;

/// The service. Clones share the pods.
#[derive(Clone, Debug, Default)]
pub struct Lister(Arc<State>);

#[derive(Debug, Default)]
struct State {
    pods: Mutex<Vec<PodResources>>,
    /// How many calls are still refused, as a kubelet since 1.27 refuses too many in a second.
    refusals: AtomicU32,
    calls: AtomicU32,
    release: Mutex<Release>,
}

/// What differs between releases. The default is 1.34.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// What `Get` does.
    pub get: Get,
    /// The entries of a container's devices.
    pub entries: Entries,
    /// Calls get no answer: the kubelet is stuck.
    pub hangs: bool,
}

/// What `Get` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// It is `UNIMPLEMENTED` (1.26 and earlier).
    Missing,
    /// It is switched off (1.27 to 1.33).
    Disabled,
    /// It answers (1.34 and later).
    Answers,
}

/// How a container's devices are spread over entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// One for each resource, with NUMA node 0 (1.20).
    PerResource,
    /// One for each device and each of two NUMA nodes: each device is there twice (1.22 and later, devices of two nodes).
    PerNode,
    /// One for each device (1.22 and later).
    PerDevice,
}

impl Default for Release {
    fn default() -> Self {
        Release { get: Get::Answers, entries: Entries::PerDevice, hangs: false }
    }
}

impl Lister {
    /// Replaces the pods.
    pub fn set_pods(&self, pods: Vec<PodResources>) {
        *self.0.pods.lock().unwrap() = pods;
    }

    /// Sets the behaviour from the next call on.
    pub fn set_release(&self, release: Release) {
        *self.0.release.lock().unwrap() = release;
    }

    /// Refuses the next calls.
    pub fn refuse(&self, calls: u32) {
        self.0.refusals.store(calls, Ordering::SeqCst);
    }

    /// The number of calls so far, with refused ones.
    pub fn calls(&self) -> u32 {
        self.0.calls.load(Ordering::SeqCst)
    }

    fn pods(&self) -> MutexGuard<'_, Vec<PodResources>> {
        self.0.pods.lock().unwrap()
    }

    /// Counts the call, and refuses it or never returns where the test says so.
    async fn admit(&self) -> Result<Release, Status> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        let release = *self.0.release.lock().unwrap();
        if release.hangs {
            std::future::pending::<()>().await;
        }
        let refused =
            self.0.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match refused {
            Ok(_) => Err(Status::resource_exhausted("rejected by rate limit")),
            Err(_) => Ok(release),
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let release = self.admit().await?;
        let pod_resources = self.pods().iter().map(|pod| release.shape(pod)).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let release = self.admit().await?;
        let pods = self.pods();
        let shaped = pods.iter().flat_map(|pod| release.shape(pod).containers);
        let devices = shaped.flat_map(|container| container.devices).collect();
        Ok(Response::new(AllocatableResourcesResponse { devices }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        let release = self.admit().await?;
        match release.get {
            Get::Missing => return Err(Status::unimplemented("unknown method Get")),
            Get::Disabled => return Err(Status::unknown("PodResources API Get method disabled")),
            Get::Answers => {}
        }
        let GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let pods = self.pods();
        let found = pods.iter().find(|pod| pod.name == pod_name && pod.namespace == pod_namespace);
        let unknown = || Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found"));
        let pod = found.ok_or_else(unknown)?;
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(release.shape(pod)) }))
    }
}

impl Release {
    /// The pod as this release lists it.
    fn shape(&self, pod: &PodResources) -> PodResources {
        let container = |container: &ContainerResources| ContainerResources {
            name: container.name.clone(),
            devices: self.entries.spread(&container.devices),
        };
        PodResources { containers: pod.containers.iter().map(container).collect(), ..pod.clone() }
    }
}

impl Entries {
    fn spread(self, devices: &[ContainerDevices]) -> Vec<ContainerDevices> {
        let mut entries = Vec::<ContainerDevices>::new();
        for ContainerDevices { resource_name, device_ids, topology } in devices.iter().cloned() {
            match self {
                Entries::PerDevice => entries.push(ContainerDevices { resource_name, device_ids, topology }),
                Entries::PerNode => entries.extend([0, 1].map(|node| ContainerDevices {
                    resource_name: resource_name.clone(),
                    device_ids: device_ids.clone(),
                    topology: on_node(node),
                })),
                Entries::PerResource => {
                    match entries.iter_mut().find(|entry| entry.resource_name == resource_name) {
                        Some(entry) => entry.device_ids.extend(device_ids),
                        None => {
                            entries.push(ContainerDevices { resource_name, device_ids, topology: on_node(0) })
                        }
                    }
                }
            }
        }
        entries
    }
}

fn on_node(id: i64) -> Option<TopologyInfo> {
    Some(TopologyInfo { nodes: vec![NumaNode { id }] })
}

/// A pod with one container that has these devices, as (resource, ID).
pub fn pod(namespace: &str, name: &str, devices: &[(&str, &str)]) -> PodResources {
    let entry = |(resource, id): &(&str, &str)| ContainerDevices {
        resource_name: (*resource).to_owned(),
        device_ids: vec![(*id).to_owned()],
        topology: None,
    };
    let container =
        ContainerResources { name: "main".to_owned(), devices: devices.iter().map(entry).collect() };
    PodResources { name: name.to_owned(), namespace: namespace.to_owned(), containers: vec![container] }
}

/// A server of PodResources without the rest of a kubelet. It ends when it is dropped; the socket's file stays, as that of
/// a kubelet that was killed.
#[derive(Debug)]
pub struct PodResourcesSocket {
    lister: Lister,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PodResourcesSocket {
    /// Serves the devices of these pods.
    pub fn serve(socket: &Path, pods: Vec<PodResources>) -> Self {
        let listener = connection::bind(socket);
        let lister = Lister::default();
        lister.set_pods(pods);
        let (stop, stopped) = oneshot::channel::<()>();
        let served = lister.clone();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let service = Server::builder().add_service(PodResourcesListerServer::new(served));
                tokio::select! {
                    _ = service.serve_with_incoming(connection::accept(listener, 0)) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        PodResourcesSocket { lister, stop: Some(stop), thread: Some(thread) }
    }
}

impl std::ops::Deref for PodResourcesSocket {
    type Target = Lister;

    fn deref(&self) -> &Lister {
        &self.lister
    }
}

impl Drop for PodResourcesSocket {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
