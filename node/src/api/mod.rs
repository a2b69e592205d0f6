//! The API server: a list of all nodes, then each change; events and this node's annotation.

mod client;
mod session;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::arguments::Options;
use crate::cluster::{Peer, Peers, Refusal};
use crate::wireguard;

pub use client::Connection;

/// The shortest pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// After a session that lasts so long the pauses begin anew with [`PAUSE`].
const WORKED: Duration = Duration::from_secs(60);

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
    /// A podCIDR is refused.
    Refused(Refusal),
    /// This node's public WireGuard key.
    Key(String),
}

/// Follows the nodes until the receiver is gone. Retries after all errors: an expired token may be renewed.
pub async fn run(
    options: Options,
    node: String,
    updates: mpsc::Sender<Update>,
    mut reports: mpsc::Receiver<Report>,
) {
    let mut attempt = 0_u32;
    loop {
        let server = options.api_server.get(attempt as usize % options.api_server.len().max(1));
        let session = async {
            let connection = Connection::open(&options, server.map(String::as_str)).await?;
            let servers = connection.servers(&options).await;
            if !servers.is_empty() {
                let _ = updates.send(Update::Servers(servers)).await;
            }
            let idle = Duration::from_secs(options.watch_idle);
            let follow = session::follow(&connection, &updates, idle);
            tokio::select! {
                outcome = follow => outcome,
                () = send(&connection, &node, &mut reports) => Ok(()),
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

/// Sends reports. A report that fails is logged, not sent again.
async fn send(connection: &Connection, node: &str, reports: &mut mpsc::Receiver<Report>) {
    while let Some(report) = reports.recv().await {
        let outcome = match &report {
            Report::Refused(refusal) => {
                let created = connection.create_event(&event(node, refusal)).await;
                created.with_context(|| format!("create an event about node {}", refusal.node))
            }
            Report::Key(key) => {
                let annotated = connection.annotate(node, wireguard::ANNOTATION, key).await;
                annotated.context("write this node's WireGuard key into its Node object")
            }
        };
        if let Err(error) = outcome {
            log!("API server: {error:#}");
        }
    }
    std::future::pending().await
}

/// Twice as long after each failure, and random: all nodes would come back at once otherwise.
fn pause(attempt: u32, most: Duration) -> Duration {
    let whole = PAUSE.saturating_mul(1 << attempt.saturating_sub(1).min(10)).min(most);
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), attempt);
    whole.mul_f64(0.5 + f64::from(u8::try_from(random % 100).unwrap_or(0)) / 200.0)
}

/// An event about a Node object. Its name is a hash of its content, so that the API server refuses a repetition.
fn event(reporter: &str, refusal: &Refusal) -> serde_json::Value {
    let Refusal { node, what, why } = refusal;
    let message = format!("{what} is not used: {why}");
    let hash = Sha256::new().chain_update(reporter).chain_update(node).chain_update(&message).finalize();
    let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("ferrule-node.{name}"), "namespace": "default" },
        // The kubelet and kubectl use the name of a Node as its UID here.
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": node },
        "reason": "PodNetworkRefused",
        "message": message,
        "type": "Warning",
        "source": { "component": "ferrule-node", "host": reporter },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
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

    #[test]
    fn one_cause_has_one_event() {
        let refusal = |why: &str| Refusal { node: "n2".into(), what: "10.0.0.0/24".into(), why: why.into() };
        let name = |reporter, why| event(reporter, &refusal(why))["metadata"]["name"].clone();
        assert_eq!(name("n1", "a"), name("n1", "a"));
        assert_ne!(name("n1", "a"), name("n1", "b"));
        assert_ne!(name("n1", "a"), name("n3", "a"));
        assert_eq!(event("n1", &refusal("it is so"))["message"], "10.0.0.0/24 is not used: it is so");
    }
}
