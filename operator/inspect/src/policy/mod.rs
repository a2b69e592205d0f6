//! Why a packet passes or not ([`why`]), and which policies are for the pods of this node ([`applied`]).
//!
//! Two sources answer: the kernel's rules, which `ferrule-policy-kit` walks, and `ferrule-node`, which has the objects of the API. Without
//! the daemon the kernel answers alone. [`places`] knows whose an address is, [`services`] what becomes of a Service's address,
//! [`host_ports`] of a host port,
//! and [`notes`] what to ask on another node. [`watched`] is a pod of `ferrule policy watch`. [`verdict`] and [`text`] put it together; they ask neither the kernel nor the disk.

pub use ferrule_policy_kit::Direction;

pub mod applied;
pub mod daemon;
pub mod host_ports;
pub mod notes;
pub mod places;
pub mod services;
pub mod text;
pub mod verdict;
pub mod watched;
pub mod why;
