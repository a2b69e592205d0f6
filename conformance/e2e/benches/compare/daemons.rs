//! The memory of idle daemons: `ferrule-dhcp` beside the reference's, and `ferrule-nic`, which the reference does not have.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use cni_lab::{Node, Place as _, eventually};

use crate::memory::high_water;
use crate::side::Side;
use crate::table::Table;

const START: Duration = Duration::from_secs(10);
const NIC: &str = "/run/nic.yaml";

/// A row for each daemon that the folders have: its peak of resident memory in MB.
pub(crate) fn measure(sides: &[Side]) -> anyhow::Result<Table> {
    let mut table = Table::new(2, ["daemon", "side", "peak MB"].map(str::to_owned));
    let daemons: [(&str, bool, &[&str], &str); 3] = [
        ("ferrule-dhcp", true, &[], "/run/cni/dhcp.sock"),
        ("dhcp", false, &["daemon"], "/run/cni/dhcp.sock"),
        ("ferrule-nic", true, &["--config", NIC, "--state", "/run/nic.json"], "/run/nic.json"),
    ];
    for (daemon, is_ferrule, arguments, ready) in daemons {
        for side in sides.iter().filter(|side| side.is_ferrule == is_ferrule) {
            let program = side.dir.join(daemon);
            if !program.is_file() {
                eprintln!("left out: no {}", program.display());
                continue;
            }
            let node = Node::new()?;
            node.sh("mkdir -p /run/cni")?;
            node.write_file(NIC, "resourceList: [{resourceName: nic, selectors: {ifNames: ['none']}}]\n")?;
            let mut command = Command::new(&program);
            command.args(arguments);
            let running = node.spawn(command)?;
            // ferrule-nic writes its state only if a device is in a pod: it waits for the kubelet's folder by then.
            let is_ready = || node.run(|| Path::new(ready).exists()).unwrap_or(false);
            let limit = if daemon == "ferrule-nic" { Duration::from_secs(1) } else { START };
            eventually(limit, is_ready);
            let peak = high_water(running.id()).with_context(|| format!("{daemon} has ended"))?;
            table.push([daemon.to_owned(), side.label.clone(), format!("{:.1}", peak as f64 / 1024.0)]);
        }
    }
    Ok(table)
}
