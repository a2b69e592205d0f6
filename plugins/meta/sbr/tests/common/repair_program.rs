//! A program whose ADD is the repair of sbr.

use ferrule_sbr::PLUGIN;

include!("../../../../repair_program.rs");
