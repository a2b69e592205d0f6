//! A program whose ADD is the repair of portmap.

use ferrule_portmap::PLUGIN;

include!("../../../../repair_program.rs");
