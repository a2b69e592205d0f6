//! Keeps one resource registered: through restarts of the kubelet, lost sockets and broken streams.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrule_daemon::Pauses;
use ferrule_nic_proto::v1beta1::device_plugin_server::DevicePluginServer;
use ferrule_nic_proto::v1beta1::registration_client::RegistrationClient;
use ferrule_nic_proto::v1beta1::{RegisterRequest, VERSION};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Request;
use tonic::transport::Server as Grpc;

use super::server::{Identity, Server, identity};
use super::service::{Service, Streams, options};
use super::{Served, connect};

/// How long the kubelet may take for Register. Since 1.25 it calls the plugin before it answers.
const REGISTER: Duration = Duration::from_secs(30);
/// How long after Register the kubelet may call ListAndWatch: it dials for up to 10 seconds.
const LISTEN: Duration = Duration::from_secs(10);
/// The pauses after failures: a new kubelet refuses connections for a moment, between bind and listen.
const PAUSES: Pauses = Pauses::millis(100, 30_000);

/// The sockets of one resource.
struct Keeper {
    served: Arc<Served>,
    own: PathBuf,
    kubelet: PathBuf,
    folder: watch::Receiver<u64>,
    stop: watch::Receiver<bool>,
}

/// Serves the resource until `stop` is true. `folder` tells of each change in the folder of the sockets.
pub async fn keep_registered(served: Arc<Served>, folder: watch::Receiver<u64>, stop: watch::Receiver<bool>) {
    let own = served.folder.join(served.resource.socket_name());
    let kubelet = served.folder.join("kubelet.sock");
    let mut keeper = Keeper { served, own, kubelet, folder, stop };
    let (mut failures, mut reported, mut asked) = (0_u32, String::new(), None);
    loop {
        if identity(&keeper.kubelet).is_none() {
            log!("{}: waits for {}", keeper.served.resource.name, keeper.kubelet.display());
        }
        let Some(seen) = keeper.wait(None, identity).await else { return };
        let began = Instant::now();
        let outcome = keeper.attempt(seen).await;
        if *keeper.stop.borrow() {
            return;
        }
        let Err(problem) = outcome else { continue };
        if asked.replace(seen) != Some(seen) || began.elapsed() > LISTEN * 2 {
            (failures, reported) = (0, String::new());
        }
        // A problem that stays is reported once.
        if problem != reported {
            log!("{}: {problem}", keeper.served.resource.name);
            reported = problem;
        }
        failures = failures.saturating_add(1);
        let retry = Instant::now() + PAUSES.after(failures);
        // A new kubelet is asked at once.
        keeper.wait(Some(retry), |kubelet| (identity(kubelet) != Some(seen)).then_some(())).await;
    }
}

impl Keeper {
    /// Waits until there is something to find about the kubelet's socket. `None` if the time is over or the daemon stops first.
    async fn wait<T>(&mut self, until: Option<Instant>, find: impl Fn(&Path) -> Option<T>) -> Option<T> {
        let now = Instant::now();
        loop {
            if let Some(found) = find(&self.kubelet) {
                return Some(found);
            }
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return None,
                _ = self.folder.changed() => {}
                () = sleep_until(until.unwrap_or(now)), if until.is_some() => return None,
            }
        }
    }

    /// One registration, from the new socket to its end. `Ok` if another one may follow at once, else the problem.
    async fn attempt(&mut self, seen: Identity) -> Result<(), String> {
        let (served, streams) = (self.served.clone(), watch::Sender::new(None));
        let services = |stop| {
            let service = Service { served, streams: streams.clone(), stop };
            Grpc::builder().add_service(DevicePluginServer::new(service))
        };
        let server = Server::start(&self.own, services)
            .map_err(|error| format!("cannot bind {}: {error}", self.own.display()))?;
        let mut outcome = self.register().await;
        if outcome.is_ok() {
            outcome = self.watch(seen, &server, streams.subscribe()).await;
        }
        server.stop().await;
        outcome
    }

    async fn register(&mut self) -> Result<(), String> {
        let resource = &self.served.resource;
        let call = async {
            let request = RegisterRequest {
                version: VERSION.to_owned(),
                endpoint: resource.socket_name(),
                resource_name: resource.name.clone(),
                options: Some(options(resource)),
            };
            let mut kubelet = RegistrationClient::new(connect(&self.kubelet).await?);
            kubelet.register(Request::new(request)).await.map_err(|status| status.message().to_owned())
        };
        let answer = tokio::select! {
            _ = self.stop.wait_for(|stop| *stop) => return Ok(()),
            answer = timeout(REGISTER, call) => answer.map_err(|_| "the kubelet does not answer Register")?,
        };
        answer.map_err(|why| format!("Register: {why}"))?;
        log!("{}: registered", resource.name);
        Ok(())
    }

    /// Watches a registration until a new one is necessary.
    async fn watch(
        &mut self,
        seen: Identity,
        server: &Server,
        mut streams: watch::Receiver<Streams>,
    ) -> Result<(), String> {
        let deadline = Instant::now() + LISTEN;
        loop {
            if *self.stop.borrow() || identity(&self.kubelet) != Some(seen) {
                return Ok(());
            }
            if !server.is_there() {
                return Err(format!("the socket {} is gone, makes a new one", self.own.display()));
            }
            let open = *streams.borrow_and_update();
            let is_silent = open.is_none();
            if is_silent && Instant::now() >= deadline {
                return Err("the kubelet does not call ListAndWatch (none before 1.26 can), registers again"
                    .to_owned());
            }
            if open == Some(0) && UnixStream::connect(&self.kubelet).await.is_ok() {
                return Err("the kubelet has ended ListAndWatch, registers again".to_owned());
            }
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => {}
                _ = self.folder.changed() => {}
                _ = streams.changed() => {}
                () = sleep_until(deadline), if is_silent => {}
            }
        }
    }
}
