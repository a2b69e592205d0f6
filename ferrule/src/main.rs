//! All plugins in one program, installed under the name of each. Under the name `ferrule` it is a command
//! line, which installs them.
//!
//! One file with several hard links takes less space than several files. `bridge` recognises a link or a copy
//! of the program, and calls `host-local` without starting a process.

mod cli;

use std::process::ExitCode;

use cni_common::call_log;
use cni_common::plugin::{self, Plugin};
use ferrule_bandwidth::Bandwidth;
use ferrule_bridge::Bridge;
use ferrule_dhcp::Dhcp;
use ferrule_dummy::Dummy;
use ferrule_firewall::Firewall;
use ferrule_host_device::HostDevice;
use ferrule_host_local::HostLocal;
use ferrule_ipvlan::Ipvlan;
use ferrule_kernel::observer::{self, Event};
use ferrule_loopback::Loopback;
use ferrule_macvlan::Macvlan;
use ferrule_portmap::Portmap;
use ferrule_ptp::Ptp;
use ferrule_sbr::Sbr;
use ferrule_static::Static;
use ferrule_tap::Tap;
use ferrule_tuning::Tuning;
use ferrule_vlan::Vlan;
use ferrule_vrf::Vrf;

const PLUGINS: &[&dyn Plugin] = &[
    &Bandwidth,
    &Bridge,
    &Dhcp,
    &Dummy,
    &Firewall,
    &HostDevice,
    &HostLocal,
    &Ipvlan,
    &Loopback,
    &Macvlan,
    &Portmap,
    &Ptp,
    &Sbr,
    &Static,
    &Tap,
    &Tuning,
    &Vlan,
    &Vrf,
];

fn main() -> ExitCode {
    plugin::run_one_of(PLUGINS, || cli::main(PLUGINS), || observer::observe(record))
}

/// Adds what the kernel crate does to the log of calls.
fn record(event: Event<'_>) {
    match event {
        Event::Step(name, took) => call_log::add_step(name, took),
        Event::NetlinkError(protocol, error) => {
            call_log::add_netlink_error(format!("{protocol}: {:?}: {error}", error.errno));
        }
    }
}
