//! What the daemon says of the plan: refusals in the log, and this node's WireGuard key in its object.

use super::State;
use crate::api::Report;
use crate::cluster::Refusal;
use crate::daemon::report::MAX_LINES;
use crate::wireguard;

impl State {
    /// Logs each new refusal once. One that ends and comes back is logged again.
    pub(super) fn refusals(&mut self) {
        let new = self.plan.refusals.difference(&self.reported);
        for (number, Refusal { node, what, why }) in new.enumerate() {
            match number {
                0..MAX_LINES => log!("node {node}: {what} is not used: {why}"),
                MAX_LINES => log!("… and more refusals; ferrule-node status shows all"),
                _ => {}
            }
        }
        self.reported.clone_from(&self.plan.refusals);
    }

    /// Wants this node's public key in its object.
    pub(super) fn announce(&mut self) {
        let Some(key) = self.wireguard.as_ref().map(wireguard::Part::public_key) else { return };
        if self.announced.as_ref() == Some(&key) {
            return;
        }
        let report = Report::Annotation { name: wireguard::ANNOTATION, value: key.clone() };
        if self.reports.try_send(report).is_ok() {
            self.announced = Some(key);
        }
    }
}
