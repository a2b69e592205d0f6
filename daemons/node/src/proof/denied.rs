//! Whether the table of the policies judges the packets of pods. The endpoint sends requests that the table denies to it, and others: only the
//! others may have an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use ferrule_kernel::ip::IpFamily;
use ferrule_node_policy::model::Direction;
use ferrule_node_policy::ruleset::Entry;
use tokio::time::{sleep, timeout};

use super::Proof;
use super::echo::Echo;
use super::endpoint::Place;
use super::schedule::{ANSWER, Now, Target};
use crate::policy;

/// The time until the next round, and after one that has found a fault.
const EVERY: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(1);
/// An answer to a denied request comes before this time after those to the others, which were sent later.
const GRACE: Duration = Duration::from_millis(100);
/// So many rounds in a row with an answer to a denied request are a fault: one packet may pass while the table is made again.
const LEAKS: u32 = 2;
/// So many rounds in a row without an answer to an allowed one are a fault.
const MISSES: u32 = 3;

/// A request. The order is that in which they are sent: an answer makes the flow an established one, which passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ask {
    Egress,
    Ingress,
    EgressToNode,
    Allowed,
    AllowedToNode,
}

impl Ask {
    const ALL: [Ask; 5] = [Ask::Egress, Ask::Ingress, Ask::EgressToNode, Ask::Allowed, Ask::AllowedToNode];

    /// The direction in which the table denies it.
    fn denied(self) -> Option<Direction> {
        match self {
            Ask::Egress | Ask::EgressToNode => Some(Direction::Egress),
            Ask::Ingress => Some(Direction::Ingress),
            Ask::Allowed | Ask::AllowedToNode => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Ask::Egress => "egress to a pod (hook forward)",
            Ask::Ingress => "ingress of a pod (hook forward)",
            Ask::EgressToNode => "egress to the node (hook input)",
            Ask::Allowed => "pod to pod",
            Ask::AllowedToNode => "pod to node",
        }
    }
}

/// The requests of one round that have an answer, in each family.
pub(super) type Answers = BTreeMap<IpFamily, BTreeSet<Ask>>;

/// What the endpoint's addresses need in the maps.
pub(super) fn entries(places: &[Place]) -> BTreeSet<Entry> {
    let of = |place: &Place| {
        let ingress = Entry { direction: Direction::Ingress, pod: place.forwarded? };
        Some([Entry { direction: Direction::Egress, pod: place.address }, ingress])
    };
    places.iter().filter_map(of).flatten().collect()
}

/// One round, from the namespace at this path.
///
/// # Errors
/// The sockets cannot be opened.
pub(super) async fn round(path: &Path, places: &[Place]) -> Result<Answers> {
    // New sockets: their flows are new.
    let mut echo = Echo::open(path)?;
    let mut answers = Answers::new();
    let (mut allowed, mut answered) = (0, 0);
    for place in places {
        let family = IpFamily::of(place.address);
        let Some(other_side) = place.forwarded else { continue };
        answers.insert(family, BTreeSet::new());
        for ask in Ask::ALL {
            let address = match ask {
                Ask::EgressToNode | Ask::AllowedToNode => place.gateway,
                Ask::Egress | Ask::Ingress | Ask::Allowed => other_side,
            };
            let mark = ask.denied().map(policy::mark);
            allowed += usize::from(mark.is_none());
            // One that cannot be sent has no answer.
            let mark = mark.as_ref().map_or(&[][..], |mark| &mark[..]);
            let _ = echo.send((family, ask), Target { address, size: 0 }, mark).await;
        }
    }
    let mut take = |(family, ask): (IpFamily, Ask)| {
        answered += usize::from(ask.denied().is_none());
        answers.entry(family).or_default().insert(ask);
        answered >= allowed
    };
    let all = async { while !take(echo.answer().await) {} };
    if timeout(ANSWER, all).await.is_ok() {
        let rest = async {
            loop {
                take(echo.answer().await);
            }
        };
        tokio::select! {
            () = rest => {}
            () = sleep(GRACE) => {}
        }
    }
    Ok(answers)
}

/// The results of the rounds so far.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    families: BTreeMap<IpFamily, Found>,
    due: Option<Duration>,
}

#[derive(Debug, Default)]
struct Found {
    proof: Option<Proof>,
    /// Rounds with a fault in a row, and when the first one was.
    bad: u32,
    since: Option<SystemTime>,
}

impl Rounds {
    /// The table or the endpoint has changed: the last result counts until the next round, which is due now.
    pub(super) fn suspect(&mut self) {
        self.due = Some(Duration::ZERO);
    }

    /// The endpoint is another one: the results of the former one do not count.
    pub(super) fn forget(&mut self) {
        *self = Rounds::default();
    }

    /// When the next round is due.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// A round begins.
    pub(super) fn begin(&mut self) {
        self.due = None;
    }

    pub(super) fn take(&mut self, answers: &Answers, now: Now) {
        for (family, answered) in answers {
            self.families.entry(*family).or_default().take(answered, now);
        }
        let is_good = self.families.values().all(|found| found.bad == 0);
        self.due = Some(now.mono + if is_good { EVERY } else { AGAIN });
    }

    /// The sockets could not be opened.
    pub(super) fn failed(&mut self, now: Now) {
        self.due = Some(now.mono + EVERY);
    }

    /// `None`: not known yet.
    pub(super) fn proof(&self, family: IpFamily) -> Option<Proof> {
        self.families.get(&family)?.proof.clone()
    }
}

impl Found {
    fn take(&mut self, answered: &BTreeSet<Ask>, now: Now) {
        let of = |is_wrong: &dyn Fn(&Ask) -> bool| {
            Ask::ALL.iter().filter(|ask| is_wrong(ask)).map(|ask| ask.text()).collect::<Vec<_>>().join(", ")
        };
        let leaks = of(&|ask| ask.denied().is_some() && answered.contains(ask));
        let missing = of(&|ask| ask.denied().is_none() && !answered.contains(ask));
        let (most, why) = match (leaks.is_empty(), missing.is_empty()) {
            (true, true) => {
                *self = Found { proof: Some(Proof::Proved { at: now.wall }), ..Found::default() };
                return;
            }
            (false, _) => (LEAKS, format!("packets pass that the table of policies denies: {leaks}")),
            (true, false) => {
                (MISSES, format!("packets do not pass that the table of policies allows: {missing}"))
            }
        };
        self.bad = self.bad.saturating_add(1);
        let since = *self.since.get_or_insert(now.wall);
        if self.bad >= most {
            self.proof = Some(Proof::Lost { since, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_packet_with_an_answer_is_a_fault_at_the_second_time() {
        let at = |seconds| Now {
            mono: Duration::from_secs(seconds),
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        };
        let v4 = IpFamily::V4;
        let good = [Ask::Allowed, Ask::AllowedToNode];
        let leak = [Ask::Ingress, Ask::Allowed, Ask::AllowedToNode];
        let half = [Ask::Allowed];
        let mut rounds = Rounds::default();
        let mut round = |second, asks: &[Ask]| {
            rounds.take(&[(v4, asks.iter().copied().collect())].into(), at(second));
            let proof = match rounds.proof(v4) {
                None => "none".to_owned(),
                Some(Proof::Lost { since, why }) => {
                    format!("lost {:?} {why}", at(0).wall.elapsed().is_ok() && since == at(40).wall)
                }
                Some(proof) => format!("{proof:?}").split(' ').next().unwrap_or_default().to_owned(),
            };
            (proof, rounds.due().unwrap().as_secs())
        };
        let proved = "Proved".to_owned();
        assert_eq!(round(1, &half), ("none".into(), 2));
        assert_eq!(round(2, &good), (proved.clone(), 32));
        assert_eq!(round(40, &leak), (proved.clone(), 41), "while the table is made again");
        let said =
            "lost true packets pass that the table of policies denies: ingress of a pod (hook forward)";
        assert_eq!(round(41, &leak), (said.into(), 42));
        assert_eq!(round(42, &good), (proved.clone(), 72));
        assert_eq!((round(40, &half).0, round(41, &half).0), (proved.clone(), proved));
        let said = "lost true packets do not pass that the table of policies allows: pod to node";
        assert_eq!(round(43, &half), (said.into(), 44));
    }
}
