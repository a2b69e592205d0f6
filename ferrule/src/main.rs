//! All plugins in one program, installed under the name of each. Under the name `ferrule` it is a command
//! line, which installs them.
//!
//! One file with several hard links takes less space than several files. `bridge` recognises a link or a copy
//! of the program, and calls `host-local` without starting a process.

mod cli;

use std::process::ExitCode;

use cni_common::plugin::{self, Plugin};
use ferrule_bandwidth::Bandwidth;
use ferrule_bridge::Bridge;
use ferrule_firewall::Firewall;
use ferrule_host_device::HostDevice;
use ferrule_host_local::HostLocal;
use ferrule_loopback::Loopback;
use ferrule_portmap::Portmap;
use ferrule_ptp::Ptp;
use ferrule_static::Static;
use ferrule_tuning::Tuning;

const PLUGINS: &[&dyn Plugin] =
    &[&Bandwidth, &Bridge, &Firewall, &HostDevice, &HostLocal, &Loopback, &Portmap, &Ptp, &Static, &Tuning];

fn main() -> ExitCode {
    plugin::run_one_of(PLUGINS, || cli::main(PLUGINS))
}
