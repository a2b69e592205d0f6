//! Runs the driver: each instance serves its sockets, only the leader publishes and reports.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrule_nic_proto::registration::registration_server::RegistrationServer;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::Server as Grpc;

use super::cluster::Cluster;
use super::prepare::Preparer;
use super::publish::Publisher;
use super::registration::Registrar;
use super::service::Service;
use super::sockets::{Sockets, instance};
use super::status::Reporter;
use crate::arguments::Options;
use crate::plan::Nic;
use crate::serve::{Server, watch_folder};

/// The pause after a socket could not be made.
const PAUSE: Duration = Duration::from_secs(2);

/// The paths of sockets of a driver with this name.
pub fn sockets(kubelet: &Path, driver: &str) -> [PathBuf; 2] {
    let sockets = Sockets::new(kubelet, driver, &instance());
    [sockets.services, sockets.registration]
}

pub struct Driver {
    preparer: Arc<Preparer>,
    sockets: Sockets,
    options: Options,
}

impl Driver {
    pub fn new(driver: &str, options: &Options, nics: watch::Receiver<Arc<Vec<Nic>>>) -> Driver {
        let preparer = Preparer {
            driver: driver.to_owned(),
            node: options.node_name(),
            cluster: Arc::new(Cluster::new(options.kubeconfig.clone())),
            folder: options.records(),
            nics,
        };
        let sockets = Sockets::new(&options.kubelet, driver, &instance());
        Driver { preparer: Arc::new(preparer), sockets, options: options.clone() }
    }

    /// The folder with the driver's sockets, and the lock of its instances.
    pub fn folder(&self) -> &Path {
        &self.sockets.folder
    }

    /// Serves both sockets until `stop` is true. Makes them again if they are gone.
    pub async fn serve(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let (folder, registry) = (self.sockets.folder.clone(), self.sockets.registry.clone());
        let mut changes = [watch_folder(folder), watch_folder(registry)];
        while !*stop.borrow() {
            let servers = match self.start() {
                Ok(servers) => servers,
                Err(error) => {
                    log!("{}: cannot serve the kubelet: {error}", self.preparer.driver);
                    tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => {}
                        () = sleep(PAUSE) => {}
                    }
                    continue;
                }
            };
            let [services, registry] = &mut changes;
            while !*stop.borrow() && servers.iter().all(Server::is_there) {
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => {}
                    _ = services.changed() => {}
                    _ = registry.changed() => {}
                }
            }
            // The registration ends first, so that the kubelet calls another instance.
            for server in servers {
                server.stop().await;
            }
        }
    }

    /// The registration and the services. The services' socket is there first.
    fn start(&self) -> io::Result<[Server; 2]> {
        self.sockets.clean()?;
        let Sockets { services, registration, .. } = &self.sockets;
        let preparer = self.preparer.clone();
        let services = Server::start(services, |stop| Service { preparer, stop }.router())?;
        let registrar = Registrar {
            driver: self.preparer.driver.clone(),
            endpoint: self.sockets.services.clone(),
            last: Arc::default(),
        };
        let registration =
            Server::start(registration, |_| Grpc::builder().add_service(RegistrationServer::new(registrar)))?;
        Ok([registration, services])
    }

    /// Publishes the devices and reports the claims until the list of devices ends.
    pub async fn lead(self: Arc<Self>) {
        let Preparer { cluster, driver, node, nics, .. } = &*self.preparer;
        let publisher = Publisher::new(cluster.clone(), driver.clone(), node.clone(), nics.clone());
        let folder = self.options.attached();
        let changes = watch_folder(folder.clone());
        let reporter = Reporter { cluster: cluster.clone(), driver: driver.clone(), folder };
        tokio::select! {
            () = publisher.run() => {}
            () = reporter.run(changes) => {}
        }
    }
}
