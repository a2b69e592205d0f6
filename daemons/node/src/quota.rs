//! How often something may happen because of the objects of a namespace: who may write these must not fill logs, events and figures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Counts by namespace, from time to time anew.
#[derive(Debug)]
pub(crate) struct Quota {
    window: Duration,
    since: Option<Instant>,
    used: BTreeMap<String, u32>,
}

impl Quota {
    pub(crate) fn new(window: Duration) -> Quota {
        Quota { window, since: None, used: BTreeMap::new() }
    }

    /// The number of this one among those of the namespace in the window, from 1.
    pub(crate) fn number(&mut self, namespace: &str, now: Instant) -> u32 {
        if self.since.is_none_or(|since| now.duration_since(since) >= self.window) {
            (self.since, self.used) = (Some(now), BTreeMap::new());
        }
        let used = self.used.entry(namespace.to_owned()).or_default();
        *used = used.saturating_add(1);
        *used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_counts_alone_and_begins_anew() {
        let window = Duration::from_secs(10);
        let (mut quota, now) = (Quota::new(window), Instant::now());
        let mut number = |namespace, seconds| quota.number(namespace, now + Duration::from_secs(seconds));
        assert_eq!([number("a", 0), number("a", 9), number("b", 9), number("a", 10)], [1, 2, 1, 1]);
    }
}
