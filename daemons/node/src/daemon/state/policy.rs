//! What the thread of the policies says, as reasons.

use super::State;
use crate::api::Event;
use crate::policy::Report;
use crate::word::{Code, Reason};

impl State {
    /// Takes what the thread says.
    pub(in crate::daemon) fn policies(&mut self, report: Report) {
        let former = self.policy.replace(report.clone()).unwrap_or_default();
        for fault in report.faults.iter().filter(|fault| !former.faults.contains(fault)) {
            log!("{fault}");
            self.voice.add(Event::of_policy(&fault.namespace, &fault.policy, &fault.what));
        }
        self.publish(false, None);
    }

    /// Why policies do not hold on this node.
    pub(super) fn policy_reasons(&self) -> Vec<Reason> {
        let Some(report) = &self.policy else { return Vec::new() };
        let reason = |code, about: &str, text: String| Reason { code, about: about.to_owned(), text };
        let mut reasons: Vec<Reason> =
            report.unknown.iter().map(|why| reason(Code::PolicyUnknown, "", why.clone())).collect();
        reasons.extend(report.reasons.iter().map(|why| reason(Code::Policy, why, why.clone())));
        // Packets between two pods of one bridge pass no rule of the table.
        let of_bridge = self.interface.reasons().into_iter().filter(|one| one.code == Code::BridgeNetfilter);
        reasons.extend(of_bridge.map(|one| {
            let text = format!("packets between pods of the bridge pass no policies: {}", one.text);
            reason(Code::Policy, "bridge", text)
        }));
        reasons
    }
}
