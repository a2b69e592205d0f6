//! A program whose ADD is the repair of bridge.

use ferrule_bridge::PLUGIN;

include!("../../../../repair_program.rs");
