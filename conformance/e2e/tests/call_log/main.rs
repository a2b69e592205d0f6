//! The log of calls: its lines, its cost, and that it changes no outcome.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken;
mod commands;
mod cost;
mod fixture;
mod lines;
mod monitoring;
mod rotation;
mod sockets;
mod switched_off;
mod trace;
