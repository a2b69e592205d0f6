//! Hysteresis for carriers, so that a flapping link does not flap in the kubelet too. Pure: time is a parameter.

use std::collections::HashMap;

/// A point in time or a duration, in milliseconds.
pub type Millis = u64;

/// The carriers of devices.
#[derive(Debug)]
pub struct Carriers {
    unhealthy_after: Millis,
    healthy_after: Millis,
    states: HashMap<String, State>,
}

#[derive(Debug)]
struct State {
    good: bool,
    /// Since when the link says otherwise.
    since: Option<Millis>,
}

impl Carriers {
    /// Believes in a lost carrier after one time, and in its return after the other.
    pub fn new(unhealthy_after: Millis, healthy_after: Millis) -> Carriers {
        Carriers { unhealthy_after, healthy_after, states: HashMap::new() }
    }

    /// Takes in the state of a link. The first one is believed at once.
    pub fn observe(&mut self, id: &str, lost: bool, now: Millis) {
        let Some(state) = self.states.get_mut(id) else {
            self.states.insert(id.to_owned(), State { good: !lost, since: None });
            return;
        };
        if state.good != lost {
            state.since = None;
            return;
        }
        let limit = if state.good { self.unhealthy_after } else { self.healthy_after };
        if now - *state.since.get_or_insert(now) >= limit {
            *state = State { good: !lost, since: None };
        }
    }

    /// Whether the carrier counts as there. A device without a link on the node has none to lose.
    pub fn is_good(&self, id: &str) -> bool {
        self.states.get(id).is_none_or(|state| state.good)
    }

    /// When the next device changes, if its link says the same until then.
    pub fn next(&self) -> Option<Millis> {
        let due = |state: &State| {
            Some(state.since? + if state.good { self.unhealthy_after } else { self.healthy_after })
        };
        self.states.values().filter_map(due).min()
    }

    /// Forgets devices that do not exist any more, or are in pods.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.states.retain(|id, _| keep(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_loss_is_not_believed() {
        let mut carriers = Carriers::new(1_000, 3_000);
        assert!(carriers.is_good("a"));
        carriers.observe("a", false, 0);
        carriers.observe("a", true, 100);
        assert_eq!((carriers.is_good("a"), carriers.next()), (true, Some(1_100)));
        carriers.observe("a", false, 1_050);
        assert_eq!(carriers.next(), None);
        carriers.observe("a", true, 2_000);
        carriers.observe("a", true, 2_999);
        assert!(carriers.is_good("a"));
        carriers.observe("a", true, 3_000);
        assert!(!carriers.is_good("a"));
        carriers.observe("a", false, 4_000);
        assert_eq!(carriers.next(), Some(7_000));
        carriers.observe("a", false, 7_000);
        assert!(carriers.is_good("a"));
        carriers.observe("b", true, 0);
        assert!(!carriers.is_good("b"), "the first word is believed");
        carriers.retain(|id| id == "a");
        assert!(carriers.is_good("b"));
    }
}
