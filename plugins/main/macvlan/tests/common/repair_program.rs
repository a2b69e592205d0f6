//! A program whose ADD is the repair of macvlan.

use ferrule_macvlan::PLUGIN;

include!("../../../../repair_program.rs");
