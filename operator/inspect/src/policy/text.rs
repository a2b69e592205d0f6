//! The answer as text. Pure.

use ferrule_policy_kit::Direction;
use ferrule_policy_kit::ask::By;
use ferrule_policy_kit::ruled::{At, Cause, Ruled};

use super::services::Kind;
use super::verdict::End;
use super::why::{Explained, Explanation};
use crate::table::{Style, wrapped};

/// The lines for people.
pub fn text(explanation: &Explanation, style: Style) -> String {
    let mut lines: Vec<(usize, String)> = Vec::new();
    if let Some(service) = &explanation.service {
        let what = match service.kind {
            Kind::HostPort => "a host port".to_owned(),
            Kind::Service => format!("a Service {}", service.name).trim_end().to_owned(),
        };
        let ends: Vec<String> = service.backends.iter().map(ToString::to_string).collect();
        lines.push((0, format!("{what}, in {}: {}", service.place, ends.join(", "))));
    }
    let mut former = None;
    for flow in &explanation.flows {
        lines.push((0, head(flow, &explanation.protocol)));
        let kernel = flow.kernel.as_ref().map(|ruled| (ruled.cause, &ruled.notes));
        let said = (decision(flow), kernel, &flow.notes);
        if former.as_ref() == Some(&said) {
            lines.push((2, "for the same reasons".to_owned()));
            continue;
        }
        lines.extend([said.0.clone(), details(flow)].concat());
        former = Some(said);
    }
    let notes = explanation.notes.iter().map(|note| (0, format!("note: {note}")));
    lines.extend(notes);
    lines.iter().map(|(indent, line)| wrapped(line, *indent, style.width)).collect()
}

fn head(flow: &Explained, protocol: &str) -> String {
    let what = if flow.port > 0 {
        format!("{protocol} port {}", flow.port)
    } else {
        format!("{protocol} echo request")
    };
    let [from, to] = [0, 1].map(|at| who(flow.verdict.ends.get(at), [flow.from, flow.to][at]));
    format!("{what} from {from} to {to}: {}", flow.verdict.verdict.shown())
}

/// What both ends say.
fn decision(flow: &Explained) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    for end in &flow.verdict.ends {
        let word = if end.direction == Direction::Egress { "egress" } else { "ingress" };
        let of = match end.allowed {
            Some(true) => "allowed: ",
            Some(false) => "denied: ",
            None => "",
        };
        lines.push((2, format!("{word}: {of}{}", end.why)));
        lines.extend(end.by.iter().map(|by| (4, of_policy(by))));
        lines.extend(end.unreached.iter().map(|by| (4, format!("not reached: {}", of_policy(by)))));
    }
    lines.extend(flow.verdict.warnings.iter().map(|warning| (2, format!("warning: {warning}"))));
    lines
}

fn details(flow: &Explained) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    if let Some(ruled) = &flow.kernel {
        lines.push((2, format!("kernel: {}", of_kernel(ruled))));
        // Without the policies, what its rules allow is all that is known.
        let allows = ruled.allows.iter().filter(|_| flow.api.is_none());
        lines.extend(allows.map(|what| (4, format!("it allows {what}"))));
    }
    lines.extend(flow.path.iter().map(|step| (2, format!("path: {step}"))));
    let notes = flow.kernel.iter().flat_map(|ruled| &ruled.notes).chain(&flow.notes);
    lines.extend(notes.map(|note| (2, format!("note: {note}"))));
    lines
}

fn who(end: Option<&End>, address: std::net::IpAddr) -> String {
    match end.map(|end| end.pods.join(" and ")).filter(|pods| !pods.is_empty()) {
        Some(pods) => format!("{pods} ({address})"),
        None => address.to_string(),
    }
}

fn of_policy(By { policy, entry, misses }: &By) -> String {
    let parts =
        [Some(policy.as_str()), entry.as_deref(), Some(misses.as_str()).filter(|text| !text.is_empty())];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

fn of_kernel(ruled: &Ruled) -> String {
    let at = ruled.at.as_ref();
    let rule =
        |at: &At| format!("rule {} of {} in chain {} of table {}", at.rule, at.rules, at.chain, at.table);
    let denied = || at.map(rule).unwrap_or_default();
    match ruled.cause {
        Cause::NotEnforced => {
            "there is no table inet ferrule_policy, or it is dormant: no policies are enforced".to_owned()
        }
        Cause::Passes if ruled.passed.is_empty() => "no rule is for it".to_owned(),
        Cause::Passes => {
            let passed = ruled.passed.iter().map(|passed| format!("{} allows it", rule(&passed.at)));
            passed.collect::<Vec<_>>().join("; ")
        }
        Cause::Itself => "a pod always reaches itself".to_owned(),
        Cause::Policy if at.is_some_and(|at| at.rule == at.rules) => {
            let chain = at.map(|at| format!("chain {} of table {}", at.chain, at.table)).unwrap_or_default();
            format!("the last rule of {chain} drops it")
        }
        Cause::Policy => format!("{} drops it", denied()),
        Cause::Undecided => format!(
            "nothing passes a pod that is not decided yet: the plugin policy has announced it, ferrule-node has not released it ({})",
            denied()
        ),
        Cause::EndedPod => {
            format!("the pod of one of these addresses has ended, and its link is still there ({})", denied())
        }
        Cause::EndedFlow => format!("a change of policies has ended this flow ({})", denied()),
        Cause::Other => format!("{} drops it", denied()),
        Cause::Unknown => format!("{} is not understood", denied()),
    }
}

#[cfg(test)]
mod tests;
