//! The process: waits for changes of the cluster and of the kernel, and makes this node match the plan.

mod former;
mod report;
mod state;
mod voice;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ferrule_daemon::{Pauses, node_name};
use ferrule_kit::cluster::LOCK_FILE;
use ferrule_node_policy::ruleset::Entry;
use ferrule_policy_kit::ask::SOCKET_FILE;
use ferrule_policy_kit::isolated::{self, Isolated};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::state::State;
use crate::arguments::{Options, Policies, Switch};
use crate::plan_file::{Identity, Keeper};
use crate::policy::How;
use crate::proof::{self, Proofs};
use crate::{api, conflist, housekeeping, policy, serve};

/// How long changes are collected before a sync.
const WINDOW: Duration = Duration::from_millis(20);
/// The least time until the next sync that the kernel's messages cause: another program may undo our changes all the time.
const CALM: Duration = Duration::from_millis(200);
/// The time until a failed sync is tried again.
const RETRY: Pauses = Pauses::millis(1000, 60_000);
/// How long the first answer of the API server may take before the plan on disk counts.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most messages between two tasks.
const QUEUE: usize = 256;

/// Runs until SIGTERM. Routes, devices, table and conflist stay.
///
/// # Errors
/// The options or the kernel do not let it start.
pub async fn run(options: Options) -> Result<()> {
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let node = node_name(options.node_name.as_deref()).context("this node has no name: give --node-name")?;
    let Some(_lock) = alone(&options, &mut signals).await? else { return Ok(()) };
    let (figures, served) = watch::channel(serve::Figures::default());
    let (updates, mut update) = mpsc::channel(QUEUE);
    let (reports, report) = mpsc::channel(QUEUE);
    let identity = Identity::find(&node, &options.seen(&options.machine_id));
    if identity.is_none() {
        log!("this machine has no identifier: no plan is kept in {}", options.plan_file.display());
    }
    let (input, inputs) = watch::channel(proof::Input::default());
    let (found, mut proofs) = watch::channel(Proofs::none());
    let (probed, probes) = watch::channel(BTreeSet::new());
    let mut state =
        State::open(options.clone(), node.clone(), identity.clone(), reports, input, probed, figures)?;
    let mut keeper = Keeper::new(&options.plan_file, identity);
    let patience = Instant::now() + PATIENCE;
    log!("node {node}: starts, mode {}", state.mode());
    let mut tasks = JoinSet::new();
    let count = Arc::default();
    tasks.spawn(api::run(options.clone(), node.clone(), Arc::clone(&count), updates, report));
    tasks.spawn(serve::run(options.listen, served));
    tasks.spawn(proof::run(options.clone(), inputs, found));
    let mut policies = policies(&options, node, count, probes, &mut tasks)?;
    tasks.spawn(async move { housekeeping::run(&options).await });

    let [terminate, interrupt] = &mut signals;
    let (mut due, mut last, mut failures) = (None::<Instant>, Instant::now(), 0_u32);
    loop {
        let soon = |due: Option<Instant>, at: Instant| Some(due.map_or(at, |due| due.min(at)));
        let look = state.due().map(Instant::from_std);
        tokio::select! {
            Some(update) = update.recv() => {
                if state.apply(update) {
                    keeper.suspect();
                    due = soon(due, Instant::now() + WINDOW);
                }
            }
            () = sleep_until(patience), if state.waits() => {
                if state.remember() {
                    due = soon(due, Instant::now());
                }
            }
            () = keeper.due() => keeper.save(state.answer()),
            outcome = state.disturbed() => {
                outcome.context("follow the kernel's links and routes")?;
                due = soon(due, (last + CALM).max(Instant::now() + WINDOW));
            }
            report = said(&mut policies) => state.policies(report),
            Ok(()) = proofs.changed() => state.prove(proofs.borrow_and_update().clone()),
            () = sleep_until(due.unwrap_or(last)), if due.is_some() => {
                let is_complete = state.sync()?;
                last = Instant::now();
                failures = if is_complete { 0 } else { failures.saturating_add(1) };
                due = (!is_complete).then(|| last + RETRY.after(failures));
            }
            () = sleep_until(look.unwrap_or(last)), if look.is_some() => state.look_again(),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    log!("ends; routes, devices, table and conflist stay");
    tasks.shutdown().await;
    // Nobody sends any more, so it ends.
    if let Some(handle) = policies {
        handle.join();
    }
    keeper.finish(state.answer()).await;
    Ok(())
}

/// Starts the thread that enforces policies, and follows their objects for it.
fn policies(
    options: &Options,
    node: String,
    count: Arc<AtomicU32>,
    probed: watch::Receiver<BTreeSet<Entry>>,
    tasks: &mut JoinSet<()>,
) -> Result<Option<policy::Handle>> {
    let path = Path::new(isolated::PATH);
    if options.policy == Policies::Off {
        let is_listed = conflist::file::has(&options.conflist, "policy");
        let removed = policy::stand_down(path, is_listed);
        for what in removed.context("remove the policies of a former --policy on")? {
            log!("policy: removed {what}");
        }
        return Ok(None);
    }
    let is_dry = options.policy == Policies::Dry;
    if is_dry {
        // So a plugin that is still in a conflist isolates no pod.
        Isolated::default().write(path).with_context(|| path.display().to_string())?;
    }
    let (told, objects) = policy::objects::channel();
    let is_calm = policy::holds().unwrap_or_default();
    tasks.spawn(api::follow_objects(options.clone(), node, count, told, is_calm));
    let how = How { path: path.to_owned(), is_dry, logs: options.policy_log == Switch::On };
    let handle = policy::spawn(how, objects, probed)?;
    let (socket, questions) = (options.state.join(SOCKET_FILE), handle.questions.clone());
    tasks.spawn(async move { policy::questions::run(&socket, questions).await });
    Ok(Some(handle))
}

/// What the thread says next.
async fn said(policies: &mut Option<policy::Handle>) -> policy::Report {
    if let Some(handle) = policies
        && handle.report.changed().await.is_ok()
    {
        return handle.report.borrow_and_update().clone();
    }
    std::future::pending().await
}

/// Waits until no other daemon runs. `None` at a signal.
async fn alone(options: &Options, [terminate, interrupt]: &mut [Signal; 2]) -> Result<Option<File>> {
    fs::create_dir_all(&options.state).with_context(|| options.state.display().to_string())?;
    let path = options.state.join(LOCK_FILE);
    tokio::select! {
        lock = ferrule_daemon::alone(&path, "another ferrule-node runs: waits until it ends") => Ok(Some(lock?)),
        _ = terminate.recv() => Ok(None),
        _ = interrupt.recv() => Ok(None),
    }
}
