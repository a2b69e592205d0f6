//! The `flannel` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni_common::plugin::run(&ferrule_flannel::PLUGIN)
}
