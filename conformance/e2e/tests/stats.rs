//! Tests of the benchmark's arithmetic; the benchmark itself has no test harness.

#[path = "../benches/compare/stats.rs"]
mod stats;

use std::time::Duration;

use stats::{Counts, Series, geometric_mean};

fn series(milliseconds: impl IntoIterator<Item = u64>) -> Series {
    let mut series = Series::default();
    milliseconds.into_iter().for_each(|value| series.push(Duration::from_millis(value)));
    series
}

#[test]
fn percentiles_are_values_that_occurred() {
    assert_eq!((series([]).median(), series([]).p95()), (None, None));
    assert_eq!((series([7]).median(), series([7]).p95()), (Some(7.0), Some(7.0)));
    assert_eq!(series([9, 1, 3, 5, 1000]).median(), Some(5.0));
    assert_eq!(series((1..=20).rev()).p95(), Some(19.0));
    assert_eq!(series(1..=30).p95(), Some(29.0));
    let mut counts = Counts::default();
    assert_eq!(counts.median(), None);
    [9, 1, 3, 5].into_iter().for_each(|count| counts.push(count));
    assert_eq!(counts.median(), Some(3));
}

#[test]
fn a_ratio_and_its_inverse_cancel_out() {
    assert_eq!(geometric_mean(&[]), None);
    let mean = geometric_mean(&[4.0, 0.25, 1.0]).unwrap();
    assert!((mean - 1.0).abs() < 1e-12);
}
