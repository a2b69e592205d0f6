//! All plugins in one program, installed under the name of each.
//!
//! One file with several hard links takes less space than several files, and `bridge` calls `host-local`
//! without starting a process. A copy of the file under another name works too, but then `bridge` starts a
//! process.

use std::process::ExitCode;

use cni_common::plugin::{self, Plugin};
use ferrule_bandwidth::Bandwidth;
use ferrule_bridge::Bridge;
use ferrule_firewall::Firewall;
use ferrule_host_local::HostLocal;
use ferrule_loopback::Loopback;
use ferrule_portmap::Portmap;

const PLUGINS: &[&dyn Plugin] = &[&Bandwidth, &Bridge, &Firewall, &HostLocal, &Loopback, &Portmap];

fn main() -> ExitCode {
    plugin::run_one_of(PLUGINS)
}
