//! What both sources say of one flow, as one answer. Pure.

use ferrule_policy_kit::Direction;
use ferrule_policy_kit::ask::{By, Flow, Reason, Side};
use ferrule_policy_kit::ruled::{At, Cause, Passed, Ruled};
use serde::Serialize;

use super::places::{Place, Where};

/// The answer for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Word {
    /// It passes.
    Allowed,
    /// It passes this node. Another node judges the other end.
    AllowedHere,
    /// It does not pass.
    Denied,
    /// The rules do not say it.
    #[default]
    Unknown,
}

impl Word {
    /// For people.
    pub fn shown(self) -> &'static str {
        match self {
            Word::Allowed => "allowed",
            Word::AllowedHere => "allowed on this node",
            Word::Denied => "denied",
            Word::Unknown => "not known",
        }
    }
}

/// One end of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct End {
    /// The direction, as the pod sees it.
    pub direction: Direction,
    /// Who has the address: NAMESPACE/NAME, or nobody known.
    pub pods: Vec<String>,
    /// Whether it passes this end; `None` if this node does not decide, or does not know it.
    pub allowed: Option<bool>,
    /// Why.
    pub why: String,
    /// The policies that decide, with their entries. Only the daemon knows them.
    pub by: Vec<By>,
    /// The first rules behind the reason that would have decided otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<By>,
}

/// Both ends, with what the kernel's rules and the API's objects say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The answer.
    pub verdict: Word,
    /// Egress of the source, ingress of the destination.
    pub ends: Vec<End>,
    /// Where both sources differ.
    pub warnings: Vec<String>,
}

/// The answer. `ruled` is `None` if the kernel asks no rules: the node itself sends the packet. `flow` is `None` without the daemon.
pub fn verdict([from, to]: [&Place; 2], ruled: Option<&Ruled>, flow: Option<&Flow>) -> Verdict {
    let ends = vec![
        end(Direction::Egress, from, ruled, flow.map(|flow| &flow.egress)),
        end(Direction::Ingress, to, ruled, flow.map(|flow| &flow.ingress)),
    ];
    let is_elsewhere = |place: &Place, side: Option<&Side>| {
        matches!(place.of, Where::OtherNode(_))
            || place.of == Where::Outside && side.is_some_and(|side| !side.pods.is_empty())
    };
    let passes = match is_elsewhere(from, flow.map(|flow| &flow.egress))
        || is_elsewhere(to, flow.map(|flow| &flow.ingress))
    {
        true => Word::AllowedHere,
        false => Word::Allowed,
    };
    let verdict = match (ruled, ruled.and_then(|ruled| ruled.allowed)) {
        (None, _) | (_, Some(true)) => passes,
        (_, Some(false)) => Word::Denied,
        (Some(_), None) if ends.iter().any(|end| end.allowed == Some(false)) => Word::Denied,
        (Some(_), None) => Word::Unknown,
    };
    let warnings = ruled.zip(flow).map(|(ruled, flow)| differences(ruled, flow)).unwrap_or_default();
    Verdict { verdict, ends, warnings }
}

/// Behind a rule with the action Pass.
const PASSED: &str = "it passes this on to NetworkPolicies and the tier Baseline: the rules behind it in its tier are not asked";
/// Behind what denies.
const DRY: &str = "; the mode dry lets it pass, and counts it";

fn end(direction: Direction, place: &Place, ruled: Option<&Ruled>, side: Option<&Side>) -> End {
    let named = side.map(|side| side.pods.clone()).unwrap_or_default();
    let pods = match &place.of {
        Where::Pod(pod) if named.is_empty() => vec![pod.clone()],
        _ => named,
    };
    let does = if direction == Direction::Egress { "sends" } else { "gets" };
    let outside = |why: String| End {
        direction,
        pods: pods.clone(),
        allowed: None,
        why,
        by: Vec::new(),
        unreached: Vec::new(),
    };
    let by_api = side.filter(|side| side.reason != Reason::NotHere);
    match (&place.of, ruled, by_api) {
        (Where::ThisNode, ..) => {
            outside(format!("an address of this node: no policy judges what the node itself {does}"))
        }
        (Where::Node(node), ..) => {
            outside(format!("an address of node {node:?} itself: no policy judges what the node {does}"))
        }
        (_, None, _) => {
            outside("the node itself sends the packet: no policy of this node judges it".to_owned())
        }
        (_, _, Some(side)) => {
            let dry = if side.is_dry { DRY } else { "" };
            let why = said(side.reason).to_owned() + dry;
            let passed = side.passed.iter().map(|by| By { misses: PASSED.to_owned(), ..by.clone() });
            End {
                direction,
                pods,
                allowed: side.allows(),
                why,
                by: passed.chain(side.by.clone()).collect(),
                unreached: side.unreached.clone(),
            }
        }
        (Where::OtherNode(node), ..) => {
            outside(format!("its node {node:?} judges what it {does}: ask there, too"))
        }
        (Where::Outside, ..) if !pods.is_empty() => {
            outside(format!("it runs on another node, which judges what it {does}: ask there, too"))
        }
        (Where::Outside, ..) => {
            outside(format!("no pod that is known has this address: nobody judges what it {does}"))
        }
        // The daemon does not count a pod that has ended as one of this node.
        (_, Some(Ruled { cause: Cause::EndedPod, .. }), _) if side.is_some() => End {
            allowed: Some(false),
            ..outside("it has ended, or its object is gone: nothing passes it any more".to_owned())
        },
        (Where::Nobody, Some(ruled), _) => End {
            why: "no running pod is known to have this address of this node".to_owned(),
            ..by_kernel(direction, pods, ruled)
        },
        (Where::Pod(_), Some(ruled), _) => by_kernel(direction, pods, ruled),
    }
}

/// What only the kernel says.
fn by_kernel(direction: Direction, pods: Vec<String>, ruled: &Ruled) -> End {
    let by_rule = ruled.passed.iter().find(|passed| passed.direction == direction);
    let is_denied = ruled.allowed == Some(false);
    let (allowed, why) = match (by_rule, ruled.direction) {
        (_, Some(of)) if is_denied && of == direction => {
            let why = if ruled.cause == Cause::Undecided {
                "it is not decided yet"
            } else {
                "a policy isolates it, and no rule allows this"
            };
            (Some(false), why.to_owned())
        }
        (Some(Passed { at: At { chain, rule, rules, .. }, is_dry, .. }), _) => {
            let (does, dry) = if *is_dry { ("denies", DRY) } else { ("allows", "") };
            let why =
                format!("a policy isolates it, and rule {rule} of {rules} in chain {chain} {does} this{dry}");
            (Some(true), why)
        }
        // What a rule denies at one end is not asked at the other one.
        _ if is_denied || ruled.allowed.is_none() => {
            (None, "the kernel's rules do not get that far".to_owned())
        }
        _ if ruled.cause == Cause::Itself => (Some(true), said(Reason::Itself).to_owned()),
        _ => (Some(true), "no policy isolates it in this direction".to_owned()),
    };
    End { direction, pods, allowed, why, by: Vec::new(), unreached: Vec::new() }
}

fn said(reason: Reason) -> &'static str {
    match reason {
        Reason::Itself => "a pod always reaches itself",
        Reason::NotHere => "this node does not judge it",
        Reason::NoPolicy => "no policy isolates it in this direction",
        Reason::Allowed => "a policy isolates it, and this entry allows it",
        Reason::NothingAllows => "policies isolate it, and no entry allows it",
        Reason::Accepted => "a rule accepts it",
        Reason::Refused => "a rule denies it",
        Reason::TwoPods => {
            "two pods say that they have this address, and their policies differ: nothing passes"
        }
        Reason::Closed => "the pod's object cannot be read: nothing passes",
    }
}

/// Where the kernel's rules are not what the objects of the API say.
fn differences(ruled: &Ruled, flow: &Flow) -> Vec<String> {
    let sides = [(Direction::Egress, &flow.egress), (Direction::Ingress, &flow.ingress)];
    let mut all = Vec::new();
    for (direction, side) in sides {
        let word = if direction == Direction::Egress { "egress" } else { "ingress" };
        let allows = side.allows();
        let by_rule = ruled.passed.iter().any(|passed| passed.direction == direction);
        let denies = ruled.cause == Cause::Policy && ruled.direction == Some(direction);
        let is_isolated = matches!(side.reason, Reason::Allowed | Reason::Accepted);
        if denies && allows != Some(false) {
            all.push(format!("the kernel's rules deny it ({word}), the objects of the API do not"));
        } else if ruled.allowed == Some(true) && allows == Some(false) {
            all.push(format!("the objects of the API deny it ({word}), the kernel's rules do not"));
        } else if by_rule && side.reason == Reason::NotHere {
            all.push(format!(
                "the kernel has rules for a pod ({word}) that the API does not know on this node"
            ));
        } else if ruled.allowed == Some(true)
            && ruled.cause == Cause::Passes
            && side.reason == Reason::Allowed
            && is_isolated != by_rule
        {
            all.push(format!("a policy isolates the pod ({word}), and the kernel has no rules for it"));
        }
    }
    if !all.is_empty() {
        all.push("ferrule-node makes the rules anew after a change: ask again; if it stays, ferrule-node status and its log say why".to_owned());
    }
    all
}

#[cfg(test)]
mod tests;
