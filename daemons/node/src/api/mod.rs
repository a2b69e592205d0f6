//! The API server: a list of all nodes, then each change; events and this node's annotation.

mod client;
mod event;
mod items;
mod outbox;
mod session;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferrule_daemon::Pauses;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use self::outbox::Outbox;
use self::session::{Position, Session};
use crate::arguments::Options;
use crate::cluster::{Peer, Peers};

pub use client::Connection;
pub use event::{Event, READY};

/// The shortest pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// After a session that lasts so long the pauses begin anew with [`PAUSE`].
const WORKED: Duration = Duration::from_secs(60);

/// For each node of the cluster, and at most: how long requests wait that all nodes send for one cause.
const SPREAD: [Duration; 2] = [Duration::from_millis(2), Duration::from_secs(30)];

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
    /// An event about a Node.
    Event(Event),
    /// This node's object should have this annotation. It is written if the object lacks it, also later. The last value counts.
    Annotation { name: &'static str, value: String },
}

/// Follows the nodes until the receiver is gone. Retries after all errors: an expired token may be renewed.
pub async fn run(
    options: Options,
    node: String,
    updates: mpsc::Sender<Update>,
    mut reports: mpsc::Receiver<Report>,
) {
    let (mut outbox, seen) = (Outbox::new(node.clone()), watch::Sender::new(None));
    let nodes = AtomicU32::new(0);
    let (mut attempt, mut position) = (0_u32, Position::default());
    loop {
        let server = options.api_server.get(attempt as usize % options.api_server.len().max(1));
        let session = async {
            let connection = Connection::open(&options, server.map(String::as_str)).await?;
            let servers = connection.servers(&options).await;
            if !servers.is_empty() {
                let _ = updates.send(Update::Servers(servers)).await;
            }
            let idle = Duration::from_secs(options.watch_idle);
            let (connection, name, seen, updates, nodes) = (&connection, &node, &seen, &updates, &nodes);
            let session = Session { connection, name, seen, updates, nodes, idle };
            tokio::select! {
                outcome = session.follow(&mut position) => outcome,
                () = outbox.send(connection, &mut reports, seen.subscribe(), nodes) => Ok(()),
            }
        };
        let begin = Instant::now();
        let outcome = session.await;
        attempt = if begin.elapsed() < WORKED { attempt.saturating_add(1) } else { 1 };
        if let Err(error) = outcome
            && updates.send(Update::State(Err(format!("{error:#}")))).await.is_err()
        {
            return;
        }
        if updates.is_closed() {
            return;
        }
        sleep(pause(attempt, Duration::from_secs(options.longest_pause))).await;
    }
}

/// Twice as long after each failure, and random: all nodes would come back at once otherwise.
fn pause(attempt: u32, most: Duration) -> Duration {
    let whole = Pauses { first: PAUSE, longest: most }.after(attempt);
    whole.mul_f64(0.5 + random() / 2.0)
}

/// A part of a time that grows with the number of nodes: what all of them do at once would be too much for the API server.
fn spread(nodes: &AtomicU32) -> Duration {
    let [each, most] = SPREAD;
    each.saturating_mul(nodes.load(Ordering::Relaxed)).min(most).mul_f64(random())
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
    fn pauses_grow_and_end() {
        for (attempt, least, most) in
            [(1, 500, 1000), (2, 1000, 2000), (9, 15_000, 30_000), (u32::MAX, 15_000, 30_000)]
        {
            let pause = pause(attempt, Duration::from_secs(30)).as_millis();
            assert!((least..=most).contains(&pause), "{attempt}: {pause}");
        }
    }
}
