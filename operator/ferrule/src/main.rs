//! All plugins in one program, installed under the name of each. Under the name `ferrule` it is a command
//! line, which installs them.
//!
//! One file with several hard links takes less space than several files. `bridge` recognises a link or a copy
//! of the program, and calls `host-local` without starting a process.

mod cli;

use std::process::ExitCode;

use cni_common::call_log;
use cni_common::plugin::{self, Plugin};
use ferrule_kernel::observer::{self, Event};

const PLUGINS: &[&Plugin] = &[
    &ferrule_bandwidth::PLUGIN,
    &ferrule_bridge::PLUGIN,
    &ferrule_chain::PLUGIN,
    &ferrule_claims::PLUGIN,
    &ferrule_dhcp::PLUGIN,
    &ferrule_dummy::PLUGIN,
    &ferrule_firewall::PLUGIN,
    &ferrule_flannel::PLUGIN,
    &ferrule_host_device::PLUGIN,
    &ferrule_host_local::PLUGIN,
    &ferrule_ipvlan::PLUGIN,
    &ferrule_loopback::PLUGIN,
    &ferrule_macvlan::PLUGIN,
    &ferrule_policy::PLUGIN,
    &ferrule_portmap::PLUGIN,
    &ferrule_ptp::PLUGIN,
    &ferrule_sbr::PLUGIN,
    &ferrule_shared::PLUGIN,
    &ferrule_static::PLUGIN,
    &ferrule_tap::PLUGIN,
    &ferrule_tuning::PLUGIN,
    &ferrule_vlan::PLUGIN,
    &ferrule_vrf::PLUGIN,
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
