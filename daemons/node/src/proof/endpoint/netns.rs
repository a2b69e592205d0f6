//! The namespaces of the endpoint, which outlive the daemon: a mount in `/run/netns` holds each one.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Context as _, Result};
use ferrule_kernel::netlink::{Socket, link};
use ferrule_kernel::netns::{enter, own};
use ferrule_kernel::ping;
use ferrule_kernel::sysctl;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

const LOOPBACK: u32 = 1;
const UP: u32 = 1;

/// Settings of the namespace. The kernel limits answers to each address: the first six at once, then one in each 100 ms. The
/// masks are the kernel's own ones and echo replies. Root may open sockets for echo requests that get the answers to their own
/// requests only.
const SETTINGS: [(&str, &str); 5] = [
    ping::GROUPS,
    ("net/ipv4/icmp_ratelimit", "100"),
    ("net/ipv4/icmp_ratemask", "6169"),
    ("net/ipv6/icmp/ratelimit", "100"),
    ("net/ipv6/icmp/ratemask", "0-1,3-127,129"),
];

/// Makes a namespace, and mounts it at this path.
pub(super) fn make(path: &Path) -> Result<()> {
    remove(path)?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    File::create_new(path).with_context(|| path.display().to_string())?;
    let host = own().context("open the node's namespace")?;
    unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace")?;
    let made = set_up(path);
    // This process makes nothing on the node itself, and ends if it cannot go back.
    nix::sched::setns(&host, CloneFlags::CLONE_NEWNET).context("return to the node's namespace")?;
    made.inspect_err(|_| drop(remove(path)))
}

fn set_up(path: &Path) -> Result<()> {
    // Without IPv6 the last ones do not exist.
    for (name, value) in SETTINGS.iter().filter(|(name, _)| sysctl::exists(name)) {
        sysctl::ensure(name, value)?;
    }
    Socket::route()?.request(link::set_flags(LOOPBACK, UP, UP)).context("set lo up")?;
    mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("mount the namespace at {}", path.display()))
}

/// Removes the mount and the file. Returns whether one was there.
pub(super) fn remove(path: &Path) -> Result<bool> {
    // More than one mount may be on it.
    while umount2(path, MntFlags::MNT_DETACH).is_ok() {}
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
    }
}

/// Whether a namespace is mounted at the path, with this link in it.
pub(super) fn has_link(path: &Path, name: &str) -> io::Result<bool> {
    let file = File::open(path)?;
    if !is_namespace(&file) {
        return Ok(false);
    }
    let mut socket = enter(&file, Socket::route)?.map_err(io::Error::other)?;
    let found = socket.link(ferrule_kernel::netlink::LinkId::Name(name)).map_err(io::Error::other)?;
    Ok(found.is_some_and(|link| link.is_up()))
}

/// Whether the file is a namespace: an unmount leaves a regular file behind.
pub(in crate::proof) fn is_namespace(file: &File) -> bool {
    nix::sys::statfs::fstatfs(file).is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
}
