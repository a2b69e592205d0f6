//! Keeps one resource registered: through restarts of the kubelet, lost sockets and broken streams.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrule_nic_proto::v1beta1::registration_client::RegistrationClient;
use ferrule_nic_proto::v1beta1::{RegisterRequest, VERSION};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use super::server::{Identity, Server, identity};
use super::service::options;
use super::{Served, Way};
use crate::config::socket_name;

/// How long the kubelet may take for Register. Since 1.25 it calls the plugin before it answers.
const REGISTER: Duration = Duration::from_secs(30);
/// How long after Register the kubelet may call ListAndWatch: it dials for up to 10 seconds.
const LISTEN: Duration = Duration::from_secs(10);
/// The first pause after a failure: a new kubelet refuses connections for a moment, between bind and listen. It doubles up to
/// the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why there is no registration.
enum Refusal {
    /// This kubelet will refuse it each time.
    Final(String),
    /// It may work later.
    Later(String),
}

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
    let own = served.folder.join(socket_name(&served.resource.name));
    let kubelet = served.folder.join("kubelet.sock");
    let mut stopped = stop.clone();
    let mut keeper = Keeper { served, own, kubelet, folder, stop };
    let (mut pause, mut asked) = (FIRST_PAUSE, None);
    loop {
        let Some(seen) = keeper.wait_for_kubelet().await else { return };
        if asked.replace(seen) != Some(seen) {
            pause = FIRST_PAUSE;
        }
        let began = Instant::now();
        let problem = keeper.attempt(seen).await;
        if *stopped.borrow_and_update() {
            return;
        }
        let (text, retry) = match problem {
            Ok(()) => continue,
            Err(Refusal::Final(text)) => (text, None),
            Err(Refusal::Later(text)) => (text, Some(pause)),
        };
        log!("{}: {text}", keeper.served.resource.name);
        pause = if began.elapsed() > LISTEN * 2 { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        // A new kubelet is asked at once.
        keeper
            .wait(retry.map(|pause| Instant::now() + pause), |keeper| keeper.presence() != Some(seen))
            .await;
    }
}

impl Keeper {
    /// What stands for the kubelet: its socket, or the folder that its plugin watcher reads.
    fn presence(&self) -> Option<Identity> {
        match self.served.way {
            Way::Kubelet => identity(&self.kubelet),
            Way::Watcher => identity(&self.served.folder).map(|(device, inode, ..)| (device, inode, 0, 0)),
        }
    }

    /// Waits until the condition holds, the time is over, or the daemon stops. Tells whether it holds.
    async fn wait(&mut self, until: Option<Instant>, mut holds: impl FnMut(&Keeper) -> bool) -> bool {
        loop {
            if holds(self) {
                return true;
            }
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return false,
                _ = self.folder.changed() => {}
                () = reached(until) => return false,
            }
        }
    }

    async fn wait_for_kubelet(&mut self) -> Option<Identity> {
        if self.presence().is_none() {
            let wanted = if self.served.way == Way::Kubelet { &self.kubelet } else { &self.served.folder };
            log!("{}: waits for {}", self.served.resource.name, wanted.display());
        }
        let mut seen = None;
        self.wait(None, |keeper| {
            seen = keeper.presence();
            seen.is_some()
        })
        .await;
        seen
    }

    /// One registration, from the new socket to its end. `Ok` if another one may follow at once.
    async fn attempt(&mut self, seen: Identity) -> Result<(), Refusal> {
        let later =
            |error: std::io::Error| Refusal::Later(format!("cannot bind {}: {error}", self.own.display()));
        let server = Server::start(&self.own, self.served.clone()).map_err(later)?;
        let outcome = match self.register().await {
            Ok(()) => self.watch(seen, &server).await,
            Err(refusal) => Err(refusal),
        };
        server.stop().await;
        outcome
    }

    async fn register(&mut self) -> Result<(), Refusal> {
        if self.served.way == Way::Watcher {
            return Ok(());
        }
        let (resource, kubelet) = (&self.served.resource, &self.kubelet);
        let call = async {
            let endpoint = Endpoint::from_shared(format!("unix://{}", kubelet.display()));
            let channel = endpoint.map_err(|error| Status::internal(error.to_string()))?.connect().await;
            let channel = channel.map_err(|error| Status::unavailable(with_source(&error)))?;
            let request = RegisterRequest {
                version: VERSION.to_owned(),
                endpoint: socket_name(&resource.name),
                resource_name: resource.name.clone(),
                options: Some(options(resource)),
            };
            RegistrationClient::new(channel).register(Request::new(request)).await
        };
        let answer = tokio::select! {
            _ = self.stop.wait_for(|stop| *stop) => return Ok(()),
            answer = timeout(REGISTER, call) => answer,
        };
        match answer {
            Ok(Ok(_)) => {
                log!("{}: registered", resource.name);
                Ok(())
            }
            Ok(Err(status)) => Err(refusal(&status)),
            Err(_) => Err(Refusal::Later("the kubelet does not answer Register".to_owned())),
        }
    }

    /// Watches a registration until a new one is necessary.
    async fn watch(&mut self, seen: Identity, server: &Server) -> Result<(), Refusal> {
        let mut streams = server.streams();
        let deadline = Instant::now() + LISTEN;
        let later = |text: &str| Err(Refusal::Later(text.to_owned()));
        loop {
            if *self.stop.borrow() || self.presence() != Some(seen) {
                return Ok(());
            }
            if !server.is_there() {
                return Err(Refusal::Later(format!(
                    "the socket {} is gone, makes a new one",
                    self.own.display()
                )));
            }
            let now = *streams.borrow_and_update();
            if now.refused {
                return later("registers again later");
            }
            let is_silent = now.opened == 0 && self.served.way == Way::Kubelet;
            if is_silent && Instant::now() >= deadline {
                return later("the kubelet does not call ListAndWatch, registers again");
            }
            if now.opened > 0
                && now.open == 0
                && (self.served.way == Way::Watcher || answers(&self.kubelet).await)
            {
                return later("the kubelet has ended ListAndWatch, registers again");
            }
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => {}
                _ = self.folder.changed() => {}
                _ = streams.changed() => {}
                () = reached(is_silent.then_some(deadline)) => {}
            }
        }
    }
}

/// Waits until this time, or for ever.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

fn refusal(status: &Status) -> Refusal {
    let text = format!("Register: {}", status.message());
    let is_final = ["is not supported by kubelet", "the ResourceName"];
    if status.code() == Code::Unknown && is_final.iter().any(|part| text.contains(part)) {
        Refusal::Final(format!("{text}; waits for another kubelet"))
    } else {
        Refusal::Later(text)
    }
}

fn with_source(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", with_source(source)))
}

async fn answers(kubelet: &Path) -> bool {
    UnixStream::connect(kubelet).await.is_ok()
}
