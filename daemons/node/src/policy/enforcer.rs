//! Makes the kernel's table follow the compiler, step by step in an order in which nothing opens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ferrule_kernel::conntrack;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::message::Received;
use ferrule_kernel::nftables::Batch;
use ferrule_kernel::nftables::notice::{elements_of, table_of};
use ferrule_node_policy::{Compiler, Ruleset};
use ferrule_policy_kit::table as announced;

use super::denied::Denied;
use super::encode;
use super::endpoint::Endpoint;
use super::flows::{self, Cut};
use super::former::{self, Former, is_over};
use super::hosts::Hosts;
use super::how::How;
use super::inspect::Inspected;
use super::layout::TABLE;
use super::links::Links;
use super::objects::{Key, Kind, Listed, Told};
use super::record::{Record, wanted};
use super::release::{self, AnnouncedPods};
use super::table::{Owner, Remains};
use super::undecided::{self, News, Of, Place};

/// The least time between two tables: others may damage ours all the time.
const CALM: Duration = Duration::from_millis(200);
/// The wait after an error.
const RETRY: Duration = Duration::from_secs(1);

/// What the kernel has of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// Unknown, or damaged.
    Nothing,
    /// An earlier daemon's table, or one without rules of pods, until all objects are listed.
    Kept,
    /// An earlier daemon's table of another layout, until all objects are listed.
    Strange,
    /// All of it, as of the compiler's last update.
    All,
}

/// The daemon's part that enforces, without its timers.
pub(super) struct Enforcer {
    pub(super) owner: Owner,
    /// For lists of flows.
    pub(super) tracked: Socket,
    pub(super) hosts: Hosts,
    pub(super) compiler: Compiler,
    pub(super) pods: AnnouncedPods,
    pub(super) listed: Listed,
    /// Why the watch of a kind does not work.
    pub(super) away: BTreeMap<Kind, String>,
    pub(super) made: Made,
    /// A table that is missing or damaged is not made before.
    not_before: Instant,
    /// What the plugin has announced or removed since the last round.
    news: News,
    /// The plugin's table has changed in another way than by elements.
    is_relisted: bool,
    former: Former,
    links: Links,
    /// The API or the plugin has told something since the last round.
    pub(super) is_told: bool,
    /// The addresses that something is denied to.
    pub(super) isolated: usize,
    /// The addresses that were isolated or closed in a table of before.
    before: BTreeSet<IpAddr>,
    pub(super) cut: Cut,
    pub(super) endpoint: Endpoint,
    pub(super) record: Record,
    pub(super) denied: Denied,
    /// Why the last round has not done all of its work.
    pub(super) problem: Option<String>,
    pub(super) inspected: Inspected,
}

impl Enforcer {
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses a socket or has no nf_tables.
    pub(super) fn open(how: &How) -> Result<Enforcer> {
        Ok(Enforcer {
            owner: Owner::open()?,
            tracked: Socket::netfilter()?.with_whole_dumps(),
            hosts: Hosts::open()?,
            compiler: Compiler::new(how.is_dry),
            pods: AnnouncedPods::default(),
            listed: Listed::default(),
            away: Kind::ALL.map(|kind| (kind, "the API server has not answered yet".to_owned())).into(),
            made: Made::Nothing,
            not_before: Instant::now(),
            news: News::new(),
            is_relisted: false,
            former: Former::default(),
            links: Links::default(),
            is_told: true,
            isolated: 0,
            before: BTreeSet::new(),
            cut: Cut::default(),
            endpoint: Endpoint::default(),
            record: Record::open(&how.path),
            denied: Denied::default(),
            problem: None,
            inspected: Inspected::default(),
        })
    }

    /// Takes a message of the kernel about the ruleset; `None`: some are lost.
    pub(super) fn hear(&mut self, message: Option<&Received<'_>>) {
        let Some(message) = message else {
            self.made = Made::Nothing;
            return;
        };
        if message.port == self.owner.port {
            return;
        }
        if let Some(elements) = elements_of(message, announced::TABLE) {
            undecided::hear(&mut self.news, elements);
            self.is_told = true;
            return;
        }
        match table_of(message) {
            Some((family, name)) if family == TABLE.family as u8 && name == TABLE.name => {
                self.made = Made::Nothing;
            }
            Some((family, name))
                if family == announced::TABLE.family as u8 && name == announced::TABLE.name =>
            {
                // A table that goes takes its elements with it without a word.
                self.is_relisted = true;
                self.is_told = true;
            }
            _ => {}
        }
    }

    /// Takes a message about the API's objects.
    pub(super) fn tell(&mut self, told: Told) {
        self.is_told = true;
        let (mut key, mut is_list) = (None, false);
        match &told {
            Told::Pod(pod) => {
                self.pods.note(pod);
                key = Some((pod.namespace.clone(), pod.name.clone()));
            }
            Told::Gone(Kind::Pods, Key { namespace, name }) => {
                self.pods.forget(&(namespace.to_string(), name.to_string()));
            }
            Told::State(kind, Ok(())) => drop(self.away.remove(kind)),
            Told::State(kind, Err(why)) => drop(self.away.insert(*kind, why.clone())),
            Told::Listed(kind, _) => is_list = *kind == Kind::Pods,
            _ => {}
        }
        self.listed.apply(told, &mut self.compiler);
        if let Some(key) = key {
            self.pods.keep_learnt(&key, &mut self.compiler);
        }
        if is_list {
            self.pods.retain(self.compiler.cluster());
        }
    }

    /// Does one round of work. Returns the time of the next round if work is left.
    pub(super) fn round(&mut self) -> Option<Instant> {
        let outcome = self.try_round();
        let problem = outcome.as_ref().err().map(|error| format!("{error:#}"));
        if let Some(problem) = problem.as_ref().filter(|now| self.problem.as_ref() != Some(now)) {
            log!("policy: {problem}");
        }
        if self.problem.is_some() && problem.is_none() {
            log!("policy: works again");
        }
        self.problem = problem;
        outcome.unwrap_or_else(|_| {
            self.made = Made::Nothing;
            self.not_before = Instant::now() + RETRY;
            Some(self.not_before)
        })
    }

    fn try_round(&mut self) -> Result<Option<Instant>> {
        let is_listed = self.listed.is_complete();
        if self.made == Made::Nothing && Instant::now() < self.not_before {
            return Ok(Some(self.not_before));
        }
        match self.made {
            Made::Nothing if !is_listed => self.keep()?,
            Made::All if is_listed => self.copy()?,
            Made::Kept => self.copy()?,
            _ => {}
        }
        if !is_listed {
            return Ok(None);
        }
        // The comparisons cost time for each pod of the node, and most rounds have only messages about the transactions of the last one.
        let is_told = std::mem::take(&mut self.is_told);
        self.pods.learn(&mut self.compiler);
        match self.made {
            Made::All if is_told => self.change()?,
            Made::All => {}
            _ => self.make_all()?,
        }
        self.expire()?;
        let Enforcer { links, compiler, former, hosts, owner, .. } = self;
        if is_told | hosts.follow() {
            links.follow(compiler, former, hosts, owner).context("follow the links of pods")?;
        }
        self.release()?;
        self.inspected.begin(&self.compiler);
        Ok(self.hosts.has_news().then(Instant::now))
    }

    /// Until all objects are listed: keeps what an earlier daemon has left, and holds the announced pods.
    fn keep(&mut self) -> Result<()> {
        let is_there = self.owner.claim()?;
        let is_like_ours = is_there && self.owner.prove().is_ok();
        self.read(is_there)?;
        self.made = match (is_there, is_like_ours) {
            (false, _) => {
                let Enforcer { pods, before, owner, .. } = self;
                // The rules of an earlier table are gone, so its pods are closed.
                owner.make(|batch, _| {
                    pods.undecided.push(batch);
                    former::put(batch, before);
                })?;
                owner.prove()?;
                Made::Kept
            }
            (true, false) => Made::Strange,
            (true, true) => {
                let mut batch = Batch::new();
                self.pods.undecided.push(&mut batch);
                self.owner.commit(batch)?;
                Made::Kept
            }
        };
        self.not_before = Instant::now() + CALM;
        Ok(())
    }

    /// Reads the plugin's table, and what the API does not say from ours.
    fn read(&mut self, is_there: bool) -> Result<()> {
        let remains = if is_there { self.owner.remains()? } else { Remains::default() };
        // The list has all earlier messages.
        let news = std::mem::take(&mut self.news);
        self.is_relisted = false;
        let announced = self.owner.announced_in(announced::TABLE)?;
        self.pods.undecided.restore(announced, remains.undecided);
        self.pods.undecided.drop_gone(&news);
        self.before.extend(remains.former);
        self.before.extend(remains.isolated);
        if self.cut.is_empty() {
            self.cut = Cut::of(&remains.cut);
        }
        Ok(())
    }

    /// Copies the announcements at once.
    fn copy(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_relisted) {
            let announced = self.owner.announced_in(announced::TABLE)?;
            self.pods.undecided.compare(announced, &mut self.news);
        }
        let mut batch = Batch::new();
        let news = std::mem::take(&mut self.news);
        if self.pods.undecided.take(news, &mut batch) {
            self.owner.commit(batch).context("copy what the plugin announces")?;
        }
        Ok(())
    }

    /// Makes the table with all that is in it, in one transaction.
    fn make_all(&mut self) -> Result<()> {
        self.made = Made::Nothing;
        let is_there = self.owner.claim()?;
        self.read(is_there)?;
        self.count(false);
        self.denied.begin_anew();
        let _ = self.compiler.update();
        self.isolated = self.compiler.ruleset().isolated();
        let wanted = wanted(&self.compiler);
        self.record.widen(&wanted);
        self.former.adopt(std::mem::take(&mut self.before), &self.compiler, &self.hosts);
        self.links = self.links.next(&self.compiler, &self.former, &mut self.hosts)?;
        let Enforcer { pods, former, links, cut, endpoint, owner, compiler, .. } = self;
        let everything = Ruleset::default().difference(compiler.ruleset());
        let fill = |batch: &mut Batch, id| {
            pods.undecided.push(batch);
            former.push(batch);
            Links::default().change(links, batch);
            cut.push(batch);
            encode::push(batch, &everything, compiler, id);
            endpoint.push(compiler.ruleset(), batch);
        };
        owner.make(fill).context("make the table")?;
        self.not_before = Instant::now() + CALM;
        self.owner.prove()?;
        self.owner.prove_maps(self.compiler.ruleset(), self.endpoint.made())?;
        let mut pods: BTreeSet<IpAddr> = self.compiler.ruleset().maps.keys().map(|entry| entry.pod).collect();
        pods.extend(self.former.all());
        self.end_denied(&pods)?;
        self.cut.review(self.owner.socket(), self.compiler.cluster())?;
        self.record.narrow(wanted);
        self.made = Made::All;
        Ok(())
    }

    /// Makes the changes since the last time.
    fn change(&mut self) -> Result<()> {
        let change = self.compiler.update();
        if change.is_empty() {
            self.record.narrow(wanted(&self.compiler));
            return Ok(());
        }
        // Until all of it is done, a failure makes the table anew.
        self.made = Made::Nothing;
        self.isolated = self.compiler.ruleset().isolated();
        let wanted = wanted(&self.compiler);
        self.record.widen(&wanted);
        if change.maps.values().any(|one| one.to.is_none()) || !change.dry.is_empty() {
            self.count(false);
        }
        let mut batch = Batch::new();
        encode::push(&mut batch, &change, &self.compiler, 1);
        self.former.follow(&change, &self.compiler, &self.hosts, &mut batch);
        self.owner.commit(batch).context("change the table")?;
        // The flows of a pod that is released in this round all end.
        let mut tightened = change.tightened();
        tightened.retain(|address| !self.pods.undecided.has(*address));
        self.end_denied(&tightened)?;
        self.cut.review(self.owner.socket(), self.compiler.cluster())?;
        self.record.narrow(wanted);
        self.made = Made::All;
        Ok(())
    }

    /// Opens the addresses of pods that are gone, or that are another pod's, and follows the health endpoint's.
    fn expire(&mut self) -> Result<()> {
        let mut batch = Batch::new();
        self.endpoint.follow(self.compiler.ruleset(), &mut batch);
        self.former.expire(&self.compiler, &self.hosts, &mut batch);
        let Enforcer { pods, compiler, hosts, .. } = self;
        let mut gone = pods.undecided.only_copied();
        gone.retain(|(_, of)| match of {
            Of::Address(address, comment) => {
                pods.pod_of(compiler.cluster(), comment).is_none() && is_over(*address, compiler, hosts)
            }
            Of::Link(name) => !hosts.has_link(name),
        });
        let gone: BTreeSet<Place> = gone.into_iter().map(|(place, _)| place).collect();
        for (set, key) in &gone {
            batch.delete_elements(TABLE, set, std::slice::from_ref(key));
        }
        pods.undecided.forget(&gone);
        self.owner.commit(batch).context("open the addresses of pods that are gone")
    }

    /// Releases the pods whose rules are in the table. Until now nothing has passed in the directions in which a pod was not decided, so no
    /// flow is the pod's own, but for those that the node has begun. An earlier pod of the address has left the others.
    fn release(&mut self) -> Result<()> {
        for part in self.pods.decided(self.compiler.cluster()).chunks(release::MOST) {
            let addresses: BTreeSet<IpAddr> = part.iter().flat_map(|group| group.addresses.all()).collect();
            let node = self.hosts.own()?;
            let flows = flows::with_end(&mut self.tracked, &addresses, &node).context("list flows")?;
            conntrack::delete(&mut self.tracked, &flows)
                .context("end the flows of an address's earlier pod")?;
            let places = release::remove(&mut self.owner, part).context("release pods")?;
            self.pods.released(&places);
        }
        Ok(())
    }

    /// Ends the flows with an end at one of these addresses that are denied now.
    fn end_denied(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        let node = self.hosts.own()?;
        let flows = flows::with_end(&mut self.tracked, addresses, &node).context("list flows")?;
        let denied = flows::denied(flows, self.compiler.cluster());
        if denied.is_empty() {
            return Ok(());
        }
        log!("policy: ends {} flows that are denied now", denied.len());
        if let Err(error) = self.cut.end(self.owner.socket(), &denied) {
            // The set may be full: these flows end unless both ends may begin one.
            log!("policy: end flows: {error:#}");
        }
        Ok(())
    }
}
