//! The API server: a list of all nodes, then each change; events and this node's annotation. Policies, Namespaces and Pods in the
//! same way.

mod client;
mod decode;
pub(crate) mod decoders;
mod event;
mod items;
mod kind;
mod line;
mod nodes;
mod objects;
mod outbox;
mod session;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferrule_daemon::Pauses;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use self::decode::{ClusterPolicy, Namespace, Pod, Policy, Read as _};
use self::kind::Kind;
use self::nodes::Nodes;
use self::objects::Objects;
use self::outbox::{Outbox, Seen};
use self::session::{Position, Session};
use crate::arguments::Options;
use crate::cluster::{Peer, Peers};
use crate::policy::objects::Told;

pub use client::Connection;
pub use event::{About, Event, READY};

/// The shortest pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How many times as long as after failures the pauses get while the cluster lacks a kind: most clusters never have it.
const ABSENT: u32 = 10;

/// After a session that lasts so long the pauses begin anew with [`PAUSE`].
const WORKED: Duration = Duration::from_secs(60);

/// For each node of the cluster, and at most: how long requests wait that all nodes send for one cause.
const SPREAD: [Duration; 2] = [Duration::from_millis(2), Duration::from_secs(30)];
/// The most time over which the first lists of policies, namespaces and pods are spread: new pods may wait for them. The time while the number
/// of nodes is not known, and how often it is looked at.
const FIRST: Duration = Duration::from_secs(5);
const UNKNOWN: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);

/// A message from the API server.
#[derive(Debug)]
pub enum Update {
    /// All nodes.
    List(Peers),
    /// A node is new, or has changed.
    Changed(String, Box<Peer>),
    /// A node is gone.
    Gone(String),
    /// The addresses of the API servers, if they are known.
    Servers(BTreeSet<IpAddr>),
    /// The connection works, or why it does not.
    State(Result<(), String>),
}

/// A message to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// An event about an object.
    Event(Event),
    /// This node's object should have this annotation. It is written if the object lacks it, also later. The last value counts.
    Annotation { name: &'static str, value: String },
}

/// Follows the nodes, and sends reports, until the receiver is gone. `count`: how many nodes there are.
pub async fn run(
    options: Options,
    node: String,
    count: Arc<AtomicU32>,
    updates: mpsc::Sender<Update>,
    reports: mpsc::Receiver<Report>,
) {
    let seen = watch::Sender::new(None);
    let letters = Letters { outbox: Outbox::new(node.clone()), reports, seen: seen.subscribe() };
    keep(&options, Nodes::new(node, seen, count.clone()), &updates, &count, Some(letters)).await;
}

/// Follows policies, Namespaces and Pods, each with a connection of its own, until the receiver is gone. The kind that is slow
/// delays neither the others nor the nodes.
/// `is_calm`: what an earlier daemon has left holds, so the first lists of all nodes need not come at once.
pub async fn follow_objects(
    options: Options,
    node: String,
    count: Arc<AtomicU32>,
    told: mpsc::Sender<Told>,
    is_calm: bool,
) {
    if is_calm {
        calm(&count).await;
    }
    tokio::join!(
        keep(&options, Objects::<Policy>::new(node.clone()), &told, &count, None),
        keep(&options, Objects::<ClusterPolicy>::new(node.clone()), &told, &count, None),
        keep(&options, Objects::<Namespace>::new(node.clone()), &told, &count, None),
        keep(&options, Objects::<Pod>::new(node.clone()), &told, &count, None),
    );
}

/// What the connection of the nodes sends.
struct Letters {
    outbox: Outbox,
    reports: mpsc::Receiver<Report>,
    seen: watch::Receiver<Seen>,
}

/// Follows one kind until the receiver is gone. Retries after all errors: an expired token may be renewed.
async fn keep<K: Kind>(
    options: &Options,
    mut kind: K,
    messages: &mpsc::Sender<K::Message>,
    nodes: &AtomicU32,
    mut letters: Option<Letters>,
) {
    let (mut attempt, mut position) = (0_u32, Position::default());
    loop {
        let server = options.api_server.get(attempt as usize % options.api_server.len().max(1));
        let session = async {
            let connection = &Connection::open(options, server.map(String::as_str)).await?;
            if let Some(message) = K::SERVERS {
                let servers = connection.servers(options).await;
                if !servers.is_empty() {
                    let _ = messages.send(message(servers)).await;
                }
            }
            let idle = Duration::from_secs(options.watch_idle);
            let longest = Duration::from_secs(options.longest_pause);
            let mut session = Session { connection, kind: &mut kind, messages, nodes, idle, longest };
            let send = async {
                match &mut letters {
                    Some(Letters { outbox, reports, seen }) => {
                        outbox.send(connection, reports, seen.clone(), nodes).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                outcome = session.follow(&mut position) => outcome,
                () = send => Ok(()),
            }
        };
        let begin = Instant::now();
        let outcome = session.await;
        attempt = if begin.elapsed() < WORKED { attempt.saturating_add(1) } else { 1 };
        if let Err(error) = outcome
            && messages.send(K::state(Err(format!("{error:#}")))).await.is_err()
        {
            return;
        }
        if messages.is_closed() {
            return;
        }
        sleep(pause(attempt, Duration::from_secs(options.longest_pause))).await;
    }
}

/// Twice as long after each failure, and random: all nodes would come back at once otherwise.
fn pause(attempt: u32, longest: Duration) -> Duration {
    random_pause(Pauses { first: PAUSE, longest }, attempt)
}

/// The same between two questions whether the cluster has a kind that it lacks. `longest`: the longest pause after failures.
fn pause_without_kind(attempt: u32, longest: Duration) -> Duration {
    random_pause(Pauses { first: longest, longest: longest.saturating_mul(ABSENT) }, attempt)
}

fn random_pause(pauses: Pauses, attempt: u32) -> Duration {
    pauses.after(attempt).mul_f64(0.5 + random() / 2.0)
}

/// A part of a time that grows with the number of nodes, and with what each costs the API server: all of them at once would be too much.
fn spread(nodes: &AtomicU32, cost: u32) -> Duration {
    let [each, most] = SPREAD;
    let each = each.saturating_mul(cost);
    each.saturating_mul(nodes.load(Ordering::Relaxed)).min(most).mul_f64(random())
}

/// Waits for the part of [`calm_time`]. The number of nodes comes with their list.
async fn calm(nodes: &AtomicU32) {
    let (begin, part) = (Instant::now(), random());
    while begin.elapsed() < calm_time(nodes.load(Ordering::Relaxed)).mul_f64(part) {
        sleep(TICK).await;
    }
}

/// The time over which so many nodes spread their first lists: pods cost the most. 0: not known yet.
fn calm_time(nodes: u32) -> Duration {
    match nodes {
        0 => UNKNOWN,
        nodes => SPREAD[0].saturating_mul(Pod::COST).saturating_mul(nodes).min(FIRST),
    }
}

/// From 0 to 1.
fn random() -> f64 {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lists_are_spread_over_some_seconds() {
        for (nodes, millis) in [(0, 1000), (3, 60), (100, 2000), (1000, 5000), (u32::MAX, 5000)] {
            assert_eq!(calm_time(nodes).as_millis(), millis, "{nodes}");
        }
    }

    #[test]
    fn pauses_grow_and_end() {
        for (attempt, least, most) in
            [(1, 500, 1000), (2, 1000, 2000), (9, 15_000, 30_000), (u32::MAX, 15_000, 30_000)]
        {
            let pause = pause(attempt, Duration::from_secs(30)).as_millis();
            assert!((least..=most).contains(&pause), "{attempt}: {pause}");
        }
        for (attempt, least, most) in [(1, 15, 30), (2, 30, 60), (5, 150, 300), (u32::MAX, 150, 300)] {
            let pause = pause_without_kind(attempt, Duration::from_secs(30)).as_secs_f64();
            assert!((f64::from(least)..=f64::from(most)).contains(&pause), "{attempt}: {pause}");
        }
    }
}
