//! A program whose ADD is the repair of firewall.

use ferrule_firewall::PLUGIN;

include!("../../../../repair_program.rs");
