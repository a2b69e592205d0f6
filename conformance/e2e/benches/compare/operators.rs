//! What the operator's commands cost beside the state of more and more pods: reservations, host ports, links, cached results, and the log
//! of ten calls for each pod. The reference has no such commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use cni_lab::{Node, Place as _};
use cni_runner::{Attachment, Exec};
use serde_json::json;

use crate::runner::{Runner, add_links, reserve};
use crate::side::Side;
use crate::stats::Series;
use crate::table::Table;

const PODS: [u16; 3] = [10, 1_000, 10_000];
const LOG: &str = "/run/calls";
/// `check` finds no container that is alive, so it calls no plugin.
const COMMANDS: [&[&str]; 5] = [
    &["inspect"],
    &["inspect", "leaks"],
    &["gc", "--dry-run"],
    &["check"],
    &["log", "--slowest", "20", "--file", LOG],
];

/// A row for each command: its median time in milliseconds beside the pods, and the last of them divided by the first.
pub(crate) fn measure(ours: &Side, iterations: u32) -> anyhow::Result<Table> {
    let head = PODS.map(|pods| format!("{pods} pods, ms"));
    let mut table =
        Table::new(1, [vec!["command".to_owned()], head.into(), vec!["ratio".to_owned()]].concat());
    let mut columns = Vec::new();
    for pods in PODS {
        eprintln!("the operator's commands beside {pods} pods ...");
        let node = Node::new()?;
        add_links(&node, pods)?;
        // Stands for the node's first process, whose view the commands compare with theirs.
        let mut init = Command::new("sleep");
        init.arg("infinity");
        let init = node.spawn(init)?;
        columns.push(node.run(|| beside(ours, pods, iterations, &init.id().to_string()))??);
    }
    for (index, command) in COMMANDS.iter().enumerate() {
        let values: Vec<f64> = columns.iter().map(|column| column[index]).collect();
        let mut row = vec![format!("ferrule {}", command[..command.len().min(2)].join(" "))];
        row.extend(values.iter().map(|value| format!("{value:.1}")));
        row.push(format!("{:.1}", values[values.len() - 1] / values[0]));
        table.push(row);
    }
    Ok(table)
}

/// The medians of the commands. The calling thread is on the node.
fn beside(ours: &Side, pods: u16, iterations: u32, init: &str) -> anyhow::Result<Vec<f64>> {
    reserve(ours, pods.into())?;
    Runner { sides: std::slice::from_ref(ours), empty: None, iterations }.map(ours, pods)?;
    let results = Path::new(Node::CACHE_DIR).join("results");
    fs::create_dir_all(&results)?;
    for number in 2..u32::from(pods) + 2 {
        let (network, id) = (ours.network(), format!("{number:064x}"));
        let address = format!("{}.{}.{}/16", ours.net16(), number / 256, number % 256);
        let result = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/none"}],
            "ips": [{"interface": 0, "address": address}]});
        let cached = json!({"kind": "cniCacheV1", "containerId": &id, "ifName": "eth0", "networkName": &network,
            "config": "e30=", "netns": "/run/netns/none", "result": result});
        fs::write(results.join(format!("{network}-{id}-eth0")), cached.to_string())?;
    }
    // Without a namespace: nothing to do, but a line in the log.
    let attachment = Attachment::new("logged", "", "lo");
    let call =
        Exec::new(ours.dir.join("loopback"), "DEL").attachment(&attachment).env("CNI_FERRULE_LOG", LOG);
    let output = call.stdin(r#"{"cniVersion":"1.0.0","name":"n","type":"loopback"}"#).run()?;
    ensure!(output.success(), "loopback: {}", output.stdout_text());
    let line = fs::read_to_string(LOG).context("read the log of a call")?;
    fs::write(LOG, line.repeat(usize::from(pods) * 10))?;
    let mut series: [Series; COMMANDS.len()] = Default::default();
    for round in 0..=iterations {
        for (command, series) in COMMANDS.iter().zip(&mut series) {
            let mut program = Command::new(ours.dir.join("ferrule"));
            program.args(*command);
            if command[0] != "log" {
                program.args(["--init", init]);
            }
            let began = Instant::now();
            let output = program.output()?;
            let taken = began.elapsed();
            ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            if round > 0 {
                series.push(taken);
            }
        }
    }
    series.iter().map(|series| series.median().context("no round")).collect()
}
