//! How long the first connection to a new pod's host port takes: a client outside of the node connects right after ADD.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cni_lab::{Client, Node, Place as _};

use crate::cases::Case;
use crate::chain::Chain;
use crate::runner::Runner;
use crate::side::Side;
use crate::stats::Series;
use crate::table::Table;

/// A lost packet would be sent again after a second.
const LIMIT: Duration = Duration::from_secs(10);

/// One side's node with its client and a server in its pod.
struct Scene<'a> {
    chain: Chain<'a>,
    client: Client,
    _server: TcpListener,
    node: Node,
    figures: Series,
}

/// A row for each of these cases and each side; the sides take turns.
pub(crate) fn measure(cases: &[Case], sides: &[Side], iterations: u32) -> anyhow::Result<Table> {
    let mut table = Table::new(2, ["first connection", "side", "ms", "p95"].map(str::to_owned));
    for case in cases {
        eprintln!("{}: the first connection ...", case.name);
        let runner = Runner { sides, empty: None, iterations };
        let mut scenes =
            sides.iter().map(|side| Scene::new(case, side, &runner)).collect::<anyhow::Result<Vec<_>>>()?;
        for round in 0..=iterations {
            for (scene, side) in scenes.iter_mut().zip(sides) {
                let taken = scene.connect(side.host_port())?;
                if round > 0 {
                    scene.figures.push(taken);
                }
            }
        }
        for (scene, side) in scenes.iter().zip(sides) {
            let cell = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
            let [median, p95] = [scene.figures.median(), scene.figures.p95()].map(cell);
            table.push([case.name.clone(), side.label.clone(), median, p95]);
        }
    }
    Ok(table)
}

impl<'a> Scene<'a> {
    fn new(case: &'a Case, side: &'a Side, runner: &Runner<'_>) -> anyhow::Result<Scene<'a>> {
        let node = Node::new()?;
        node.sh(&(case.setup)(side))?;
        let client = node.outside_client("192.0.2.0/24")?;
        let pod = node.pod(&side.network())?;
        pod.sh("ip link set lo up")?;
        node.run(|| runner.map(side, case.host_ports))??;
        let server = pod.run(|| TcpListener::bind("0.0.0.0:80"))?.context("listen in the pod")?;
        let chain = Chain::new(case, side, pod.attachment("eth0"), 0)?;
        Ok(Scene { chain, client, _server: server, node, figures: Series::default() })
    }

    /// Adds the pod, connects, and deletes it.
    fn connect(&mut self, port: u16) -> anyhow::Result<Duration> {
        let Scene { chain, node, client, .. } = self;
        node.run(|| chain.call("ADD", |exec| Ok((exec.run()?, ()))))??;
        let target = (client.node_address(), port).into();
        let taken = client.run(|| {
            let began = Instant::now();
            TcpStream::connect_timeout(&target, LIMIT).map(|_| began.elapsed())
        })?;
        node.run(|| chain.call("DEL", |exec| Ok((exec.run()?, ()))))??;
        taken.context("connect to the host port")
    }
}
