//! The parts of the plan in the kernel.

use anyhow::{Context as _, Result};
use ferrule_kit::fold::CHAIN;
use ipnetwork::IpNetwork;

use super::{Problems, State};
use crate::arguments::Switch;
use crate::conflist::Form;
use crate::plan::Plan;
use crate::word::{Code, Reason};
use crate::{device, forward_chain, forwarding, guard, masquerade, proof, routes};

impl State {
    /// Lets the packets of pods pass.
    pub(super) fn forward(&mut self, plan: &mut Plan) {
        let pods = plan.desired.pods.as_ref().map_or(&[][..], |pods| &pods.networks);
        let mut faults = forwarding::ensure(pods, self.watch.local());
        // On a kernel without nf_tables masquerade says so.
        self.forward_chain = self.forward_chain.take().or_else(|| forward_chain::Part::open().ok());
        let others = plan.desired.routes.keys().chain(&self.options.cluster_cidr).copied().collect();
        let bridges = self.template.bridges();
        match self.forward_chain.as_mut().map(|part| part.sync(pods, &others, &bridges)) {
            Some(Ok(more)) => faults.extend(more),
            Some(Err(error)) => faults.push(("FORWARD".to_owned(), format!("{error:#}"))),
            None => {}
        }
        let reason = |(about, text)| Reason { code: Code::Forwarding, about, text };
        plan.reasons.extend(faults.into_iter().map(reason));
    }

    /// Notes the parts that failed, and why.
    pub(super) fn overlays_and_masquerade(&mut self, plan: &Plan, problems: &mut Problems) {
        let desired = &plan.desired;
        let mut note = |part, outcome: Result<()>| {
            if let Err(error) = outcome {
                problems.insert(part, format!("{error:#}"));
            }
        };
        note("addresses", device::strip(self.watch.socket(), &desired.stale));
        note("vxlan", self.vxlan.sync(desired.vxlan.as_ref()));
        // Nothing is wanted while this node has no address. In other modes State::open has removed the device.
        if let (Some(part), Some(wanted)) = (&mut self.wireguard, &desired.wireguard) {
            note("wireguard", part.sync(wanted));
        }
        if self.masquerade.is_none() {
            match masquerade::Part::open() {
                Ok(part) => self.masquerade = Some(part),
                // Only masquerade needs nf_tables.
                Err(_) if desired.masquerade.is_none() => {}
                Err(error) => note("masquerade", Err(error)),
            }
        }
        if let Some(part) = &mut self.masquerade {
            note("masquerade", part.sync(desired.masquerade.as_ref()));
        }
    }

    /// Pods work on a kernel that refuses the table.
    pub(super) fn guard(&mut self, plan: &Plan) {
        let wanted = plan.desired.guard.as_ref();
        let sync = |part: &mut Option<guard::Part>| -> Result<()> {
            match part {
                Some(part) => part.sync(wanted),
                None if wanted.is_none() => Ok(()),
                None => part.insert(guard::Part::open(self.template.bridges())?).sync(wanted),
            }
        };
        let error = sync(&mut self.guard).err().map(|error| format!("{error:#}"));
        match (&error, &self.unguarded) {
            (Some(error), former) if former.as_ref() != Some(error) => {
                log!("guard: {error}; what pods send is not checked");
            }
            (None, Some(_)) => log!("guard: works again"),
            _ => {}
        }
        self.unguarded = error;
        if wanted.is_some_and(|guard| guard.sources) && self.template.plugin() != "ptp" {
            self.log.once("guard: pods behind a bridge share its link, so their sources are not checked; ptp gives each one a link".to_owned());
        }
    }

    /// Returns the number of requests.
    pub(super) fn routes(&mut self, plan: &mut Plan, problems: &mut Problems) -> Result<usize> {
        let pods = self.pods().to_vec();
        // For the indexes of new devices.
        self.watch.refresh(&pods).context("read links")?;
        let outcome = routes::sync(&plan.desired.routes, &pods, &mut self.watch).context("read routes")?;
        if let Some(fault) = outcome.fault {
            problems.insert("routes", fault);
        }
        // A bad Node object keeps no other node from being reached.
        for (dst, error) in outcome.failures {
            let is_of =
                |(_, states): &(&String, &Vec<(IpNetwork, _)>)| states.iter().any(|(of, _)| *of == dst);
            let node = plan.nodes.iter().find(is_of).map_or("?", |(name, _)| name);
            let text = format!("the kernel refuses the route to the pods of node {node} ({dst}): {error}");
            let about = format!("{node} {dst}");
            plan.reasons.insert(Reason { code: Code::Way, about, text });
        }
        if outcome.without_device > 0 && problems.is_empty() {
            let count = outcome.without_device;
            problems.insert("routes", format!("{count} need a device that does not exist"));
        }
        Ok(outcome.requests)
    }

    /// Takes the problems of this sync, and logs what has changed.
    pub(super) fn note(&mut self, problems: Problems) {
        for (part, error) in &problems {
            if self.problems.get(part) != Some(error) {
                log!("{part}: {error}");
            }
        }
        for part in self.problems.keys().filter(|part| !problems.contains_key(*part)) {
            log!("{part}: works again");
        }
        self.problems = problems;
    }

    /// The form of the built-in conflist. Without the plugin `chain`, as after an installation of some plugins only, no pod would start.
    fn form(&mut self) -> Form {
        if self.options.chain == Switch::Off || self.options.template.is_some() {
            return Form::List;
        }
        match proof::has_plugin(&self.options, CHAIN) {
            Ok(()) => Form::Chain,
            Err(why) => {
                self.log.once(format!("the conflist is a list: {why}"));
                Form::List
            }
        }
    }

    /// Chooses the plugin of the built-in conflist.
    pub(super) fn interface(&mut self, plan: &Plan, problems: &mut Problems) {
        let networks = plan.desired.pods.as_ref().map_or(&[][..], |pods| &pods.networks);
        let ends = proof::links(&self.template.network());
        let form = self.form();
        if let Err(error) = self.interface.sync(&mut self.watch, networks, &ends, form, &mut self.template) {
            problems.insert("interface", format!("{error:#}"));
        }
    }
}
