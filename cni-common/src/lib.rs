//! What CNI plugins share.
//!
//! [`spec`] holds the specification's types and needs no kernel. [`plugin`] turns a value that implements
//! [`plugin::Plugin`] into a program; its documentation shows a whole plugin. [`netns`], [`netlink`],
//! [`nftables`], [`conntrack`], [`sysctl`] and [`lock`] are the only places that talk to the kernel; [`iptables`] the only
//! one that starts a program, other than a delegate, and only if it has to.

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
