//! What policies deny: counters by pod, for `/metrics`, and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Error;
use ferrule_node_policy::Cluster;
use ferrule_node_policy::judge::{Packet, deniers, denying};
use ferrule_node_policy::model::Direction;
use ferrule_policy_kit::denials::{self, Counter, Denial, Flow, News};

use super::layout::TABLE;
use crate::quota::Quota;

/// The most pods, by direction and policies, that have a count of their own. Those of all others are one.
const MOST: usize = 100;
/// The most new counts of one namespace within [`WINDOW`]: the owner of a namespace chooses the names of its policies and pods.
const MOST_NEW: u32 = 50;
const WINDOW: Duration = Duration::from_secs(3600);
/// The most names of policies in a count.
const MOST_POLICIES: usize = 5;
/// The most lines of one look.
const MOST_LINES: usize = 200;

/// Who denies. Without namespace and pod: all that have no count of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    pub namespace: String,
    pub pod: String,
    pub direction: Direction,
    /// Nothing was denied, only counted.
    pub is_dry: bool,
    /// The names of the policies that isolate the pod, or deny something to it: together they deny.
    pub policies: String,
}

impl Count {
    fn rest(direction: Direction, is_dry: bool) -> Count {
        let (namespace, pod, policies) = Default::default();
        Count { namespace, pod, direction, is_dry, policies }
    }

    fn of(counter: &Counter, cluster: &Cluster) -> Count {
        let Counter { direction, address, pod, is_dry, .. } = counter;
        let (namespace, pod) = pod.split_once('/').unwrap_or(("", pod));
        let all = denying(cluster, *address, *direction);
        let mut names: Vec<String> = { all.iter().take(MOST_POLICIES) }
            .map(|policy| match policy.namespace {
                "" => policy.to_string(),
                _ => policy.name.to_owned(),
            })
            .collect();
        if all.len() > MOST_POLICIES {
            names.push(format!("{} more", all.len() - MOST_POLICIES));
        }
        Count {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            direction: *direction,
            is_dry: *is_dry,
            policies: names.join(", "),
        }
    }
}

/// Denied packets since the daemon's start. The sum of a direction and mode never becomes less.
#[derive(Debug)]
pub(super) struct Denied {
    /// What the kernel has said last.
    last: BTreeMap<(Direction, IpAddr, bool), u64>,
    counts: BTreeMap<Count, u64>,
    new: Quota,
    news: News,
    /// Why the counters could not be read.
    problem: Option<String>,
}

impl Default for Denied {
    fn default() -> Denied {
        Denied {
            last: BTreeMap::new(),
            counts: BTreeMap::new(),
            new: Quota::new(WINDOW),
            news: News::default(),
            problem: None,
        }
    }
}

impl Denied {
    pub(super) fn counts(&self) -> &BTreeMap<Count, u64> {
        &self.counts
    }

    /// The table is made anew: all counters begin at zero.
    pub(super) fn begin_anew(&mut self) {
        self.last.clear();
    }

    /// Reads the kernel's counters. Policies hold without them, so an error is a line of the log.
    pub(super) fn read(&mut self, socket: &mut Socket, cluster: &Cluster, logs: bool) {
        let found = denials::counters(socket, TABLE);
        self.say(&found);
        if let Ok(found) = found {
            self.take(&found, |counter| Count::of(counter, cluster));
        }
        if logs {
            self.look(socket, cluster).iter().for_each(|line| log!("policy: {line}"));
        }
    }

    fn say<T>(&mut self, outcome: &Result<T, Error>) {
        let problem = outcome.as_ref().err().map(ToString::to_string);
        if let Some(problem) = problem.as_ref().filter(|now| self.problem.as_ref() != Some(now)) {
            log!("policy: denials are not counted: {problem}");
        }
        self.problem = problem;
    }

    fn take(&mut self, found: &[Counter], count: impl Fn(&Counter) -> Count) {
        let before = std::mem::take(&mut self.last);
        let mut current = BTreeSet::new();
        for counter in found {
            let packets = counter.packets.unwrap_or_default();
            let place = (counter.direction, counter.address, counter.is_dry);
            self.last.insert(place, packets);
            if packets == 0 {
                continue;
            }
            // A counter that was made anew begins at zero.
            let known = before.get(&place).copied().filter(|known| *known <= packets);
            let new = packets - known.unwrap_or_default();
            let mut own = count(counter);
            current.insert(own.clone());
            let mut is_one_more = || self.new.number(&own.namespace, Instant::now()) > MOST_NEW;
            if !self.counts.contains_key(&own) && (new == 0 || self.counts.len() >= MOST || is_one_more()) {
                own = Count::rest(own.direction, own.is_dry);
            }
            if new > 0 {
                *self.counts.entry(own).or_default() += new;
            }
        }
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.counts).into_iter().partition(|(own, _)| current.contains(own));
        self.counts = kept;
        for (own, packets) in gone {
            *self.counts.entry(Count::rest(own.direction, own.is_dry)).or_default() += packets;
        }
    }

    /// The lines of the log about denials since the last look.
    fn look(&mut self, socket: &mut Socket, cluster: &Cluster) -> Vec<String> {
        let found = denials::flows(socket, TABLE);
        self.say(&found);
        let new = found.map(|found| in_turns(self.news.of(found))).unwrap_or_default();
        let rest = new.len().saturating_sub(MOST_LINES);
        let line = |(flow, packets): &(Flow, u64)| denial(cluster, flow, *packets).to_string();
        let mut lines: Vec<String> = new.iter().take(MOST_LINES).map(line).collect();
        if rest > 0 {
            lines.push(format!("{rest} more denied flows: ferrule policy watch has them"));
        }
        lines
    }
}

/// The first flow of each pod, then the second one of each, and so on: pods with many denials do not keep the others out of the log.
fn in_turns(flows: Vec<(Flow, u64)>) -> Vec<(Flow, u64)> {
    let mut count = BTreeMap::<IpAddr, usize>::new();
    let turn = |one: (Flow, u64)| {
        let turn = count.entry(one.0.pod()).or_default();
        *turn += 1;
        (*turn, one)
    };
    let mut turns: Vec<_> = flows.into_iter().map(turn).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, one)| one).collect()
}

/// The flow with what the cluster's objects say of it now. Entries of policies are not looked at: there may be 10,000 in each, and this thread enforces.
pub(super) fn denial(cluster: &Cluster, flow: &Flow, packets: u64) -> Denial {
    let Flow { direction, source, destination, protocol, port } = *flow;
    let packet = Packet { source, destination, protocol, destination_port: port };
    let name = |address: IpAddr| cluster.name_at(address).unwrap_or_default();
    Denial {
        flow: *flow,
        packets,
        pod: name(flow.pod()),
        peer: name(flow.peer()),
        policies: deniers(cluster, &packet, direction).iter().map(ToString::to_string).collect(),
        is_dry: cluster.is_dry(flow.pod()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(last: u8, pod: &str, packets: u64) -> Counter {
        let (direction, address) = (Direction::Ingress, [10, 0, 0, last].into());
        Counter { direction, address, pod: pod.into(), is_dry: false, packets: Some(packets) }
    }

    fn count(counter: &Counter) -> Count {
        Count {
            namespace: "a".into(),
            pod: counter.pod.clone(),
            ..Count::rest(counter.direction, counter.is_dry)
        }
    }

    fn figures(denied: &Denied) -> Vec<(&str, u64)> {
        denied.counts.iter().map(|(count, packets)| (&*count.pod, *packets)).collect()
    }

    #[test]
    fn counts_grow_by_what_is_new_and_stay_when_a_pod_goes() {
        let mut denied = Denied::default();
        denied.take(&[counter(1, "one", 3), counter(2, "two", 0)], count);
        assert_eq!(figures(&denied), [("one", 3)]);
        denied.take(&[counter(1, "one", 5), counter(2, "two", 1)], count);
        assert_eq!(figures(&denied), [("one", 5), ("two", 1)]);
        // Its counter was made anew, the other pod is gone.
        denied.take(&[counter(1, "one", 2)], count);
        assert_eq!(figures(&denied), [("", 1), ("one", 7)]);
        denied.begin_anew();
        denied.take(&[counter(1, "one", 2)], count);
        assert_eq!(figures(&denied), [("", 1), ("one", 9)]);
        denied.take(&[], count);
        assert_eq!(figures(&denied), [("", 10)]);
    }

    #[test]
    fn the_number_of_counts_is_bounded() {
        let mut denied = Denied::default();
        let all: Vec<Counter> = (0..250).map(|last| counter(last, &format!("pod{last}"), 1)).collect();
        let of_five = |counter: &Counter| {
            let namespace = counter.pod.chars().last().unwrap().to_digit(10).unwrap() % 5;
            Count { namespace: namespace.to_string(), ..count(counter) }
        };
        denied.take(&all, of_five);
        denied.take(&all, of_five);
        assert_eq!(denied.counts.len(), MOST + 1);
        assert_eq!(denied.counts.values().sum::<u64>(), 250);
        assert_eq!(denied.counts[&Count::rest(Direction::Ingress, false)], 150);
    }

    #[test]
    fn names_that_change_make_few_counts() {
        let (mut denied, mut seen) = (Denied::default(), BTreeSet::new());
        for round in 1..=500 {
            let policies = format!("p{round}");
            denied.take(&[counter(1, "one", round)], |of| Count { policies: policies.clone(), ..count(of) });
            seen.extend(denied.counts.keys().cloned());
        }
        assert_eq!((seen.len(), denied.counts.values().sum()), (MOST_NEW as usize + 1, 500));
    }

    #[test]
    fn a_name_of_another_pod_is_no_reason_to_forget() {
        let mut denied = Denied::default();
        denied.take(&[counter(1, "one", 3)], count);
        denied.take(&[counter(1, "other", 4)], count);
        assert_eq!(figures(&denied), [("", 3), ("other", 1)]);
    }

    #[test]
    fn a_pod_with_many_denials_does_not_keep_another_out_of_the_log() {
        let flow = |pod: u8, port: u16| {
            let [source, destination] = [200, pod].map(|last| IpAddr::from([10, 0, 0, last]));
            (Flow { direction: Direction::Ingress, source, destination, protocol: 6, port }, 1)
        };
        let mut flows: Vec<_> = (1..=10).flat_map(|pod| (1..=30).map(move |port| flow(pod, port))).collect();
        flows.push(flow(11, 80));
        let flows = in_turns(flows);
        assert_eq!(flows.len(), 301);
        assert_eq!(flows[..11].iter().filter(|(flow, _)| flow.port == 1 || flow.port == 80).count(), 11);
        assert!(flows[11..21].iter().all(|(flow, _)| flow.port == 2), "{flows:?}");
    }
}
