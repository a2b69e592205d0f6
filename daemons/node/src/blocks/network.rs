//! One network: claims blocks for it, and gives them back. Each step of the protocol has the name that [`ferrule_blocks::ledger`] gives it.

mod needs;
mod steps;
mod take;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use cni_common::spec::Code;
use ferrule_blocks::block::Block;
use ferrule_blocks::ledger::{Change, Claim, Network};
use ferrule_blocks::plan::{self, Patience, Situation};
use ferrule_blocks::range::Fixed;
use ferrule_blocks::wire::{Failure, Need};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::api::{Api, Unusable};
use super::figures::{Figures, Row};
use super::folder::Kept;
use take::Quarantine;

/// The shortest and the longest pause after a failure of the API server.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// The most addresses that a message names.
const NAMED: usize = 8;
/// For so many claims of a domain the list of all of them is read once more seldom: a thousand nodes read it.
const CROWD: u32 = 500;
/// The shortest time between two events of this node about a domain: about as long as an API server keeps one.
const EVENTS: Duration = Duration::from_secs(3600);

/// An ADD that waits.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) network: Network,
    pub(super) needs: Vec<Need>,
    pub(super) answer: oneshot::Sender<Result<(), Failure>>,
}

/// How often things happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The comparison of ledger and objects.
    pub(super) compare: Duration,
    /// The look at the addresses in use.
    pub(super) look: Duration,
    pub(super) patience: Patience,
    /// How long another node must be fenced before its blocks are taken.
    pub(super) quarantine: Duration,
}

/// A network's task.
pub(super) struct Keeper {
    api: Arc<Api>,
    kept: Kept,
    boot: String,
    times: Times,
    /// What the API server was last known to have: the claims of the domain.
    claims: Vec<Claim>,
    /// When this store's claims were compared with the ledger.
    compared: Option<Instant>,
    /// When the list of all claims was read.
    listed: Option<Instant>,
    /// The domain that was joined, and the ranges.
    joined: Option<(String, Vec<Fixed>)>,
    /// Since when blocks are seen to be empty.
    empty: BTreeMap<Block, Instant>,
    quarantine: Quarantine,
    failures: u32,
    pause: Option<Pause>,
    figures: watch::Sender<Figures>,
    /// When an event about the domain was sent.
    told: Option<Instant>,
    /// The claim of another size that was reported.
    odd: Option<Block>,
}

/// The API server is not asked again for some time.
struct Pause {
    /// Without an ADD that waits.
    until: Instant,
    /// With one.
    short: Instant,
    why: String,
    /// [`Trouble::Refused`].
    is_refused: bool,
}

/// Why a network gets no block.
enum Trouble {
    /// The configuration contradicts that of other nodes.
    Refused(String),
    /// The API server or the disk does not work.
    Failed(Error),
}

impl Trouble {
    fn failure(&self) -> Failure {
        match self {
            Trouble::Refused(why) => failure(Code::InvalidConfig, why.clone()),
            Trouble::Failed(error) => failure(Code::TryAgainLater, format!("{error:#}")),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Failed(error)
    }
}

impl Keeper {
    pub(super) fn new(
        api: Arc<Api>,
        kept: Kept,
        boot: String,
        times: Times,
        figures: watch::Sender<Figures>,
    ) -> Keeper {
        Keeper {
            api,
            kept,
            boot,
            times,
            claims: Vec::new(),
            compared: None,
            listed: None,
            joined: None,
            empty: BTreeMap::new(),
            quarantine: Quarantine::default(),
            failures: 0,
            pause: None,
            figures,
            told: None,
            odd: None,
        }
    }

    /// Runs until the senders are gone.
    pub(super) async fn run(mut self, mut asks: mpsc::Receiver<Ask>) {
        let mut next = Instant::now();
        loop {
            let mut waiting = Vec::new();
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => waiting.push(ask),
                    None => return,
                },
                () = sleep_until(next) => {}
            }
            // All that wait together are served by one look.
            while let Ok(ask) = asks.try_recv() {
                waiting.push(ask);
            }
            self.serve(waiting).await;
            next = Instant::now() + self.times.look;
        }
    }

    async fn serve(&mut self, waiting: Vec<Ask>) {
        let mut served = Vec::new();
        for ask in waiting {
            match self.configure(&ask.network).await {
                Ok(()) => served.push(ask),
                Err(failure) => drop(ask.answer.send(Err(failure))),
            }
        }
        let trouble = self.turn(&served).await.err();
        let state = self.situations(&served).await;
        self.publish(state.as_ref().map_or(&[], Vec::as_slice), trouble.as_ref());
        for ask in served {
            let outcome = state.as_ref().map_err(|error| failure(Code::Io, format!("{error:#}")));
            let outcome = outcome.and_then(|sets| self.satisfied(&ask.needs, sets, trouble.as_ref()));
            // The plugin may have given up.
            let _ = ask.answer.send(outcome);
        }
    }

    /// What metrics and events say of the network.
    fn publish(&mut self, sets: &[Situation], trouble: Option<&Trouble>) {
        let ledger = &self.kept.ledger;
        let problem = trouble.map(|trouble| trouble.failure().msg);
        let row = Row::new(ledger, &self.boot, sets, &self.claims, problem);
        let name = &ledger.network.network;
        self.figures.send_if_modified(|figures| figures.set(name, row.clone()));
        let is_told = self.told.is_some_and(|at| at.elapsed() < EVENTS);
        if row.is_scarce && row.problem.is_none() && !is_told {
            self.told = Some(Instant::now());
            let (api, domain) = (self.api.clone(), ledger.network.domain.clone());
            // No ADD waits for it.
            tokio::spawn(async move {
                if let Err(error) = api.tell_scarcity(&domain, row.unclaimed).await {
                    log!("create an event about the domain {domain}: {error:#}");
                }
            });
        }
    }

    /// Takes over what an ADD says of the network.
    async fn configure(&mut self, network: &Network) -> Result<(), Failure> {
        let ours = &self.kept.ledger.network;
        if ours == network {
            return Ok(());
        }
        let moves = (&ours.domain, &ours.data_dir) != (&network.domain, &network.data_dir);
        if moves && self.kept.ledger.states().next().is_some() {
            let text = format!("network {:?} has blocks of the domain {:?}", network.network, ours.domain);
            return Err(failure(Code::InvalidConfig, text));
        }
        if moves || ours.fixed() != network.fixed() {
            self.join(network).await.map_err(|trouble| trouble.failure())?;
        }
        if moves {
            (self.claims, self.listed) = (Vec::new(), None);
        }
        self.pause = None;
        let network = network.clone();
        let changed = self.kept.change(move |ledger, _| ledger.network = network).await;
        changed.map_err(|error| failure(Code::Io, format!("{error:#}")))
    }

    /// Takes the steps that are due. The API server is not asked during a pause.
    async fn turn(&mut self, waiting: &[Ask]) -> Result<(), Trouble> {
        let begin = Instant::now();
        if let Some(Pause { until, short, why, is_refused }) = &self.pause
            && begin < if waiting.is_empty() { *until } else { *short }
        {
            return Err(if *is_refused {
                Trouble::Refused(why.clone())
            } else {
                Trouble::Failed(anyhow!("{why}"))
            });
        }
        let former = self.kept.ledger.clone();
        let outcome = self.work(waiting).await;
        if self.kept.ledger != former {
            // Some requests are carried out.
            self.failures = 0;
        }
        match &outcome {
            Err(trouble) => {
                let [least, most] = PAUSE;
                let (why, now) = (trouble.failure().msg, Instant::now());
                if self.failures == 0 {
                    log!("network {}: {why}", self.kept.ledger.network.network);
                }
                let time = least.saturating_mul(1 << self.failures.min(10)).min(most);
                self.failures = self.failures.saturating_add(1);
                // One that hangs is not asked more often than it answers.
                let short = now + least.max(now - begin);
                let is_refused = matches!(trouble, Trouble::Refused(_));
                self.pause = Some(Pause { until: now + time, short, why, is_refused });
            }
            Ok(()) => (self.failures, self.pause) = (0, None),
        }
        outcome
    }

    async fn work(&mut self, waiting: &[Ask]) -> Result<(), Trouble> {
        let network = self.kept.ledger.network.clone();
        if self.kept.ledger.boot != self.boot {
            self.check_own_node().await?;
        }
        let is_due = |last: Option<Instant>, every| last.is_none_or(|at| at.elapsed() >= every);
        let crowd = u32::try_from(self.claims.len()).unwrap_or(u32::MAX) / CROWD;
        if is_due(self.listed, self.times.compare.saturating_mul(crowd + 1)) {
            self.list().await?;
        } else if is_due(self.compared, self.times.compare) {
            let claims = self.api.list_own(&network.domain).await?;
            self.compare(claims).await?;
        }
        if self.joined.as_ref() != Some(&(network.domain.clone(), network.fixed())) {
            self.join(&network).await?;
        }
        self.report_odd(&network);
        // The API server may let this node claim no further block, for as long as it has all of these.
        let claimed = self.claim_all(waiting).await;
        self.close_unneeded(waiting).await?;
        self.give_back_closed().await?;
        Ok(claimed?)
    }

    async fn claim_all(&mut self, waiting: &[Ask]) -> Result<()> {
        self.claim_addresses(waiting).await?;
        for set in 0..self.kept.ledger.network.sets.len() {
            self.claim_for(set, waiting).await?;
        }
        Ok(())
    }

    /// Reports a claim of another size than the domain's object says, once.
    fn report_odd(&mut self, network: &Network) {
        let ranges: Vec<_> = network.ranges().cloned().collect();
        let odd = plan::contradiction(&ranges, &self.claims);
        let known = odd.map(|claim| claim.block);
        if let Some(Claim { block, node, .. }) = odd.filter(|_| known != self.odd) {
            let name = block.name(&network.domain);
            let message = format!(
                "{name} is no block of its domain, whose blocks have another size: nodes leave out its addresses"
            );
            log!("network {}: node {node:?}: {message}", network.network);
            self.api.tell(node, "AddressBlockOdd", name, message);
        }
        self.odd = known;
    }

    /// Makes sure that the domain's object has the network's ranges.
    async fn join(&mut self, network: &Network) -> Result<(), Trouble> {
        match self.api.join(&network.domain, &network.fixed()).await {
            Ok(()) => self.joined = Some((network.domain.clone(), network.fixed())),
            Err(Unusable::Contradiction(why)) => return Err(Trouble::Refused(why)),
            Err(Unusable::Failed(error)) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reads the list of all claims.
    async fn list(&mut self) -> Result<()> {
        let claims = self.api.list(&self.kept.ledger.network.domain).await?;
        self.claims.clone_from(&claims);
        self.compare(claims).await?;
        self.listed = Some(Instant::now());
        Ok(())
    }

    /// The step *compare*. The list has at least this node's claims.
    async fn compare(&mut self, claims: Vec<Claim>) -> Result<()> {
        let domain = self.kept.ledger.network.domain.clone();
        let claims = self.renew(claims).await?;
        let (store, boot) = (self.api.store().to_owned(), self.boot.clone());
        let changes = self.kept.change(move |ledger, used| {
            let changes = ledger.compare(&claims, &store, &boot, |block| {
                used.range(block.first..=block.last()).next().is_some()
            });
            let of = |block: Block| {
                let some = used.range(block.first..=block.last()).take(NAMED).map(IpAddr::to_string);
                some.collect::<Vec<_>>().join(", ")
            };
            changes.into_iter().map(|change| (change, of(change.block()))).collect::<Vec<_>>()
        });
        let changes = changes.await?;
        self.compared = Some(Instant::now());
        for (change, ips) in changes {
            let (network, name) = (&self.kept.ledger.network.network, change.block().name(&domain));
            let what = match change {
                Change::Adopted(_) => "the API server has it for this node".to_owned(),
                Change::Gone(_) => "the API server has it no longer".to_owned(),
                Change::Lost(_) => format!(
                    "the API server has it no longer for this node, but containers still have addresses of it: another node may give them too: {ips}"
                ),
            };
            log!("network {network}: block {name}: {what}");
            if matches!(change, Change::Lost(_)) {
                let message = format!("block {name} of network {network}: {what}");
                self.api.tell(self.api.node(), "AddressesLost", message.clone(), message);
            }
        }
        Ok(())
    }
}

pub(super) fn failure(code: Code, msg: String) -> Failure {
    Failure { code: code.number(), msg }
}
