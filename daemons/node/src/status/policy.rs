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
    /// Why the policies are not followed; what is known holds.
    pub away: Vec<String>,
    /// The kernel lets other programs change the table.
    pub is_plain: bool,
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
            away: report.away.clone(),
            is_plain: report.is_plain,
        }
    }
}

impl Policy {
    /// The lines of `ferrule-node status`.
    pub(super) fn to_text(&self) -> String {
        let Policy {
            policies,
            cluster_policies,
            isolated,
            waiting,
            oldest,
            undecided,
            faults,
            away,
            is_plain,
        } = self;
        let mut text = format!(
            "policies: {policies}, of the cluster: {cluster_policies}; {isolated} addresses of this node's pods are isolated\n"
        );
        let mut line = |shown: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "{}", Line::new(shown));
        };
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
        if *is_plain {
            line(format_args!(
                "policies: before Linux 6.9 other programs can change the table inet ferrule_policy"
            ));
        }
        text
    }
}
