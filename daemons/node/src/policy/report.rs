//! What the thread says of itself.

use std::collections::BTreeSet;
use std::fmt;
use std::time::SystemTime;

use ferrule_daemon::Metrics;
use ferrule_node_policy as node_policy;
use ferrule_node_policy::model::Direction;
use ferrule_node_policy::ruleset::Entry;

use super::denied::Count;
use super::enforcer::{Enforcer, Made};
use super::ipvs;
use super::layout::TABLE;
use super::release::AnnouncedPods;

/// The state of the policies on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why the policies are not known yet: what an earlier daemon has left holds, and every new pod of an isolated namespace waits.
    pub unknown: Option<String>,
    /// Why policies do not hold, or are not current; empty if all is well.
    pub reasons: Vec<String>,
    /// Why watches of the API server do not work. The known policies hold.
    pub away: Vec<String>,
    /// The NetworkPolicies.
    pub policies: usize,
    /// The ClusterNetworkPolicies.
    pub cluster_policies: usize,
    /// What in them is not understood: the first ones.
    pub faults: Vec<Fault>,
    /// How many of these there are.
    pub faulty: usize,
    /// What in policies is probably not meant, with the same limit, and how many there are.
    pub doubts: Vec<Fault>,
    pub doubtful: usize,
    /// The pods of this node that cannot be read, as NAMESPACE/NAME, with the same limit: each policy of their namespaces isolates them.
    pub closed: Vec<String>,
    /// The pods whose objects could never be read, in the same form and number. Their nodes are unknown.
    pub unread: Vec<String>,
    /// The addresses of this node's pods that are isolated in a direction.
    pub isolated: usize,
    /// The pods for which nothing is decided, as UID NAMESPACE/NAME: the first ones.
    pub undecided: Vec<String>,
    /// How many of them there are.
    pub waiting: usize,
    /// When the oldest of them was announced.
    pub oldest: Option<SystemTime>,
    /// The kernel lets others change the table: before Linux 6.9.
    pub is_plain: bool,
    /// The health endpoint's addresses in the maps; empty while the table is not as it should be.
    pub probed: BTreeSet<Entry>,
    /// Whether the health endpoint has proved that the table judges the packets of pods, in each family of the pods.
    pub is_proved: bool,
    /// The namespaces of this cluster whose pods are denied nothing: the first ones. `None`: all of them.
    pub dry: Option<Vec<String>>,
    /// The addresses of this node's pods that something would be denied to.
    pub dry_addresses: usize,
    /// Denied packets.
    pub denied: Vec<(Count, u64)>,
    /// The kernel does not count them: before Linux 5.12.
    pub is_blind: bool,
}

/// Something in a policy that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Empty for a ClusterNetworkPolicy.
    pub namespace: String,
    /// Empty for the Namespace itself.
    pub policy: String,
    pub what: String,
}

/// The first of each namespace, then the second of each, at most [`Report::MOST`]: one namespace does not keep out the others. Those of a
/// namespace stand together in `all`.
fn in_turns<'n, T>(all: impl Iterator<Item = T>, namespace: impl Fn(&T) -> &'n str) -> Vec<T> {
    let mut turns: Vec<Vec<T>> = (0..Report::MOST).map(|_| Vec::new()).collect();
    let (mut last, mut turn) = (None, 0);
    for one in all {
        let own = Some(namespace(&one));
        turn = if last == own { turn + 1 } else { 0 };
        last = own;
        if let Some(of_turn) = turns.get_mut(turn).filter(|of_turn| of_turn.len() < Report::MOST) {
            of_turn.push(one);
        }
    }
    turns.into_iter().flatten().take(Report::MOST).collect()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.namespace, &*self.policy) {
            (namespace, "") => write!(f, "Namespace {namespace}: {}", self.what),
            ("", policy) => write!(f, "ClusterNetworkPolicy {policy}: {}", self.what),
            (namespace, policy) => write!(f, "NetworkPolicy {namespace}/{policy}: {}", self.what),
        }
    }
}

impl Report {
    /// The most faults and undecided pods that are listed.
    pub const MOST: usize = 20;

    /// The report of the enforcer.
    pub(super) fn of(enforcer: &Enforcer) -> Report {
        let Enforcer { compiler, pods: AnnouncedPods { undecided, .. }, record, owner, .. } = enforcer;
        let is_known = enforcer.listed.is_complete();
        let away = enforcer.away.iter().map(|(kind, why)| format!("{kind}: {why}")).collect::<Vec<_>>();
        let mut reasons: Vec<String> = enforcer.problem.iter().chain(record.problem()).cloned().collect();
        if is_known && enforcer.made != Made::All && enforcer.problem.is_none() {
            reasons.push(format!("table {TABLE} is being made again"));
        }
        if enforcer.inspected.has_ipvs {
            reasons.push(ipvs::REASON.to_owned());
        }
        let fault = |fault: node_policy::Fault<'_>| Fault {
            namespace: fault.namespace.to_owned(),
            policy: fault.policy.to_owned(),
            what: fault.what.to_owned(),
        };
        let doubt = |doubt: &node_policy::Doubt| Fault {
            namespace: doubt.namespace.clone(),
            policy: doubt.policy.clone(),
            what: doubt.what.clone(),
        };
        let named = |(namespace, name): (&str, &str)| format!("{namespace}/{name}");
        let waiting = undecided.pods();
        let mut faulty = 0;
        let faults = in_turns(compiler.faults().inspect(|_| faulty += 1), |one| one.namespace);
        Report {
            unknown: (!is_known).then(|| format!("policies are not known yet: {}", away.join("; "))),
            reasons,
            away,
            policies: compiler.policies(),
            cluster_policies: compiler.cluster_policies(),
            faults: faults.into_iter().map(fault).collect(),
            faulty,
            doubts: in_turns(enforcer.inspected.doubts.iter(), |one| &one.namespace)
                .into_iter()
                .map(doubt)
                .collect(),
            doubtful: enforcer.inspected.doubts.len(),
            closed: compiler.cluster().closed_pods().take(Report::MOST).map(named).collect(),
            unread: compiler.unread_pods().take(Report::MOST).map(named).collect(),
            isolated: enforcer.isolated,
            waiting: waiting.len(),
            undecided: waiting.into_iter().take(Report::MOST).map(str::to_owned).collect(),
            oldest: undecided.oldest(),
            is_plain: owner.is_plain,
            probed: if enforcer.made == Made::All {
                enforcer.endpoint.made().clone()
            } else {
                BTreeSet::new()
            },
            is_proved: false,
            dry: (!compiler.cluster().is_dry_cluster())
                .then(|| compiler.cluster().dry_namespaces().take(Report::MOST).map(str::to_owned).collect()),
            dry_addresses: compiler.ruleset().dry.len(),
            denied: enforcer
                .denied
                .counts()
                .iter()
                .map(|(count, packets)| (count.clone(), *packets))
                .collect(),
            is_blind: owner.is_blind,
        }
    }

    /// How many faults are not listed.
    pub fn more(&self) -> usize {
        self.faulty.saturating_sub(self.faults.len())
    }

    /// Whether the policies hold and are current.
    pub fn is_good(&self) -> bool {
        self.unknown.is_none() && self.reasons.is_empty()
    }

    /// The denied packets, or those of the mode dry.
    pub fn packets(&self, is_dry: bool) -> u64 {
        self.denied.iter().filter(|(count, _)| count.is_dry == is_dry).map(|(_, packets)| packets).sum()
    }

    /// The rows of `/metrics`.
    pub fn metrics(&self, now: SystemTime) -> String {
        let age = self.oldest.map_or(0, |at| now.duration_since(at).unwrap_or_default().as_secs());
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let mut metrics = Metrics::new("ferrule_node_policy_");
        for (name, help, value) in [
            ("active", "1 if the policies hold and are current.", u64::from(self.is_good())),
            (
                "proved",
                "1 if the health endpoint has proved that the table judges the packets of pods.",
                u64::from(self.is_proved),
            ),
            (
                "followed",
                "1 if the policies, namespaces and pods are followed.",
                u64::from(self.away.is_empty()),
            ),
            ("policies", "NetworkPolicies of the cluster.", count(self.policies)),
            ("cluster_policies", "ClusterNetworkPolicies.", count(self.cluster_policies)),
            ("faults", "Parts of policies that are not understood.", count(self.faulty)),
            ("doubts", "Parts of policies that are probably not meant.", count(self.doubtful)),
            ("unread_pods", "Pods of this node that cannot be read, 20 at most.", count(self.closed.len())),
            ("isolated_addresses", "Addresses of pods of this node that are isolated.", count(self.isolated)),
            (
                "dry_addresses",
                "Addresses of pods of this node that something would be denied to, and that are denied nothing.",
                count(self.dry_addresses),
            ),
            ("undecided_pods", "Pods that wait for a decision.", count(self.waiting)),
            ("oldest_undecided_age_seconds", "How long the first of them has waited.", age),
        ] {
            metrics.one(name, "gauge", help, value);
        }
        let help = "Packets that policies have denied, or with the mode dry would have. Without a pod: all others together.";
        let row = |(count, packets): &(Count, u64)| {
            let Count { namespace, pod, direction, is_dry, policies } = count.clone();
            let mode = if is_dry { "dry" } else { "enforce" };
            let direction = match direction {
                Direction::Ingress => "ingress",
                Direction::Egress => "egress",
            };
            ([namespace, pod, direction.to_owned(), mode.to_owned(), policies], *packets)
        };
        metrics.add_labelled(
            ("denied_packets_total", "counter", help),
            ["namespace", "pod", "direction", "mode", "policies"],
            self.denied.iter().map(row),
        );
        metrics.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_namespace_does_not_hide_the_faults_of_others() {
        let all = [vec![("a", 0); 100], vec![("b", 1), ("b", 2)], vec![("c", 3)]].concat();
        let found = in_turns(all.into_iter(), |(namespace, _)| *namespace);
        assert_eq!(found[..5], [("a", 0), ("b", 1), ("c", 3), ("a", 0), ("b", 2)]);
        assert_eq!(found.len(), Report::MOST);
    }
}
