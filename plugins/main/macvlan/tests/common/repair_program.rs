//! A program whose ADD is the repair of macvlan.

use std::process::ExitCode;

use cni_common::plugin::{Plugin, run};
use ferrule_macvlan::PLUGIN;

fn main() -> ExitCode {
    run(&Plugin {
        add: |call| {
            PLUGIN.repair.map_or(Ok(()), |repair| repair(call))?;
            Ok(call.prev_result.clone().unwrap_or_default())
        },
        ..PLUGIN
    })
}
