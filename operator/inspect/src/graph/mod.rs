//! `ferrule inspect graph`: the node, its bridges and parent links, the attachments on them, host ports and limits. Pure.

mod svg;
mod text;

use clap::ValueEnum;

use crate::line::clean;
use crate::model::{Kind, Object};
use crate::node::{Attached, Node};
use crate::text::short;

/// The language of the picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A picture for browsers
    #[default]
    Svg,
    /// For Graphviz: dot -Tpng
    Dot,
    /// For Markdown on GitHub and GitLab
    Mermaid,
}

/// What the picture shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Graph {
    node: String,
    groups: Vec<Group>,
}

/// A link of the node, or a network without one, with the attachments on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    name: String,
    pods: Vec<Pod>,
}

/// An attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pod {
    name: String,
    state: &'static str,
    network: String,
    /// The interface with its addresses.
    addresses: Vec<String>,
    /// Such as `8080/tcp → 80`.
    ports: Vec<String>,
    /// The rates to and from the container.
    limits: Option<(String, String)>,
}

impl Pod {
    fn of(attached: &Attached<'_>) -> Self {
        let owner = attached.owner;
        let text = |name: &Option<String>| name.clone().unwrap_or_default();
        let pod = attached.entry.and_then(|entry| entry.pod.clone());
        let ifname = text(&owner.ifname);
        let port = |(port, target): (&str, &str)| {
            format!("{port} → {}", target.rsplit_once(':').map_or(target, |(_, port)| port))
        };
        let mut addresses: Vec<_> = attached.addresses.iter().map(|ip| format!("{ifname} {ip}")).collect();
        if addresses.is_empty() {
            addresses.push(ifname.clone());
        }
        let limits = attached.limits();
        Pod {
            name: pod.unwrap_or_else(|| short(owner.container.as_deref().unwrap_or_default()).to_owned()),
            state: attached.state,
            network: text(&owner.network),
            addresses,
            ports: attached.objects.iter().flat_map(|object| object.host_ports()).map(port).collect(),
            limits: limits.split_once('/').map(|(to, from)| (to.to_owned(), from.to_owned())),
        }
    }
}

impl Graph {
    /// A dead attachment has lost its link. So it is drawn at the link that others of its network have.
    fn of(node: &Node) -> Self {
        let attachments = node.attachments(false);
        let master = |attached: &Attached<'_>| {
            let links = attached.objects.iter().filter(|object| object.kind == Kind::Link);
            links.map(|link| Object::fact(link, "master").to_owned()).find(|master| !master.is_empty())
        };
        let mut groups = Vec::<Group>::new();
        for attached in &attachments {
            let pod = Pod::of(attached);
            let mut same = attachments.iter().filter(|other| other.owner.network == attached.owner.network);
            let name = master(attached).or_else(|| same.find_map(master));
            let name = name.unwrap_or_else(|| format!("network {}", pod.network));
            match groups.iter_mut().find(|group| group.name == name) {
                Some(group) => group.pods.push(pod),
                None => groups.push(Group { name, pods: vec![pod] }),
            }
        }
        Graph { node: node.host.clone(), groups }
    }
}

/// The picture of a node.
pub fn draw(node: &Node, format: Format) -> String {
    let graph = Graph::of(node);
    match format {
        Format::Svg => svg::draw(&graph),
        Format::Dot => text::dot(&graph),
        Format::Mermaid => text::mermaid(&graph),
    }
}

/// A text in which characters that mean something to the picture's language are replaced. Control characters become blanks.
fn escaped(text: &str, replacements: &[(char, &str)]) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match replacements.iter().find(|(special, _)| *special == c) {
            Some((_, replacement)) => safe.push_str(replacement),
            None => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with so many pods on a bridge, and one on a parent link. Names are as long and as wild as others may write them.
    pub(super) fn graph(pods: usize) -> Graph {
        let pod = |at: usize| Pod {
            name: format!("shop/web-{at}"),
            state: if at == 1 { "dead" } else { "alive" },
            network: "pods".to_owned(),
            addresses: vec![format!("eth0 10.1.0.{}", at + 2)],
            ports: (0..at % 3).map(|port| format!("{}/tcp → 80", 8080 + port)).collect(),
            limits: (at == 0).then(|| ("40M".to_owned(), "-".to_owned())),
        };
        let wild = Pod {
            name: format!("<a&\"b\"\\\u{1b}[1m>/{}", "long-".repeat(20)),
            state: "unknown",
            addresses: vec!["net1".to_owned()],
            ports: (0..206).map(|port| format!("{port}/udp → 1")).collect(),
            ..Pod::default()
        };
        let groups = vec![
            Group { name: "cni0".to_owned(), pods: (0..pods).map(pod).collect() },
            Group { name: "network \"lan\"".to_owned(), pods: vec![wild] },
        ];
        Graph { node: "node-1".to_owned(), groups }
    }
}
