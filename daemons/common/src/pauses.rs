//! How long to wait after failures.

use std::time::Duration;

/// The pauses after failures one after another: each is twice as long as the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// The first one.
    pub first: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl Pauses {
    /// Pauses of this many milliseconds.
    pub const fn millis(first: u64, longest: u64) -> Pauses {
        Pauses { first: Duration::from_millis(first), longest: Duration::from_millis(longest) }
    }

    /// The pause after so many failures; after none as after one.
    pub fn after(self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_grow_and_end() {
        let pauses = Pauses::millis(1000, 60_000);
        let seconds = [0, 1, 2, 3, 6, 7, u32::MAX].map(|failures| pauses.after(failures).as_secs());
        assert_eq!(seconds, [1, 1, 2, 4, 32, 60, 60]);
    }
}
