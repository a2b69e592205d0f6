//! `ferrule inspect`, `gc` and `check` on nodes with real containers of Ferrule and of the reference.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod alive;
mod fixture;
mod leaks;
mod others;
mod readme;
mod schema;
mod shown;
mod speed;
