//! What the thread of the policies says, as reasons.

use std::time::{Duration, Instant};

use ferrule_kernel::ip::IpFamily;

use super::State;
use crate::api::Event;
use crate::policy::Report;
use crate::proof::Proof;
use crate::word::{Code, Reason};

/// The most faults of a namespace that become lines of the log and events within [`FAULTS`].
const MOST_FAULTS: u32 = 40;
pub(super) const FAULTS: Duration = Duration::from_secs(600);

impl State {
    /// Takes what the thread says.
    pub(in crate::daemon) fn policies(&mut self, report: Report) {
        let former = self.policy.replace(report.clone()).unwrap_or_default();
        for fault in report.faults.iter().filter(|fault| !former.faults.contains(fault)) {
            match self.faults.number(&fault.namespace, Instant::now()) {
                ..=MOST_FAULTS => log!("{fault}"),
                number => {
                    if number == MOST_FAULTS + 1 {
                        log!(
                            "Namespace {}: its policies change too often: their faults are in ferrule-node status",
                            fault.namespace
                        );
                    }
                    continue;
                }
            }
            // Who may write policies must not be able to write events about other namespaces: a Namespace has none.
            if !fault.policy.is_empty() {
                self.voice.add(Event::of_policy(&fault.namespace, &fault.policy, &fault.what));
            }
        }
        for doubt in report.doubts.iter().filter(|doubt| !former.doubts.contains(doubt)) {
            log!("{doubt}: is it meant?");
            self.voice.add(Event::of_doubt(&doubt.namespace, &doubt.policy, &doubt.what));
        }
        if let (Some(last), 1.., 0) = (report.faults.last(), report.more(), former.more()) {
            log!("… and {} more parts of policies are not understood", report.more());
            self.voice.add(Event::of_more(&last.namespace, &last.policy, report.more()));
        }
        self.ask();
        self.publish(false, None);
    }

    /// Whether the health endpoint has proved that the table judges the packets of pods, in each family.
    pub(super) fn is_policy_proved(&self) -> bool {
        let is_proved = |family| matches!(self.proofs.policies.get(family), Some(Proof::Proved { .. }));
        !self.proofs.local.is_empty() && self.proofs.local.keys().all(is_proved)
    }

    /// What the health endpoint has found of the table. `is_good`: whether the table is as it should be.
    fn policy_proofs(&self, is_good: bool) -> Vec<Reason> {
        let reason = |family: &IpFamily| {
            let (code, text) = match self.proofs.policies.get(family) {
                Some(Proof::Proved { .. }) => return None,
                Some(Proof::Lost { why, .. }) => (Code::Policy, why.clone()),
                Some(Proof::Unknown(why)) => {
                    (Code::PolicyUnproved, format!("policies are not proved: {why}"))
                }
                None if is_good => (Code::PolicyUnknown, "policies are not proved yet".to_owned()),
                None => return None,
            };
            Some(Reason { code, about: format!("proof {family}"), text: format!("{family}: {text}") })
        };
        self.proofs.local.keys().filter_map(reason).collect()
    }

    /// Why policies do not hold on this node.
    pub(super) fn policy_reasons(&self) -> Vec<Reason> {
        let Some(report) = &self.policy else { return Vec::new() };
        let reason = |code, about: &str, text: String| Reason { code, about: about.to_owned(), text };
        let mut reasons: Vec<Reason> =
            report.unknown.iter().map(|why| reason(Code::PolicyUnknown, "", why.clone())).collect();
        reasons.extend(report.reasons.iter().map(|why| reason(Code::Policy, why, why.clone())));
        reasons.extend(self.policy_proofs(report.is_good()));
        // Packets between two pods of one bridge pass no rule of the table.
        let of_bridge = self.interface.reasons().into_iter().filter(|one| one.code == Code::BridgeNetfilter);
        reasons.extend(of_bridge.map(|one| {
            let text = format!("packets between pods of the bridge pass no policies: {}", one.text);
            reason(Code::Policy, "bridge", text)
        }));
        reasons
    }
}
