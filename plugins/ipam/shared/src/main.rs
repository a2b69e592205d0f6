//! The `shared` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni_common::plugin::run(&ferrule_shared::PLUGIN)
}
