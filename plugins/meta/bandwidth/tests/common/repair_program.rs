//! A program whose ADD is the repair of bandwidth.

use ferrule_bandwidth::PLUGIN;

include!("../../../../repair_program.rs");
