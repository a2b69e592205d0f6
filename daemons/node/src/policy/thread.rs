//! The thread: waits for the API's objects and for the kernel's messages.

use std::collections::BTreeSet;
use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ferrule_kernel::notices::Messages;
use ferrule_node_policy::ruleset::Entry;
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::enforcer::{Enforcer, Made};
use super::how::How;
use super::objects::Told;
use super::questions::{QUEUE, Question};
use super::report::Report;
use crate::listener::Listener;

/// The wait after an error of the subscriptions.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it looks at what no message tells.
const LOOK: Duration = Duration::from_secs(60);
/// How often it counts denials, and with a log, how often it writes them.
const COUNT: Duration = Duration::from_secs(5);
const WRITE: Duration = Duration::from_secs(1);
/// The most messages of one round.
const MOST: usize = 1024;

/// The running thread.
pub struct Handle {
    /// Its last report.
    pub report: watch::Receiver<Report>,
    /// Takes questions about policies.
    pub questions: mpsc::Sender<Question>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Waits until the thread has ended: when all senders of its messages are gone. Table and file stay.
    pub fn join(self) {
        // A panic has ended the process.
        let _ = self.thread.join();
    }
}

/// Starts the thread. `endpoint`: the health endpoint's addresses, as a pod's in the maps.
///
/// # Errors
/// No thread can be made.
pub fn spawn(
    how: How,
    told: mpsc::Receiver<Told>,
    endpoint: watch::Receiver<BTreeSet<Entry>>,
) -> io::Result<Handle> {
    let (sender, report) = watch::channel(Report {
        unknown: Some("policies are not known yet: the thread starts".to_owned()),
        ..Report::default()
    });
    let (questions, asked) = mpsc::channel(QUEUE);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = Builder::new()
        .name("policy".to_owned())
        .spawn(move || runtime.block_on(run(&how, told, asked, endpoint, &sender)))?;
    Ok(Handle { report, questions, thread })
}

async fn run(
    how: &How,
    mut told: mpsc::Receiver<Told>,
    mut asked: mpsc::Receiver<Question>,
    mut endpoint: watch::Receiver<BTreeSet<Entry>>,
    report: &watch::Sender<Report>,
) {
    let mut follower = loop {
        match Follower::open(how) {
            Ok(follower) => break follower,
            Err(error) => {
                let reason = format!("{error:#}");
                if report.borrow().reasons != [reason.clone()] {
                    log!("policy: {reason}");
                }
                report.send_replace(Report { reasons: vec![reason], ..Report::default() });
            }
        }
        sleep(PAUSE).await;
        if told.is_closed() {
            return;
        }
    };
    follower.enforcer.endpoint.want(endpoint.borrow_and_update().clone());
    loop {
        match follower.follow(&mut told, &mut asked, &mut endpoint, report).await {
            Ok(()) => return,
            Err(error) => {
                log!("policy: {error:#}");
                follower.enforcer.hear(None);
                sleep(PAUSE).await;
            }
        }
    }
}

struct Follower {
    ruleset: Listener,
    enforcer: Enforcer,
    look: Instant,
    logs: bool,
}

impl Follower {
    fn open(how: &How) -> Result<Follower> {
        let messages = Messages::of_ruleset().context("listen to changes of nf_tables")?;
        let ruleset = Listener::new(messages)?;
        let enforcer = Enforcer::open(how)?;
        Ok(Follower { ruleset, enforcer, look: Instant::now() + LOOK, logs: how.logs })
    }

    /// Ends when all senders are gone.
    async fn follow(
        &mut self,
        told: &mut mpsc::Receiver<Told>,
        asked: &mut mpsc::Receiver<Question>,
        endpoint: &mut watch::Receiver<BTreeSet<Entry>>,
        report: &watch::Sender<Report>,
    ) -> Result<()> {
        let Follower { ruleset, enforcer, look, logs } = self;
        let mut waiting = Vec::new();
        let mut count = interval(if *logs { WRITE } else { COUNT });
        count.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = enforcer.round().map(Instant::from_std);
            let now = Report::of(enforcer);
            report.send_if_modified(|last| {
                let is_new = *last != now;
                *last = now;
                is_new
            });
            tokio::select! {
                count = told.recv_many(&mut waiting, MOST) => {
                    if count == 0 {
                        return Ok(());
                    }
                    waiting.drain(..).for_each(|told| enforcer.tell(told));
                }
                Ok(()) = endpoint.changed() => enforcer.endpoint.want(endpoint.borrow_and_update().clone()),
                Some((ask, answer)) = asked.recv() => {
                    // Who has asked may have gone.
                    let _ = answer.send(enforcer.answer(&ask));
                }
                outcome = ruleset.readable() => {
                    outcome.context("follow the kernel's tables")?;
                    ruleset.receive(|message| enforcer.hear(message))?;
                }
                outcome = enforcer.hosts.readable() => {
                    outcome.context("follow the kernel's routes")?;
                    enforcer.hosts.take()?;
                }
                _ = count.tick(), if enforcer.made == Made::All => {
                    enforcer.count(*logs);
                }
                () = sleep_until(due.unwrap_or(*look)), if due.is_some() => {}
                () = sleep_until(*look) => {
                    *look = Instant::now() + LOOK;
                    if let Err(error) = enforcer.look() {
                        log!("policy: {error:#}");
                    }
                }
            }
        }
    }
}
