//! Runs one case: all sides on one node, in alternating calls.

use std::fs;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, ensure};
use cni_lab::{Node, Place as _};
use cni_runner::{Attachment, Exec};
use serde_json::json;

use crate::cases::Case;
use crate::chain::Chain;
use crate::empty::Empty;
use crate::kernel::{self, Links};
use crate::memory;
use crate::process::{self, Cost};
use crate::side::Side;
use crate::stats::{Counts, Series};

/// Rounds that are not counted. The first fills the page cache, makes the bridge and iptables chains and
/// loads modules.
const WARM_UP: u32 = 3;
/// Rounds that measure memory.
const MEMORY_ROUNDS: u32 = 2;

impl Outcome {
    /// The name, and the wall times of ours and of the reference, of each row that the picture shows.
    pub(crate) fn of_picture(&self) -> impl Iterator<Item = (String, Option<f64>, Option<f64>)> {
        let shown = match self.case.as_str() {
            chain if chain.starts_with("chain:") => Some("one pod"),
            ports if ports.contains("206 host ports beside 10000") => {
                Some("206 host ports beside 10,000 others")
            }
            _ => None,
        };
        self.rows.iter().filter_map(move |row| {
            let wall = |side: usize| row.figures.get(side).and_then(|figures| figures.wall.median());
            Some((format!("{}: {}", shown?, row.verb), wall(0), wall(1)))
        })
    }
}

/// Runs the cases.
pub(crate) struct Runner<'a> {
    /// Ours first.
    pub(crate) sides: &'a [Side],
    pub(crate) empty: Option<&'a Empty>,
    pub(crate) iterations: u32,
}

/// The figures of one verb.
pub(crate) struct Row {
    pub(crate) verb: &'static str,
    /// One entry per side.
    pub(crate) figures: Vec<Figures>,
    /// The empty program, called beside VERSION.
    pub(crate) empty: Figures,
}

/// The figures of one verb on one side.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) wall: Series,
    pub(crate) cpu: Series,
    pub(crate) faults: Counts,
    /// Peak resident memory in KiB.
    pub(crate) memory: u64,
}

/// The figures of one case.
pub(crate) struct Outcome {
    pub(crate) case: String,
    pub(crate) rows: Vec<Row>,
    /// How long the kernel takes to remove a veth pair; empty if the case does not measure it.
    pub(crate) kernel: Series,
}

impl Runner<'_> {
    pub(crate) fn run(&self, case: &Case) -> anyhow::Result<Outcome> {
        let node = Node::new()?;
        add_links(&node, case.links)?;
        let mut attachments = Vec::new();
        for side in self.sides {
            node.sh(&(case.setup)(side)).with_context(|| format!("prepare the node for {}", side.name))?;
            let pod = node.pod(&side.network())?;
            if case.lo_is_up {
                pod.sh("ip link set lo up")?;
            }
            attachments.push(pod.attachment("eth0"));
        }
        let bare = case.beside_kernel.then(|| kernel::prepare(&node)).transpose()?;
        // Enter the node once for everything, so that only the call itself is measured.
        node.run(|| {
            let mut chains = Vec::new();
            for (side, attachment) in self.sides.iter().zip(attachments) {
                reserve(side, case.reservations)?;
                self.map(side, case.host_ports)?;
                chains.push(Chain::new(case, side, attachment, 0)?);
            }
            let links = bare.as_ref().map(Links::new).transpose()?;
            self.measure(case, &mut chains, links)
        })?
    }

    /// Makes this many host ports, ten per container. For the reference, too, our portmap makes them, with
    /// its iptables backend, whose rules equal the reference's; the reference itself would take minutes.
    pub(crate) fn map(&self, side: &Side, count: u16) -> anyhow::Result<()> {
        const EACH: u16 = 10;
        let Some(ours) = self.sides.first() else { return Ok(()) };
        let backend = if side.is_ferrule { "nftables" } else { "iptables" };
        for container in 0..count / EACH {
            let first = u16::from(side.number) * 10_000 + container * EACH;
            let ports = (first..first + EACH)
                .map(|port| json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"}));
            let config = json!({
                "cniVersion": "1.0.0", "name": side.network(), "type": "portmap", "backend": backend,
                "runtimeConfig": {"portMappings": ports.collect::<Vec<_>>()},
                "prevResult": {"cniVersion": "1.0.0",
                    "ips": [{"address": format!("{}.{}.{}/16", side.net16(), 200 + container / 250, container % 250)}]}});
            let attachment = Attachment::new(format!("other{container}"), "/proc/1/ns/net", "eth0");
            let exec = Exec::new(ours.dir.join("portmap"), "ADD").attachment(&attachment);
            let output = exec.stdin(config.to_string()).run()?;
            ensure!(output.success(), "portmap: {} {}", output.stdout_text(), output.stderr_text());
        }
        Ok(())
    }

    fn measure(
        &self,
        case: &Case,
        chains: &mut [Chain<'_>],
        mut links: Option<Links>,
    ) -> anyhow::Result<Outcome> {
        let figures = || self.sides.iter().map(|_| Figures::default()).collect();
        let rows = case.verbs.iter().map(|verb| Row { verb, figures: figures(), empty: Figures::default() });
        let mut outcome =
            Outcome { case: case.name.clone(), rows: rows.collect(), kernel: Series::default() };
        for round in 0..WARM_UP + self.iterations {
            let counts = round >= WARM_UP;
            for row in &mut outcome.rows {
                for index in order(round, self.sides.len()) {
                    if row.verb == "DEL" {
                        thread::sleep(case.life);
                    }
                    let costs = chains[index].call(row.verb, process::measure)?;
                    if counts {
                        row.figures[index].record(&costs);
                    }
                }
                if let (Some(empty), "VERSION") = (self.empty, row.verb) {
                    let exec = Exec::new(empty.program(), row.verb);
                    let (output, cost) = process::measure(&exec)?;
                    ensure!(output.success(), "the empty program: {}", output.status);
                    if counts {
                        row.empty.record(&[cost]);
                    }
                }
            }
            if let Some(links) = &mut links {
                let taken = links.remove_once().context("remove a veth pair")?;
                if counts {
                    outcome.kernel.push(taken);
                }
            }
        }
        for round in 0..MEMORY_ROUNDS {
            for row in &mut outcome.rows {
                for index in order(round, self.sides.len()) {
                    let peaks = chains[index].call(row.verb, memory::peak)?;
                    let figures = &mut row.figures[index];
                    figures.memory = peaks.into_iter().fold(figures.memory, u64::max);
                }
            }
        }
        Ok(outcome)
    }
}

/// The order of the sides rotates: work that a call leaves to the kernel delays the next call.
fn order(round: u32, sides: usize) -> impl Iterator<Item = usize> {
    let first = round as usize % sides;
    (first..sides).chain(0..first)
}

impl Figures {
    /// Adds one round; for a chain the sum of its plugins.
    fn record(&mut self, costs: &[Cost]) {
        self.wall.push(costs.iter().map(|cost| cost.wall).sum());
        self.cpu.push(costs.iter().map(|cost| cost.cpu).sum());
        self.faults.push(costs.iter().map(|cost| cost.faults).sum());
    }
}

/// Makes this many links, as other pods would have: veth pairs that are up, 1,000 on a bridge. Without IPv6: each new link would send
/// multicast packets to all ports of its bridge, and keep the machine busy for minutes.
pub(crate) fn add_links(node: &Node, count: u16) -> anyhow::Result<()> {
    let mut batch = String::new();
    for number in 0..count {
        let bridge = number / 1_000;
        if number % 1_000 == 0 {
            batch += &format!("link add others{bridge} type bridge\nlink set others{bridge} up\n");
        }
        batch += &format!(
            "link add other{number} up master others{bridge} type veth peer name peer{number}\nlink set peer{number} up\n"
        );
    }
    node.write_file("/run/links", &batch)?;
    let ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    let script = format!("set -e; echo 1 >{ipv6}; ip -batch /run/links; echo 0 >{ipv6}");
    node.sh(&script).map(drop).context("make the links of other pods")
}

/// Fills host-local's store with this many reservations, so that the next free address follows them.
pub(crate) fn reserve(side: &Side, count: u32) -> anyhow::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let store = Path::new(&side.data_dir()).join(side.network());
    let fill = || -> std::io::Result<()> {
        fs::create_dir_all(&store)?;
        let address = |number: u32| format!("{}.{}.{}", side.net16(), number / 256, number % 256);
        // The subnet's first address is the gateway's.
        for number in 2..count + 2 {
            fs::write(store.join(address(number)), format!("{number:064x}\r\neth0"))?;
        }
        fs::write(store.join("last_reserved_ip.0"), address(count + 1))
    };
    fill().with_context(|| format!("fill {}", store.display()))
}
