//! A program whose ADD is the repair of firewall.

use std::process::ExitCode;

use cni_common::plugin::{Plugin, run};
use ferrule_firewall::{PLUGIN, repair::repair};

fn main() -> ExitCode {
    run(&Plugin { add: |call| repair(call).map(|()| call.prev_result.clone().unwrap_or_default()), ..PLUGIN })
}
