//! The floor: one warm process that asks the kernel for the objects of the chain `bridge`, `host-local`, `portmap`, `bandwidth`, and does
//! nothing else. It reads nothing first, checks nothing, and parses nothing.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cni_lab::{Node, Place as _, Pod};
use ferrule_kernel::netlink::link::{self, IFF_UP, NewLink};
use ferrule_kernel::netlink::qdisc::{self, INGRESS, Tbf};
use ferrule_kernel::netlink::route::{self, Route};
use ferrule_kernel::netlink::{LinkId, Message, Socket, addr, filter, ifb};
use ferrule_kernel::netns;
use ferrule_kernel::nftables::matches::{End, address};
use ferrule_kernel::nftables::{
    Batch, ChainType, CmpOp, DataType, Element, Expr, FULLY_RANDOM, Family, Hook, HookPoint, Policy, Table,
    Value, Values, rules,
};

use crate::cases::{self, Case};
use crate::runner::{Outcome, Runner};
use crate::side::Side;
use crate::stats::Series;
use crate::table::Table as Report;

const BRIDGE: &str = "cni-floor";
const HOST_END: &str = "vethfloor";
const IFB: &str = "ifbfloor";
const POD_END: &str = "eth0";
const POD_ADDRESS: &str = "10.3.0.2/16";
const GATEWAY: &str = "10.3.0.1";
const RULES: Table<'static> = Table::new(Family::Inet, "floor");
const CHAIN: &str = "masquerade";
const MAP: &str = "ports";
const LIMIT: Tbf = Tbf { rate: 12_500_000, limit: 1_562_500, buffer: 1_562_500, burst: None };

/// The objects' requests, from the node's namespace.
struct Floor {
    netns: File,
    node: Socket,
    pod: Socket,
    rules: Socket,
    bridge: u32,
    store: PathBuf,
}

/// Measures both verbs. The table has a row for each.
pub(crate) fn measure(sides: &[Side], iterations: u32) -> anyhow::Result<Report> {
    let mut table =
        Report::new(2, ["what", "side", "ADD ms", "× floor", "DEL ms", "× floor"].map(str::to_owned));
    let node = Node::new()?;
    let pod = prepare(&node)?;
    let [mut add, mut delete] = [Series::default(), Series::default()];
    let case = Case { verbs: &["VERSION", "ADD", "DEL"], ..cases::one_chain(sides) };
    // Each of them on its own node, one after the other: a warm process needs no turns.
    let outcome = Runner { sides, empty: None, iterations }.run(&case)?;
    node.run(|| -> anyhow::Result<()> {
        let mut floor = Floor::new(&pod)?;
        for round in 0..=iterations {
            let (made, removed) = (timed(|| floor.add())?, timed(|| floor.delete())?);
            if round > 0 {
                add.push(made);
                delete.push(removed);
            }
        }
        Ok(())
    })??;
    let floor = [add.median().context("no round")?, delete.median().context("no round")?];
    row(&mut table, "the kernel's part: one warm process", "", floor.map(Some), floor);
    for (index, side) in sides.iter().enumerate() {
        let of = |verb| wall(&outcome, index, verb);
        row(&mut table, "the chain", &side.label, [of("ADD"), of("DEL")], floor);
        let start = of("VERSION");
        row(&mut table, "of it the start of its programs (VERSION)", &side.label, [start, start], floor);
    }
    Ok(table)
}

fn wall(outcome: &Outcome, side: usize, verb: &str) -> Option<f64> {
    outcome.rows.iter().find(|row| row.verb == verb)?.figures.get(side)?.wall.median()
}

fn row(table: &mut Report, what: &str, side: &str, values: [Option<f64>; 2], floor: [f64; 2]) {
    let cell = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    let [add, delete] = values;
    let [add_times, delete_times] =
        [(add, floor[0]), (delete, floor[1])].map(|(value, floor)| value.map(|value| value / floor));
    table.push([
        what.to_owned(),
        side.to_owned(),
        cell(add),
        cell(add_times),
        cell(delete),
        cell(delete_times),
    ]);
}

fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// Makes what the first pod of a node makes.
fn prepare(node: &Node) -> anyhow::Result<Pod> {
    let pod = node.pod("floor")?;
    pod.sh("ip link set lo up")?;
    node.sh(&format!(
        "set -e; ip link add {BRIDGE} type bridge; ip address add {GATEWAY}/16 dev {BRIDGE}; ip link set {BRIDGE} up; mkdir -p /run/floor"
    ))?;
    Ok(pod)
}

impl Floor {
    fn new(pod: &Pod) -> anyhow::Result<Floor> {
        let netns = File::open(pod.path())?;
        let (mut node, mut rules) = (Socket::route()?, Socket::netfilter()?);
        let Some(bridge) = node.link(LinkId::Name(BRIDGE))? else { bail!("no bridge {BRIDGE}") };
        let in_pod = netns::enter(&netns, Socket::route)??;
        let hook = Hook {
            chain_type: ChainType::Nat,
            point: HookPoint::Postrouting,
            priority: 100,
            policy: Policy::Accept,
        };
        let mut batch = Batch::new();
        batch.add_table(RULES, None).add_chain(RULES, CHAIN, Some(hook), None).add_set(
            RULES,
            MAP,
            1,
            &[DataType::Proto, DataType::Service],
            Some(Values::Of(&[DataType::Ipv4Addr, DataType::Service])),
        );
        batch.commit(&mut rules)?;
        Ok(Floor { netns, node, pod: in_pod, rules, bridge: bridge.index, store: "/run/floor".into() })
    }

    /// What ADD of the four plugins makes.
    fn add(&mut self) -> anyhow::Result<()> {
        for (name, text) in [("10.3.0.2", "pod\r\neth0"), ("last", "10.3.0.2")] {
            File::create(self.store.join(name))?.write_all(text.as_bytes())?;
        }
        let (flags, master, netns) = (IFF_UP, Some(self.bridge), Some(self.netns.as_fd()));
        let host = NewLink { kind: "veth", name: HOST_END, flags, master, ..NewLink::default() };
        let container = NewLink { name: POD_END, netns, ..NewLink::default() };
        let [made, found] =
            self.node.request_each([link::new_veth(&host, &container), link::get(LinkId::Name(HOST_END))]);
        made?;
        let host = link::read(found)?.context("no host's end")?.index;
        let end = self.pod.link(LinkId::Name(POD_END))?.context("no pod's end")?.index;
        let gateway = Route {
            dst: "0.0.0.0/0".parse()?,
            gw: Some(GATEWAY.parse()?),
            src: None,
            onlink: false,
            mtu: 0,
            advmss: 0,
            priority: 0,
            table: None,
            scope: None,
            protocol: 0,
        };
        all(
            &mut self.pod,
            vec![
                link::set_flags(end, IFF_UP, IFF_UP),
                addr::add(end, POD_ADDRESS.parse()?, 0),
                route::add(end, &gateway),
            ],
        )?;
        let mut batch = Batch::new();
        let source = address(End::Source, CmpOp::Eq, POD_ADDRESS.parse()?);
        let masquerade = [source, vec![Expr::Masquerade { flags: FULLY_RANDOM }]].concat();
        batch.add_rule(RULES, CHAIN, &masquerade, Some("the pod"));
        batch.add_elements(RULES, MAP, &[self.port()]);
        batch.commit(&mut self.rules)?;
        all(&mut self.node, vec![qdisc::create_tbf(host, &LIMIT), ifb::create(IFB, 1500, None)])?;
        let ifb = self.node.link(LinkId::Name(IFB))?.context("no IFB")?.index;
        all(
            &mut self.node,
            vec![
                qdisc::create_ingress(host),
                qdisc::replace_tbf(ifb, &LIMIT),
                link::set_flags(ifb, IFF_UP, IFF_UP),
                filter::redirect_all(host, qdisc::HOOK, 1, ifb),
            ],
        )
    }

    /// Removes it. As the plugins, in this order: limits, host port, links, address.
    fn delete(&mut self) -> anyhow::Result<()> {
        let host = self.node.link(LinkId::Name(HOST_END))?.context("no host's end")?.index;
        all(&mut self.node, vec![qdisc::delete(host, INGRESS), link::delete(LinkId::Name(IFB))])?;
        let mut batch = Batch::new();
        for rule in rules(&mut self.rules, RULES, CHAIN)? {
            batch.delete_rule(RULES, CHAIN, rule.handle);
        }
        batch.delete_elements(RULES, MAP, &[self.port().key]);
        batch.commit(&mut self.rules)?;
        self.pod.request(link::delete(LinkId::Name(POD_END)))?;
        fs::remove_file(self.store.join("10.3.0.2"))?;
        Ok(())
    }

    fn port(&self) -> Element {
        let port = |number: u16| [number.to_be_bytes(), [0; 2]].concat();
        Element {
            value: Some(Value::Bytes([vec![10, 3, 0, 2], port(80)].concat())),
            ..Element::new([vec![6, 0, 0, 0], port(8080)].concat())
        }
    }
}

fn all(socket: &mut Socket, messages: Vec<Message>) -> anyhow::Result<()> {
    for answer in socket.requests(messages) {
        answer?;
    }
    Ok(())
}
