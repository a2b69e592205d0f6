//! Finds the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

use super::{Book, Code, Reason, Standing, Word, judge};
use crate::cluster::Peers;
use crate::plan::{Plan, State};
use crate::proof::{Proof, Proofs};

/// So many lost nodes are no accident, if they are all.
const ALL_LOST: usize = 3;
/// The most reasons of one code that are named.
const MAX_NAMED: usize = 20;

/// What the word is made of.
pub struct Facts<'a> {
    pub now: SystemTime,
    /// Why nothing is known of the cluster; `None` as soon as there is a plan.
    pub unknown: Option<&'a str>,
    /// Whether the last list of nodes lacks this one, and there was a plan before.
    pub is_deleted: bool,
    /// The parts that do not work, and why.
    pub problems: &'a BTreeMap<&'static str, String>,
    /// What parts that work have to say.
    pub notes: &'a [Reason],
    pub conflist: &'a Conflist,
    pub plan: &'a Plan,
    /// All nodes.
    pub peers: &'a Peers,
    pub proofs: &'a Proofs,
    /// How long a node may be away while it restarts; five times as long, while it is new.
    pub patience: Duration,
}

/// What a runtime finds in the conflist's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflist {
    /// The daemon's, first of all.
    First,
    /// The daemon's, but after this file.
    After(PathBuf),
    /// Not the daemon's, and why.
    Missing(String),
}

/// The word and what it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub word: Word,
    /// Ordered by what they mean for the node, the worst first.
    pub reasons: Vec<Reason>,
    /// The number of reasons by code, also those that are not named.
    pub counts: BTreeMap<Code, usize>,
    /// How the other nodes stand.
    pub peers: BTreeMap<String, Standing>,
    /// Whether time alone may change it.
    pub is_unsettled: bool,
}

/// Finds the reasons and chooses the word.
pub fn look(facts: &Facts<'_>, book: &mut Book) -> Verdict {
    let mut reasons = BTreeSet::new();
    let mut add = |code: Code, about: &str, text: String| {
        reasons.insert(Reason { code, about: about.to_owned(), text });
    };
    if let Some(why) = facts.unknown {
        add(Code::Api, "", why.to_owned());
    }
    if facts.is_deleted {
        add(
            Code::Node,
            "",
            "the API server has no Node of this name any more: other nodes drop its routes".to_owned(),
        );
    }
    for (part, error) in facts.problems {
        let code = Code::of_part(part);
        add(code, if code == Code::Part { part } else { "" }, error.clone());
    }
    for Reason { code, about, text } in facts.notes {
        add(*code, about, text.clone());
    }
    match facts.conflist {
        Conflist::First => {}
        Conflist::After(first) => {
            add(
                Code::First,
                "",
                format!("runtimes take {} instead of the daemon's conflist", first.display()),
            );
        }
        // The cause is named already.
        Conflist::Missing(_)
            if facts.unknown.is_some()
                || !facts.problems.is_empty()
                || facts.plan.reasons.iter().any(|reason| reason.code == Code::PodCidr) => {}
        Conflist::Missing(why) => add(Code::Conflist, "", why.clone()),
    }
    facts.plan.reasons.iter().for_each(|reason| add(reason.code, &reason.about, reason.text.clone()));
    local(&facts.proofs.local, &mut add);
    for refusal in &facts.plan.refusals {
        let about = format!("{} {}", refusal.node, refusal.what);
        let text = format!("node {}: {} is not used: {}", refusal.node, refusal.what, refusal.why);
        add(Code::Refused, &about, text);
    }
    let (peers, is_unsettled) = others(facts, book, &mut add);
    // The conflist cannot be there before the plan, nor a proof before the conflist: that is no fault.
    if facts.unknown.is_some() {
        reasons.retain(|reason| !matches!(reason.code, Code::Unproved));
    }
    let mut counts = BTreeMap::new();
    for reason in &reasons {
        *counts.entry(reason.code).or_default() += 1;
    }
    let word = judge(&reasons);
    Verdict { word, reasons: named(reasons), counts, peers, is_unsettled }
}

/// The first reasons of each code, the worst code first.
fn named(reasons: BTreeSet<Reason>) -> Vec<Reason> {
    let mut by_code: BTreeMap<Code, Vec<Reason>> = BTreeMap::new();
    for reason in reasons {
        by_code.entry(reason.code).or_default().push(reason);
    }
    let mut named = Vec::new();
    for (code, mut reasons) in by_code {
        let more = reasons.len().saturating_sub(MAX_NAMED);
        reasons.truncate(MAX_NAMED);
        named.append(&mut reasons);
        if more > 0 {
            named.push(Reason { code, about: String::new(), text: format!("… and {more} more") });
        }
    }
    named.sort_by_key(|reason| std::cmp::Reverse(reason.code.word()));
    named
}

/// What the health endpoint has found on this node. A family without an entry was not asked yet.
fn local(local: &BTreeMap<IpFamily, Proof>, add: &mut impl FnMut(Code, &str, String)) {
    let lost = |(family, proof): (&IpFamily, &Proof)| match proof {
        Proof::Lost { why, .. } => Some((*family, why.clone())),
        Proof::Proved { .. } | Proof::Unknown(_) => None,
    };
    let lost: Vec<(IpFamily, String)> = local.iter().filter_map(lost).collect();
    let is_proved = local.values().any(|proof| matches!(proof, Proof::Proved { .. }));
    for (family, why) in &lost {
        let code = if is_proved { Code::LocalFamily } else { Code::Local };
        add(code, &family.to_string(), format!("{family}: {why}"));
    }
    if local.is_empty() {
        add(Code::Unproved, "", "the health endpoint has no answer yet".to_owned());
    }
}

/// The reasons about other nodes, how each one stands, and whether time alone may change that.
fn others(
    facts: &Facts<'_>,
    book: &mut Book,
    add: &mut impl FnMut(Code, &str, String),
) -> (BTreeMap<String, Standing>, bool) {
    book.note(facts);
    let (mut standings, mut is_unsettled) = (BTreeMap::new(), false);
    let (mut lost, mut others, mut reasons) = (0, 0, Vec::new());
    for (name, states) in &facts.plan.nodes {
        let Some(peer) = facts.peers.get(name) else { continue };
        let standing = book.standing(name, states, facts);
        is_unsettled |= matches!(standing, Standing::New | Standing::Restarting);
        match standing {
            Standing::Lost { is_whole } => {
                (lost, others) = (lost + usize::from(is_whole), others + 1);
                reasons
                    .extend(lost_families(facts.proofs.peers.get(name)).map(|text| (Code::Peer, name, text)));
            }
            Standing::Waits => {
                (lost, others) = (lost + 1, others + 1);
                let why = states.iter().find_map(|(network, state)| match state {
                    State::Waits(why) => Some(format!("{network} is not reached: {why}")),
                    State::Way(_) | State::Refused(_) => None,
                });
                reasons.extend(why.map(|why| (Code::Waits, name, why)));
            }
            // A node that is not known to be lost is reached.
            _ if peer.is_ready && standing != Standing::New && has_way(states) => others += 1,
            _ => {}
        }
        standings.insert(name.clone(), standing);
    }
    if lost == others && lost >= ALL_LOST {
        add(Code::Peers, "", format!("none of the {lost} other nodes is reached; {}", first(&reasons)));
    } else {
        for (code, name, text) in reasons {
            add(code, name, format!("node {name}: {text}"));
        }
    }
    (standings, is_unsettled)
}

pub(super) fn has_way(states: &[(IpNetwork, State)]) -> bool {
    states.iter().any(|(_, state)| matches!(state, State::Way(_)))
}

fn first(reasons: &[(Code, &String, String)]) -> String {
    reasons.first().map_or_else(String::new, |(_, name, text)| format!("such as node {name}: {text}"))
}

/// A text for each family in which a node is lost.
fn lost_families(proofs: Option<&BTreeMap<IpFamily, Proof>>) -> impl Iterator<Item = String> {
    let texts = proofs.into_iter().flatten().filter_map(|(family, proof)| match proof {
        Proof::Lost { why, .. } => Some(format!("its pods are not reached by {family}: {why}")),
        Proof::Proved { .. } | Proof::Unknown(_) => None,
    });
    // One reason for each node.
    let text = texts.collect::<Vec<_>>().join("; ");
    (!text.is_empty()).then_some(text).into_iter()
}
