//! What STATUS of the example chain costs, which CRI-O asks every 5 seconds. The reference in Debian has no STATUS, so VERSION of the
//! same programs is the measure: it only starts them.

use std::path::Path;

use anyhow::{Context as _, ensure};
use cni_lab::{Node, Place as _};
use cni_runner::{Exec, Extra, Network, plugin_input};

use crate::process;
use crate::side::Side;
use crate::stats::Series;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/10-ferrule.conflist");
const WARM_UP: u32 = 3;

/// Prints a line.
pub(crate) fn measure(ours: &Side, iterations: u32) -> anyhow::Result<()> {
    let mut network = Network::from_file(Path::new(EXAMPLE))?;
    // The first version with STATUS.
    network.version = "1.1.0".to_owned();
    let [mut version, mut status, mut version_cpu, mut status_cpu]: [Series; 4] = Default::default();
    Node::new()?.run(|| -> anyhow::Result<()> {
        for round in 0..WARM_UP + iterations {
            for (verb, wall, cpu) in
                [("VERSION", &mut version, &mut version_cpu), ("STATUS", &mut status, &mut status_cpu)]
            {
                let mut costs = Vec::new();
                for plugin in &network.plugins {
                    let program = plugin["type"].as_str().context("a plugin without a type")?;
                    let exec = Exec::new(ours.dir.join(program), verb);
                    let (output, cost) =
                        process::measure(&exec.stdin(plugin_input(&network, plugin, Extra::Status)))?;
                    ensure!(output.success(), "{program} {verb}: {}", output.stdout_text());
                    costs.push(cost);
                }
                if round >= WARM_UP {
                    wall.push(costs.iter().map(|cost| cost.wall).sum());
                    cpu.push(costs.iter().map(|cost| cost.cpu).sum());
                }
            }
        }
        Ok(())
    })??;
    let [version, status, version_cpu, status_cpu] =
        [version, status, version_cpu, status_cpu].map(|series| series.median().unwrap_or_default());
    println!(
        "STATUS of the example chain ({} programs): {status:.2} ms, CPU {status_cpu:.2} ms; VERSION of the same: {version:.2} ms, \
        CPU {version_cpu:.2} ms; STATUS/VERSION {:.2}, {:.2} ms more; {iterations} rounds, in turns; medians",
        network.plugins.len(),
        status / version,
        status - version
    );
    Ok(())
}
