//! What people have reported of CNI plugins on their nodes. Each report is a row: its source, one sentence, and the steps that must
//! hold today. A new report becomes a row of the table that it belongs to.
//!
//! Each row has a node of its own. A step that does not hold ends its row; the test names all rows that failed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod links;
mod names;
mod operator;
mod play;
mod rulesets;
mod subnets;
mod sysctls;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

/// One report.
pub(crate) struct Report {
    /// Where people have described it: the repositories and numbers of the threads.
    pub(crate) source: &'static str,
    /// What must hold.
    pub(crate) sentence: &'static str,
    /// In this order.
    pub(crate) steps: Vec<Step>,
}

/// What a runtime does with a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb {
    Add,
    Check,
    Del,
}

/// One step of a report.
pub(crate) enum Step {
    /// The network of the calls that follow.
    Network(Value),
    /// The capability argument of the ADDs that follow, for example `portMappings`.
    Capability(&'static str, Value),
    /// Ferrule's plugins make the calls that follow, as at the start.
    Ours,
    /// The reference's plugins make the calls that follow.
    Reference,
    /// The call succeeds. The first ADD makes the pod.
    Call(Verb, &'static str),
    /// The call fails with this text.
    Refused(Verb, &'static str, &'static str),
    /// Runs STATUS of the network; an empty text: it succeeds, else it fails with this text.
    Status(&'static str),
    /// The pod's namespace ends, as at a crash: nobody calls DEL.
    Gone(&'static str),
    /// A shell script on the node succeeds. `ferrule` and the plugins are in its PATH.
    Node(&'static str),
    /// A shell script in the pod succeeds.
    Pod(&'static str, &'static str),
    /// A shell script on the node says this, whatever its exit status.
    Says(&'static str, &'static str),
}

/// Plays all reports of a table.
#[track_caller]
fn hold(reports: Vec<Report>) {
    let mut failed = Vec::new();
    for report in reports {
        if catch_unwind(AssertUnwindSafe(|| play::play(&report))).is_err() {
            failed.push(format!("{}: {}", report.source, report.sentence));
        }
    }
    assert!(failed.is_empty(), "these reports hold again:\n{}", failed.join("\n"));
}

#[test]
fn links() {
    hold(links::reports());
}

#[test]
fn names() {
    hold(names::reports());
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn names_on_a_stock_kernel() {
    ["8021q", "ipvlan"].into_iter().for_each(cni_lab::kernel_module);
    hold(names::of_a_stock_kernel());
}

#[test]
fn operator() {
    hold(operator::reports());
}

#[test]
fn rulesets() {
    hold(rulesets::reports());
}

#[test]
fn subnets() {
    hold(subnets::reports());
}

#[test]
fn sysctls() {
    hold(sysctls::reports());
}
