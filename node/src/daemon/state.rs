//! What the daemon knows and has made.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use super::report::{self, Log};
use super::voice::Voice;
use crate::api::{Report, Update};
use crate::arguments::{Mode, Options};
use crate::cluster::{HEALTH_ANNOTATION, Health, Peers, Published, Refusal};
use crate::conflist::{self, Template};
use crate::kernel::Watch;
use crate::plan::{Facts, Plan, Pods, make};
use crate::proof::{self, Proofs};
use crate::serve::Figures;
use crate::status::{self, Status};
use crate::word::Code;
use crate::{masquerade, routes, vxlan, wireguard, word};

/// The daemon without its timers.
pub(super) struct State {
    options: Options,
    node: String,
    template: Template,
    watch: Watch,
    vxlan: vxlan::Part,
    wireguard: Option<wireguard::Part>,
    /// `None` on a kernel without nf_tables: opened again at each sync.
    masquerade: Option<masquerade::Part>,
    /// Readable when the conflist is no longer what the last sync has left. `None` if it has left none.
    conflist: Option<AsyncFd<OwnedFd>>,
    /// Readable when the conflist's folder has another file. `None` if it is not watched.
    folder: Option<AsyncFd<OwnedFd>>,
    /// `None` until the first list.
    peers: Option<Peers>,
    plan: Plan,
    /// Why there is no plan yet.
    unknown: Option<String>,
    /// Whether the API server has no node of this name any more.
    is_deleted: bool,
    /// The parts that failed in the last sync, and why.
    problems: BTreeMap<&'static str, String>,
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

    /// Takes what the API server says. Returns whether a sync is due.
    pub(super) fn apply(&mut self, update: Update) -> bool {
        match (update, &mut self.peers) {
            (Update::List(list), peers) => {
                let is_new = peers.as_ref() != Some(&list);
                *peers = Some(list);
                is_new
            }
            (Update::Changed(name, peer), Some(peers)) => {
                let is_new = peers.get(&name) != Some(&*peer);
                peers.insert(name, *peer);
                is_new
            }
            (Update::Gone(name), Some(peers)) => peers.remove(&name).is_some(),
            // A list comes before all changes.
            (Update::Changed(..) | Update::Gone(_), None) => false,
            (Update::State(state), _) => {
                report::api(&mut self.status, state.as_ref().err());
                self.publish(state.is_err(), None);
                false
            }
        }
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
        let problems = self.overlays_and_masquerade(&plan)?;
        let requests = self.routes(&plan, &problems)?;
        self.announce();
        self.log.changes(&self.plan, &plan);
        self.plan = plan;
        self.conflist();
        self.ask();
        self.announce_health();
        self.refusals();
        self.publish(false, Some((begin, requests)));
        Ok(self.problems.is_empty())
    }

    /// Returns the parts that failed, and why.
    fn overlays_and_masquerade(&mut self, plan: &Plan) -> Result<BTreeMap<&'static str, String>> {
        let desired = &plan.desired;
        let mut problems = BTreeMap::new();
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
        Ok(problems)
    }

    /// Returns the number of requests.
    fn routes(&mut self, plan: &Plan, problems: &BTreeMap<&'static str, String>) -> Result<usize> {
        let pods = self.pods().to_vec();
        // For the indexes of new devices.
        self.watch.refresh(&pods).context("read links")?;
        let outcome = routes::sync(&plan.desired.routes, &pods, &mut self.watch).context("read routes")?;
        let mut problems = problems.clone();
        if let Some((dst, error)) = outcome.failures.first_key_value() {
            let count = outcome.failures.len();
            problems.insert("routes", format!("{count} failed, such as {dst}: {error}"));
        }
        if outcome.without_device > 0 && problems.is_empty() {
            let count = outcome.without_device;
            problems.insert("routes", format!("{count} need a device that does not exist"));
        }
        for (part, error) in &problems {
            if self.problems.get(part) != Some(error) {
                log!("{part}: {error}");
            }
        }
        for part in self.problems.keys().filter(|part| !problems.contains_key(*part)) {
            log!("{part}: works again");
        }
        self.problems = problems;
        Ok(outcome.requests)
    }

    /// Writes the conflist. The first time it waits for the ways to all nodes; later the conflist follows the podCIDRs at once.
    fn conflist(&mut self) {
        let conflist = &mut self.status.conflist;
        let Some(pods) = &self.plan.desired.pods else {
            conflist.written = false;
            return;
        };
        (conflist.networks, conflist.mtu) =
            (pods.networks.iter().map(ToString::to_string).collect(), pods.mtu);
        if !conflist.written && self.problems.keys().any(|part| !Code::of_part(part).word().serves()) {
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
                self.log.once(format!("{error:#}"));
                self.problems.insert("conflist", format!("{error:#}"));
            }
        }
    }

    /// Logs each new refusal once. One that ends and comes back is logged again.
    fn refusals(&mut self) {
        for Refusal { node, what, why } in self.plan.refusals.difference(&self.reported) {
            log!("node {node}: {what} is not used: {why}");
        }
        self.reported.clone_from(&self.plan.refusals);
    }

    /// When the word is due again although nothing has happened.
    pub(super) fn due(&self) -> Option<Instant> {
        self.voice.due()
    }

    /// Judges again: time has passed.
    pub(super) fn look_again(&mut self) {
        self.publish(false, None);
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

    /// Takes what the health endpoint has found.
    pub(super) fn prove(&mut self, proofs: Proofs) {
        self.proofs = proofs;
        self.announce_health();
        self.publish(false, None);
    }

    /// Tells the health endpoint what is wanted. Without a conflist in place it stays as it is, unless this node has no podCIDR.
    fn ask(&self) {
        let Some(peers) = &self.peers else { return };
        let store = self.template.store();
        let text = self.plan.desired.pods.as_ref().map(|pods| (pods, self.template.fill(&self.node, pods)));
        let conflist = text.as_ref().map(|(pods, text)| (*pods, text.as_str(), store.as_path()));
        let mut new = proof::Input::new(&self.plan, peers, conflist);
        let is_in_place = self.status.conflist.written || conflist.is_none();
        self.input.send_if_modified(|former| {
            if !is_in_place {
                new.wanted.clone_from(&former.wanted);
            }
            let differs = *former != new;
            *former = new;
            differs
        });
    }

    /// Wants this node's health endpoint in its object; or that it has none, if the object may name a former one.
    fn announce_health(&mut self) {
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
        let report = Report::Annotation { name: HEALTH_ANNOTATION, value: value.clone() };
        if self.reports.try_send(report).is_ok() {
            self.published = Some(value);
        }
    }

    /// Writes the status file and the figures. `work`: when the sync began, and its requests.
    fn publish(&mut self, has_failed: bool, work: Option<(Instant, usize)>) {
        if work.is_some() {
            report::nodes(&mut self.status, &self.plan, self.watch.local());
        }
        // First, so that no file is missed.
        if self.folder.is_none() {
            self.folder = conflist::watch_folder(&self.status.conflist.path).ok();
        }
        let conflist = report::found(&self.status.conflist, self.plan.desired.pods.is_some());
        let (now, none) = (SystemTime::now(), Peers::new());
        let proofs = self.voice.with_former(&self.proofs, now);
        let facts = word::Facts {
            now,
            unknown: self.unknown.as_deref(),
            is_deleted: self.is_deleted,
            problems: &self.problems,
            conflist: &conflist,
            plan: &self.plan,
            peers: self.peers.as_ref().unwrap_or(&none),
            proofs: &proofs,
            patience: Duration::from_secs(self.options.patience),
        };
        let is_due = self.voice.say(&self.node, &facts, &mut self.status, work.is_some() || has_failed);
        if is_due && let Err(error) = status::write(&self.options.state, &self.status) {
            self.log.once(format!("write the status file: {error}"));
        }
        let routes = self.watch.local().routes.iter().filter(|route| route.is_ours()).count();
        self.figures.send_modify(|figures| {
            report::figures(figures, &self.status, routes);
            self.voice.figures(figures, &proofs);
            figures.problems = self.problems.len();
            figures.failures += u64::from(has_failed);
            if let Some((begin, requests)) = work {
                figures.syncs += 1;
                figures.sync_seconds += begin.elapsed().as_secs_f64();
                figures.requests += u64::try_from(requests).unwrap_or(0);
            }
        });
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
