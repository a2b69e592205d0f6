//! The leases of the daemon, and what the plugin asks for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use cni_common::spec::Code;
use ferrule_dhcp::wire::{Answer, Failure, Family, Key, Lease, Operation, PROTOCOL, Request};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio::try_join;

use crate::action::Timing;
use crate::binding::{Id, Wishes};
use crate::link::{Interface, Ipv6};
use crate::machine::NO_MORE_TRIES;
use crate::store::{Store, StoredLease};
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
    leases: RefCell<BTreeMap<Id, Entry>>,
}

impl Daemon {
    pub(crate) fn new(timing: Timing, store: Store, prefix: String, broadcast: bool) -> Rc<Self> {
        Rc::new(Daemon { timing, store: Rc::new(store), prefix, broadcast, leases: RefCell::default() })
    }

    /// Takes a lease up again after a restart.
    pub(crate) fn resume(self: &Rc<Self>, state: StoredLease) {
        self.start(state.id(), Start::Resume(Box::new(state)));
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
        let mut answer =
            outcome.unwrap_or_else(|failure| Answer { error: Some(failure), ..Answer::default() });
        answer.ferrule_dhcp = PROTOCOL;
        answer
    }

    async fn perform(self: &Rc<Self>, mut request: Request) -> Result<Answer, Failure> {
        if request.families.is_empty() {
            request.families.push(Family::Ipv4);
        }
        let path = PathBuf::from(format!("{}{}", self.prefix, request.netns));
        match request.operation {
            Operation::Ping => Ok(Answer::default()),
            Operation::Acquire => self.acquire(request, &path).await,
            Operation::Show => {
                let mut answer = Answer::default();
                for family in request.families {
                    let id = Id { key: request.key.clone(), family };
                    *answer.lease(family) = Some(self.show(&id, &path).await?);
                }
                Ok(answer)
            }
            Operation::Release => self.release(both(&request.key)).await,
            Operation::Collect => {
                let is_valid = |key: &Key| {
                    request.valid.iter().any(|(id, ifname)| *id == key.container_id && *ifname == key.ifname)
                };
                let is_lost = |id: &&Id| id.key.network == request.key.network && !is_valid(&id.key);
                let lost: Vec<Id> = self.leases.borrow().keys().filter(is_lost).cloned().collect();
                self.release(lost).await
            }
        }
    }

    /// ADD: a lease of each family, or none.
    async fn acquire(self: &Rc<Self>, request: Request, path: &Path) -> Result<Answer, Failure> {
        let started = RefCell::default();
        let one = |family| self.acquire_one(&request, path, family, &started);
        match try_join!(one(Family::Ipv4), one(Family::Ipv6)) {
            Ok((lease, lease6)) => Ok(Answer { lease, lease6, ..Answer::default() }),
            Err(failure) => {
                // What stays in spite of it is DEL's.
                let _ = self.release(started.into_inner()).await;
                Err(failure)
            }
        }
    }

    /// A lease of this family, if the request wants one. A second ADD for the same interface gets the lease that it has.
    async fn acquire_one(
        self: &Rc<Self>,
        request: &Request,
        path: &Path,
        family: Family,
        started: &RefCell<Vec<Id>>,
    ) -> Result<Option<Lease>, Failure> {
        if !request.families.contains(&family) {
            return Ok(None);
        }
        let id = Id { key: request.key.clone(), family };
        let mut has_started = false;
        loop {
            let entry = self.leases.borrow().get(&id).cloned();
            let Some(mut entry) = entry else {
                self.start(id.clone(), self.acquisition(request, path, family));
                if !has_started {
                    started.borrow_mut().push(id.clone());
                }
                has_started = true;
                continue;
            };
            // Tasks limit themselves: this wait ends with Status::Ended at the latest.
            let status = entry.status.wait_for(|status| !matches!(status, Status::Acquiring)).await;
            let status = status.map(|status| status.clone());
            match status {
                Ok(Status::Bound(lease, interface)) if has_started || is_at(&interface, path).await? => {
                    return Ok(Some(*lease));
                }
                Ok(Status::Ended(why)) if has_started => return Err(failed(&why)),
                _ => {}
            }
            // The container's ID was used before, for another namespace or interface; or the lease ends just now.
            self.release(vec![id.clone()]).await?;
        }
    }

    fn acquisition(&self, request: &Request, path: &Path, family: Family) -> Start {
        let mut options = request.options.clone();
        options.broadcast |= self.broadcast;
        let ipv6 = match family {
            Family::Ipv6 => Ipv6::Wait,
            Family::Ipv4 if request.families.contains(&Family::Ipv6) => Ipv6::Enable,
            Family::Ipv4 => Ipv6::Leave,
        };
        Start::Acquire {
            path: path.to_owned(),
            ipv6,
            wishes: Wishes { options, rapid_commit: request.rapid_commit },
            limit: self.timing.limit.min(request.wait),
        }
    }

    /// CHECK.
    async fn show(&self, id: &Id, path: &Path) -> Result<Lease, Failure> {
        let status = self.leases.borrow().get(id).map(|entry| entry.status.borrow().clone());
        match status {
            Some(Status::Bound(lease, interface)) if is_at(&interface, path).await? => Ok(*lease),
            Some(Status::Bound(..)) => {
                let msg = format!(
                    "the lease of {} belongs to another namespace than {}, or to an interface that is gone",
                    id.name(),
                    path.display()
                );
                Err(failure(Code::Internal, msg))
            }
            _ => Err(failure(Code::Internal, format!("no lease for {}", id.name()))),
        }
    }

    /// DEL and GC. A lease that does not exist is released, and leaves no file.
    async fn release(&self, ids: Vec<Id>) -> Result<Answer, Failure> {
        let entries: Vec<Entry> = ids.iter().filter_map(|id| self.leases.borrow().get(id).cloned()).collect();
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
        for id in ids.iter().filter(|id| !self.leases.borrow().contains_key(id)) {
            let stays =
                |error| failure(Code::Io, format!("the lease's file of {} stays: {error}", id.name()));
            self.store.remove(id).map_err(stays)?;
        }
        Ok(Answer::default())
    }

    /// Whether the attachment has a lease of any family.
    fn has_lease(&self, key: &Key) -> bool {
        let leases = self.leases.borrow();
        let is_bound =
            |id: &Id| leases.get(id).is_some_and(|entry| matches!(*entry.status.borrow(), Status::Bound(..)));
        both(key).iter().any(is_bound)
    }

    fn start(self: &Rc<Self>, id: Id, start: Start) {
        let (sender, status) = watch::channel(start.status());
        let (stop, stopped) = watch::channel(false);
        self.leases.borrow_mut().insert(id.clone(), Entry { status, stop });
        let (daemon, sender) = (Rc::clone(self), Rc::new(sender));
        let (store, status) = (Rc::clone(&self.store), Rc::clone(&sender));
        let (others, key) = (Rc::clone(self), id.key.clone());
        let has_another = Rc::new(move || others.has_lease(&key));
        let timing = self.timing;
        let task = Task { id: id.clone(), timing, store, status, stop: stopped, has_another };
        spawn_local(async move {
            // A task of its own: the lease leaves the list also if the supervisor panics.
            let why = spawn_local(supervisor::run(task, start)).await;
            // First out of the list: who waits for the end may start anew.
            daemon.leases.borrow_mut().remove(&id);
            sender.send_replace(Status::Ended(why.unwrap_or_else(|_| INTERNAL.to_owned())));
        });
    }
}

/// The leases that an attachment can have.
fn both(key: &Key) -> Vec<Id> {
    Family::ALL.into_iter().map(|family| Id { key: key.clone(), family }).collect()
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
