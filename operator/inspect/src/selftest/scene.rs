//! What the tests have: the network, its attached pods, and the namespace outside.

use std::cell::OnceCell;

use super::outside::Outside;
use super::pods::{Attached, Rights, Site};
use super::traffic::Place;
use crate::doctor::networks::Network;

/// What the tests have.
pub(super) struct Scene<'s> {
    pub(super) network: &'s Network,
    /// The second one has the host port and the limit.
    pub(super) pods: &'s [Attached; 2],
    pub(super) outside: Result<&'s Outside, &'s String>,
    pub(super) site: &'s Site<'s>,
    pub(super) rights: &'s Rights,
    /// What CHECK of the pods has said.
    pub(super) checked: OnceCell<Result<(), String>>,
}

impl Scene<'_> {
    /// What CHECK of both pods says.
    pub(super) fn check(&self) -> &Result<(), String> {
        self.checked.get_or_init(|| self.pods.iter().try_for_each(|pod| self.site.check(&pod.entry)))
    }

    pub(super) fn a(&self) -> Place<'_> {
        Place::In(&self.pods[0].netns)
    }

    pub(super) fn b(&self) -> Place<'_> {
        Place::In(&self.pods[1].netns)
    }

    /// Whether the network keeps its pods apart on purpose.
    pub(super) fn keeps_apart(&self) -> bool {
        self.network.plugins.iter().any(|plugin| plugin["portIsolation"] == true)
    }
}
