//! What the daemon knows and has made.

mod nodes;
mod word;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use super::report::{self, Log, MAX_LINES};
use super::voice::Voice;
use crate::api::Report;
use crate::arguments::{Mode, Options};
use crate::cluster::{Peers, Refusal};
use crate::conflist::{self, Template};
use crate::kernel::Watch;
use crate::plan::{Facts, Interest, Plan, Pods, make};
use crate::plan_file::Identity;
use crate::proof::{self, Proofs};
use crate::serve::Figures;
use crate::status::{self, Source, Status};
use crate::word::Code;
use crate::{interface, masquerade, routes, vxlan, wireguard};

/// The parts that failed, and why.
type Problems = BTreeMap<&'static str, String>;

/// The daemon without its timers.
pub(super) struct State {
    options: Options,
    node: String,
    template: Template,
    interface: interface::Part,
    watch: Watch,
    vxlan: vxlan::Part,
    wireguard: Option<wireguard::Part>,
    /// `None` on a kernel without nf_tables: opened again at each sync.
    masquerade: Option<masquerade::Part>,
    /// Readable when the conflist is no longer what the last sync has left. `None` if it has left none.
    conflist: Option<AsyncFd<OwnedFd>>,
    /// Readable when the conflist's folder has another file. `None` if it is not watched.
    folder: Option<AsyncFd<OwnedFd>>,
    /// `None` until the first list, or the plan on disk.
    peers: Option<Peers>,
    /// Whether the peers have changed since the last sync.
    has_new_peers: bool,
    /// Whose plan on disk counts.
    identity: Option<Identity>,
    /// Whether the plan on disk was read; and the UID that this node's object has in it.
    remembered: Option<String>,
    plan: Plan,
    /// Why there is no plan yet.
    unknown: Option<String>,
    /// Whether the API server has no node of this name any more.
    is_deleted: bool,
    /// The parts that failed in the last sync, and why.
    problems: Problems,
    status: Status,
    log: Log,
    voice: Voice,
    reports: mpsc::Sender<Report>,
    /// The refusals that were logged.
    reported: BTreeSet<Refusal>,
    /// The key that was sent.
    announced: Option<String>,
    /// The health endpoint that was sent.
    published: Option<String>,
    /// What the health endpoint has found.
    proofs: Proofs,
    input: watch::Sender<proof::Input>,
    figures: watch::Sender<Figures>,
}

impl State {
    pub(super) fn open(
        options: Options,
        node: String,
        identity: Option<Identity>,
        reports: mpsc::Sender<Report>,
        input: watch::Sender<proof::Input>,
        figures: watch::Sender<Figures>,
    ) -> Result<State> {
        let template = Template::read(&options)?;
        let wireguard = match options.mode {
            Mode::Wireguard => Some(wireguard::Part::open(&options.wireguard_key)?),
            _ => {
                wireguard::cleanup().context("remove the device of a former mode")?;
                None
            }
        };
        let former = status::read(&options.state).unwrap_or_default().unwrap_or_default();
        let status = report::begin(&options, &node, &template, former);
        let mut state = State {
            watch: Watch::open().context("read links and routes")?,
            vxlan: vxlan::Part::open()?,
            wireguard,
            masquerade: None,
            conflist: None,
            folder: None,
            peers: None,
            has_new_peers: false,
            identity,
            remembered: None,
            plan: Plan::default(),
            unknown: Some("the API server has not answered yet".to_owned()),
            is_deleted: false,
            problems: BTreeMap::new(),
            voice: Voice::new(reports.clone(), &status),
            status,
            log: Log::default(),
            reports,
            reported: BTreeSet::new(),
            announced: None,
            published: None,
            proofs: Proofs::none(),
            input,
            figures,
            interface: interface::Part::new(&options, &template),
            template,
            node,
            options,
        };
        state.publish(false, None);
        Ok(state)
    }

    pub(super) fn mode(&self) -> &str {
        &self.status.mode
    }

    fn pods(&self) -> &[IpNetwork] {
        self.plan.desired.pods.as_ref().map_or(&[], |pods| &pods.networks)
    }

    /// Ends when the kernel or the conflist may differ from the plan. Safe to cancel.
    pub(super) async fn disturbed(&mut self) -> io::Result<()> {
        let pods: Vec<IpNetwork> = self.pods().to_vec();
        let masquerade = async {
            match &mut self.masquerade {
                Some(part) => part.disturbed().await,
                None => std::future::pending().await,
            }
        };
        let readable = async |file: &Option<AsyncFd<OwnedFd>>| match file {
            Some(file) => file.readable().await.map(drop),
            None => std::future::pending().await,
        };
        tokio::select! {
            outcome = self.watch.changed(&pods) => outcome,
            outcome = readable(&self.conflist) => {
                self.conflist = None;
                outcome
            }
            outcome = readable(&self.folder) => {
                self.folder = None;
                outcome
            }
            () = masquerade => Ok(()),
            () = self.vxlan.disturbed() => Ok(()),
        }
    }

    /// Makes this node match the plan. Returns whether everything is in place.
    ///
    /// # Errors
    /// The subscription to the kernel's messages broke.
    pub(super) fn sync(&mut self) -> Result<bool> {
        let begin = Instant::now();
        let pods = self.pods().to_vec();
        if let (Some(peers), true) = (&self.peers, std::mem::take(&mut self.has_new_peers)) {
            let interest = Interest::of(peers);
            self.watch.care(move |dst| interest.meets(dst));
        }
        self.watch.begin(&pods).context("read links and routes")?;
        if self.watch.take_damage() {
            self.vxlan.suspect();
            if let Some(part) = &mut self.wireguard {
                part.suspect();
            }
        }
        let Some(peers) = &self.peers else { return Ok(true) };
        let held = self.plan.desired.routes.keys().copied().collect();
        let (options, name, local) = (&self.options, self.node.as_str(), self.watch.local());
        let mtu = Some(self.status.conflist.mtu).filter(|mtu| *mtu > 0);
        let Some(plan) = make(&Facts { options, name, peers, local, held: &held, mtu }) else {
            let why = format!("the API server has no node {name}");
            self.log.once(format!("{why}: changes nothing"));
            self.is_deleted = self.unknown.is_none();
            self.unknown = self.unknown.is_some().then_some(why);
            self.publish(false, None);
            return Ok(true);
        };
        (self.unknown, self.is_deleted) = (None, false);
        let mut problems = BTreeMap::new();
        // A conflist that is there follows the podCIDRs before anything else: pods must get no address that is another node's.
        let is_early = self.status.conflist.written;
        self.interface(&plan, &mut problems);
        if is_early {
            self.conflist(&plan, &mut problems);
        }
        self.overlays_and_masquerade(&plan, &mut problems);
        let requests = self.routes(&plan, &mut problems)?;
        self.announce();
        if !is_early {
            self.conflist(&plan, &mut problems);
        }
        self.log.changes(&self.plan, &plan);
        self.plan = plan;
        if self.status.conflist.written
            && let Err(error) = self.interface.tidy(self.watch.socket())
        {
            self.log.once(format!("{error:#}"));
        }
        self.note(problems);
        self.ask();
        self.announce_health();
        self.refusals();
        self.publish(false, Some((begin, requests)));
        Ok(self.problems.is_empty())
    }

    /// Notes the parts that failed, and why.
    fn overlays_and_masquerade(&mut self, plan: &Plan, problems: &mut Problems) {
        let desired = &plan.desired;
        let mut note = |part, outcome: Result<()>| {
            if let Err(error) = outcome {
                problems.insert(part, format!("{error:#}"));
            }
        };
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

    /// Returns the number of requests.
    fn routes(&mut self, plan: &Plan, problems: &mut Problems) -> Result<usize> {
        let pods = self.pods().to_vec();
        // For the indexes of new devices.
        self.watch.refresh(&pods).context("read links")?;
        let outcome = routes::sync(&plan.desired.routes, &pods, &mut self.watch).context("read routes")?;
        if let Some((dst, error)) = outcome.failures.first_key_value() {
            let count = outcome.failures.len();
            problems.insert("routes", format!("{count} failed, such as {dst}: {error}"));
        }
        if outcome.without_device > 0 && problems.is_empty() {
            let count = outcome.without_device;
            problems.insert("routes", format!("{count} need a device that does not exist"));
        }
        Ok(outcome.requests)
    }

    /// Takes the problems of this sync, and logs what has changed.
    fn note(&mut self, problems: Problems) {
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

    /// Chooses the plugin of the built-in conflist.
    fn interface(&mut self, plan: &Plan, problems: &mut Problems) {
        let networks = plan.desired.pods.as_ref().map_or(&[][..], |pods| &pods.networks);
        if let Err(error) = self.interface.sync(&mut self.watch, networks, &mut self.template) {
            problems.insert("interface", format!("{error:#}"));
        }
    }

    /// Writes the conflist. The first time it waits for the ways to all nodes; later the conflist follows the podCIDRs at once. It is
    /// removed if the API server has taken all of them away.
    fn conflist(&mut self, plan: &Plan, problems: &mut Problems) {
        let conflist = &mut self.status.conflist;
        let Some(pods) = &plan.desired.pods else {
            (conflist.written, conflist.networks) = (false, Vec::new());
            self.conflist = None;
            if self.status.api.source == Source::Server {
                match conflist::remove(&conflist.path) {
                    Ok(true) => log!("removed {}: this node has no podCIDR", conflist.path.display()),
                    Ok(false) => {}
                    Err(error) => drop(problems.insert("conflist", format!("{error:#}"))),
                }
            }
            return;
        };
        (conflist.networks, conflist.mtu) =
            (pods.networks.iter().map(ToString::to_string).collect(), pods.mtu);
        if !conflist.written && problems.keys().any(|part| !Code::of_part(part).word().serves()) {
            return;
        }
        forward(pods, &mut self.log);
        let text = self.template.fill(&self.node, pods);
        match conflist::write(&conflist.path, &text) {
            Ok(is_new) => {
                if is_new {
                    log!(
                        "wrote {}: {}, MTU {}",
                        conflist.path.display(),
                        conflist.networks.join(" "),
                        pods.mtu
                    );
                }
                conflist.written = true;
                self.conflist = conflist::watch(&conflist.path)
                    .map_err(|error| self.log.once(format!("watch {}: {error}", conflist.path.display())))
                    .ok();
            }
            Err(error) => {
                conflist.written = false;
                if conflist::remove_other(&conflist.path, pods).unwrap_or(false) {
                    log!("removed {}: it has former podCIDRs", conflist.path.display());
                }
                problems.insert("conflist", format!("{error:#}"));
            }
        }
    }

    /// Logs each new refusal once. One that ends and comes back is logged again.
    fn refusals(&mut self) {
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
    fn announce(&mut self) {
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

/// Turns forwarding on, as the plugins do for each pod. In a container /proc/sys may be read-only.
fn forward(pods: &Pods, log: &mut Log) {
    for family in pods.networks.iter().map(|network| IpFamily::of(network.ip())) {
        let name = match family {
            IpFamily::V4 => "net/ipv4/ip_forward",
            IpFamily::V6 => "net/ipv6/conf/all/forwarding",
        };
        if let Err(error) = sysctl::ensure(name, "1") {
            log.once(error.to_string());
        }
    }
}
