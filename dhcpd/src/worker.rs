//! One task for each lease: it does what the state machine wants.

use std::rc::Rc;
use std::time::Duration;

use ferrule_dhcp::wire::{Key, Options};
use tokio::select;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::clock;
use crate::frame;
use crate::lease::Millis;
use crate::link::{Sandbox, Sockets};
use crate::log;
use crate::machine::{Action, Machine, Way};
use crate::message::{Client, name, parse};
use crate::registry::{Daemon, Status};
use crate::store::Record;

/// How often a task looks whether its namespace still exists. Also bounds the lateness after the machine slept: tokio's
/// clock stands still meanwhile.
const LOOK: Millis = 30_000;

/// How a lease begins.
pub(crate) enum Start {
    /// ADD: with a new exchange, which may take this long.
    Acquire { path: std::path::PathBuf, options: Options, limit: Millis },
    /// After a restart of the daemon: from the disk.
    Resume(Box<Record>),
}

/// Runs until the lease ends. Returns why.
pub(crate) async fn run(
    daemon: &Rc<Daemon>,
    key: &Key,
    start: Start,
    status: &watch::Sender<Status>,
    mut stop: watch::Receiver<bool>,
) -> String {
    let (sandbox, machine, actions) = match start {
        Start::Acquire { path, options, limit } => {
            let sandbox = select! {
                sandbox = Sandbox::prepare(path, &key.ifname) => sandbox,
                _ = stop.wait_for(|stop| *stop) => return "the lease was deleted meanwhile".to_owned(),
            };
            let sandbox = match sandbox {
                Ok(sandbox) => sandbox,
                Err(why) => return why,
            };
            let client = Client::new(sandbox.mac, key, options);
            let (machine, actions) =
                Machine::acquire(client, daemon.timing, limit, Box::new(random), clock::now());
            (sandbox, machine, actions)
        }
        Start::Resume(record) => {
            let Record { sandbox, client, lease, confirmed, .. } = *record;
            let settings = lease.settings.clone();
            let mut machine = Machine::resume(client, daemon.timing, lease, Box::new(random));
            let actions = if confirmed {
                status.send_replace(Status::Bound(Box::new(settings), sandbox.clone()));
                vec![Action::Log("lease taken up again".to_owned())]
            } else {
                machine.release()
            };
            (sandbox, machine, actions)
        }
    };
    let mut worker = Worker { daemon, key, sandbox, machine, status, sockets: None };
    let why = worker.live(actions, stop).await;
    worker.close();
    if let Err(error) = daemon.store.remove(key) {
        worker.log(&format!("the lease's file stays: {error}"));
    }
    why
}

struct Worker<'a> {
    daemon: &'a Rc<Daemon>,
    key: &'a Key,
    sandbox: Sandbox,
    machine: Machine,
    status: &'a watch::Sender<Status>,
    sockets: Option<Sockets>,
}

impl Worker<'_> {
    async fn live(&mut self, mut actions: Vec<Action>, mut stop: watch::Receiver<bool>) -> String {
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
            let pause = self.machine.deadline().saturating_sub(clock::now()).min(LOOK);
            actions = select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => self.machine.release(),
                // Answers that come faster than they are read do not keep the machine from its deadline.
                frame = receive(&self.sockets), if pause > 0 => self.received(frame),
                () = sleep(Duration::from_millis(pause)) => {
                    if self.sandbox.is_gone() {
                        self.machine.end();
                        self.log("the namespace is gone, dropping the lease");
                        return "the namespace is gone".to_owned();
                    }
                    self.machine.wake(clock::now())
                }
            };
        }
    }

    /// Does what the machine wants. Returns why the lease has ended, if it has.
    async fn perform(&mut self, action: Action) -> Option<String> {
        match action {
            Action::Log(text) => self.log(&text),
            Action::Save => return self.save().await,
            Action::Send { way, message } => return self.send(way, &message).await,
            Action::Bound => {
                let settings = self.machine.lease().map(|lease| lease.settings.clone());
                self.status.send_replace(Status::Bound(
                    Box::new(settings.unwrap_or_default()),
                    self.sandbox.clone(),
                ));
            }
            Action::Fail(why) => return Some(why),
            Action::Expire => {
                self.close();
                self.sandbox.set_down().await;
                return Some("the lease has expired".to_owned());
            }
        }
        None
    }

    /// Without its file a new lease would be lost at a restart, so ADD fails. A renewed one is better than none.
    async fn save(&mut self) -> Option<String> {
        let lease = self.machine.lease()?;
        let is_bound = self.machine.is_bound();
        let written =
            self.daemon.store.write(self.key, &self.sandbox, self.machine.client(), is_bound, lease);
        let error = written.err()?;
        let why = format!("cannot write the lease's file: {error}");
        self.log(&why);
        if matches!(*self.status.borrow(), Status::Bound(..)) {
            return None;
        }
        for action in self.machine.release() {
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
            let address = match way {
                Way::Unicast(peer) => Some(peer.address),
                _ => None,
            };
            match self.sandbox.connect(address).await {
                Ok(sockets) => self.sockets = Some(sockets),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.machine.end();
                    self.log(&format!("{error}, dropping the lease"));
                    return Some(error.to_string());
                }
                Err(error) => self.log(&format!("cannot open the sockets: {error}")),
            }
        }
        let sockets = self.sockets.as_ref()?;
        let sent = match way {
            Way::Broadcast => sockets.broadcast(message).await,
            Way::Unicast(peer) => sockets.unicast(message, peer).await,
            Way::Direct(peer) => sockets.direct(message, peer).await,
        };
        if let Err(error) = sent {
            self.log(&format!("cannot send: {error}"));
        }
        None
    }

    fn received(&mut self, frame: std::io::Result<Vec<u8>>) -> Vec<Action> {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                // ENETDOWN: the link was set down. The machine tries again.
                self.log(&format!("cannot receive: {error}"));
                self.close();
                return Vec::new();
            }
        };
        let reply = frame::parse(&frame)
            .and_then(|(mac, content)| Some((mac, parse(self.machine.client(), content)?)));
        reply.map_or(Vec::new(), |(mac, reply)| self.machine.receive(&reply, mac, clock::now()))
    }

    fn close(&mut self) {
        if let Some(sockets) = self.sockets.take() {
            sockets.close();
        }
    }

    fn log(&self, text: &str) {
        log(&format!("{}: {text}", name(self.key)));
    }
}

/// The next frame. Without sockets it never comes.
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
