//! A program whose ADD is the repair of claims.

use ferrule_claims::PLUGIN;

include!("../../../../repair_program.rs");
