//! The test cases, in the same sections as the requirements.

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

use super::test_case::TestCase;

/// The test cases of each section, in the order of [`SECTIONS`](super::requirements::SECTIONS).
pub const CASES: &[&[TestCase]] = &[
    environment::CASES,
    identifiers::CASES,
    config::CASES,
    versions::CASES,
    errors::CASES,
    results::CASES,
    add::CASES,
    del::CASES,
    check::CASES,
    gc::CASES,
    status::CASES,
    chain::CASES,
    delegation::CASES,
    capabilities::CASES,
    concurrency::CASES,
    callers::CASES,
];

/// The result of a thread; passes its panic on.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
