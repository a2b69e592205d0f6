//! Shared code of the CNI plugins.
//!
//! - [`spec`]: the types of the CNI specification. No system calls.
//! - [`plugin`]: turns an implementation of [`plugin::Plugin`] into a program. Its documentation shows a
//!   complete plugin.
//! - [`netns`], [`netlink`], [`nftables`], [`conntrack`], [`sysctl`] and [`lock`]: all code that talks to the
//!   kernel.
//! - [`iptables`]: reads and changes iptables rules. Apart from delegation, only this module starts
//!   processes, and only if netlink cannot do the work.

#![deny(missing_docs)]

pub mod conntrack;
pub mod hash;
pub mod iptables;
pub mod lock;
pub mod netlink;
pub mod netns;
pub mod nftables;
pub mod plugin;
pub mod spec;
pub mod sysctl;
