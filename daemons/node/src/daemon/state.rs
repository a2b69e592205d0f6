//! What the daemon knows and has made.

mod conflist;
mod nodes;
mod parts;
mod policy;
mod speak;
mod word;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Context as _, Result};
use ferrule_node_policy::ruleset::Entry;
use ipnetwork::IpNetwork;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use super::former;
use super::report::{self, Log};
use super::voice::Voice;
use crate::api;
use crate::arguments::{Mode, Options};
use crate::cluster::{Peers, Refusal};
use crate::conflist::Template;
use crate::kernel::Watch;
use crate::plan::{Facts, Interest, Plan, make};
use crate::plan_file::Identity;
use crate::policy::Report;
use crate::proof::{self, Proofs};
use crate::quota::Quota;
use crate::serve::Figures;
use crate::status::{self, Status};
use crate::{forward_chain, guard, interface, masquerade, vxlan, wireguard};

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
    /// As `masquerade`.
    forward_chain: Option<forward_chain::Part>,
    /// As `masquerade`.
    guard: Option<guard::Part>,
    /// Why the guard is not in place. Pods work without it.
    unguarded: Option<String>,
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
    /// The addresses of the API servers.
    servers: BTreeSet<IpAddr>,
    /// Why there is no plan yet.
    unknown: Option<String>,
    /// Whether the API server has no node of this name any more.
    is_deleted: bool,
    /// The parts that failed in the last sync, and why.
    problems: Problems,
    status: Status,
    log: Log,
    voice: Voice,
    reports: mpsc::Sender<api::Report>,
    /// The refusals that were logged.
    reported: BTreeSet<Refusal>,
    /// The key that was sent.
    announced: Option<String>,
    /// The health endpoint that was sent.
    published: Option<String>,
    /// What the thread of the policies says; `None` with `--policy off`.
    policy: Option<Report>,
    /// The faults of policies that were told.
    faults: Quota,
    /// What the health endpoint has found.
    proofs: Proofs,
    input: watch::Sender<proof::Input>,
    /// The health endpoint's addresses, for the maps of the policies.
    probed: watch::Sender<BTreeSet<Entry>>,
    figures: watch::Sender<Figures>,
}

impl State {
    pub(super) fn open(
        options: Options,
        node: String,
        identity: Option<Identity>,
        reports: mpsc::Sender<api::Report>,
        input: watch::Sender<proof::Input>,
        probed: watch::Sender<BTreeSet<Entry>>,
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
            guard: None,
            unguarded: None,
            conflist: None,
            folder: None,
            peers: None,
            has_new_peers: false,
            identity,
            remembered: None,
            plan: Plan::default(),
            servers: BTreeSet::new(),
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
            policy: None,
            faults: Quota::new(policy::FAULTS),
            proofs: Proofs::none(),
            input,
            probed,
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
        let forward_chain = async {
            match &mut self.forward_chain {
                Some(part) => part.disturbed().await,
                None => std::future::pending().await,
            }
        };
        let guard = async {
            match &mut self.guard {
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
            () = guard => Ok(()),
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
        let mut problems = BTreeMap::new();
        former::note(&mut self.status.conflist, &former, local);
        // A conflist that is there follows the podCIDRs before anything else: pods must get no address that is another node's.
        let is_early = self.status.conflist.written;
        self.interface(&plan, &mut problems);
        if is_early {
            self.conflist(&plan, &mut problems);
        }
        self.forward(&mut plan);
        self.overlays_and_masquerade(&plan, &mut problems);
        self.guard(&plan);
        let requests = self.routes(&mut plan, &mut problems)?;
        self.announce();
        if !is_early {
            self.conflist(&plan, &mut problems);
        }
        self.log.reasons(&self.plan, &plan);
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
        // Not each cause of a reason ends with a message.
        let is_sound = self.problems.is_empty() && self.unguarded.is_none();
        Ok(is_sound && self.plan.reasons.is_empty() && self.status.conflist.former.is_empty())
    }
}
