//! The daemon: one task for each resource, the driver, and a loop that keeps their lists true.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ferrule_kernel::file;
use ferrule_kubelet::SOCKET;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::arguments::Options;
use crate::config::Config;
use crate::discovery::{Event, Watch};
use crate::dra;
use crate::dra::driver::{self, Driver};
use crate::health::Millis;
use crate::plan::{Offer, Plan};
use crate::serve::{Served, keep_registered, name_pods, watch_folder};
use crate::tracker::Tracker;

/// How long changes are collected before a new list goes out.
const WINDOW: Millis = 20;
/// How long the sockets may take to close.
const END: Duration = Duration::from_secs(2);

/// The most bytes of a socket's path (`sun_path` in linux/un.h, with a zero byte).
const MAX_SOCKET_PATH: usize = 107;

/// Runs until SIGTERM. SIGHUP reads the configuration anew.
pub async fn run(config: Config, options: &Options) -> io::Result<()> {
    let mut signals =
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
    let mut watch = Watch::open()?;
    let mut tracker = Tracker::start(config, options, &watch).await?;
    let clock = Instant::now();
    while let Some(config) = serve(&mut tracker, &mut watch, &mut signals, options, clock).await? {
        tracker.config = config;
    }
    Ok(())
}

/// Serves the resources of one configuration. Returns the next one, or `None` at the end.
async fn serve(
    tracker: &mut Tracker,
    watch: &mut Watch,
    [terminate, interrupt, hang_up]: &mut [Signal; 3],
    options: &Options,
    clock: Instant,
) -> io::Result<Option<Config>> {
    let now = || u64::try_from(clock.elapsed().as_millis()).unwrap_or(Millis::MAX);
    let mut plan = tracker.plan(now());
    warn(&Plan::default(), &plan);
    let (stop, stopped) = watch::channel(false);
    let (allocated, allocations) = watch::channel(0);
    let changes = watch_folder(options.device_plugins.clone());
    let mut lists = Vec::new();
    let mut resources = Vec::new();
    for (resource, offers) in tracker.config.resources.iter().zip(&plan.offers) {
        let (list, offers) = watch::channel(offers.clone());
        lists.push(list);
        let (resource, folder) = (resource.clone(), options.device_plugins.clone());
        resources.push(Arc::new(Served { resource, offers, folder, allocated: allocated.clone() }));
    }
    drop(allocated);
    let (nics, receiver) = watch::channel(Arc::new(plan.nics.clone()));
    let driver =
        tracker.config.dra.as_ref().map(|dra| Arc::new(Driver::new(dra.driver(), options, receiver)));
    let mut tasks = JoinSet::new();
    if let Some(driver) = &driver {
        tasks.spawn(driver.clone().serve(stopped.clone()));
    }
    let names = tracker.config.resources.iter().map(|resource| resource.name.clone()).collect();
    let pods = name_pods(options.kubelet.join(SOCKET), names, allocations);
    tasks.spawn(lead(driver, resources, changes, stopped, pods));

    let mut changed = None;
    let next = loop {
        let due = tracker.next().into_iter().chain(changed).min();
        let due = due.map(|due| clock + Duration::from_millis(due));
        tokio::select! {
            event = watch.next() => {
                changed = changed.or(Some(now() + WINDOW));
                match event {
                    Some(Event::Change(change)) => tracker.apply(*change),
                    Some(Event::Lost) => {
                        log!("the kernel has thrown messages away: reads all links and buses anew");
                        let former = std::mem::replace(watch, Watch::open()?);
                        former.rest().await.into_iter().for_each(|change| tracker.apply(change));
                        tracker.resync(watch).await?;
                    }
                    None => return Err(io::Error::other("the connection to rtnetlink broke")),
                }
            }
            () = sleep_until(due.unwrap_or(clock)), if due.is_some() => {
                changed = None;
                let new = tracker.plan(now());
                publish(&tracker.config, &plan, &new, &lists);
                nics.send_if_modified(|nics| {
                    let is_new = **nics != new.nics;
                    *nics = Arc::new(new.nics.clone());
                    is_new
                });
                plan = new;
            }
            _ = hang_up.recv() => match read(options) {
                Ok(config) => break Some(config),
                Err(error) => log!("keeps the former configuration: {error}"),
            },
            _ = terminate.recv() => break None,
            _ = interrupt.recv() => break None,
        }
    };
    stop.send_replace(true);
    let _ = timeout(END, async { while tasks.join_next().await.is_some() {} }).await;
    Ok(next)
}

/// What one instance of the daemon does alone: it keeps the resources registered, and publishes the driver's devices.
async fn lead(
    driver: Option<Arc<Driver>>,
    resources: Vec<Arc<Served>>,
    changes: watch::Receiver<u64>,
    mut stop: watch::Receiver<bool>,
    pods: impl Future<Output = ()> + Send + 'static,
) {
    let mut tasks = JoinSet::new();
    let _lock = match driver {
        None => None,
        Some(driver) => {
            let lock = tokio::select! {
                lock = dra::lead(driver.folder()) => lock,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let mut stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = driver.lead() => {}
                    _ = stop.wait_for(|stop| *stop) => {}
                }
            });
            Some(lock)
        }
    };
    for served in resources {
        tasks.spawn(keep_registered(served, changes.clone(), stop.clone()));
    }
    drop((changes, stop));
    tokio::spawn(pods);
    while tasks.join_next().await.is_some() {}
}

/// Reads the configuration. An error names the file.
pub fn read(options: &Options) -> Result<Config, String> {
    let path = options.config.display();
    let text = file::read_named_text(&options.config).map_err(|error| format!("{path}: {error}"))?;
    let config = Config::parse(&text).map_err(|error| format!("{path}: {error}"))?;
    let sockets = config.resources.iter().map(|resource| options.device_plugins.join(resource.socket_name()));
    let of_driver = config.dra.iter().flat_map(|dra| driver::sockets(&options.kubelet, dra.driver()));
    match sockets.chain(of_driver).find(|socket| socket.as_os_str().len() > MAX_SOCKET_PATH) {
        Some(socket) => {
            Err(format!("the path of a socket has more than {MAX_SOCKET_PATH} bytes: {}", socket.display()))
        }
        None => Ok(config),
    }
}

/// Sends the lists that are different, and says what has changed.
fn publish(config: &Config, old: &Plan, new: &Plan, lists: &[watch::Sender<Vec<Offer>>]) {
    warn(old, new);
    for (position, resource) in config.takers().enumerate() {
        let (before, after) = (&old.offers[position], &new.offers[position]);
        if before == after {
            continue;
        }
        let find =
            |offers: &[Offer], id: &str| offers.binary_search_by(|offer| offer.id.as_str().cmp(id)).ok();
        for offer in after {
            let former = find(before, &offer.id).map(|at| &before[at].problem);
            match (former, &offer.problem) {
                (None, _) => log!("{}: device {}: new, {}", resource.name, offer.id, offer.what),
                (Some(former), problem) if former == problem => {}
                (_, Some(problem)) => log!("{}: device {}: unhealthy: {problem}", resource.name, offer.id),
                (_, None) => log!("{}: device {}: healthy, {}", resource.name, offer.id, offer.what),
            }
        }
        for offer in before.iter().filter(|offer| find(after, &offer.id).is_none()) {
            log!("{}: device {}: no longer advertised", resource.name, offer.id);
        }
        let Some(list) = lists.get(position) else { continue };
        list.send_if_modified(|list| {
            list.clone_from(after);
            !before.iter().map(Offer::reported).eq(after.iter().map(Offer::reported))
        });
    }
}

fn warn(old: &Plan, new: &Plan) {
    for overlap in new.overlaps.iter().filter(|overlap| !old.overlaps.contains(overlap)) {
        let (id, first, other) = overlap;
        log!("warning: device {id} belongs to {first}, although {other} selects it too");
    }
}
