//! The `host-device` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni_common::plugin::run(&ferrule_host_device::PLUGIN)
}
