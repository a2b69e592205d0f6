//! The NetworkPolicies in `status.json` and in `ferrule-node status`.

use std::fmt::Write as _;

use cni_common::line::Line;
use serde::{Deserialize, Serialize};

use crate::policy::Report;

/// The NetworkPolicies on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// How many there are in the cluster.
    pub policies: usize,
    /// How many ClusterNetworkPolicies there are.
    #[serde(default)]
    pub cluster_policies: usize,
    /// The addresses of this node's pods that are isolated in a direction.
    pub isolated: usize,
    /// How many pods wait for a decision: nothing passes in the directions in which they may be isolated.
    pub waiting: usize,
    /// Since when the first of them waits, RFC 3339.
    pub oldest: Option<String>,
    /// The first of them, as UID NAMESPACE/NAME.
    pub undecided: Vec<String>,
    /// What in policies is not understood: it allows nothing. The first ones.
    pub faults: Vec<String>,
    /// How many there are besides these.
    #[serde(default)]
    pub more: usize,
    /// What in policies is probably not meant. The first ones.
    #[serde(default)]
    pub doubts: Vec<String>,
    /// The pods of this node that cannot be read: each policy of their namespaces isolates them. The first ones.
    #[serde(default)]
    pub closed: Vec<String>,
    /// The pods of any node whose objects could never be read: new ones wait, those from before the plugin have no policies. The first ones.
    #[serde(default)]
    pub unread: Vec<String>,
    /// Why the policies are not followed; what is known holds.
    pub away: Vec<String>,
    /// The kernel lets other programs change the table.
    pub is_plain: bool,
    /// All namespaces are dry: nothing is denied.
    pub is_dry: bool,
    /// The namespaces whose pods are denied nothing: the first ones.
    pub dry: Vec<String>,
    /// The addresses of this node's pods that something would be denied to.
    pub dry_addresses: usize,
    /// The packets that were denied on this node since the daemon's start, and those that would have been.
    pub denied: u64,
    pub would_deny: u64,
    /// The kernel does not count them.
    pub is_blind: bool,
}

impl From<&Report> for Policy {
    fn from(report: &Report) -> Policy {
        Policy {
            policies: report.policies,
            cluster_policies: report.cluster_policies,
            isolated: report.isolated,
            waiting: report.waiting,
            oldest: report.oldest.map(|at| humantime::format_rfc3339_seconds(at).to_string()),
            undecided: report.undecided.clone(),
            faults: report.faults.iter().map(ToString::to_string).collect(),
            more: report.more(),
            doubts: report.doubts.iter().map(ToString::to_string).collect(),
            closed: report.closed.clone(),
            unread: report.unread.clone(),
            away: report.away.clone(),
            is_plain: report.is_plain,
            is_dry: report.dry.is_none(),
            dry: report.dry.clone().unwrap_or_default(),
            dry_addresses: report.dry_addresses,
            denied: report.packets(false),
            would_deny: report.packets(true),
            is_blind: report.is_blind,
        }
    }
}

impl Policy {
    /// The lines of `ferrule-node status`.
    pub(super) fn to_text(&self) -> String {
        let Policy {
            policies, cluster_policies, isolated, waiting, oldest, undecided, away, is_plain, ..
        } = self;
        let Policy { faults, more, doubts, closed, unread, .. } = self;
        let Policy { is_dry, dry, dry_addresses, denied, would_deny, is_blind, .. } = self;
        let mut text = format!(
            "policies: {policies}, of the cluster: {cluster_policies}; {isolated} addresses of this node's pods are isolated, {denied} packets denied\n"
        );
        let mut line = |shown: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "{}", Line::new(shown));
        };
        if *is_dry || !dry.is_empty() {
            let place = if *is_dry { "all namespaces".to_owned() } else { dry.join(", ") };
            line(format_args!(
                "policies: dry in {place}: {dry_addresses} addresses of this node's pods would be isolated, {would_deny} packets would have been denied"
            ));
        }
        if *is_blind {
            line(format_args!("policies: before Linux 5.12 denied packets are not counted"));
        }
        for why in away {
            line(format_args!("policies: not followed, what is known holds: {why}"));
        }
        if *waiting > 0 {
            let since = oldest.as_deref().unwrap_or("?");
            line(format_args!(
                "policies: {waiting} pods are undecided since {since}: {}",
                undecided.join(", ")
            ));
        }
        for fault in faults {
            line(format_args!("policies: {fault}"));
        }
        if *more > 0 {
            line(format_args!("policies: … and {more} more"));
        }
        for doubt in doubts {
            line(format_args!("policies: is it meant? {doubt}"));
        }
        if !closed.is_empty() {
            line(format_args!(
                "policies: pods that cannot be read, so each policy of their namespaces isolates them: {}",
                closed.join(", ")
            ));
        }
        if !unread.is_empty() {
            line(format_args!(
                "policies: pods that cannot be read, of any node: those from before the plugin have no policies: {}",
                unread.join(", ")
            ));
        }
        if *is_plain {
            line(format_args!(
                "policies: before Linux 6.9 other programs can change the table inet ferrule_policy"
            ));
        }
        text
    }
}
