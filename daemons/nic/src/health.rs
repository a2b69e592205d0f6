//! Hysteresis for a carrier, so that a flapping link does not flap in the kubelet too. Pure: time is a parameter.

/// A point in time or a duration, in milliseconds.
pub type Millis = u64;

/// How long a lost carrier, and one that is back, is not believed.
pub type Delays = [Millis; 2];

/// What the daemon believes of a link's carrier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carrier {
    /// `None` before the first observation.
    is_lost: Option<bool>,
    /// Since when the link says otherwise.
    since: Option<Millis>,
}

impl Carrier {
    /// Takes in the state of the link. The first one is believed at once, another one after its delay.
    pub fn observe(&mut self, is_lost: bool, now: Millis, delays: Delays) {
        if self.is_lost.is_some_and(|believed| believed != is_lost)
            && now - *self.since.get_or_insert(now) < self.delay(delays)
        {
            return;
        }
        *self = Carrier { is_lost: Some(is_lost), since: None };
    }

    /// Whether the carrier counts as there.
    pub fn is_good(&self) -> bool {
        self.is_lost != Some(true)
    }

    /// When that changes, if the link says the same until then.
    pub fn next(&self, delays: Delays) -> Option<Millis> {
        Some(self.since? + self.delay(delays))
    }

    fn delay(&self, [unhealthy_after, healthy_after]: Delays) -> Millis {
        if self.is_good() { unhealthy_after } else { healthy_after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_loss_is_not_believed() {
        let delays = [1_000, 3_000];
        let mut carrier = Carrier::default();
        assert!(carrier.is_good());
        carrier.observe(false, 0, delays);
        carrier.observe(true, 100, delays);
        assert_eq!((carrier.is_good(), carrier.next(delays)), (true, Some(1_100)));
        carrier.observe(false, 1_050, delays);
        assert_eq!(carrier.next(delays), None);
        carrier.observe(true, 2_000, delays);
        carrier.observe(true, 2_999, delays);
        assert!(carrier.is_good());
        carrier.observe(true, 3_000, delays);
        assert!(!carrier.is_good());
        carrier.observe(false, 4_000, delays);
        assert_eq!(carrier.next(delays), Some(7_000));
        carrier.observe(false, 7_000, delays);
        assert!(carrier.is_good());
        let mut other = Carrier::default();
        other.observe(true, 0, delays);
        assert!(!other.is_good(), "the first word is believed");
    }
}
