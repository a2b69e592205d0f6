//! The leases of the daemon, and what the plugin asks for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use cni_common::spec::Code;
use ferrule_dhcp::wire::{Answer, Failure, Key, Lease, Operation, PROTOCOL, Request};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::link::identity;
use crate::machine::{NO_MORE_TRIES, Timing};
use crate::message::name;
use crate::store::{Record, Store};
use crate::worker::{self, Start};

/// How long DEL and GC wait for RELEASE to be sent. Opening and closing sockets takes milliseconds.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// What a lease's task reports.
#[derive(Clone, Debug)]
pub(crate) enum Status {
    /// It looks for a lease.
    Acquiring,
    /// The container has this lease; device and inode of its namespace.
    Bound(Lease, (u64, u64)),
    /// The task has ended, because of this.
    Ended(String),
}

#[derive(Clone)]
struct Entry {
    status: watch::Receiver<Status>,
    stop: Rc<Notify>,
}

/// The daemon. It runs in one thread.
pub(crate) struct Daemon {
    pub(crate) timing: Timing,
    pub(crate) store: Store,
    /// Put before the path of each namespace.
    pub(crate) prefix: String,
    /// Ask servers to broadcast, also if the configuration does not say so.
    pub(crate) broadcast: bool,
    leases: RefCell<BTreeMap<Key, Entry>>,
}

impl Daemon {
    pub(crate) fn new(timing: Timing, store: Store, prefix: String, broadcast: bool) -> Rc<Self> {
        Rc::new(Daemon { timing, store, prefix, broadcast, leases: RefCell::default() })
    }

    /// Takes a lease up again after a restart, or drops it if its namespace is gone.
    pub(crate) fn resume(self: &Rc<Self>, record: Record) {
        if record.sandbox.exists() {
            self.start(record.key.clone(), Start::Resume(Box::new(record)));
            return;
        }
        eprintln!("{}: the namespace is gone, dropping the lease", name(&record.key));
        if let Err(error) = self.store.remove(&record.key) {
            eprintln!("{}: the lease's file stays: {error}", name(&record.key));
        }
    }

    /// Answers a request.
    pub(crate) async fn answer(self: &Rc<Self>, request: Request) -> Answer {
        let outcome = if request.ferrule_dhcp == PROTOCOL {
            self.perform(request).await
        } else {
            let theirs = request.ferrule_dhcp;
            let msg = format!(
                "the plugin speaks version {theirs} of the protocol, ferrule-dhcp version {PROTOCOL}; install both of one release"
            );
            Err(failure(Code::Internal, msg))
        };
        let (lease, error) = match outcome {
            Ok(lease) => (lease, None),
            Err(failure) => (None, Some(failure)),
        };
        Answer { ferrule_dhcp: PROTOCOL, error, lease }
    }

    async fn perform(self: &Rc<Self>, request: Request) -> Result<Option<Lease>, Failure> {
        let path = PathBuf::from(format!("{}{}", self.prefix, request.netns));
        match request.operation {
            Operation::Ping => Ok(None),
            Operation::Acquire => self.acquire(request, path).await.map(Some),
            Operation::Show => self.show(&request.key, &path).map(Some),
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
            match status.as_deref() {
                Ok(Status::Bound(lease, netns)) if identity(&path) == Some(*netns) => {
                    return Ok(lease.clone());
                }
                Ok(Status::Ended(why)) if has_started => return Err(failed(why)),
                Err(_) if has_started => return Err(failed("internal error; see the daemon's log")),
                _ => {}
            }
            drop(status);
            // The container's ID was used before, in another namespace; or the lease ends just now.
            self.release(vec![key.clone()]).await?;
        }
    }

    /// CHECK.
    fn show(&self, key: &Key, path: &std::path::Path) -> Result<Lease, Failure> {
        let leases = self.leases.borrow();
        let status = leases.get(key).map(|entry| entry.status.borrow().clone());
        match status {
            Some(Status::Bound(lease, netns)) if identity(path) == Some(netns) => Ok(lease),
            Some(Status::Bound(..)) => {
                let msg = format!(
                    "the lease of {} belongs to another namespace than {}",
                    name(key),
                    path.display()
                );
                Err(failure(Code::Internal, msg))
            }
            _ => Err(failure(Code::Internal, format!("no lease for {}", name(key)))),
        }
    }

    /// DEL and GC. A lease that does not exist is released.
    async fn release(&self, keys: Vec<Key>) -> Result<Option<Lease>, Failure> {
        let entries: Vec<Entry> =
            keys.iter().filter_map(|key| self.leases.borrow().get(key).cloned()).collect();
        for entry in &entries {
            entry.stop.notify_one();
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
        Ok(None)
    }

    fn start(self: &Rc<Self>, key: Key, start: Start) {
        let (sender, status) = watch::channel(Status::Acquiring);
        let stop = Rc::new(Notify::new());
        self.leases.borrow_mut().insert(key.clone(), Entry { status, stop: Rc::clone(&stop) });
        let registration = Registration { daemon: Rc::clone(self), key };
        tokio::task::spawn_local(async move {
            let Registration { daemon, key } = &registration;
            let why = worker::run(daemon, key, start, &sender, &stop).await;
            // First out of the list: who waits for the end may start anew.
            drop(registration);
            sender.send_replace(Status::Ended(why));
        });
    }
}

/// Removes a lease from the list, even if its task panics.
struct Registration {
    daemon: Rc<Daemon>,
    key: Key,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.daemon.leases.borrow_mut().remove(&self.key);
    }
}

fn failure(code: Code, msg: String) -> Failure {
    Failure { code: code.number(), msg }
}

/// The failure of ADD.
fn failed(why: &str) -> Failure {
    let code = if why.starts_with(NO_MORE_TRIES) { Code::TryAgainLater } else { Code::Internal };
    failure(code, why.to_owned())
}
