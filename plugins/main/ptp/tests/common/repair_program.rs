//! A program whose ADD is the repair of ptp.

use ferrule_ptp::PLUGIN;

include!("../../../../repair_program.rs");
