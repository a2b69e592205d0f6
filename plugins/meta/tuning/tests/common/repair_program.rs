//! A program whose ADD is the repair of tuning.

use ferrule_tuning::PLUGIN;

include!("../../../../repair_program.rs");
