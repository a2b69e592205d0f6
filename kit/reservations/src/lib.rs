//! What the IPAM plugins `host-local` and `shared` have in common: ranges of addresses, and the files on the node that record which
//! attachment has which address.
//!
//! The files equal those of the reference's host-local ([`store`]), so either program can continue with the other's state. An additional
//! [`index`] can be lost without harm; with it, ADD and DEL take as long with 20,000 reservations as with
//! ten.
//!
//! [`range`], [`set`], [`config`] and [`owner`] are pure. [`reservations`] reads the index or the store. [`alloc`] and [`release`]
//! change the store, each call under one lock ([`store::Store::lock`]), except DEL if another process keeps the lock. CHECK and STATUS
//! change nothing. [`verbs`] has DEL and GC, which both plugins have in common. [`sweep`] is for `ferrule gc`.

#![deny(missing_docs)]

pub mod alloc;
pub mod boot;
pub mod check;
pub mod config;
pub mod index;
pub mod owner;
pub mod pending;
pub mod range;
pub mod release;
pub mod reservations;
pub mod resolv;
pub mod set;
pub mod status;
pub mod store;
pub mod sweep;
pub mod verbs;
