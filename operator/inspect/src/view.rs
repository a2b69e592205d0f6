//! The rows of each view.

use clap::{Args, ValueEnum};
use itertools::Itertools as _;
use serde_json::{Value, json};

use crate::graph::{Format, draw};
use crate::model::{Kind, Object, Owner, SCHEMA, name};
use crate::node::{Attached, Node};
use crate::table::{Row, Style, layout};
use crate::text::{age, first, scaled, short};
use crate::why;

/// What to show, as the command line names it.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What to show
    #[arg(default_value = "pods", hide_default_value = true)]
    pub view: View,
    /// With why: a container, pod, address or host port
    #[arg(required_if_eq("view", "why"))]
    pub what: Option<String>,
    /// With graph: the language of the picture [default: svg]
    #[arg(long)]
    pub format: Option<Format>,
    /// With pods: also the attachments of lo, which containerd makes
    #[arg(long)]
    pub all: bool,
}

/// What `inspect` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// One line for each attachment of a container to a network (default)
    Pods,
    /// The addresses that host-local has reserved or dhcp has leased
    Addresses,
    /// The host ports, in every layout
    Ports,
    /// The limits of bandwidth, with bytes passed and packets dropped
    Shaping,
    /// The host's ends of the containers' links, IFBs, devices of host-device, VLAN devices with their users, and links
    /// without an end on the host
    Links,
    /// The devices that containers have by host-device, with the resource or the DRA claim that they are from
    Devices,
    /// The routes of ferrule-node to the pods of other nodes
    Nodes,
    /// The blocks of addresses that this node has of networks that many nodes share
    Blocks,
    /// The policies that are for each pod of this node, and whom they name
    Policies,
    /// What belongs to no living container, each with its proof
    Leaks,
    /// A picture: the node, bridges and parent links, the attachments on them, host ports and limits
    Graph,
    /// Everything about a container, pod, address or host port
    Why,
}

/// A row of a view of objects.
struct Line<'n> {
    node: &'n Node,
    object: &'n Object,
    /// In the view of host ports, one of them and its target.
    port: (&'n str, &'n str),
}

/// A title, and the text of a cell.
type Column = (&'static str, fn(&Line<'_>) -> String);

const ADDRESS: Column = ("ADDRESS", |line| line.object.name.clone());
const AGE: Column = ("AGE", |line| age(line.object.since));
const BLOCK: Column = ("BLOCK", |line| line.object.name.clone());
const CLAIM: Column = ("CLAIM", |line| line.object.fact("claim").to_owned());
const CONTAINER: Column = ("CONTAINER", |line| container(&line.object.owner));
const DEVICE: Column = ("DEVICE", |line| line.object.name.clone());
const DOMAIN: Column = ("DOMAIN", |line| line.object.fact("domain").to_owned());
const DROPPED: Column = ("DROPPED", |line| first(line.object.fact("dropped")).to_owned());
const FREE: Column = ("FREE", |line| line.object.fact("free").to_owned());
const FROM: Column = ("FROM", |line| bytes(line.object, "from container"));
const HOST_PORT: Column = ("HOST PORT", |line| line.port.0.to_owned());
const ID: Column = ("ID", |line| line.object.fact("id").to_owned());
const IFNAME: Column = ("IF", |line| line.object.owner.ifname.clone().unwrap_or_default());
const KIND: Column = ("KIND", |line| name(&line.object.kind));
const LINK: Column = ("LINK", |line| line.object.name.clone());
const DIRECTION: Column = ("LINK", |line| match line.object.kind {
    Kind::Ifb => format!("from container, on {}", line.object.name),
    _ => line.object.name.clone(),
});
const LINK_KIND: Column = ("KIND", |line| line.object.fact("kind").to_owned());
const MAKER: Column = ("MAKER", |line| name(&line.object.maker));
const MASTER: Column = ("MASTER", |line| line.object.fact("master").to_owned());
const MTU: Column = ("MTU", |line| line.object.fact("mtu").to_owned());
const NAME: Column = ("NAME", |line| line.object.name.clone());
const NETWORK: Column = ("NETWORK", |line| line.object.owner.network.clone().unwrap_or_default());
const NODE: Column = ("NODE", |line| line.object.fact("node").to_owned());
const PASSED: Column = ("PASSED", |line| bytes(line.object, "passed"));
const PODS: Column = ("PODS", |line| line.object.name.clone());
const POD: Column = ("POD", |line| line.pod());
const RATE: Column = ("RATE", |line| line.object.rate("bit/s"));
const RESOURCE: Column = ("RESOURCE", |line| line.object.fact("resource").to_owned());
const SINCE: Column = ("SINCE", |line| line.object.fact("since").to_owned());
const STATE: Column = ("STATE", |line| line.object.state.word().to_owned());
const TARGET: Column = ("TO", |line| line.port.1.to_owned());
const TO: Column = ("TO", |line| bytes(line.object, "to container"));
const USE: Column = ("STATE", |line| line.object.fact("use").to_owned());
const USED: Column = ("USED", |line| line.object.fact("used").to_owned());
const WAY: Column = ("WAY", |line| line.object.place.clone());
const WHERE: Column = ("WHERE", |line| line.object.place.clone());

impl View {
    /// The objects that the view shows: those of some kinds, or the leaks.
    pub fn objects(self, node: &Node) -> Vec<&Object> {
        match self {
            View::Addresses => node.objects_of(&[Kind::Address, Kind::Lease]),
            View::Ports => node.objects_of(&[Kind::HostPort]),
            View::Shaping => node.objects_of(&[Kind::Ifb, Kind::Limit]),
            View::Links => node.objects_of(&[Kind::Link, Kind::Ifb, Kind::VlanUser, Kind::Device]),
            View::Devices => devices(node),
            View::Nodes => node.objects_of(&[Kind::Route]),
            View::Blocks => node.objects_of(&[Kind::Block]),
            View::Leaks => node.leaks().into_iter().map(|index| &node.objects[index]).collect(),
            View::Pods | View::Graph | View::Why | View::Policies => Vec::new(),
        }
    }
}

/// The moved devices and those of claims. A claimed device that has moved is shown once.
fn devices(node: &Node) -> Vec<&Object> {
    let claimed = node.objects_of(&[Kind::Claim]);
    let is_same =
        |one: &Owner, other: &Owner| (&one.container, &one.ifname) == (&other.container, &other.ifname);
    let mut found = node.objects_of(&[Kind::Device, Kind::Claim]);
    found.retain(|object| {
        object.kind == Kind::Claim || !claimed.iter().any(|claim| is_same(&claim.owner, &object.owner))
    });
    found
}

impl Query {
    fn what(&self) -> &str {
        self.what.as_deref().unwrap_or_default()
    }

    /// The view as JSON. README.md documents the schema.
    pub fn json(&self, node: &Node) -> Value {
        let failures = &node.failures;
        match self.view {
            View::Pods | View::Graph => {
                json!({"schema": SCHEMA, "attachments": node.attachments(self.all), "failures": failures})
            }
            View::Why => {
                let (attachments, objects) = why::named(node, self.what());
                json!({"schema": SCHEMA, "attachments": attachments, "objects": objects, "failures": failures})
            }
            View::Leaks => {
                let leaks: Vec<Value> = self.view.objects(node).into_iter().map(leak).collect();
                json!({"schema": SCHEMA, "leaks": leaks, "failures": failures})
            }
            _ => json!({"schema": SCHEMA, "objects": self.view.objects(node), "failures": failures}),
        }
    }

    /// The view as text.
    pub fn text(&self, node: &Node, style: Style) -> String {
        let columns = match self.view {
            View::Pods => return pods(node, self.all, style),
            View::Graph => return draw(node, self.format.unwrap_or_default()),
            View::Why => return why::text(node, self.what(), style),
            View::Addresses => vec![ADDRESS, NETWORK, POD, CONTAINER, IFNAME, MAKER, STATE, AGE],
            View::Ports => vec![HOST_PORT, TARGET, NETWORK, POD, CONTAINER, WHERE, STATE],
            View::Shaping => vec![DIRECTION, RATE, PASSED, DROPPED, NETWORK, POD, CONTAINER, STATE],
            View::Links => {
                vec![LINK, LINK_KIND, MASTER, MTU, TO, FROM, DROPPED, POD, CONTAINER, MAKER, STATE]
            }
            View::Devices => vec![DEVICE, ID, RESOURCE, CLAIM, NETWORK, POD, CONTAINER, IFNAME, STATE],
            View::Nodes => vec![NODE, PODS, WAY, SINCE],
            View::Blocks => vec![NETWORK, DOMAIN, BLOCK, USE, USED, FREE],
            // Not of objects.
            View::Policies => Vec::new(),
            View::Leaks => vec![KIND, NAME, NETWORK, CONTAINER, MAKER, AGE],
        };
        let objects = self.view.objects(node);
        if self.view == View::Leaks && objects.is_empty() {
            let proven = if node.failures.is_empty() { "" } else { " can be proven" };
            return format!("no leaks{proven}\n");
        }
        let mut rows = Vec::new();
        for object in objects {
            let note =
                (self.view == View::Leaks).then(|| format!("in {}: {}", object.place, object.state.reason()));
            let ports = if self.view == View::Ports { object.host_ports().collect() } else { vec![("", "")] };
            rows.extend(ports.into_iter().map(|port| {
                let line = Line { node, object, port };
                Row { cells: columns.iter().map(|(_, text)| text(&line)).collect(), note: note.clone() }
            }));
        }
        layout(&columns.iter().map(|(title, _)| *title).collect::<Vec<_>>(), &rows, style)
    }
}

impl Line<'_> {
    /// The pod by the cached result, or else by the object.
    fn pod(&self) -> String {
        let owner = &self.object.owner;
        let mut entries = self.node.evidence.cache.of(owner.container.as_deref().unwrap_or_default());
        let pod = entries.find(|entry| entry.owner.may_be(owner)).and_then(|entry| entry.pod.clone());
        pod.unwrap_or_else(|| self.object.fact("pod").to_owned())
    }
}

fn leak(object: &Object) -> Value {
    let mut leak = json!(object);
    leak["proof"] = object.state.reason().into();
    leak
}

fn pods(node: &Node, all: bool, style: Style) -> String {
    let titles = ["POD", "CONTAINER", "NETWORK", "IF", "ADDRESSES", "PORTS", "IN/OUT", "STATE", "AGE"];
    let row = |attached: Attached<'_>| {
        let owner = attached.owner;
        let host_ports = |object: &Object| object.host_ports().map(|(port, _)| port).join(",");
        let cells = [
            attached.entry.and_then(|entry| entry.pod.clone()).unwrap_or_default(),
            container(owner),
            owner.network.clone().unwrap_or_default(),
            owner.ifname.clone().unwrap_or_default(),
            attached.addresses.iter().join(","),
            attached.joined(Kind::HostPort, host_ports),
            attached.limits(),
            attached.state.to_owned(),
            age(attached.entry.and_then(|entry| entry.since)),
        ];
        Row { cells: cells.into(), note: None }
    };
    layout(&titles, &node.attachments(all).into_iter().map(row).collect::<Vec<_>>(), style)
}

fn bytes(object: &Object, key: &str) -> String {
    scaled(object.fact(key), 1024, "B")
}

fn container(owner: &Owner) -> String {
    short(owner.container.as_deref().unwrap_or_default()).to_owned()
}
