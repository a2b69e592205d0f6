//! A program whose ADD is the repair of vrf.

use std::process::ExitCode;

use cni_common::plugin::{AddRequest, Plugin, run};
use cni_common::spec::{AddResult, CniError};
use ferrule_vrf::PLUGIN;

fn repair(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    PLUGIN.repair.map_or(Ok(()), |repair| repair(call))?;
    Ok(call.prev_result.clone().unwrap_or_default())
}

fn main() -> ExitCode {
    run(&Plugin { add: repair, ..PLUGIN })
}
