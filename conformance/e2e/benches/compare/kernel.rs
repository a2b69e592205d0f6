//! The time that the kernel alone takes to remove a pod's links, which every plugin's DEL includes.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::bail;
use cni_lab::{Node, Place as _, Pod};
use ferrule_kernel::netlink::link::{self, IFF_UP, NewLink};
use ferrule_kernel::netlink::{LinkId, Socket, addr};
use ferrule_kernel::netns;

const BRIDGE: &str = "cni-bare";
const HOST_END: &str = "vethbare";
const POD_END: &str = "eth0";
const POD_ADDRESS: &str = "10.3.0.2/16";

/// A pod on a bridge whose links are made and removed without a plugin. Made and used within the node.
pub(crate) struct Links {
    netns: File,
    node: Socket,
    pod: Socket,
    bridge: u32,
}

/// Makes the bridge as the plugin would and a pod with `lo` up. Called outside of the node.
pub(crate) fn prepare(node: &Node) -> anyhow::Result<Pod> {
    let pod = node.pod("bench-bare")?;
    pod.sh("ip link set lo up")?;
    node.sh(&format!(
        "set -e; ip link add {BRIDGE} type bridge; ip address add 10.3.0.1/16 dev {BRIDGE}; ip link set {BRIDGE} up"
    ))?;
    Ok(pod)
}

impl Links {
    pub(crate) fn new(pod: &Pod) -> anyhow::Result<Links> {
        let netns = File::open(pod.path())?;
        let mut node = Socket::route()?;
        let Some(bridge) = node.link(LinkId::Name(BRIDGE))? else { bail!("no bridge {BRIDGE}") };
        let in_pod = netns::enter(&netns, Socket::route)??;
        Ok(Links { netns, node, pod: in_pod, bridge: bridge.index })
    }

    /// Makes the pair as the bridge plugin does, and measures the one message that removes it.
    pub(crate) fn remove_once(&mut self) -> anyhow::Result<Duration> {
        let (flags, master, netns) = (IFF_UP, Some(self.bridge), Some(self.netns.as_fd()));
        let host = NewLink { kind: "veth", name: HOST_END, flags, master, ..NewLink::default() };
        let container = NewLink { name: POD_END, netns, ..NewLink::default() };
        self.node.request(link::new_veth(&host, &container))?;
        let Some(end) = self.pod.link(LinkId::Name(POD_END))? else { bail!("no {POD_END} in the pod") };
        self.pod.request(link::set_flags(end.index, IFF_UP, IFF_UP))?;
        self.pod.request(addr::add(end.index, POD_ADDRESS.parse()?, 0))?;
        let start = Instant::now();
        self.pod.request(link::delete(LinkId::Index(end.index)))?;
        Ok(start.elapsed())
    }
}
