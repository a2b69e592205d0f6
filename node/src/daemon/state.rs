//! What the daemon knows and has made.

mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use super::former;
use super::report::{self, Log};
use super::voice::Voice;
use crate::api::{Report, Update};
use crate::arguments::{Mode, Options};
use crate::cluster::{Peers, Refusal};
use crate::conflist::{self, Template};
use crate::kernel::Watch;
use crate::plan::{Facts, Plan, make};
use crate::proof::{Proof, Proofs};
use crate::serve::Figures;
use crate::status::{self, Status};
use crate::word::Code;
use crate::{forward_chain, masquerade, vxlan, wireguard, word};

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
    /// As `masquerade`.
    forward_chain: Option<forward_chain::Part>,
    /// Readable when the conflist is no longer what the last sync has left. `None` if it has left none.
    conflist: Option<AsyncFd<OwnedFd>>,
    /// Readable when the conflist's folder has another file. `None` if it is not watched.
    folder: Option<AsyncFd<OwnedFd>>,
    /// `None` until the first list.
    peers: Option<Peers>,
    plan: Plan,
    /// The addresses of the API servers.
    servers: BTreeSet<IpAddr>,
    /// Why there is no plan yet.
    unknown: Option<String>,
    /// Whether the API server has no node of this name any more.
    is_deleted: bool,
    /// What the health endpoint has found.
    proofs: Proofs,
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
    figures: watch::Sender<Figures>,
}

impl State {
    pub(super) fn open(
        options: Options,
        node: String,
        reports: mpsc::Sender<Report>,
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
            forward_chain: None,
            conflist: None,
            folder: None,
            peers: None,
            plan: Plan::default(),
            servers: BTreeSet::new(),
            unknown: Some("the API server has not answered yet".to_owned()),
            is_deleted: false,
            proofs: no_endpoint(),
            problems: BTreeMap::new(),
            voice: Voice::new(reports.clone(), &status),
            status,
            log: Log::default(),
            reports,
            reported: BTreeSet::new(),
            announced: None,
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
            (Update::Servers(servers), _) => {
                let is_new = self.servers != servers;
                self.servers = servers;
                is_new
            }
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
        let forward_chain = async {
            match &mut self.forward_chain {
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
            () = forward_chain => Ok(()),
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
        if !self.plan.reasons.is_empty() {
            // Some reasons are about routes of pods, of which the daemon hears nothing.
            self.watch.distrust();
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
        let own = peers.get(name).map_or(&[][..], |me| &me.networks);
        let (former, bridge, servers) =
            (former::read(&self.status.conflist, own), self.template.bridge(), &self.servers);
        let facts = Facts { options, name, peers, local, held: &held, mtu, bridge, servers, former: &former };
        let Some(mut plan) = make(&facts) else {
            let why = format!("the API server has no node {name}");
            self.log.once(format!("{why}: changes nothing"));
            self.is_deleted = self.unknown.is_none();
            self.unknown = self.unknown.is_some().then_some(why);
            self.publish(false, None);
            return Ok(true);
        };
        (self.unknown, self.is_deleted) = (None, false);
        former::note(&mut self.status.conflist, &former, local);
        self.forward(&mut plan);
        let problems = self.overlays_and_masquerade(&plan)?;
        let requests = self.routes(&mut plan, &problems)?;
        self.announce();
        self.log.changes(&self.plan, &plan);
        self.plan = plan;
        self.conflist();
        self.refusals();
        self.publish(false, Some((begin, requests)));
        // Not each cause of a reason ends with a message.
        Ok(self.problems.is_empty() && self.plan.reasons.is_empty() && self.status.conflist.former.is_empty())
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

    /// Takes what the health endpoint has found.
    pub(super) fn proofs(&mut self, proofs: Proofs) {
        self.proofs = proofs;
        self.publish(false, None);
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

/// The proofs while there is no health endpoint.
fn no_endpoint() -> Proofs {
    let unknown = || Proof::Unknown("this release has no health endpoint".to_owned());
    let local = IpFamily::ALL.into_iter().map(|family| (family, unknown())).collect();
    Proofs { local, ..Proofs::none() }
}
