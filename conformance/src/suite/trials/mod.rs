//! The trials, section by section as their requirements.

mod add;
mod callers;
mod capabilities;
mod chain;
mod check;
mod concurrency;
mod config;
mod del;
mod delegation;
mod environment;
mod errors;
mod gc;
mod identifiers;
mod life;
mod results;
mod status;
mod tools;
mod versions;

use std::thread::ScopedJoinHandle;

use super::lab::Lab;
use super::outcome::Stop;
use super::trial::Trial;
use crate::fixture::Snapshot;

/// For each section of the requirements, in the same order, its trials.
pub const TRIALS: &[&[Trial]] = &[
    environment::TRIALS,
    identifiers::TRIALS,
    config::TRIALS,
    versions::TRIALS,
    errors::TRIALS,
    results::TRIALS,
    add::TRIALS,
    del::TRIALS,
    check::TRIALS,
    gc::TRIALS,
    status::TRIALS,
    chain::TRIALS,
    delegation::TRIALS,
    capabilities::TRIALS,
    concurrency::TRIALS,
    callers::TRIALS,
];

/// The state of a node on which one container is attached, and another was: what all of a network's containers share
/// is there, and what is there beyond it belongs to the neighbour.
fn settled(lab: &Lab<'_>) -> Result<Snapshot, Stop> {
    lab.attached(&lab.target("neighbour")?)?;
    let gone = lab.target("gone")?;
    let result = lab.attached(&gone)?;
    lab.detached(&gone, &result)?;
    lab.snapshot()
}

/// What a thread has come to, its panic included.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
