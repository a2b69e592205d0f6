//! The plugin watcher, and the calls of Dynamic Resource Allocation: a kubelet as far as a DRA driver sees it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ferrule_nic_proto::dra::v1::{
    Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest, dra_plugin_client as v1,
};
use ferrule_nic_proto::dra::v1beta1::dra_plugin_client as v1beta1;
use ferrule_nic_proto::health::v1::dra_resource_health_client as health_v1;
use ferrule_nic_proto::health::v1::{DeviceHealth, NodeWatchResourcesRequest};
use ferrule_nic_proto::health::v1alpha1::dra_resource_health_client as v1alpha1;
use ferrule_nic_proto::registration::registration_client::RegistrationClient;
use ferrule_nic_proto::registration::{InfoRequest, RegistrationStatus};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// How often the watcher looks into its folder.
const LOOK: Duration = Duration::from_millis(50);
/// How long GetInfo may take (the kubelet: 1 s), and how long a call of the driver.
const INFO: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(45);

/// What differs between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraRelease {
    /// It knows `v1beta1.DRAPlugin`, and calls it with the path of the socket as `:authority`.
    V1_32,
    /// It knows `v1.DRAPlugin` too.
    V1_34,
    /// It asks registered plugins again and again, and drops those that do not answer.
    V1_37,
}

/// A plugin that is registered, in the order of the registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its registration socket, and what makes the file the same one.
    socket: PathBuf,
    file: (u64, i64, i64),
    /// The driver's name.
    pub driver: String,
    /// The socket of the services.
    pub endpoint: PathBuf,
    /// The service that this kubelet has chosen.
    pub service: String,
}

#[derive(Debug, Default)]
struct State {
    plugins: Vec<Plugin>,
    /// The last error of each socket.
    problems: BTreeMap<PathBuf, String>,
    registrations: usize,
}

/// The kubelet of a DRA driver. Dropping it is a kill.
#[derive(Debug)]
pub struct DraKubelet {
    release: DraRelease,
    state: Arc<Mutex<State>>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// What has become of each claim, by UID.
pub type Outcomes<T> = BTreeMap<String, Result<T, String>>;

impl DraKubelet {
    /// Starts with this `--root-dir`. It finds the sockets that exist already.
    pub fn start(root: &Path, release: DraRelease) -> DraKubelet {
        let folder = root.join("plugins_registry");
        fs::create_dir_all(&folder).unwrap();
        let state = Arc::<Mutex<State>>::default();
        let (stop, mut stopped) = watch::channel(false);
        let shared = state.clone();
        let thread = thread::spawn(move || {
            runtime().block_on(async {
                while !*stopped.borrow() {
                    look(&folder, release, &shared).await;
                    let _ = timeout(LOOK, stopped.changed()).await;
                }
            });
        });
        DraKubelet { release, state, stop, thread: Some(thread) }
    }

    /// The registered instances of the driver.
    pub fn plugins(&self, driver: &str) -> Vec<Plugin> {
        let state = self.state.lock().unwrap();
        state.plugins.iter().filter(|plugin| plugin.driver == driver).cloned().collect()
    }

    /// Why sockets could not be registered.
    pub fn problems(&self) -> Vec<String> {
        self.state.lock().unwrap().problems.values().cloned().collect()
    }

    /// How many registrations have succeeded.
    pub fn registrations(&self) -> usize {
        self.state.lock().unwrap().registrations
    }

    /// NodePrepareResources for claims as (namespace, name, UID).
    pub fn prepare(
        &self,
        driver: &str,
        claims: &[(&str, &str, &str)],
    ) -> Result<Outcomes<Vec<Device>>, Status> {
        let request = NodePrepareResourcesRequest { claims: claims.iter().map(claim).collect() };
        let answer = self.call(driver, async |service, channel| match service {
            "v1.DRAPlugin" => v1::DraPluginClient::new(channel).node_prepare_resources(request).await,
            _ => v1beta1::DraPluginClient::new(channel).node_prepare_resources(request).await,
        })?;
        let outcome = |error: String, devices| if error.is_empty() { Ok(devices) } else { Err(error) };
        let entries = answer.into_inner().claims.into_iter();
        Ok(entries.map(|(uid, entry)| (uid, outcome(entry.error, entry.devices))).collect())
    }

    /// NodeUnprepareResources for claims as (namespace, name, UID).
    pub fn unprepare(&self, driver: &str, claims: &[(&str, &str, &str)]) -> Result<Outcomes<()>, Status> {
        let request = NodeUnprepareResourcesRequest { claims: claims.iter().map(claim).collect() };
        let answer = self.call(driver, async |service, channel| match service {
            "v1.DRAPlugin" => v1::DraPluginClient::new(channel).node_unprepare_resources(request).await,
            _ => v1beta1::DraPluginClient::new(channel).node_unprepare_resources(request).await,
        })?;
        let outcome = |error: String| if error.is_empty() { Ok(()) } else { Err(error) };
        Ok(answer.into_inner().claims.into_iter().map(|(uid, entry)| (uid, outcome(entry.error))).collect())
    }

    /// The first message of the health stream, by the version of the service that the release knows.
    pub fn health(&self, driver: &str) -> Result<Vec<DeviceHealth>, Status> {
        let is_new = self.release == DraRelease::V1_37;
        self.call(driver, async |_, channel| {
            let request = NodeWatchResourcesRequest {};
            let mut stream = if is_new {
                health_v1::DraResourceHealthClient::new(channel).node_watch_resources(request).await?
            } else {
                v1alpha1::DraResourceHealthClient::new(channel).node_watch_resources(request).await?
            };
            Ok(stream.get_mut().message().await?.ok_or(Status::unknown("the stream has ended"))?.devices)
        })
    }

    /// Calls the newest instance that accepts a connection, as the kubelet since 1.34 does.
    fn call<T>(
        &self,
        driver: &str,
        call: impl AsyncFnOnce(&str, Channel) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let plugins = self.plugins(driver);
        runtime().block_on(async {
            for plugin in plugins.iter().rev() {
                let authority = match self.release {
                    DraRelease::V1_32 => escaped(&plugin.endpoint),
                    _ => "localhost".to_owned(),
                };
                if let Ok(channel) = dial(&plugin.endpoint, &authority).await {
                    let outcome = timeout(CALL, call(&plugin.service, channel)).await;
                    return outcome.map_err(|_| Status::deadline_exceeded("context deadline exceeded"))?;
                }
            }
            Err(Status::unavailable(format!("DRA driver {driver} is not registered")))
        })
    }
}

impl Drop for DraKubelet {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn claim((namespace, name, uid): &(&str, &str, &str)) -> Claim {
    Claim { namespace: (*namespace).to_owned(), name: (*name).to_owned(), uid: (*uid).to_owned() }
}

/// One look of the watcher: sockets that are gone are dropped, new ones registered.
async fn look(folder: &Path, release: DraRelease, state: &Mutex<State>) {
    let mut sockets = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let Ok(data) = entry.metadata() else { continue };
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if data.file_type().is_socket() && !is_hidden {
            sockets.push((entry.path(), (data.ino(), data.ctime(), data.ctime_nsec())));
        }
    }
    let known = |plugin: &Plugin| sockets.contains(&(plugin.socket.clone(), plugin.file));
    state.lock().unwrap().plugins.retain(known);
    for (socket, file) in sockets {
        let registered = state.lock().unwrap().plugins.iter().any(|plugin| plugin.socket == socket);
        if registered && release != DraRelease::V1_37 {
            continue;
        }
        let outcome = register(&socket, file, release, registered).await;
        let mut state = state.lock().unwrap();
        match outcome {
            Ok(_) if registered => {}
            Ok(plugin) => {
                state.problems.remove(&socket);
                state.registrations += 1;
                state.plugins.push(plugin);
            }
            Err(problem) => {
                state.plugins.retain(|plugin| plugin.socket != socket);
                state.problems.insert(socket, problem);
            }
        }
    }
}

async fn register(
    socket: &Path,
    file: (u64, i64, i64),
    release: DraRelease,
    again: bool,
) -> Result<Plugin, String> {
    let channel = dial(socket, &escaped(socket)).await?;
    let mut client = RegistrationClient::new(channel);
    let info = timeout(INFO, client.get_info(InfoRequest {})).await.map_err(|_| "no answer to GetInfo")?;
    let info = info.map_err(|status| format!("GetInfo: {status}"))?.into_inner();
    let known: &[&str] = if release == DraRelease::V1_32 {
        &["v1beta1.DRAPlugin"]
    } else {
        &["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    };
    let service = info.supported_versions.into_iter().find(|service| known.contains(&service.as_str()));
    let problem = match (&*info.r#type, &service) {
        ("DRAPlugin", Some(_)) => String::new(),
        ("DRAPlugin", None) => {
            "none of services supported by the plugin are supported by the kubelet".to_owned()
        }
        (other, _) => format!("no handler registered for plugin type: {other}"),
    };
    if !again {
        let status = RegistrationStatus { plugin_registered: problem.is_empty(), error: problem.clone() };
        let told = client.notify_registration_status(status).await;
        told.map_err(|status| format!("NotifyRegistrationStatus: {status}"))?;
    }
    match service {
        Some(service) if problem.is_empty() => {
            let (socket, endpoint) = (socket.to_owned(), info.endpoint.into());
            Ok(Plugin { socket, file, driver: info.name, endpoint, service })
        }
        _ => Err(problem),
    }
}

/// What grpc-go makes of a path that is its target: all but what may stand in an authority is escaped.
fn escaped(path: &Path) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ if b"-_.~!$&'()*+,;=:[]@".contains(&byte) => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    path.as_os_str().as_encoded_bytes().iter().copied().map(escape).collect()
}

/// Connects to a socket with this `:authority`. One that HTTP libraries in Rust refuse is an error already here.
async fn dial(socket: &Path, authority: &str) -> Result<Channel, String> {
    let origin = format!("http://{authority}/").parse();
    let origin = origin.map_err(|error| format!("{authority}: {error}"))?;
    let endpoint =
        Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(|error| error.to_string())?;
    let endpoint = endpoint.origin(origin);
    tokio::select! {
        channel = endpoint.connect() => channel.map_err(|error| error.to_string()),
        () = sleep(INFO) => Err(format!("no connection to {}", socket.display())),
    }
}
