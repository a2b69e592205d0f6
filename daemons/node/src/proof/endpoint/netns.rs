//! The namespaces of the endpoint, which outlive the daemon: a mount in `/run/netns` holds each one.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};
use ferrule_kernel::netlink::{Socket, link};
use ferrule_kernel::netns::enter;
use ferrule_kernel::sysctl;
use ferrule_kernel::{netns_file, ping};

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

/// Makes a namespace that lives at this path.
pub(super) fn make(path: &Path) -> Result<()> {
    let at = || path.display().to_string();
    netns_file::remove(path).with_context(at)?;
    netns_file::make(path).with_context(at)?;
    let set_up = File::open(path).and_then(|file| enter(&file, set_up)).with_context(at).flatten();
    set_up.inspect_err(|_| drop(netns_file::remove(path)))
}

fn set_up() -> Result<()> {
    // Without IPv6 the last ones do not exist.
    for (name, value) in SETTINGS.iter().filter(|(name, _)| sysctl::exists(name)) {
        sysctl::ensure(name, value)?;
    }
    Socket::route()?.request(link::set_flags(LOOPBACK, UP, UP)).context("set lo up")?;
    Ok(())
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
