//! The names that a node has: of pods, containers, networks and nodes. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::RandomState;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use super::digest;
use crate::line::clean;
use crate::text::{beginning, short};

/// What a name names. The first one counts if it names several things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::report) enum Class {
    Node,
    Network,
    Namespace,
    Pod,
    Container,
    /// A network namespace.
    Netns,
    Uid,
}

impl Class {
    fn word(self) -> &'static str {
        match self {
            Class::Node => "node",
            Class::Network => "network",
            Class::Namespace => "namespace",
            Class::Pod => "pod",
            Class::Container => "container",
            Class::Netns => "netns",
            Class::Uid => "uid",
        }
    }
}

/// Names that stay, because they are words of the reports themselves, or everybody's.
const WORDS: &[&str] = &[
    "address",
    "alive",
    "bandwidth",
    "bridge",
    "calico",
    "check",
    "cilium",
    "cni",
    "container",
    "containerd",
    "crio",
    "dead",
    "default",
    "dhcp",
    "docker",
    "dummy",
    "error",
    "eth0",
    "failed",
    "ferrule",
    "ferrule-node",
    "firewall",
    "flannel",
    "gateway",
    "host",
    "host-device",
    "host-local",
    "host-port",
    "iface",
    "inspect",
    "interface",
    "ip",
    "ipv4",
    "ipv6",
    "ipvlan",
    "kindnet",
    "kube-node-lease",
    "kube-public",
    "kube-system",
    "kubernetes",
    "link",
    "lo",
    "local",
    "localhost",
    "loopback",
    "macvlan",
    "name",
    "namespace",
    "net",
    "netns",
    "network",
    "nft",
    "node",
    "ok",
    "podman",
    "pod",
    "pods",
    "port",
    "policy",
    "portmap",
    "ptp",
    "route",
    "rule",
    "run",
    "sbr",
    "shared",
    "sound",
    "static",
    "status",
    "subnet",
    "tap",
    "tuning",
    "type",
    "unknown",
    "vlan",
    "vrf",
    "warning",
    "cni0",
];
/// The shortest name of digits alone that is masked outside of its own place.
const DIGITS: usize = 6;
/// From this length on, a name is also found in front of a letter or digit.
const LONG: usize = 8;
/// The longest name; of a longer one the beginning is masked.
const LONGEST: usize = 253;

/// The known names. A text may have a name in several forms.
#[derive(Debug, Default)]
pub(in crate::report) struct Names {
    classes: HashMap<String, Class>,
    /// Each form, with the name.
    forms: HashMap<String, String>,
    /// The lengths of the forms with this first byte.
    lengths: BTreeMap<u8, BTreeSet<usize>>,
}

impl Names {
    pub(in crate::report) fn learn(&mut self, class: Class, name: &str) {
        let name = beginning(name, LONGEST);
        let is_number = name.len() < DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
        let is_address = name.parse::<IpAddr>().is_ok() || name.parse::<IpNetwork>().is_ok();
        if is_number || is_address || WORDS.contains(&name) {
            return;
        }
        let known = self.classes.entry(name.to_owned()).or_insert(class);
        *known = class.min(*known);
        let shown = clean(name);
        // As a picture has it.
        let xml =
            shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
        for form in [name, short(name), shown.trim(), xml.trim(), &name.escape_debug().to_string()] {
            if let Some(first) = form.bytes().next() {
                self.lengths.entry(first).or_default().insert(form.len());
                self.forms.entry(form.to_owned()).or_insert_with(|| name.to_owned());
            }
        }
    }

    /// A pod as `NAMESPACE/NAME`, or its name.
    pub(in crate::report) fn learn_pod(&mut self, pod: &str) {
        match pod.split_once('/') {
            Some((namespace, name)) => {
                self.learn(Class::Namespace, namespace);
                self.learn(Class::Pod, name);
            }
            None => self.learn(Class::Pod, pod),
        }
    }

    /// A node, and the first part of its name.
    pub(in crate::report) fn learn_node(&mut self, node: &str) {
        self.learn(Class::Node, node);
        if let Some((host, _)) = node.split_once('.') {
            self.learn(Class::Node, host);
        }
    }

    /// The names in a document, by the names of its members.
    pub(in crate::report) fn learn_from(&mut self, document: &Value) {
        match document {
            Value::Array(values) => values.iter().for_each(|value| self.learn_from(value)),
            Value::Object(members) => members.iter().for_each(|(key, value)| self.learn_member(key, value)),
            _ => {}
        }
    }

    fn learn_member(&mut self, key: &str, value: &Value) {
        match (key, value) {
            ("pod" | "claim", Value::String(pod)) => self.learn_pod(pod),
            ("node" | "host" | "hostname" | "nodeName", Value::String(node)) => self.learn_node(node),
            ("nodes", Value::Array(nodes)) => {
                let names = nodes.iter().filter_map(|node| node["name"].as_str());
                names.for_each(|name| self.learn_node(name));
            }
            (_, Value::String(name)) => {
                let class = match key {
                    "container" | "containerId" | "container_id" => Class::Container,
                    "network" | "networkName" => Class::Network,
                    "namespace" | "podNamespace" => Class::Namespace,
                    "podName" => Class::Pod,
                    "uid" | "podUid" => Class::Uid,
                    _ => return,
                };
                self.learn(class, name);
            }
            _ => {}
        }
        self.learn_from(value);
    }

    /// The longest name at the beginning of `rest`: its length, and its mask.
    pub(super) fn at(
        &self,
        previous: Option<char>,
        rest: &str,
        key: &RandomState,
    ) -> Option<(usize, String)> {
        if previous.is_some_and(char::is_alphanumeric) {
            return None;
        }
        let lengths = self.lengths.get(rest.as_bytes().first()?)?;
        let forms = lengths.iter().rev().filter_map(|len| rest.get(..*len));
        let is_end = |form: &str| !rest[form.len()..].starts_with(char::is_alphanumeric);
        let mut found = forms.filter(|form| form.len() >= LONG || is_end(form));
        found.find_map(|form| Some((form.len(), self.mask(form, key)?)))
    }

    /// The mask of a form of a name.
    pub(super) fn mask(&self, form: &str, key: &RandomState) -> Option<String> {
        let name = self.forms.get(form)?;
        Some(format!("{}-{}", self.classes.get(name)?.word(), digest(key, name)))
    }
}

/// Whether a word is one of the reports themselves.
pub(super) fn is_word(word: &str) -> bool {
    WORDS.contains(&word)
}
