//! Network namespaces with a path, as runtimes make them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::Place;
use super::namespaces::{Namespaces, in_thread};
use cni_runner::Attachment;

/// A network namespace below a node's `/run/netns`. Only the bind mount at that path keeps it alive, so the
/// kernel removes it after [`Pod::delete`] or with the node.
#[derive(Debug)]
pub struct Pod {
    namespaces: Arc<Namespaces>,
    name: String,
    path: PathBuf,
}

impl Pod {
    /// Makes the namespace. `lo` stays down; to bring it up is the loopback plugin's task.
    pub(super) fn new(namespaces: &Arc<Namespaces>, name: &str) -> anyhow::Result<Pod> {
        let path = Path::new("/run/netns").join(name);
        in_thread(|| {
            namespaces.enter_mounts()?;
            File::create_new(&path)?;
            unshare(CloneFlags::CLONE_NEWNET).context("unshare")?;
            let source = Some("/proc/thread-self/ns/net");
            mount(source, &path, None::<&str>, MsFlags::MS_BIND, None::<&str>).context("bind")
        })
        .with_context(|| format!("make the namespace {}", path.display()))?;
        Ok(Pod { namespaces: Arc::clone(namespaces), name: name.to_owned(), path })
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path for `CNI_NETNS`, valid in the node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An attachment of this pod; the container ID is the pod's name.
    pub fn attachment(&self, ifname: &str) -> Attachment {
        Attachment::new(&self.name, self.path.to_string_lossy(), ifname)
    }

    /// Removes the namespace and the file at its path, as a runtime does after DEL or before it.
    pub fn delete(&self) -> anyhow::Result<()> {
        self.unmount_only()?;
        self.in_node(|| fs::remove_file(&self.path).context("remove the file"))
    }

    /// Removes the namespace but leaves the empty file at its path, as a reboot does.
    pub fn unmount_only(&self) -> anyhow::Result<()> {
        self.in_node(|| umount2(&self.path, MntFlags::MNT_DETACH).context("unmount"))
    }

    fn in_node(&self, work: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
        in_thread(|| {
            self.namespaces.enter()?;
            work()
        })
        .with_context(|| format!("delete the namespace {}", self.path.display()))
    }
}

impl Place for Pod {
    fn enter(&self) -> anyhow::Result<()> {
        self.namespaces.enter_mounts()?;
        let file = File::open(&self.path).with_context(|| format!("open {}", self.path.display()))?;
        setns(&file, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", self.path.display()))
    }
}
