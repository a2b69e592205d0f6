//! The proofs and the word: what the health endpoint is asked for, and what the daemon says.

use std::time::{Duration, Instant, SystemTime};

use ferrule_kernel::sysctl;

use super::State;
use crate::api;
use crate::cluster::{HEALTH_ANNOTATION, Health, Peers, Published};
use crate::daemon::report;
use crate::policy::Report;
use crate::proof::{self, Proofs};
use crate::word::{Code, Reason};
use crate::{conflist, status, word};

impl State {
    /// When the word is due again although nothing has happened.
    pub(in crate::daemon) fn due(&self) -> Option<Instant> {
        self.voice.due()
    }

    /// Judges again: time has passed.
    pub(in crate::daemon) fn look_again(&mut self) {
        self.publish(false, None);
    }

    /// Takes what the health endpoint has found.
    pub(in crate::daemon) fn prove(&mut self, proofs: Proofs) {
        self.proofs = proofs;
        let probed = self.proofs.endpoint.as_ref().map(proof::Endpoint::entries).unwrap_or_default();
        self.probed.send_if_modified(|former| {
            let differs = *former != probed;
            *former = probed;
            differs
        });
        self.announce_health();
        self.publish(false, None);
    }

    /// Tells the health endpoint what is wanted. Without a conflist in place it stays as it is, unless this node has no podCIDR.
    pub(super) fn ask(&self) {
        let Some(peers) = &self.peers else { return };
        let store = self.template.store();
        let pods = self.plan.desired.pods.as_ref();
        let conflist = pods.map(|pods| (pods, self.template.value(&self.node, pods), store));
        let is_in_place = self.status.conflist.written || conflist.is_none();
        let mut new = proof::Input::new(&self.plan, peers, conflist);
        self.input.send_if_modified(|former| {
            new.probed = self.policy.as_ref().map(|report| report.probed.clone());
            if !is_in_place {
                new.wanted.clone_from(&former.wanted);
            }
            let differs = *former != new;
            *former = new;
            differs
        });
    }

    /// Wants this node's health endpoint in its object; or that it has none, if the object may name a former one.
    pub(super) fn announce_health(&mut self) {
        let me = self.peers.as_ref().and_then(|peers| peers.get(&self.node));
        let (Some(me), false) = (me, self.proofs.local.is_empty()) else { return };
        let endpoint = match &self.proofs.endpoint {
            Some(endpoint) => endpoint.places.iter().map(|place| place.address).collect(),
            None if me.health == Health::Absent && self.published.is_none() => return,
            None => Vec::new(),
        };
        let value = Published {
            uid: me.uid.clone(),
            boot: sysctl::boot_id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mtu: u16::try_from(self.status.conflist.mtu).unwrap_or(u16::MAX),
            addresses: endpoint,
        }
        .text();
        if self.published.as_ref() == Some(&value) {
            return;
        }
        let report = api::Report::Annotation { name: HEALTH_ANNOTATION, value: value.clone() };
        if self.reports.try_send(report).is_ok() {
            self.published = Some(value);
        }
    }

    /// Writes the status file and the figures. `work`: when the sync began, and its requests.
    pub(super) fn publish(&mut self, has_failed: bool, work: Option<(Instant, usize)>) {
        if work.is_some() {
            report::nodes(&mut self.status, &self.plan, self.peers.as_ref(), self.watch.local());
        }
        // First, so that no file is missed.
        if self.folder.is_none() {
            self.folder = conflist::file::watch_folder(&self.status.conflist.path).ok();
        }
        let conflist = report::found(&self.status.conflist, self.plan.desired.pods.is_some());
        let (now, none) = (SystemTime::now(), Peers::new());
        let proofs = self.voice.with_former(&self.proofs, now);
        let mut notes = self.interface.reasons();
        notes.extend(self.unguarded.iter().map(|error| Reason {
            code: Code::Guard,
            about: String::new(),
            text: format!("what pods send is not checked: {error}"),
        }));
        notes.extend(self.policy_reasons());
        let facts = word::Facts {
            now,
            unknown: self.unknown.as_deref(),
            is_deleted: self.is_deleted,
            problems: &self.problems,
            notes: &notes,
            conflist: &conflist,
            plan: &self.plan,
            peers: self.peers.as_ref().unwrap_or(&none),
            proofs: &proofs,
            patience: Duration::from_secs(self.options.patience),
        };
        self.status.policy = self.policy.as_ref().map(status::Policy::from);
        let is_due = self.voice.say(&self.node, &facts, &mut self.status, work.is_some() || has_failed);
        if is_due && let Err(error) = status::write(&self.options.state, &self.status) {
            self.log.once(format!("write the status file: {error}"));
        }
        let routes = self.watch.local().routes.iter().filter(|route| route.is_ours()).count();
        self.figures.send_modify(|figures| {
            report::figures(figures, &self.status, routes);
            self.voice.figures(figures, &proofs);
            figures.problems = self.problems.len();
            figures.policy =
                self.policy.clone().map(|report| Report { is_proved: self.is_policy_proved(), ..report });
            figures.failures += u64::from(has_failed);
            if let Some((begin, requests)) = work {
                figures.syncs += 1;
                figures.sync_seconds += begin.elapsed().as_secs_f64();
                figures.requests += u64::try_from(requests).unwrap_or(0);
            }
        });
    }
}
