//! The leases of the daemon, and what the plugin asks for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use cni_common::spec::Code;
use ferrule_dhcp::wire::{Answer, Failure, Key, Lease, Operation, PROTOCOL, Request};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::link::Interface;
use crate::machine::{NO_MORE_TRIES, Timing};
use crate::message::name;
use crate::store::{State, Store};
use crate::supervisor::{self, INTERNAL};
use crate::worker::{Start, Status, Task};

/// How long DEL and GC wait for RELEASE to be sent. Opening and closing sockets takes milliseconds.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Entry {
    status: watch::Receiver<Status>,
    /// True once the lease has to end. It stays true if the lease's task panics.
    stop: watch::Sender<bool>,
}

/// The daemon. It runs in one thread.
pub(crate) struct Daemon {
    timing: Timing,
    store: Rc<Store>,
    /// Put before the path of each namespace.
    prefix: String,
    /// Ask servers to broadcast, also if the configuration does not say so.
    broadcast: bool,
    leases: RefCell<BTreeMap<Key, Entry>>,
}

impl Daemon {
    pub(crate) fn new(timing: Timing, store: Store, prefix: String, broadcast: bool) -> Rc<Self> {
        Rc::new(Daemon { timing, store: Rc::new(store), prefix, broadcast, leases: RefCell::default() })
    }

    /// Takes a lease up again after a restart.
    pub(crate) fn resume(self: &Rc<Self>, state: State) {
        self.start(state.key.clone(), Start::Resume(Box::new(state)));
    }

    /// Answers a request.
    pub(crate) async fn answer(self: &Rc<Self>, request: Request) -> Answer {
        let outcome = match request.ferrule_dhcp {
            PROTOCOL => self.perform(request).await,
            theirs => Err(failure(
                Code::Internal,
                format!(
                    "the plugin speaks version {theirs} of the protocol, ferrule-dhcp version {PROTOCOL}; install both of one release"
                ),
            )),
        };
        let (lease, error) = outcome.map_or_else(|failure| (None, Some(failure)), |lease| (lease, None));
        Answer { ferrule_dhcp: PROTOCOL, error, lease }
    }

    async fn perform(self: &Rc<Self>, request: Request) -> Result<Option<Lease>, Failure> {
        let path = PathBuf::from(format!("{}{}", self.prefix, request.netns));
        match request.operation {
            Operation::Ping => Ok(None),
            Operation::Acquire => self.acquire(request, path).await.map(Some),
            Operation::Show => self.show(&request.key, &path).await.map(Some),
            Operation::Release => self.release(vec![request.key]).await,
            Operation::Collect => {
                let is_valid = |key: &Key| {
                    request.valid.iter().any(|(id, ifname)| *id == key.container_id && *ifname == key.ifname)
                };
                let is_lost = |key: &&Key| key.network == request.key.network && !is_valid(key);
                let lost: Vec<Key> = self.leases.borrow().keys().filter(is_lost).cloned().collect();
                self.release(lost).await
            }
        }
    }

    /// ADD. A second one for the same interface gets the lease that it has.
    async fn acquire(self: &Rc<Self>, request: Request, path: PathBuf) -> Result<Lease, Failure> {
        let limit = self.timing.limit.min(request.wait);
        let Request { key, mut options, .. } = request;
        options.broadcast |= self.broadcast;
        let mut has_started = false;
        loop {
            let entry = self.leases.borrow().get(&key).cloned();
            let Some(mut entry) = entry else {
                let start = Start::Acquire { path: path.clone(), options: options.clone(), limit };
                self.start(key.clone(), start);
                has_started = true;
                continue;
            };
            // Tasks limit themselves: this wait ends with Status::Ended at the latest.
            let status = entry.status.wait_for(|status| !matches!(status, Status::Acquiring)).await;
            let status = status.map(|status| status.clone());
            match status {
                Ok(Status::Bound(lease, interface)) if has_started || is_at(&interface, &path).await? => {
                    return Ok(*lease);
                }
                Ok(Status::Ended(why)) if has_started => return Err(failed(&why)),
                _ => {}
            }
            // The container's ID was used before, for another namespace or interface; or the lease ends just now.
            self.release(vec![key.clone()]).await?;
        }
    }

    /// CHECK.
    async fn show(&self, key: &Key, path: &Path) -> Result<Lease, Failure> {
        let status = self.leases.borrow().get(key).map(|entry| entry.status.borrow().clone());
        match status {
            Some(Status::Bound(lease, interface)) if is_at(&interface, path).await? => Ok(*lease),
            Some(Status::Bound(..)) => {
                let msg = format!(
                    "the lease of {} belongs to another namespace than {}, or to an interface that is gone",
                    name(key),
                    path.display()
                );
                Err(failure(Code::Internal, msg))
            }
            _ => Err(failure(Code::Internal, format!("no lease for {}", name(key)))),
        }
    }

    /// DEL and GC. A lease that does not exist is released, and leaves no file.
    async fn release(&self, keys: Vec<Key>) -> Result<Option<Lease>, Failure> {
        let entries: Vec<Entry> =
            keys.iter().filter_map(|key| self.leases.borrow().get(key).cloned()).collect();
        for entry in &entries {
            entry.stop.send_replace(true);
        }
        let ended = async {
            for mut entry in entries {
                // An error: the task has ended.
                let _ = entry.status.wait_for(|status| matches!(status, Status::Ended(_))).await;
            }
        };
        let late =
            |_| failure(Code::TryAgainLater, format!("not released within {} s", RELEASE_WAIT.as_secs()));
        timeout(RELEASE_WAIT, ended).await.map_err(late)?;
        // The task may have failed to. Another ADD may have begun meanwhile.
        for key in keys.iter().filter(|key| !self.leases.borrow().contains_key(key)) {
            let stays =
                |error| failure(Code::Io, format!("the lease's file of {} stays: {error}", name(key)));
            self.store.remove(key).map_err(stays)?;
        }
        Ok(None)
    }

    fn start(self: &Rc<Self>, key: Key, start: Start) {
        let (sender, status) = watch::channel(start.status());
        let (stop, stopped) = watch::channel(false);
        self.leases.borrow_mut().insert(key.clone(), Entry { status, stop });
        let (daemon, sender) = (Rc::clone(self), Rc::new(sender));
        let (store, status) = (Rc::clone(&self.store), Rc::clone(&sender));
        let task = Task { key: key.clone(), timing: self.timing, store, status, stop: stopped };
        spawn_local(async move {
            // A task of its own: the lease leaves the list also if the supervisor panics.
            let why = spawn_local(supervisor::run(task, start)).await;
            // First out of the list: who waits for the end may start anew.
            daemon.leases.borrow_mut().remove(&key);
            sender.send_replace(Status::Ended(why.unwrap_or_else(|_| INTERNAL.to_owned())));
        });
    }
}

async fn is_at(interface: &Interface, path: &Path) -> Result<bool, Failure> {
    interface
        .is_at(path)
        .await
        .map_err(|error| failed(&format!("failed to look at {}: {error}", path.display())))
}

fn failure(code: Code, msg: String) -> Failure {
    Failure { code: code.number(), msg }
}

/// The failure of ADD.
fn failed(why: &str) -> Failure {
    let code = if why.starts_with(NO_MORE_TRIES) { Code::TryAgainLater } else { Code::Internal };
    failure(code, why.to_owned())
}
