//! The two sockets of this instance: one for the services, one for the kubelet's plugin watcher.
//!
//! Each instance has names of its own, as in Kubernetes' helper for Go: the kubelet knows both instances while one replaces the other.
//!
//! The watcher sends the path of the socket as `:authority`, with `%2F` for each `/`. HTTP/2 libraries in Rust refuse `%` in the name of a
//! host, but not before an `@`. So the names of both sockets have an `@`.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

/// The end of a registration socket's name, and that of a services' socket.
const REGISTRATION: &str = "@reg.sock";
const SERVICES: &str = "@dra.sock";

/// The paths of this instance.
#[derive(Clone, Debug)]
pub(super) struct Sockets {
    /// The driver's folder.
    pub(super) folder: PathBuf,
    pub(super) services: PathBuf,
    /// The kubelet's folder for registration sockets.
    pub(super) registry: PathBuf,
    pub(super) registration: PathBuf,
    driver: String,
}

/// A unique ID of this instance. The process ID may be the same in each container.
pub(super) fn instance() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", process::id(), now.as_micros())
}

impl Sockets {
    /// The sockets of this instance of the driver. `kubelet` is the kubelet's folder.
    pub(super) fn new(kubelet: &Path, driver: &str, instance: &str) -> Sockets {
        let (folder, registry) = (kubelet.join("plugins").join(driver), kubelet.join("plugins_registry"));
        Sockets {
            services: folder.join(format!("{instance}{SERVICES}")),
            registration: registry.join(format!("{driver}-{instance}{REGISTRATION}")),
            driver: driver.to_owned(),
            folder,
            registry,
        }
    }

    /// Makes the folders, and removes the sockets of killed instances: the kubelet would go on to call them.
    pub(super) fn clean(&self) -> io::Result<()> {
        for folder in [&self.folder, &self.registry] {
            DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
        }
        let prefix = format!("{}-", self.driver);
        for (folder, start, end) in
            [(&self.folder, "", SERVICES), (&self.registry, prefix.as_str(), REGISTRATION)]
        {
            for entry in fs::read_dir(folder)?.flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                let is_ours =
                    name.to_str().is_some_and(|name| name.starts_with(start) && name.ends_with(end));
                let refuses = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                if is_ours && UnixStream::connect(&path).is_err_and(refuses) {
                    let _ = fs::remove_file(&path);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_of_a_killed_instance_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let sockets = |instance: &str| Sockets::new(folder.path(), "nic.ferrule.dev", instance);
        let (dead, alive) = (sockets("1-1"), sockets("1-2"));
        dead.clean().unwrap();
        drop([&dead.services, &dead.registration].map(|path| UnixListener::bind(path).unwrap()));
        let _listeners = [&alive.services, &alive.registration].map(|path| UnixListener::bind(path).unwrap());
        let foreign = folder.path().join("plugins_registry/other.example.com-1-1@reg.sock");
        drop(UnixListener::bind(&foreign).unwrap());
        alive.clean().unwrap();
        let exist = [&dead.services, &dead.registration, &alive.services, &alive.registration, &foreign];
        assert_eq!(exist.map(|path| path.exists()), [false, false, true, true, true]);
    }

    #[test]
    fn the_path_is_a_valid_authority() {
        let sockets = Sockets::new(Path::new("/var/lib/kubelet"), "nic.ferrule.dev", &instance());
        for path in [sockets.services, sockets.registration] {
            let authority = path.to_str().unwrap().replace('/', "%2F");
            assert!(authority.parse::<tonic::codegen::http::uri::Authority>().is_ok(), "{authority}");
        }
    }
}
