//! `ferrule inspect`, `gc`, `check` and `doctor` on nodes with real containers of Ferrule and of the reference.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod alive;
mod budget;
mod claims;
mod connectivity;
mod denials;
mod doctor;
mod first_night;
mod fixture;
mod leaks;
mod others;
mod partial;
mod planted;
mod policy;
mod readme;
mod report;
mod schema;
mod shape;
mod shown;
mod speed;
