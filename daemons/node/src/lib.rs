//! `ferrule-node`: the network between the nodes of a Kubernetes cluster.
//!
//! - [`cluster`] checks the nodes that the API server lists, and refuses podCIDRs. Pure.
//! - [`plan`] decides: routes, overlay peers, networks that are not masqueraded, the conflist. Pure.
//! - [`api`] watches the nodes, and sends events and this node's annotation.
//! - [`plan_file`] keeps the nodes of the last list on disk, for a start while the API server is away.
//! - [`kernel`] has this node's links, addresses and routes, and follows their changes.
//! - [`routes`], [`vxlan`], [`wireguard`], [`masquerade`], [`guard`] and [`conflist`] are the parts: each carries out its part of the plan.
//!   `table` keeps the tables of nf_tables.
//! - [`interface`] chooses the plugin of the built-in conflist, and checks what it needs of the node.
//! - `forwarding` and `forward_chain` let the packets of pods pass: sysctls, and `FORWARD` of iptables. [`firewalls`] names what does not.
//! - [`proof`] asks whether pods can talk, and [`word`] says it.
//! - [`store`] reads host-local's store.
//! - [`policy`] enforces NetworkPolicies. `quota` bounds what a namespace can make others say.
//! - [`housekeeping`] runs `ferrule repair` and `ferrule gc`.
//! - [`status`], [`serve`], [`probe`], [`cleanup`] and [`left_overs`] are for administrators.
//! - [`blocks`] claims blocks of addresses for the plugin `shared`, in a process of its own.
//! - [`daemon`] and [`arguments`] are the process. [`decoders`] is for the fuzzer.

#[macro_use]
extern crate ferrule_daemon;

pub mod api;
pub mod arguments;
pub mod blocks;
pub mod cleanup;
pub mod cluster;
pub mod conflist;
pub mod daemon;
pub mod decoders;
mod device;
pub mod firewalls;
mod forward_chain;
mod forwarding;
pub mod guard;
pub mod housekeeping;
pub mod interface;
pub mod kernel;
pub mod left_overs;
pub mod listener;
pub mod masquerade;
pub mod names;
pub mod plan;
pub mod plan_file;
pub mod policy;
pub mod probe;
pub mod proof;
mod quota;
pub mod reason;
pub mod routes;
pub mod serve;
pub mod status;
pub mod store;
mod table;
pub mod vxlan;
pub mod wireguard;
pub mod word;
