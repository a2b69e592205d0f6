//! The rates that `ferrule shape` gives a running container. The runtime's cache goes on to have the configured ones, so the alias
//! of the host's end keeps the new ones for CHECK and repair. Only the node writes it, and it goes with the link:
//!
//! ```text
//! bandwidth ingress=10000000 egress=20000000
//! ```

use std::fmt;
use std::str::FromStr;

use crate::config::{Conf, Limit, Queue};
use crate::shape::UNLIMITED;

/// The first word of the alias.
const TAG: &str = "bandwidth";
/// The kernel's minimum, a byte per second.
const LEAST: u64 = 8;
/// The units of a rate, as in Kubernetes' quantities.
const UNITS: [(&str, u64); 8] = [
    ("", 1),
    ("k", 1000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
];

/// Rates in bit/s that replace the configured ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// To the container.
    pub ingress: Option<u64>,
    /// From the container.
    pub egress: Option<u64>,
}

impl Rates {
    /// Parses an alias; `None` if it does not have this format.
    pub fn parse(alias: &str) -> Option<Rates> {
        let mut words = alias.split(' ');
        let mut rates = Rates::default();
        if words.next() != Some(TAG) {
            return None;
        }
        for word in words {
            let (key, value) = word.split_once('=')?;
            let rate = value.parse().ok().filter(|rate| *rate >= LEAST)?;
            match key {
                "ingress" => rates.ingress = Some(rate),
                "egress" => rates.egress = Some(rate),
                _ => return None,
            }
        }
        Some(rates)
    }

    /// The alias; empty without any rate.
    pub fn alias(self) -> String {
        if self == Rates::default() {
            return String::new();
        }
        let word = |key: &str, rate: Option<u64>| rate.map_or(String::new(), |rate| format!(" {key}={rate}"));
        format!("{TAG}{}{}", word("ingress", self.ingress), word("egress", self.egress))
    }

    /// The configuration with these rates. Bursts and queues stay; a direction without a limit has no burst, as from a runtime.
    pub fn apply(self, conf: Conf) -> Conf {
        let limit = |rate: Option<u64>, configured: Option<Limit>, queue: Option<Queue>| {
            let burst = configured.map_or(UNLIMITED[1], |limit| limit.burst);
            rate.map(|rate| Limit { rate, burst, queue }).or(configured)
        };
        Conf {
            ingress: limit(self.ingress, conf.ingress, conf.queues[0]),
            egress: limit(self.egress, conf.egress, conf.queues[1]),
            ..conf
        }
    }
}

/// A rate that an operator gives a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// That of the configuration, or no limit if it has none.
    Configured,
    /// Bits per second.
    Bits(u64),
}

impl Rate {
    /// The rate that replaces the configured one.
    pub fn bits(self) -> Option<u64> {
        match self {
            Rate::Configured => None,
            Rate::Bits(bits) => Some(bits),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Rate::Configured);
        }
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
        let bits = factor.and_then(|factor| number.parse::<u64>().ok()?.checked_mul(factor));
        let bits = bits.filter(|bits| *bits >= LEAST);
        bits.map(Rate::Bits)
            .ok_or_else(|| format!("not a rate of at least {LEAST} bit/s, such as 10M, and not none"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Configured => f.write_str("no limit"),
            Rate::Bits(bits) => {
                let whole = |unit: &&(&str, u64)| bits % unit.1 == 0;
                let (name, factor) = UNITS[..5].iter().rev().find(whole).unwrap_or(&UNITS[0]);
                write!(f, "{}{name}bit/s", bits / factor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, bits) in [("8", 8), ("10M", 10_000_000), ("1Gi", 1 << 30), ("64k", 64_000), ("2Ki", 2048)]
        {
            assert_eq!(text.parse(), Ok(Rate::Bits(bits)), "{text}");
        }
        assert_eq!("none".parse(), Ok(Rate::Configured));
        for text in ["", "7", "M", "10m", "10Mbit", "-1", "1.5M", "18446744073709551615k", "None"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        let shown = [10_000_000, 1_500_000, 12, 3_000_000_000].map(|bits| Rate::Bits(bits).to_string());
        assert_eq!(shown, ["10Mbit/s", "1500kbit/s", "12bit/s", "3Gbit/s"]);
    }

    #[test]
    fn aliases() {
        for (ingress, egress) in [(Some(10_000_000), None), (None, Some(8)), (Some(9), Some(u64::MAX))] {
            let rates = Rates { ingress, egress };
            assert_eq!(Rates::parse(&rates.alias()), Some(rates));
        }
        assert_eq!(Rates::default().alias(), "");
        for other in
            ["", "uplink", "bandwidth ingress=7", "bandwidth ingress", "bandwidth network=pods container=1"]
        {
            assert_eq!(Rates::parse(other), None, "{other}");
        }
    }

    #[test]
    fn bursts_and_queues_stay() {
        let limit = |rate, burst, queue| Some(Limit { rate, burst, queue });
        let queues = [Some(Queue::Bytes(9)), Some(Queue::Milliseconds(9))];
        let conf = Conf { ingress: limit(100, 200, queues[0]), queues, ..Conf::default() };
        let rates = Rates { ingress: Some(300), egress: Some(400) };
        let expected =
            Conf { ingress: limit(300, 200, queues[0]), egress: limit(400, UNLIMITED[1], queues[1]), ..conf };
        assert_eq!((rates.apply(conf), Rates::default().apply(conf)), (expected, conf));
    }
}
