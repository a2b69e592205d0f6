//! Percentiles and the geometric mean.

use std::time::Duration;

/// Durations of the same call.
#[derive(Debug, Default)]
pub(crate) struct Series(Vec<Duration>);

impl Series {
    pub(crate) fn push(&mut self, taken: Duration) {
        self.0.push(taken);
    }

    /// The median in milliseconds; `None` without values.
    pub(crate) fn median(&self) -> Option<f64> {
        self.percentile(50)
    }

    /// The 95th percentile in milliseconds; `None` without values.
    pub(crate) fn p95(&self) -> Option<f64> {
        self.percentile(95)
    }

    /// In milliseconds; 0 is the smallest value, 100 the largest. `None` without values.
    pub(crate) fn percentile(&self, percent: usize) -> Option<f64> {
        percentile(&self.0, percent).map(|taken| taken.as_secs_f64() * 1e3)
    }
}

/// Counts of the same call.
#[derive(Debug, Default)]
pub(crate) struct Counts(Vec<u64>);

impl Counts {
    pub(crate) fn push(&mut self, count: u64) {
        self.0.push(count);
    }

    /// The median; `None` without values.
    pub(crate) fn median(&self) -> Option<u64> {
        percentile(&self.0, 50)
    }
}

/// The smallest value that is not smaller than this percentage of all values.
fn percentile<T: Ord + Copy>(values: &[T], percent: usize) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort();
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The geometric mean, which suits ratios; `None` without values.
pub(crate) fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    if ratios.is_empty() {
        return None;
    }
    let count = u32::try_from(ratios.len()).ok()?;
    Some((ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / f64::from(count)).exp())
}
