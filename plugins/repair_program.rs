// A program whose ADD is the repair of `PLUGIN`, so that tests call and kill it like any plugin. The repair_program.rs of each plugin's tests names its
// `PLUGIN` and includes this.

use std::process::ExitCode;

use cni_common::plugin::{Plugin, run};

fn main() -> ExitCode {
    run(&Plugin {
        add: |call| {
            PLUGIN.repair.map_or(Ok(()), |repair| repair(call))?;
            Ok(call.prev_result.clone().unwrap_or_default())
        },
        ..PLUGIN
    })
}
