//! The `portmap` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni_common::plugin::run(&ferrule_portmap::PLUGIN)
}
