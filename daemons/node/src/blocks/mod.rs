//! `ferrule-node blocks`: claims blocks of addresses for the plugin `shared`.
//!
//! - `object` has the objects of the API server, `api` the requests.
//! - `fence` reads from a Node whether its machine is off.
//! - `folder` has the ledgers, which the plugin reads.
//! - `network` keeps the blocks of one network.
//! - [`import`] claims the blocks in which `whereabouts` has addresses.
//! - `server` answers the plugin, and `figures` Prometheus.
//!
//! It is a process of its own: networks that many nodes share are second networks of pods, on clusters whose first network is another
//! one, where the daemon of the node's network does not run. It changes nothing in the kernel; it asks by ARP and ND whether addresses are used.

mod api;
pub(crate) mod decoders;
mod fence;
mod figures;
mod folder;
pub mod import;
mod network;
mod object;
mod server;
mod whereabouts;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cni_common::line::Line;
use cni_common::spec::Code;
use ferrule_blocks::ledger::{Ledger, Network};
use ferrule_blocks::plan::{Patience, hint};
use ferrule_blocks::wire::{Failure, Foreign, Request};
use ferrule_daemon::{asked, node_name};
use ferrule_kernel::netlink::Mac;
use ferrule_kernel::sysctl;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use self::api::Api;
use self::figures::Figures;
use self::folder::{Folder, Kept};
use self::network::{Ask, Keeper, Times, failure};
use self::object::Claimant;
use crate::arguments::{Blocks, Options};
use crate::plan_file::Identity;
use crate::serve;

/// The most networks of a node.
const NETWORKS: usize = 256;
/// The most ADDs that wait for one network.
const QUEUE: usize = 1024;

/// The most addresses of a report.
const OWNERS: usize = 16;

/// Runs until SIGTERM. The blocks stay.
///
/// # Errors
/// The folder or the socket cannot be used.
pub async fn run(options: Options, blocks: Blocks) -> Result<()> {
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let node = node_name(options.node_name.as_deref()).context("this node has no name: give --node-name")?;
    let machine = Identity::find(&node, &options.seen(&options.machine_id)).map(Identity::into_machine);
    let machine = machine.unwrap_or_default();
    let folder = Folder::open(&blocks.ledgers, &machine)?;
    let boot = sysctl::boot_id();
    if boot.is_empty() {
        bail!("the kernel does not tell the ID of this boot");
    }
    let store = folder.store.clone();
    log!("node {node}: claims blocks for the store {store}");
    let seconds = Duration::from_secs;
    let times = Times {
        // Up to a quarter more or less, so that the nodes do not all ask at once.
        compare: seconds(blocks.compare_every)
            .mul_f64(0.75 + f64::from((hint(&node, "") % 512) as u16) / 1024.0),
        look: seconds(1).min(seconds(blocks.keep_scarce)),
        patience: Patience { usual: seconds(blocks.keep_empty), scarce: seconds(blocks.keep_scarce) },
        quarantine: seconds(blocks.quarantine),
    };
    let api = Arc::new(Api::new(options, Claimant { node, machine, store, boot: boot.clone() }));
    let figures = watch::Sender::new(Figures::default());
    let pages = tokio::spawn(serve::run(blocks.metrics, figures.subscribe()));
    let mut keepers = Keepers { folder, api, boot, times, figures, queues: HashMap::new() };
    for ledger in keepers.folder.load()? {
        keepers.start(ledger);
    }
    let (requests, mut request) = mpsc::channel(QUEUE);
    let server = asked::listen(&blocks.socket)?;
    let server = tokio::spawn(server::run(server, requests));
    let [terminate, interrupt] = &mut signals;
    loop {
        tokio::select! {
            Some((request, answer)) = request.recv() => keepers.pass(request, answer),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    server.abort();
    pages.abort();
    log!("ends; the blocks stay");
    Ok(())
}

/// Where the answer to a request goes.
type Reply = oneshot::Sender<Result<(), Failure>>;

/// The tasks of the networks.
struct Keepers {
    folder: Folder,
    api: Arc<Api>,
    boot: String,
    times: Times,
    figures: watch::Sender<Figures>,
    queues: HashMap<String, mpsc::Sender<Ask>>,
}

impl Keepers {
    /// Starts the task of a network.
    fn start(&mut self, ledger: Ledger) -> mpsc::Sender<Ask> {
        let (sender, asks) = mpsc::channel(QUEUE);
        let (name, path) = (ledger.network.network.clone(), self.folder.path_of(&ledger.network));
        let told = self.figures.clone();
        let keeper =
            Keeper::new(self.api.clone(), Kept { ledger, path }, self.boot.clone(), self.times, told);
        tokio::spawn(keeper.run(asks));
        self.queues.insert(name, sender.clone());
        sender
    }

    /// Passes a request on to the task of its network.
    fn pass(&mut self, request: Request, answer: Reply) {
        if let Some(foreign) = request.foreign {
            self.report(&foreign);
        }
        let Some(network) = request.network else {
            let _ = answer.send(Ok(()));
            return;
        };
        if let Err((refusal, answer)) = self.queue(network, request.needs, answer) {
            // The plugin may have given up.
            let _ = answer.send(Err(refusal));
        }
    }

    /// Makes an event for each address that another host has, once.
    fn report(&self, Foreign { network, owners }: &Foreign) {
        for (ip, mac) in owners.iter().take(OWNERS) {
            let (fault, mac) = (format!("{network} {ip}"), Mac(*mac));
            let message = Line::new(format_args!(
                "network {network}: {ip} answers on the link, from {mac}; ADD has put it aside"
            ));
            self.api.tell(self.api.node(), "AddressesInUse", fault, message.to_string());
        }
    }

    fn queue(
        &mut self,
        network: Network,
        needs: Vec<ferrule_blocks::wire::Need>,
        answer: Reply,
    ) -> Result<(), (Failure, Reply)> {
        if let Err(why) = network.check() {
            return Err((failure(Code::InvalidConfig, why), answer));
        }
        let queue = match self.queues.get(&network.network) {
            Some(queue) => queue.clone(),
            None if self.queues.len() >= NETWORKS => {
                return Err((
                    failure(Code::TryAgainLater, format!("this node has {NETWORKS} networks")),
                    answer,
                ));
            }
            None if self.folder.path_of(&network).exists() => {
                let text = format!("the ledger of network {:?} cannot be read", network.network);
                return Err((failure(Code::Io, text), answer));
            }
            None => self.start(Ledger::new(network.clone())),
        };
        queue.try_send(Ask { network, needs, answer }).map_err(|error| {
            let (mpsc::error::TrySendError::Full(ask) | mpsc::error::TrySendError::Closed(ask)) = error;
            (failure(Code::TryAgainLater, "too many ADDs wait for an address".to_owned()), ask.answer)
        })
    }
}
