//! A program whose ADD is the repair of bridge.

use std::process::ExitCode;

use cni_common::plugin::{Plugin, run};
use ferrule_bridge::{PLUGIN, repair::repair};

fn main() -> ExitCode {
    run(&Plugin { add: |call| repair(call).map(|()| call.prev_result.clone().unwrap_or_default()), ..PLUGIN })
}
