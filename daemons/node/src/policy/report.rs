//! What the thread says of itself.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::time::SystemTime;

use ferrule_node_policy as node_policy;

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
}

/// Something in a policy that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Empty for a ClusterNetworkPolicy.
    pub namespace: String,
    pub policy: String,
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { namespace, policy, what } = self;
        match namespace.as_str() {
            "" => write!(f, "ClusterNetworkPolicy {policy}: {what}"),
            _ => write!(f, "NetworkPolicy {namespace}/{policy}: {what}"),
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
        if enforcer.has_ipvs {
            reasons.push(ipvs::REASON.to_owned());
        }
        let fault = |fault: node_policy::Fault<'_>| Fault {
            namespace: fault.namespace.to_owned(),
            policy: fault.policy.to_owned(),
            what: fault.what.to_owned(),
        };
        let waiting = undecided.pods();
        let pods: BTreeSet<IpAddr> = compiler.ruleset().maps.keys().map(|entry| entry.pod).collect();
        Report {
            unknown: (!is_known).then(|| format!("policies are not known yet: {}", away.join("; "))),
            reasons,
            away,
            policies: compiler.policies(),
            cluster_policies: compiler.cluster_policies(),
            faults: compiler.faults().take(Report::MOST).map(fault).collect(),
            faulty: compiler.faults().count(),
            isolated: pods.len(),
            waiting: waiting.len(),
            undecided: waiting.into_iter().take(Report::MOST).map(str::to_owned).collect(),
            oldest: undecided.oldest(),
            is_plain: owner.is_plain,
        }
    }

    /// Whether the policies hold and are current.
    pub fn is_good(&self) -> bool {
        self.unknown.is_none() && self.reasons.is_empty()
    }

    /// The rows of `/metrics`.
    pub fn metrics(&self, now: SystemTime) -> String {
        let age = self.oldest.map_or(0, |at| now.duration_since(at).unwrap_or_default().as_secs());
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let mut text = String::new();
        for (name, help, value) in [
            ("active", "1 if the policies hold and are current.", u64::from(self.is_good())),
            (
                "followed",
                "1 if the policies, namespaces and pods are followed.",
                u64::from(self.away.is_empty()),
            ),
            ("policies", "NetworkPolicies of the cluster.", count(self.policies)),
            ("cluster_policies", "ClusterNetworkPolicies.", count(self.cluster_policies)),
            ("faults", "Parts of policies that are not understood.", count(self.faulty)),
            ("isolated_addresses", "Addresses of pods of this node that are isolated.", count(self.isolated)),
            ("undecided_pods", "Pods that wait for a decision.", count(self.waiting)),
            ("oldest_undecided_age_seconds", "How long the first of them has waited.", age),
        ] {
            let _ = writeln!(
                text,
                "# HELP ferrule_node_policy_{name} {help}\n# TYPE ferrule_node_policy_{name} gauge\nferrule_node_policy_{name} {value}"
            );
        }
        text
    }
}
