//! What the tests of the plugins share. A failed expectation panics, so that a test is a list of calls and
//! comparisons.
//!
//! - [`PluginDir`] is a folder for `CNI_PATH`; for each plugin it says whose program is there.
//! - [`TestContext`] is a node with one plugin under test, and makes raw calls of it.
//! - [`World`] is such a node with bridged pods ([`Added`]) and outside clients.
//! - [`isolated`] runs code in a network namespace without a node.
//! - [`succeed`], [`succeed_silently`] and [`fail`] make one call; [`Expect`] judges its output.
//! - [`serve`] starts servers, [`ask`] and [`silent`] are their clients; [`iptables`] has its two variants, [`Firewalld`] a
//!   firewalld with a bus of its own. [`dnsmasq`] is a DHCP server.
//! - [`measure`] repeats a measurement that the load on the machine may have spoilt, and says so.
//! - [`link_plugin`] has the tests that all plugins of one link share.
//! - [`PLANTED`] are objects that may stand in the place of a file.
//! - [`StubIpam`] is an IPAM plugin that a test controls; [`Trace`] counts system calls.

mod calls;
mod claims;
mod command;
mod config;
mod context;
mod dnsmasq;
mod firewalld;
mod foreign_results;
pub mod iptables;
mod layout;
pub mod link_plugin;
mod links;
mod measure;
mod planted;
mod plugin_dir;
mod random;
mod servers;
mod stub_ipam;
mod trace;
mod world;

pub use calls::{ErrorObject, Expect, at_once, fail, ips_of, succeed, succeed_silently};
pub use claims::dra_manager_state;
pub use command::{in_place_of_the_plugin, run_command, run_command_with, stdin_file};
pub use config::{host_local, network_config, overlay, with_prev};
pub use context::{TestContext, assert_unchanged, isolated, require_root};
pub use dnsmasq::{DNSMASQ_LEASES, dnsmasq};
pub use firewalld::Firewalld;
pub use foreign_results::{FOREIGN_ADDRESSES, foreign_results};
pub use layout::{VERSIONS, assert_layout, has_check, is_per_family};
pub use links::{addresses, flags, is_up, link, mac, ports, routes, sysctl, try_link};
pub use measure::{connect_time, measure};
pub use planted::{PLANTED, plant, plant_all};
pub use plugin_dir::{Origin, PluginDir};
pub use random::Random;
pub use servers::{NO_ANSWER_WAIT, ask, serve, serve_at, silent, tcp, udp, udp_ask, udp_socket};
pub use stub_ipam::StubIpam;
pub use trace::Trace;
pub use world::{Added, OUTSIDE, World, bridged, marking_container};
