//! A program whose ADD is the repair of vrf.

use ferrule_vrf::PLUGIN;

include!("../../../../repair_program.rs");
