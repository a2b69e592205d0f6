//! Makes the kernel's table follow the compiler, step by step in an order in which nothing opens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::message::Received;
use ferrule_kernel::nftables::notice::{elements_of, table_of};
use ferrule_kernel::nftables::{Batch, Element};
use ferrule_node_policy::model::{Direction, Pod};
use ferrule_node_policy::ruleset::Entry;
use ferrule_node_policy::{Change, Compiler, Ruleset};
use ferrule_policy_kit::isolated::Isolated;
use ferrule_policy_kit::table as announced;

use super::flows::{self, Cut};
use super::hosts::Hosts;
use super::layout::{self, TABLE};
use super::objects::{Key, Kind, Listed, Told};
use super::release::Learnt;
use super::report::{Fault, Report};
use super::table::{Owner, Remains};
use super::undecided::{self, News, Of, Undecided};
use super::{encode, ipvs, release};

/// The least time between two tables: others may damage ours all the time.
const CALM: Duration = Duration::from_millis(200);
/// The wait after an error.
const RETRY: Duration = Duration::from_secs(1);

/// What the kernel has of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
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
    pub(super) undecided: Undecided,
    pub(super) learnt: BTreeMap<(String, String), Learnt>,
    /// Local pods whose comment is not their name, by comment.
    pub(super) long: BTreeMap<String, (String, String)>,
    listed: Listed,
    /// Why the watch of a kind does not work.
    away: BTreeMap<Kind, String>,
    made: Made,
    /// A table that is missing or damaged is not made before.
    not_before: Instant,
    /// What the plugin has announced or removed since the last round.
    news: News,
    /// The plugin's table has changed in another way than by elements.
    is_relisted: bool,
    /// The addresses of pods that have ended, and still have a route.
    former: BTreeSet<IpAddr>,
    /// The addresses that the table of an earlier daemon had.
    before: BTreeSet<IpAddr>,
    cut: Cut,
    path: PathBuf,
    /// The file's content.
    written: Option<Isolated>,
    /// Why the file could not be written.
    unwritten: Option<String>,
    /// Why the last round has not done all of its work.
    problem: Option<String>,
    has_ipvs: bool,
}

impl Enforcer {
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses a socket or has no nf_tables.
    pub(super) fn open(path: &Path) -> Result<Enforcer> {
        Ok(Enforcer {
            owner: Owner::open()?,
            tracked: Socket::netfilter()?.with_whole_dumps(),
            hosts: Hosts::open()?,
            compiler: Compiler::default(),
            undecided: Undecided::default(),
            learnt: BTreeMap::new(),
            long: BTreeMap::new(),
            listed: Listed::default(),
            away: Kind::ALL.map(|kind| (kind, "the API server has not answered yet".to_owned())).into(),
            made: Made::Nothing,
            not_before: Instant::now(),
            news: News::new(),
            is_relisted: false,
            former: BTreeSet::new(),
            before: BTreeSet::new(),
            cut: Cut::default(),
            path: path.to_owned(),
            written: Isolated::read(path).ok(),
            unwritten: None,
            problem: None,
            has_ipvs: ipvs::is_used(),
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
            }
            _ => {}
        }
    }

    /// Takes a message about the API's objects.
    pub(super) fn tell(&mut self, told: Told) {
        let key = match &told {
            Told::Pod(pod) => {
                self.note_long(pod);
                Some((pod.namespace.clone(), pod.name.clone()))
            }
            Told::Gone(Kind::Pods, Key { namespace, name }) => {
                let key = (namespace.to_string(), name.to_string());
                self.learnt.remove(&key);
                self.long.retain(|_, pod| *pod != key);
                None
            }
            Told::State(kind, Ok(())) => {
                self.away.remove(kind);
                None
            }
            Told::State(kind, Err(why)) => {
                self.away.insert(*kind, why.clone());
                None
            }
            _ => None,
        };
        let is_list = matches!(told, Told::Listed(Kind::Pods, _));
        self.listed.apply(told, &mut self.compiler);
        if is_list {
            let cluster = self.compiler.cluster();
            let is_there = |(namespace, name): &(String, String)| cluster.pod(namespace, name).is_some();
            self.learnt.retain(|key, _| is_there(key));
            self.long.retain(|_, key| is_there(key));
        }
        if let Some(key) = key.filter(|key| self.learnt.contains_key(key)) {
            self.keep_learnt(&key);
        }
    }

    fn note_long(&mut self, pod: &Pod) {
        if !pod.local {
            return;
        }
        for uid in [Some(&pod.uid), pod.mirror_of.as_ref()].into_iter().flatten() {
            let of = ferrule_policy_kit::Pod { namespace: &pod.namespace, name: &pod.name, uid };
            let comment = ferrule_policy_kit::comment::encode(&of);
            if comment.contains('~') {
                self.long.insert(comment, (pod.namespace.clone(), pod.name.clone()));
            }
        }
    }

    /// Does all that is to be done. Returns when the next round must be, if not everything is done.
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
        self.learn();
        match self.made {
            Made::All => self.change()?,
            _ => self.make_all()?,
        }
        self.expire()?;
        self.release()?;
        Ok(None)
    }

    /// Until all objects are listed: keeps what an earlier daemon has left, and holds the announced pods.
    fn keep(&mut self) -> Result<()> {
        let is_there = self.owner.claim()?;
        let is_like_ours = is_there && self.owner.prove().is_ok();
        self.read(is_there)?;
        self.made = match (is_there, is_like_ours) {
            (false, _) => {
                let undecided = &self.undecided;
                self.owner.make(|batch, _| undecided.push(batch))?;
                self.owner.prove()?;
                Made::Kept
            }
            (true, false) => Made::Strange,
            (true, true) => {
                let mut batch = Batch::new();
                self.undecided.push(&mut batch);
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
        // What was heard until now is in the list.
        let news = std::mem::take(&mut self.news);
        self.is_relisted = false;
        let announced = self.owner.announced_in(announced::TABLE)?;
        self.undecided.restore(announced, remains.undecided);
        self.undecided.drop_gone(&news);
        self.former.extend(remains.former);
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
            self.undecided.compare(announced, &mut self.news);
        }
        let mut batch = Batch::new();
        let news = std::mem::take(&mut self.news);
        if self.undecided.take(news, &mut batch) {
            self.owner.commit(batch).context("copy what the plugin announces")?;
        }
        Ok(())
    }

    /// Makes the table with all that is in it, in one transaction.
    fn make_all(&mut self) -> Result<()> {
        self.made = Made::Nothing;
        let is_there = self.owner.claim()?;
        self.read(is_there)?;
        let _ = self.compiler.update();
        self.widen();
        let before = std::mem::take(&mut self.before);
        self.former.extend(before.iter().copied());
        let (cluster, hosts) = (self.compiler.cluster(), &self.hosts);
        self.former.retain(|address| hosts.has(*address) && !cluster.has_local(*address));
        let Enforcer { undecided, former, cut, owner, compiler, .. } = self;
        let everything = Ruleset::default().difference(compiler.ruleset());
        let fill = |batch: &mut Batch, id| {
            undecided.push(batch);
            put_former(batch, former);
            cut.push(batch);
            encode::push(batch, &everything, compiler.ruleset(), id);
        };
        owner.make(fill).context("make the table")?;
        self.not_before = Instant::now() + CALM;
        self.owner.prove()?;
        self.owner.prove_maps(self.compiler.ruleset())?;
        let mut pods: BTreeSet<IpAddr> = self.compiler.ruleset().maps.keys().map(|entry| entry.pod).collect();
        pods.extend(self.former.iter().copied());
        self.end_denied(&pods)?;
        self.cut.review(self.owner.socket(), self.compiler.cluster())?;
        self.narrow();
        self.made = Made::All;
        Ok(())
    }

    /// Makes the changes since the last time.
    fn change(&mut self) -> Result<()> {
        let change = self.compiler.update();
        if change.is_empty() {
            self.narrow();
            return Ok(());
        }
        // Until all of it is done, a failure makes the table anew.
        self.made = Made::Nothing;
        self.widen();
        let mut batch = Batch::new();
        encode::push(&mut batch, &change, self.compiler.ruleset(), 1);
        self.follow_former(&change, &mut batch);
        self.owner.commit(batch).context("change the table")?;
        // The flows of a pod that is released in this round all end.
        let mut tightened = change.tightened();
        tightened.retain(|address| !self.undecided.has(*address));
        self.end_denied(&tightened)?;
        self.cut.review(self.owner.socket(), self.compiler.cluster())?;
        self.narrow();
        self.made = Made::All;
        Ok(())
    }

    /// A pod that was isolated and has ended may still run: its address is closed while it has a route.
    fn follow_former(&mut self, change: &Change, batch: &mut Batch) {
        let (cluster, ruleset) = (self.compiler.cluster(), self.compiler.ruleset());
        let is_isolated = |pod| {
            Direction::ALL
                .iter()
                .any(|direction| ruleset.maps.contains_key(&Entry { direction: *direction, pod }))
        };
        let gone: BTreeSet<IpAddr> = change.maps.keys().map(|entry| entry.pod).collect();
        for address in gone {
            let has_ended = !is_isolated(address) && !cluster.has_local(address) && self.hosts.has(address);
            if has_ended && self.former.insert(address) {
                put_former(batch, &BTreeSet::from([address]));
            }
        }
    }

    /// Opens the addresses of pods that are gone, or that are another pod's.
    fn expire(&mut self) -> Result<()> {
        if self.former.is_empty() && self.undecided.is_empty() {
            return Ok(());
        }
        let (cluster, long, hosts) = (self.compiler.cluster(), &self.long, &mut self.hosts);
        let is_over = |hosts: &Hosts, address| !hosts.has(address) || cluster.has_local(address);
        let over: Vec<IpAddr> = self.former.iter().copied().filter(|one| is_over(hosts, *one)).collect();
        let mut batch = Batch::new();
        for address in &over {
            batch.delete_elements(TABLE, layout::former(IpFamily::of(*address)), &[octets(*address)]);
            self.former.remove(address);
        }
        let gone = self.undecided.expire(|of| match of {
            Of::Address(address, comment) => {
                release::pod_of(cluster, long, comment).is_none() && is_over(hosts, address)
            }
            Of::Link(name) => !hosts.has_link(name),
        });
        for (set, key) in gone {
            batch.delete_elements(TABLE, set, &[key]);
        }
        self.owner.commit(batch).context("open the addresses of pods that are gone")
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

    fn wanted(&self) -> Isolated {
        let mut wanted = Isolated::new(self.compiler.isolated_elsewhere());
        for (namespace, directions) in self.compiler.isolated() {
            wanted.add(namespace, directions);
        }
        wanted
    }

    /// Before the transaction: the file names all that is or will be isolated.
    fn widen(&mut self) {
        let mut wanted = self.wanted();
        if self.written.as_ref().is_some_and(|written| written.covers(&wanted)) {
            return;
        }
        if let Some(written) = &self.written {
            wanted.merge(written);
        }
        self.write(wanted);
    }

    /// After it.
    fn narrow(&mut self) {
        let wanted = self.wanted();
        if self.written.as_ref() != Some(&wanted) {
            self.write(wanted);
        }
    }

    /// Without the file the plugin isolates every pod. So a disk that takes no file is no reason to enforce nothing.
    fn write(&mut self, isolated: Isolated) {
        let outcome = isolated.write(&self.path);
        if outcome.is_err() {
            let _ = std::fs::remove_file(&self.path);
        }
        self.written = outcome.is_ok().then_some(isolated);
        let problem = outcome.err().map(|error| format!("{}: {error}", self.path.display()));
        if let Some(problem) = problem.as_ref().filter(|now| self.unwritten.as_ref() != Some(now)) {
            log!("policy: {problem}; every new pod is isolated until it is decided");
        }
        self.unwritten = problem;
    }

    /// Once a minute: what no message tells.
    pub(super) fn look(&mut self) -> Result<()> {
        self.has_ipvs = ipvs::is_used();
        if self.made == Made::All && self.owner.prove().is_err() {
            self.made = Made::Nothing;
        }
        if self.made == Made::All && !self.cut.is_empty() {
            let mut elements = Vec::new();
            for of in IpFamily::ALL {
                elements.extend(ferrule_kernel::nftables::elements(
                    self.owner.socket(),
                    TABLE,
                    layout::cut(of),
                )?);
            }
            self.cut.refresh(&elements);
        }
        Ok(())
    }

    pub(super) fn report(&self) -> Report {
        let is_known = self.listed.is_complete();
        let away = self.away.iter().map(|(kind, why)| format!("{kind}: {why}")).collect::<Vec<_>>();
        let mut reasons: Vec<String> = self.problem.iter().chain(&self.unwritten).cloned().collect();
        if is_known && self.made != Made::All && self.problem.is_none() {
            reasons.push(format!("table {TABLE} is being made again"));
        }
        if self.has_ipvs {
            reasons.push(ipvs::REASON.to_owned());
        }
        let fault = |fault: ferrule_node_policy::Fault<'_>| Fault {
            namespace: fault.namespace.to_owned(),
            policy: fault.policy.to_owned(),
            what: fault.what.to_owned(),
        };
        let waiting = self.undecided.pods();
        let pods: BTreeSet<IpAddr> = self.compiler.ruleset().maps.keys().map(|entry| entry.pod).collect();
        Report {
            unknown: (!is_known).then(|| format!("policies are not known yet: {}", away.join("; "))),
            reasons,
            away,
            policies: self.compiler.policies(),
            faults: self.compiler.faults().take(Report::MOST).map(fault).collect(),
            faulty: self.compiler.faults().count(),
            isolated: pods.len(),
            waiting: waiting.len(),
            undecided: waiting.into_iter().take(Report::MOST).map(str::to_owned).collect(),
            oldest: self.undecided.oldest(),
            is_plain: self.owner.is_plain,
        }
    }
}

fn put_former(batch: &mut Batch, addresses: &BTreeSet<IpAddr>) {
    for of in IpFamily::ALL {
        let own = addresses.iter().filter(|address| IpFamily::of(**address) == of);
        let elements: Vec<Element> = own.map(|address| Element::new(octets(*address))).collect();
        batch.put_elements(TABLE, layout::former(of), &elements);
    }
}
