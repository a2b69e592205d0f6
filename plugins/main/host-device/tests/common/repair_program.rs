//! A program whose ADD is the repair of host-device.

use ferrule_host_device::PLUGIN;

include!("../../../../repair_program.rs");
