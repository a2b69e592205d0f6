//! One task for each lease: it does what the state machine wants.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use cni_common::spec::addr::parse_cidr;
use ferrule_daemon::log;
use ferrule_dhcp::wire;
use nix::errno::Errno;
use tokio::select;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::action::{Action, Timing, Way};
use crate::binding::{Id, Protocol, Wishes};
use crate::clock;
use crate::lease::Millis;
use crate::link::{Interface, Ipv6, Sockets};
use crate::store::{Store, StoredLease};

/// How often a task checks whether its namespace still exists. Also bounds the lateness after the machine slept: tokio's
/// clock stands still meanwhile.
const CHECK: Millis = 30_000;

/// The most answers that are read after a deadline. Answers that come faster than they are read do not keep the machine from it.
const LATE: usize = 64;

/// Why a lease ends without a message.
const GONE: &str = "the namespace is gone, dropping the lease";

/// What a lease's task reports.
#[derive(Clone, Debug)]
pub(crate) enum Status {
    /// It looks for a lease.
    Acquiring,
    /// The container has this lease on this interface.
    Bound(Box<wire::Lease>, Interface),
    /// The lease has expired; the container still has the address.
    Expiring,
    /// The task has ended, because of this.
    Ended(String),
}

/// How a lease begins.
pub(crate) enum Start {
    /// ADD: with a new exchange, which may take this long.
    Acquire { path: PathBuf, ipv6: Ipv6, wishes: Wishes, limit: Millis },
    /// After a restart of the daemon: from the disk.
    Resume(Box<StoredLease>),
}

impl Start {
    /// The state of the lease before its task runs: CHECK may come as soon as the daemon has started.
    pub(crate) fn status(&self) -> Status {
        match self {
            Start::Resume(state) if state.confirmed => {
                Status::Bound(Box::new(state.binding.settings().clone()), state.interface.clone())
            }
            _ => Status::Acquiring,
        }
    }
}

/// The work on one lease.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) id: Id,
    pub(crate) timing: Timing,
    pub(crate) store: Rc<Store>,
    pub(crate) status: Rc<watch::Sender<Status>>,
    /// True once the lease has to end.
    pub(crate) stop: watch::Receiver<bool>,
    /// Whether the container has a lease of the other family on the same interface.
    pub(crate) has_another: Rc<dyn Fn() -> bool>,
}

impl Task {
    /// Writes a line about this lease.
    pub(crate) fn log(&self, text: &str) {
        log!("{}: {text}", self.id.name());
    }

    /// Waits until the lease has to end.
    pub(crate) async fn stopped(&mut self) {
        let _ = self.stop.wait_for(|stop| *stop).await;
    }

    /// Takes the address of an expired lease from the container: the whole interface goes down, unless it has another lease.
    pub(crate) async fn expire(&self, interface: &Interface, lease: &wire::Lease) {
        // Of two leases that expire at once the second one is the last.
        self.status.send_replace(Status::Expiring);
        match parse_cidr(&lease.address) {
            Ok(address) if (self.has_another)() => {
                self.log(&format!("lease expired, removing {address}; the interface has another lease"));
                interface.remove_address(address).await;
            }
            _ => {
                self.log("lease expired, bringing interface DOWN");
                interface.set_down().await;
            }
        }
    }

    /// Removes the state file.
    pub(crate) fn forget(&self) {
        if let Err(error) = self.store.remove(&self.id) {
            self.log(&format!("the lease's file stays: {error}"));
        }
    }
}

/// Runs until the lease ends. Returns why.
pub(crate) async fn run(mut task: Task, start: Start) -> String {
    let random = Box::new(random);
    let status = start.status();
    let (interface, machine, actions) = match start {
        Start::Acquire { path, ipv6, wishes, limit } => {
            let ifname = task.id.key.ifname.clone();
            let interface = select! {
                interface = Interface::prepare(path, &ifname, ipv6) => interface,
                () = task.stopped() => return "the lease was deleted meanwhile".to_owned(),
            };
            let interface = match interface {
                Ok(interface) => interface,
                Err(why) => return why,
            };
            let limits = (task.timing, limit);
            let (machine, actions) =
                Protocol::acquire(&task.id, interface.mac, wishes, limits, random, clock::now());
            (interface, machine, actions)
        }
        Start::Resume(state) if state.interface.is_gone() => {
            task.log(GONE);
            task.forget();
            return GONE.to_owned();
        }
        Start::Resume(state) => {
            let StoredLease { interface, binding, confirmed, .. } = *state;
            let mut machine = Protocol::resume(binding, task.timing, random, clock::now());
            let actions = if confirmed {
                task.status.send_replace(status);
                vec![Action::Log("lease taken up again".to_owned())]
            } else {
                machine.release(clock::now())
            };
            (interface, machine, actions)
        }
    };
    let mut worker = Worker { task, interface, machine, sockets: None, is_free: None, trouble: None };
    let why = worker.live(actions).await;
    worker.close();
    worker.task.forget();
    why
}

struct Worker {
    task: Task,
    interface: Interface,
    machine: Protocol,
    sockets: Option<Sockets>,
    /// The outcome of a probe that the machine does not know yet.
    is_free: Option<bool>,
    /// Why the sockets could not be opened.
    trouble: Option<String>,
}

impl Worker {
    async fn live(&mut self, mut actions: Vec<Action>) -> String {
        let mut late = 0;
        loop {
            #[cfg(test)]
            crate::supervisor::tests::provoke();
            for action in actions {
                if let Some(why) = self.perform(action).await {
                    return why;
                }
            }
            if self.machine.has_ended() {
                return "the lease was released".to_owned();
            }
            if !self.machine.is_listening() {
                self.close();
            }
            if let Some(is_free) = self.is_free.take() {
                actions = self.machine.probed(is_free, clock::now());
                continue;
            }
            let pause = self.machine.deadline().saturating_sub(clock::now()).min(CHECK);
            actions = select! {
                biased;
                () = self.task.stopped(), if !self.machine.is_releasing() => self.machine.release(clock::now()),
                // A task that was kept from running finds the right answer behind others, and its deadline past.
                bytes = receive(&self.sockets), if late < LATE => {
                    late += usize::from(pause == 0);
                    self.received(bytes)
                }
                () = sleep(Duration::from_millis(pause)) => {
                    let waiting = if late < LATE { self.waiting().await } else { None };
                    if let Some(bytes) = waiting {
                        late += 1;
                        self.received(bytes)
                    } else if self.interface.is_gone() {
                        self.machine.end();
                        self.task.log(GONE);
                        return GONE.to_owned();
                    } else {
                        late = 0;
                        self.machine.wake(clock::now())
                    }
                }
            };
        }
    }

    /// An answer that waits in the socket. The runtime may not know of it yet: a signal wakes it without a look at the sockets.
    async fn waiting(&self) -> Option<std::io::Result<Vec<u8>>> {
        yield_now().await;
        timeout(Duration::ZERO, receive(&self.sockets)).await.ok()
    }

    /// Does what the machine wants. Returns why the lease has ended, if it has.
    async fn perform(&mut self, action: Action) -> Option<String> {
        match action {
            Action::Log(text) => self.task.log(&text),
            Action::Save => return self.save().await,
            Action::Send { way, message } => {
                let outcome = self.send(way, &message).await;
                self.machine.sent(clock::now());
                return outcome;
            }
            Action::Bound => {
                let settings = self.machine.binding().map(|binding| binding.settings().clone());
                let bound = Status::Bound(Box::new(settings.unwrap_or_default()), self.interface.clone());
                self.task.status.send_replace(bound);
            }
            Action::Probe(address) => {
                let is_free = self.interface.is_free(address).await;
                self.is_free = Some(is_free.unwrap_or_else(|error| {
                    self.task.log(&format!("cannot look for other hosts with {address}: {error}"));
                    true
                }));
            }
            Action::Fail(why) => {
                let trouble = self.trouble.take().map_or(String::new(), |trouble| format!("; {trouble}"));
                return Some(why + &trouble);
            }
            Action::Expire => {
                self.close();
                let status = self.task.status.borrow().clone();
                if let Status::Bound(lease, _) = status {
                    self.task.expire(&self.interface, &lease).await;
                }
                return Some("the lease has expired".to_owned());
            }
        }
        None
    }

    /// Without its file a new lease would be lost at a restart, so ADD fails. A renewed one is better than none.
    async fn save(&mut self) -> Option<String> {
        let state = StoredLease {
            key: self.task.id.key.clone(),
            interface: self.interface.clone(),
            binding: self.machine.binding()?,
            confirmed: self.machine.is_bound(),
        };
        let error = self.task.store.write(&state).err()?;
        let why = format!("cannot write the lease's file: {error}");
        self.task.log(&why);
        if matches!(*self.task.status.borrow(), Status::Bound(..)) {
            return None;
        }
        for action in self.machine.release(clock::now()) {
            if let Action::Send { way, message } = action {
                self.send(way, &message).await;
            }
        }
        Some(why)
    }

    /// Sends a message, and opens the sockets before. A message that cannot be sent counts as lost; a link that is gone ends
    /// the lease.
    async fn send(&mut self, way: Way, message: &[u8]) -> Option<String> {
        if self.sockets.is_none() {
            match self.interface.connect(way).await {
                Ok(sockets) => (self.sockets, self.trouble) = (Some(sockets), None),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.machine.end();
                    self.task.log(&format!("{error}, dropping the lease"));
                    return Some(error.to_string());
                }
                Err(error) => {
                    let trouble = format!("cannot open the sockets: {error}");
                    self.task.log(&trouble);
                    self.trouble = Some(trouble);
                }
            }
        }
        let sockets = self.sockets.as_ref()?;
        if let Err(error) = sockets.send(message, way).await {
            self.task.log(&format!("cannot send: {error}"));
            // The link is gone: the next message opens the sockets anew, and finds out.
            if matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENXIO | Errno::ENODEV)) {
                self.close();
            }
        }
        None
    }

    fn received(&mut self, bytes: std::io::Result<Vec<u8>>) -> Vec<Action> {
        match bytes {
            Ok(bytes) => self.machine.receive(&bytes, clock::now()),
            Err(error) => {
                // ENETDOWN: the link was set down. The machine tries again.
                self.task.log(&format!("cannot receive: {error}"));
                self.close();
                Vec::new()
            }
        }
    }

    fn close(&mut self) {
        if let Some(sockets) = self.sockets.take() {
            sockets.close();
        }
    }
}

/// The next frame or datagram. Without sockets it never comes.
async fn receive(sockets: &Option<Sockets>) -> std::io::Result<Vec<u8>> {
    match sockets {
        Some(sockets) => sockets.receive().await,
        None => std::future::pending().await,
    }
}

/// A transaction ID, or a number for jitter. If the kernel has none, the clock must do.
fn random() -> u32 {
    getrandom::u32().unwrap_or_else(|_| clock::now() as u32)
}
