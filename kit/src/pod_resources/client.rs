//! The calls of PodResources v1.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{process, thread};

use ferrule_kernel::grpc::{self, Error, RESOURCE_EXHAUSTED};

use super::message;

const SERVICE: &str = "v1.PodResourcesLister";
/// A kubelet answers within milliseconds, except while it starts.
const LIMIT: Duration = Duration::from_secs(5);
/// The pauses after a refusal, in milliseconds: since 1.27 a kubelet answers 100 calls a second, and 10 at once.
const PAUSES: [u64; 4] = [50, 100, 150, 200];

/// The service.
#[derive(Debug)]
pub struct PodResources {
    socket: PathBuf,
    /// How long a call may take, with its repetitions: 5 s unless a test sets another limit.
    pub limit: Duration,
}

impl PodResources {
    /// The service at a socket.
    pub fn at(socket: &Path) -> Self {
        PodResources { socket: socket.to_owned(), limit: LIMIT }
    }

    /// The devices of all pods: see [`message::list`].
    ///
    /// # Errors
    /// No answer within the limit, or an error of the kubelet.
    pub fn list(&self) -> Result<Vec<u8>, Error> {
        self.call("List", &[])
    }

    /// The devices of one pod: see [`message::get`]. Kubelets know it since 1.34, older ones refuse it.
    ///
    /// # Errors
    /// As [`PodResources::list`].
    pub fn get(&self, namespace: &str, name: &str) -> Result<Vec<u8>, Error> {
        self.call("Get", &message::get_request(namespace, name))
    }

    /// All healthy devices: see [`message::allocatable`]. Kubelets know it since 1.23.
    ///
    /// # Errors
    /// As [`PodResources::list`].
    pub fn allocatable(&self) -> Result<Vec<u8>, Error> {
        self.call("GetAllocatableResources", &[])
    }

    fn call(&self, method: &str, message: &[u8]) -> Result<Vec<u8>, Error> {
        let deadline = Instant::now() + self.limit;
        let path = format!("/{SERVICE}/{method}");
        let call = || {
            let left = deadline.saturating_duration_since(Instant::now());
            grpc::call(&self.socket, &path, message, left)
        };
        for pause in PAUSES {
            match call() {
                Err(Error::Status { code: RESOURCE_EXHAUSTED, .. }) => {}
                outcome => return outcome,
            }
            // Plugins that were refused together do not come back together.
            let jitter = u64::from(process::id()) % 50;
            thread::sleep(Duration::from_millis(pause + jitter));
        }
        call()
    }
}
