//! One process's life: the thread with the servers and the streams to the plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ferrule_nic_proto::podresources::pod_resources_lister_server::PodResourcesListerServer;
use ferrule_nic_proto::v1beta1::device_plugin_client::DevicePluginClient;
use ferrule_nic_proto::v1beta1::registration_server::{Registration, RegistrationServer};
use ferrule_nic_proto::v1beta1::{Empty, RegisterRequest, VERSION};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::book::Book;
use crate::{Knobs, Lister, connection, dial};

/// How often a stream looks whether its registration still holds.
const LOOK: Duration = Duration::from_millis(50);

/// A running kubelet. Dropping it ends all connections.
#[derive(Debug)]
pub(crate) struct Life {
    node: Node,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the services need.
#[derive(Clone, Debug)]
struct Node {
    folder: PathBuf,
    knobs: Knobs,
    book: Arc<Book>,
}

impl Life {
    pub(crate) fn start(folder: &Path, knobs: Knobs, book: Arc<Book>, pods: Lister) -> Life {
        let node = Node { folder: folder.to_owned(), knobs, book };
        let pod_resources = folder.parent().unwrap().join("pod-resources");
        fs::create_dir_all(&pod_resources).unwrap();
        let listeners = [folder.join("kubelet.sock"), pod_resources.join("kubelet.sock")]
            .map(|path| connection::bind(&path));
        let (end, ended) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let served = node.clone();
        let thread = thread::spawn(move || {
            runtime.block_on(async move {
                let [registration, pod_resources] = listeners;
                let registration = connection::accept(registration, served.knobs.hang_ups);
                let pod_resources = connection::accept(pod_resources, 0);
                let lister = PodResourcesListerServer::new(pods);
                tokio::spawn(Server::builder().add_service(lister).serve_with_incoming(pod_resources));
                let service = RegistrationServer::new(served);
                tokio::spawn(Server::builder().add_service(service).serve_with_incoming(registration));
                let _ = ended.await;
            });
            runtime.shutdown_background();
        });
        Life { node, end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.node.book.disconnect_all();
    }
}

impl Node {
    /// Reads the plugin's lists until the stream ends, unless this kubelet is deaf.
    fn listen(&self, resource: String, socket: PathBuf) {
        let node = self.clone();
        let number = node.book.connect(&resource, socket.clone());
        if node.knobs.deaf {
            return;
        }
        tokio::spawn(async move {
            let _ = node.read_lists(&resource, number, &socket).await;
            node.book.disconnect(&resource, number, node.knobs.client_race);
        });
    }

    async fn read_lists(&self, resource: &str, number: usize, socket: &Path) -> Result<(), Status> {
        let mut plugin = DevicePluginClient::new(dial(socket).await?);
        let mut lists = plugin.list_and_watch(Empty {}).await?.into_inner();
        loop {
            tokio::select! {
                list = lists.message() => match list? {
                    Some(list) => self.book.list(resource, number, list.devices),
                    None => return Ok(()),
                },
                // By the race of clients.
                () = tokio::time::sleep(LOOK) => if self.book.is_dropped(resource, number) {
                    return Ok(());
                },
            }
        }
    }
}

/// The kubelet's rule in short: tests of the rule itself belong to the plugin.
fn is_valid(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

#[tonic::async_trait]
impl Registration for Node {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        self.book.count_registration(&request.resource_name);
        tokio::time::sleep(self.knobs.delay).await;
        if let Some(text) = &self.knobs.refusal {
            return Err(Status::unknown(text));
        }
        if request.version != VERSION {
            let text = format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [\"{VERSION}\"]",
                request.version
            );
            return Err(Status::unknown(text));
        }
        if !is_valid(&request.resource_name) {
            return Err(Status::unknown(format!("the ResourceName {:?} is invalid", request.resource_name)));
        }
        let socket = self.folder.join(&request.endpoint);
        let mut plugin = DevicePluginClient::new(dial(&socket).await?);
        let options = plugin.get_device_plugin_options(Empty {}).await;
        options
            .map_err(|status| Status::unknown(format!("failed to get device plugin options: {status}")))?;
        self.listen(request.resource_name, socket);
        Ok(Response::new(Empty {}))
    }
}
