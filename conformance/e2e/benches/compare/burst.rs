//! Many pods at once: the chain runs for each pod, as under a kubelet that has just started, and each plugin is a process.

use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cni_lab::{Node, Place as _};

use crate::cases::Case;
use crate::chain::Chain;
use crate::process;
use crate::side::Side;
use crate::stats::Series;
use crate::table::Table;

/// How long the kernel gets to finish what the last calls have left to it (RCU callbacks, work queues).
const PAUSE: Duration = Duration::from_secs(2);
/// A thread that only starts a program and reads its output.
const STACK: usize = 256 << 10;

/// One kind of burst.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    /// How many pods come and go.
    pub(crate) pods: u16,
    /// How many of them at once.
    pub(crate) at_once: u16,
    /// How many pods of the same network are there all the time.
    pub(crate) alive: u16,
}

/// The figures of one verb of all pods of a side. One value for each round, except `each`, which has one for each pod.
#[derive(Default)]
pub(crate) struct Figures {
    /// From the start of the first call to the end of the last one.
    pub(crate) wall: Series,
    pub(crate) each: Series,
    pub(crate) cpu: Series,
    pub(crate) failures: usize,
    /// The first error.
    pub(crate) error: Option<String>,
}

/// One side's node, with its chains.
struct Crowd<'a> {
    node: Node,
    chains: Vec<Chain<'a>>,
    /// ADD, then DEL.
    figures: [Figures; 2],
}

/// Measures one setting on all sides, which take turns, each on a node of its own. For each side the figures of ADD and DEL.
pub(crate) fn measure(
    case: &Case,
    sides: &[Side],
    setting: Setting,
    rounds: u32,
) -> anyhow::Result<Vec<[Figures; 2]>> {
    let mut crowds = Vec::new();
    for side in sides {
        crowds.push(Crowd::new(case, side, setting)?);
    }
    // The first round fills the page cache and makes bridge, tables and chains.
    for round in 0..=rounds {
        for crowd in &mut crowds {
            for (verb, index) in [("ADD", 0), ("DEL", 1)] {
                let mut unmeasured = Figures::default();
                let into = if round > 0 { &mut crowd.figures[index] } else { &mut unmeasured };
                let chains = &mut crowd.chains;
                crowd.node.run(|| together(chains, setting.at_once, verb, into))??;
                thread::sleep(PAUSE);
            }
        }
    }
    Ok(crowds.into_iter().map(|crowd| crowd.figures).collect())
}

impl<'a> Crowd<'a> {
    fn new(case: &'a Case, side: &'a Side, setting: Setting) -> anyhow::Result<Crowd<'a>> {
        let node = Node::new()?;
        node.sh(&(case.setup)(side)).with_context(|| format!("prepare the node for {}", side.name))?;
        let chain = |number: u16| {
            let pod = node.pod(&format!("pod{number}"))?;
            pod.sh("ip link set lo up")?;
            Chain::new(case, side, pod.attachment("eth0"), number)
        };
        let mut alive = (0..setting.alive).map(chain).collect::<anyhow::Result<Vec<_>>>()?;
        let chains =
            (setting.alive..setting.alive + setting.pods).map(chain).collect::<anyhow::Result<Vec<_>>>()?;
        let mut figures = Figures::default();
        node.run(|| together(&mut alive, setting.at_once, "ADD", &mut figures))??;
        anyhow::ensure!(figures.failures == 0, "{}: {}", side.label, figures.error.unwrap_or_default());
        Ok(Crowd { node, chains, figures: Default::default() })
    }
}

/// Calls all chains with the verb, `at_once` at the same time. The calling thread is on the node.
fn together(chains: &mut [Chain<'_>], at_once: u16, verb: &str, figures: &mut Figures) -> anyhow::Result<()> {
    let workers = chains.len().min(usize::from(at_once));
    if workers == 0 {
        return Ok(());
    }
    let waiting = Mutex::new(chains.iter_mut());
    let each = Mutex::new(Vec::new());
    let barrier = Barrier::new(workers + 1);
    let work = || {
        barrier.wait();
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(chain) = next else { break };
            let began = Instant::now();
            let outcome = chain.call(verb, |exec| Ok((exec.run()?, ())));
            let call = (began, Instant::now(), outcome.err());
            each.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        }
    };
    let cpu = process::of_children()?.0;
    thread::scope(|scope| {
        for _ in 0..workers {
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).context("start a thread")?;
        }
        barrier.wait();
        anyhow::Ok(())
    })?;
    let each = each.into_inner().unwrap_or_else(PoisonError::into_inner);
    // This thread may wake up long after the first of the others.
    let first = each.iter().map(|(began, ..)| *began).min();
    let last = each.iter().map(|(_, ended, _)| *ended).max();
    if let (Some(first), Some(last)) = (first, last) {
        figures.wall.push(last - first);
    }
    figures.cpu.push(process::of_children()?.0.saturating_sub(cpu));
    for (began, ended, error) in each {
        match error {
            None => figures.each.push(ended - began),
            Some(error) => {
                figures.failures += 1;
                figures.error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
    Ok(())
}

/// The head of the table of [`rows`].
pub(crate) fn table() -> Table {
    Table::new(
        3,
        ["pods", "verb", "side", "wall s", "least", "most", "p50 ms", "p99 ms", "CPU s", "failures", "ratio"]
            .map(str::to_owned),
    )
}

/// Adds the rows of one setting: the ratio is that of the wall time to ours.
pub(crate) fn add_rows(table: &mut Table, name: &str, sides: &[Side], figures: &[[Figures; 2]]) {
    for (index, verb) in ["ADD", "DEL"].into_iter().enumerate() {
        let ours = figures.first().and_then(|ours| ours[index].wall.median());
        for (side, figures) in sides.iter().zip(figures) {
            let figures = &figures[index];
            let seconds =
                |value: Option<f64>| value.map(|value| format!("{:.2}", value / 1e3)).unwrap_or_default();
            let milliseconds =
                |value: Option<f64>| value.map(|value| format!("{value:.0}")).unwrap_or_default();
            let ratio = figures.wall.median().zip(ours).map(|(wall, ours)| format!("{:.1}", wall / ours));
            table.push([
                name.to_owned(),
                verb.to_owned(),
                side.label.clone(),
                seconds(figures.wall.median()),
                seconds(figures.wall.percentile(0)),
                seconds(figures.wall.percentile(100)),
                milliseconds(figures.each.median()),
                milliseconds(figures.each.percentile(99)),
                seconds(figures.cpu.median()),
                figures.failures.to_string(),
                ratio.unwrap_or_default(),
            ]);
        }
    }
}
