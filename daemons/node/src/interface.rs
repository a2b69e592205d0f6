//! The plugin of the built-in conflist that makes the pods' interfaces: `ptp`, or `bridge` while bridged pods run.
//!
//! A bridged pod asks by ARP for the pods of its own subnet, and nobody answers for one that is not on the bridge. So with `--main auto` a
//! node keeps the bridge until its last bridged pod is gone. The bridge needs more of the node: without br_netfilter, a pod's connection to a
//! Service that leads to a pod on the same bridge times out.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use cni_common::plugin::Attachment;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::addr::Address;
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kernel::{file, sysctl};
use ferrule_kit::veth;
use ipnetwork::IpNetwork;

use crate::arguments::{Main, Options, Policies};
use crate::cluster::gateway;
use crate::conflist::{Form, Kind, Template};
use crate::kernel::{BRIDGE, Local, Watch, is_link_local};
use crate::reason::{Code, Reason};

/// The most pods that a text names.
const NAMED: usize = 5;

/// The node's pods by their links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    /// The bridge, if it is there.
    bridge: Option<Link>,
    /// Its ports that lead into another namespace.
    pods: Vec<String>,
    /// Whether it has no port at all.
    is_unused: bool,
    /// The number of pods with a link of their own.
    on_links: usize,
}

/// The choice, and what the node lacks for it.
pub struct Part {
    /// `None` until the first look with `--main auto`, and with a template.
    kind: Option<Kind>,
    is_auto: bool,
    policy: Policies,
    template_bridges: bool,
    found: Found,
    /// What stands in the way of connections to a Service on the same node.
    lacks: Option<String>,
    is_module_tried: bool,
}

impl Part {
    /// As the options say.
    pub fn new(options: &Options, template: &Template) -> Part {
        let is_built_in = options.template.is_none();
        let kind = match options.main {
            Main::Auto => None,
            Main::Bridge => Some(Kind::Bridge),
            Main::Ptp => Some(Kind::Ptp),
        };
        Part {
            kind: kind.filter(|_| is_built_in),
            is_auto: is_built_in && options.main == Main::Auto,
            policy: options.policy,
            template_bridges: !is_built_in && template.plugin() == "bridge",
            found: Found::default(),
            lacks: None,
            is_module_tried: false,
        }
    }

    /// Looks at the node's pods and chooses. `ends`: the links of the health endpoint, which is no pod. Asks the kernel nothing on a node without the bridge. Replaces a built-in template.
    ///
    /// # Errors
    /// The kernel refuses a list.
    pub fn sync(
        &mut self,
        watch: &mut Watch,
        networks: &[IpNetwork],
        ends: &BTreeSet<String>,
        form: Form,
        template: &mut Template,
    ) -> Result<()> {
        let (on_links, bridge) = (on_links(watch.local(), networks, ends), bridge(watch.local()));
        let mut found = bridge.map_or(Ok(Found::default()), |index| find(watch.socket(), index))?;
        found.pods.retain(|port| !ends.contains(port));
        self.found = Found { on_links, ..found };
        if self.is_auto {
            let chosen = choose(self.kind, &self.found);
            if self.kind != Some(chosen) {
                match chosen {
                    Kind::Ptp => log!("the conflist's plugin is ptp: no bridged pod runs"),
                    Kind::Bridge => log!("the conflist's plugin stays bridge: {}", self.kept()),
                }
            }
            self.kind = Some(chosen);
        }
        if let Some(kind) = self.kind {
            *template = Template::built_in(kind, form, self.policy);
        }
        let needs_filter = self.kind == Some(Kind::Bridge) || self.template_bridges;
        let lacks = if needs_filter { self.filter(networks).err() } else { None };
        if let Some(lacks) = lacks.as_ref().filter(|lacks| self.lacks.as_ref() != Some(lacks)) {
            log!("{lacks}");
        }
        self.lacks = lacks;
        self.name_pods(&template.store());
        Ok(())
    }

    /// Removes the bridge that a former conflist has left, if nothing uses it. To call when the conflist is in place.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn tidy(&mut self, socket: &mut Socket) -> Result<()> {
        let Some(bridge) = self.found.bridge.as_ref().filter(|_| self.kind == Some(Kind::Ptp)) else {
            return Ok(());
        };
        let addresses =
            socket.addresses(bridge.index).with_context(|| format!("list addresses of {BRIDGE}"))?;
        if self.found.is_unused && are_gateways(&addresses) {
            socket.delete_link(LinkId::Index(bridge.index)).with_context(|| format!("remove {BRIDGE}"))?;
            log!("removed {BRIDGE}: no pod is on it any more");
            self.found.bridge = None;
        }
        Ok(())
    }

    /// What an operator should know.
    pub fn reasons(&self) -> Vec<Reason> {
        let Found { pods, on_links, .. } = &self.found;
        let reason = |code, text| Reason { code, about: BRIDGE.to_owned(), text };
        let mut reasons = Vec::new();
        if !pods.is_empty() && *on_links > 0 {
            let text = format!(
                "{} and {on_links} pods with links of their own do not reach each other on this node",
                self.kept()
            );
            reasons.push(reason(Code::BridgeMixed, text));
        } else if self.is_auto && self.kind == Some(Kind::Bridge) {
            reasons
                .push(reason(Code::BridgeKept, format!("new pods get the plugin bridge: {}", self.kept())));
        }
        reasons.extend(self.lacks.iter().map(|lacks| reason(Code::BridgeNetfilter, lacks.clone())));
        reasons
    }

    fn kept(&self) -> String {
        let Found { pods, .. } = &self.found;
        let named = pods.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if pods.len() > NAMED { ", …" } else { "" };
        format!("{} bridged pods ({named}{more})", pods.len())
    }

    /// Adds the containers and addresses of the bridged pods, as host-local knows them in its folder `store`.
    fn name_pods(&mut self, store: &Path) {
        if self.found.pods.is_empty() {
            return;
        }
        let network = store.file_name().unwrap_or_default().to_string_lossy();
        let entries = fs::read_dir(store).into_iter().flatten().filter_map(Result::ok);
        let owners: Vec<(IpAddr, String, String)> =
            entries.filter_map(|entry| owner(&entry.path())).collect();
        for pod in self.found.pods.iter_mut().take(NAMED) {
            let is_its = |(_, container_id, ifname): &&(IpAddr, String, String)| {
                veth::names(&Attachment { network: &network, container_id, ifname })
                    .any(|(name, _)| name == *pod)
            };
            let its: Vec<_> = owners.iter().filter(is_its).collect();
            let Some((_, container, _)) = its.first() else { continue };
            let addresses: Vec<String> = its.iter().map(|(ip, ..)| ip.to_string()).collect();
            *pod = format!("{pod} {} of container {container}", addresses.join(" "));
        }
    }

    /// Lets bridged packets pass the rules of Services.
    fn filter(&mut self, networks: &[IpNetwork]) -> Result<(), String> {
        let families = IpFamily::ALL
            .into_iter()
            .filter(|family| networks.iter().any(|network| IpFamily::of(network.ip()) == *family));
        for family in families {
            let name = match family {
                IpFamily::V4 => "net/bridge/bridge-nf-call-iptables",
                IpFamily::V6 => "net/bridge/bridge-nf-call-ip6tables",
            };
            if !sysctl::exists(name) && !std::mem::replace(&mut self.is_module_tried, true) {
                load_module();
            }
            sysctl::ensure(name, "1").map_err(|error| {
                format!("a pod's connection to a Service that leads to a pod of this node times out: {error}")
            })?;
        }
        Ok(())
    }
}

/// Waits for modprobe, which has no output of use: the sysctl says whether the module is there.
fn load_module() {
    let mut command = Command::new("modprobe");
    command.arg("br_netfilter").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if command.status().is_ok_and(|status| status.success()) {
        log!("loaded the kernel's module br_netfilter");
    }
}

/// The index of the link that has the bridge's name.
fn bridge(local: &Local) -> Option<u32> {
    local.links.iter().find(|(_, link)| link.name == BRIDGE).map(|(index, _)| *index)
}

fn find(socket: &mut Socket, index: u32) -> Result<Found> {
    let bridge = socket.link(LinkId::Index(index)).with_context(|| format!("look up {BRIDGE}"))?;
    let Some(bridge) = bridge.filter(|link| link.kind == "bridge") else { return Ok(Found::default()) };
    let ports = socket.ports(bridge.index).with_context(|| format!("list the ports of {BRIDGE}"))?;
    Ok(Found { bridge: Some(bridge), is_unused: ports.is_empty(), pods: pods(ports), on_links: 0 })
}

/// The ports whose other end is in another namespace.
fn pods(ports: Vec<Link>) -> Vec<String> {
    let is_pod = |port: &Link| port.kind == veth::KIND && port.peer_netns.is_some();
    ports.into_iter().filter(is_pod).map(|port| port.name).collect()
}

/// A node that has changed to ptp stays there: pods of both kinds on one node do not reach each other.
fn choose(former: Option<Kind>, found: &Found) -> Kind {
    match former {
        Some(Kind::Ptp) => Kind::Ptp,
        _ if found.pods.is_empty() => Kind::Ptp,
        _ => Kind::Bridge,
    }
}

/// Whether these are the addresses that `bridge` gives its bridge: the first ones of a podCIDR.
fn are_gateways(addresses: &[Address]) -> bool {
    let mut networks = addresses.iter().map(|address| address.network);
    networks.all(|network| is_link_local(network.ip()) || network.ip() == gateway(network))
}

/// The number of pods that have a link of their own: its end on the node has the address of the gateway.
fn on_links(local: &Local, networks: &[IpNetwork], ends: &BTreeSet<String>) -> usize {
    let is_own = |ip: &IpAddr| networks.iter().any(|network| network.contains(*ip));
    let is_pair = |index: &u32| {
        local.links.get(index).is_some_and(|link| {
            link.name.starts_with("veth") && link.master.is_none() && !ends.contains(&link.name)
        })
    };
    let links = local.addresses.iter().filter(|(_, ip)| is_own(ip)).map(|(index, _)| *index).filter(is_pair);
    links.collect::<BTreeSet<_>>().len()
}

/// The address, container and interface of a file of host-local.
fn owner(path: &Path) -> Option<(IpAddr, String, String)> {
    let ip = path.file_name()?.to_str()?.parse().ok()?;
    let text = String::from_utf8(file::read(path).ok()?).ok()?;
    let mut lines = text.lines();
    let (container, ifname) = (lines.next()?.to_owned(), lines.next().unwrap_or("eth0").to_owned());
    Some((ip, container, ifname))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, kind: &str, peer_netns: Option<i32>) -> Link {
        Link { name: name.to_owned(), kind: kind.to_owned(), peer_netns, ..Link::default() }
    }

    #[test]
    fn a_node_keeps_the_bridge_until_its_last_bridged_pod_is_gone() {
        let found = |ports: Vec<Link>| Found { pods: pods(ports), ..Found::default() };
        let (none, foreign) = (found(vec![]), found(vec![port("eth1", "", None), port("v0", "veth", None)]));
        let one = found(vec![port("veth1", "veth", Some(0)), port("eth1", "", None)]);
        for (former, found, expected) in [
            (None, &none, Kind::Ptp),
            (None, &foreign, Kind::Ptp),
            (None, &one, Kind::Bridge),
            (Some(Kind::Bridge), &one, Kind::Bridge),
            (Some(Kind::Bridge), &none, Kind::Ptp),
            (Some(Kind::Ptp), &one, Kind::Ptp),
        ] {
            assert_eq!(choose(former, found), expected, "{former:?} {found:?}");
        }
    }

    #[test]
    fn only_gateways_of_pods_go_with_the_bridge() {
        let are = |texts: &[&str]| {
            let address = |text: &&str| Address { network: text.parse().unwrap(), flags: 0, scope: 0 };
            are_gateways(&texts.iter().map(address).collect::<Vec<_>>())
        };
        assert!(are(&[]) && are(&["10.244.1.1/24", "fd00:244:1::1/64", "fe80::5/64", "10.244.9.1/24"]));
        assert!(!are(&["10.244.1.1/24", "192.168.7.20/24"]) && !are(&["fd00:244:1::9/64"]));
    }

    #[test]
    fn reasons() {
        let codes = |kind, pods: usize, on_links, lacks: Option<&str>| {
            let pods = (0..pods).map(|number| format!("veth{number}")).collect();
            let part = Part {
                kind: Some(kind),
                is_auto: true,
                policy: Policies::Off,
                template_bridges: false,
                found: Found { pods, on_links, ..Found::default() },
                lacks: lacks.map(str::to_owned),
                is_module_tried: true,
            };
            let reasons = part.reasons();
            (
                reasons.iter().map(|reason| reason.code).collect::<Vec<_>>(),
                reasons.first().map_or("".into(), |r| r.text.clone()),
            )
        };
        assert_eq!(codes(Kind::Ptp, 0, 7, None).0, []);
        let (kept, text) = codes(Kind::Bridge, 7, 0, Some("x"));
        assert_eq!(kept, [Code::BridgeKept, Code::BridgeNetfilter]);
        assert!(text.ends_with("7 bridged pods (veth0, veth1, veth2, veth3, veth4, …)"), "{text}");
        assert_eq!(codes(Kind::Ptp, 1, 1, None).0, [Code::BridgeMixed]);
        assert_eq!(codes(Kind::Bridge, 1, 1, None).0, [Code::BridgeMixed]);
    }
}
