//! A program whose ADD is the repair of policy.

use ferrule_policy::PLUGIN;

include!("../../../../repair_program.rs");
