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

use super::trial::Trial;

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

/// What a thread has come to, its panic included.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
