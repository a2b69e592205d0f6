//! From a pod of the test to a pod's place on each other node of a cluster: the health endpoints of `ferrule-node`, which its status file
//! names. A bound holds on their number and on the time, so a large or broken cluster makes nobody wait.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::netns::Netns;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netns::enter;
use ferrule_kernel::{file, ping, sysctl};
use ferrule_kit::cluster::{STATE, STATUS_FILE};
use ipnetwork::IpNetwork;
use itertools::Itertools as _;
use serde::Deserialize;

use super::pods::Attached;
use super::{Test, why};

/// How many nodes are asked.
const MOST: usize = 100;
/// How many of those that are not asked have their names in the output.
const NAMED: usize = 20;
/// How often a node is asked that does not answer, and how long each time. An endpoint limits its answers.
const ROUNDS: u32 = 3;
const ROUND: Duration = Duration::from_secs(1);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(2);
/// How many messages are read at once.
const LOOKS: usize = 1024;
/// The size of a packet that passes everywhere.
const SMALL: u16 = 100;

/// The part of the status file that counts here.
#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    conflist: Conflist,
    health: Option<Health>,
}

#[derive(Debug, Default, Deserialize)]
struct Conflist {
    /// The node's podCIDRs.
    #[serde(default)]
    networks: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Health {
    #[serde(default)]
    peers: Vec<Row>,
}

/// What the daemon knows of one family of another node.
#[derive(Clone, Debug, Default, Deserialize)]
struct Row {
    node: String,
    family: String,
    #[serde(default)]
    proof: String,
    since: Option<String>,
    why: Option<String>,
    address: Option<IpAddr>,
    size: Option<u16>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Came,
    /// Only that to a small packet.
    Small,
    Missed,
    NotSent(String),
}

/// The tests: one for each node that is asked.
pub(super) fn tests(pod: &Attached) -> Vec<Test> {
    let path = Path::new(STATE).join(STATUS_FILE);
    let status: Status =
        file::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let rows = status.health.unwrap_or_default().peers;
    if rows.is_empty() {
        let why = format!("{} says nothing of pods on other nodes", path.display());
        return vec![Test::skipped("other nodes", why)];
    }
    let own: Vec<IpNetwork> =
        status.conflist.networks.iter().filter_map(|network| network.parse().ok()).collect();
    let is_own = |address: &IpAddr| own.iter().any(|network| network.contains(*address));
    let sources: Vec<IpAddr> = pod.entry.addresses.iter().copied().filter(is_own).collect();
    if sources.is_empty() {
        let why = "the pods of this network have no addresses of the node's podCIDRs";
        return vec![Test::skipped("other nodes", why)];
    }
    let (nodes, left_out) = chosen(rows);
    let of_source = |row: &&Row| row.address.is_some_and(|to| source(&sources, to).is_some());
    let targets: Vec<(IpAddr, u16)> = nodes
        .values()
        .flatten()
        .filter(of_source)
        .filter_map(|row| Some((row.address?, row.size?)))
        .collect();
    let answers = match ask(&pod.netns, &targets) {
        Ok(answers) => answers,
        Err(error) => {
            return vec![Test::skipped("other nodes", format!("no echo request can be sent: {error}"))];
        }
    };
    let mut tests: Vec<Test> =
        nodes.iter().map(|(node, rows)| judge(node, rows, &sources, &answers)).collect();
    if !left_out.is_empty() {
        let named = left_out.iter().take(NAMED).join(" ");
        let more = left_out.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        tests.push(Test::skipped("other nodes", format!("{MOST} nodes are asked; left out: {named}{more}")));
    }
    tests
}

/// The nodes that are asked, and the names of the others: those with a doubt come first.
fn chosen(rows: Vec<Row>) -> (BTreeMap<String, Vec<Row>>, Vec<String>) {
    let mut nodes: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for row in rows {
        nodes.entry(row.node.clone()).or_default().push(row);
    }
    let is_proved = |rows: &[Row]| rows.iter().all(|row| row.proof == "proved");
    let mut names: Vec<String> = nodes.keys().cloned().collect();
    names.sort_by_key(|name| nodes.get(name).is_some_and(|rows| is_proved(rows)));
    let left_out = names.split_off(names.len().min(MOST));
    nodes.retain(|name, _| !left_out.contains(name));
    (nodes, left_out)
}

fn source(sources: &[IpAddr], to: IpAddr) -> Option<IpAddr> {
    sources.iter().copied().find(|from| from.is_ipv4() == to.is_ipv4())
}

/// The test of one node, from the answers of its endpoint in both families.
fn judge(node: &str, rows: &[Row], sources: &[IpAddr], answers: &BTreeMap<IpAddr, Answer>) -> Test {
    let (mut reached, mut lost, mut unknown, mut is_size) = (Vec::new(), Vec::new(), Vec::new(), false);
    for row in rows {
        let asked = row.address.and_then(|to| Some((to, source(sources, to)?, answers.get(&to)?)));
        let Some((to, from, answer)) = asked else {
            let why = match (row.address, &row.why) {
                (Some(_), _) => "the pod has no address of the node's podCIDR",
                (None, Some(why)) => why,
                (None, None) => "its health endpoint is not known",
            };
            unknown.push(format!("{} is not asked: {why}", row.family));
            continue;
        };
        let size = row.size.unwrap_or_default();
        match answer {
            Answer::Came => reached.push(format!("{from} reaches {to}")),
            Answer::Missed => lost.push(format!("{to} does not answer {from}")),
            Answer::NotSent(error) => lost.push(format!("{from} cannot send to {to}: {error}")),
            Answer::Small => {
                is_size = true;
                lost.push(format!(
                    "{to} answers packets of {SMALL} bytes from {from}, and not those of {size}"
                ));
            }
        }
        if let ("lost", Some(since)) = (row.proof.as_str(), &row.since) {
            let daemon = format!("ferrule-node has had no answer of {to} since {since}");
            if *answer == Answer::Came { unknown.push(daemon) } else { lost.push(daemon) }
        }
    }
    let name = format!("node {node}");
    let all = |parts: &[&[String]]| parts.concat().join("; ");
    match (lost.is_empty(), reached.is_empty()) {
        (false, _) => {
            Test::failed(name, all(&[&lost, &reached, &unknown]), if is_size { why::WAY } else { why::NODE })
        }
        (true, false) => Test::ok(name, all(&[&reached, &unknown])),
        (true, true) => Test::skipped(name, all(&[&unknown])),
    }
}

/// Asks all at once, for at most four rounds: the whole packets first, then small ones where they fail.
fn ask(netns: &Netns, targets: &[(IpAddr, u16)]) -> io::Result<BTreeMap<IpAddr, Answer>> {
    let sockets = enter(netns, || -> io::Result<_> {
        let (name, value) = ping::GROUPS;
        sysctl::ensure(name, value)?;
        // A node may have no IPv6.
        let open =
            |family| ping::socket(family).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Ok(IpFamily::ALL.map(|family| open(family).ok()))
    })??;
    let mut answers: BTreeMap<IpAddr, Answer> = targets.iter().map(|(to, _)| (*to, Answer::Missed)).collect();
    for _ in 0..ROUNDS {
        round(&sockets, targets, None, &mut answers);
    }
    round(&sockets, targets, Some(SMALL), &mut answers);
    Ok(answers)
}

/// Sends a request to each address that has not answered, and waits for the answers.
fn round(
    sockets: &[Option<UdpSocket>; 2],
    targets: &[(IpAddr, u16)],
    size: Option<u16>,
    answers: &mut BTreeMap<IpAddr, Answer>,
) {
    let end = Instant::now() + ROUND;
    let came = if size.is_some() { Answer::Small } else { Answer::Came };
    let mut waiting: BTreeMap<u16, IpAddr> = BTreeMap::new();
    for (number, (to, whole)) in (0_u16..).zip(targets) {
        if answers.get(to) == Some(&Answer::Came) {
            continue;
        }
        let family = IpFamily::of(*to);
        let sent = match &sockets[family as usize] {
            Some(socket) => {
                let request = ping::request(family, number, size.unwrap_or(*whole));
                socket.send_to(&request, (*to, 0)).map(drop)
            }
            None => Err(ErrorKind::Unsupported.into()),
        };
        match sent {
            Ok(()) => drop(waiting.insert(number, *to)),
            Err(error) => drop(answers.insert(*to, Answer::NotSent(error.to_string()))),
        }
        receive(sockets, &mut waiting, &came, answers);
    }
    while !waiting.is_empty() && Instant::now() < end {
        thread::sleep(PAUSE);
        receive(sockets, &mut waiting, &came, answers);
    }
}

/// Takes the answers that are there.
fn receive(
    sockets: &[Option<UdpSocket>; 2],
    waiting: &mut BTreeMap<u16, IpAddr>,
    came: &Answer,
    answers: &mut BTreeMap<IpAddr, Answer>,
) {
    // The beginning of the message is enough.
    let mut buffer = [0; ping::HEADER];
    for (socket, family) in sockets.iter().zip(IpFamily::ALL) {
        let Some(socket) = socket else { continue };
        for _ in 0..LOOKS {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else { break };
            let number = ping::answered(family, &buffer[..len]);
            if let Some(number) = number.filter(|number| waiting.get(number) == Some(&from.ip())) {
                waiting.remove(&number);
                answers.insert(from.ip(), came.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Outcome;
    use super::*;

    fn rows(value: Value) -> Vec<Row> {
        serde_json::from_value(value).unwrap()
    }

    /// The rows are those of `ferrule-node`'s status/health.rs.
    #[test]
    fn a_node_is_reached_in_each_family_or_its_line_says_why_not() {
        let [v4, v6]: [IpAddr; 2] = ["10.2.0.9".parse().unwrap(), "fd02::9".parse().unwrap()];
        let row = |family: &str, to: IpAddr, proof: &str| json!({"node": "n2", "family": family, "proof": proof, "since": "T", "address": to, "size": 1400});
        let both = rows(json!([row("IPv4", v4, "proved"), row("IPv6", v6, "lost")]));
        let none =
            rows(json!([{"node": "n2", "family": "IPv4", "proof": "unknown", "why": "it publishes none"}]));
        let sources: [IpAddr; 2] = ["10.1.0.2".parse().unwrap(), "fd01::2".parse().unwrap()];
        let (came, missed) = (|| Answer::Came, || Answer::Missed);
        for (rows, sources, answers, outcome, said) in [
            (
                &both,
                &sources[..],
                [came(), came()],
                Outcome::Ok,
                "10.1.0.2 reaches 10.2.0.9; fd01::2 reaches fd02::9; ferrule-node has had no answer of fd02::9 since T",
            ),
            (
                &both,
                &sources[..1],
                [came(), missed()],
                Outcome::Ok,
                "10.1.0.2 reaches 10.2.0.9; IPv6 is not asked: the pod has no address of the node's podCIDR",
            ),
            (
                &both,
                &sources[..],
                [came(), missed()],
                Outcome::Failed,
                "fd02::9 does not answer fd01::2; ferrule-node has had no answer of fd02::9 since T; 10.1.0.2 reaches 10.2.0.9",
            ),
            (
                &both,
                &sources[..1],
                [Answer::Small, came()],
                Outcome::Failed,
                "10.2.0.9 answers packets of 100 bytes from 10.1.0.2, and not those of 1400; IPv6 is not asked: the pod has no address of the node's podCIDR",
            ),
            (&none, &sources[..], [came(), came()], Outcome::Skipped, "IPv4 is not asked: it publishes none"),
        ] {
            let test = judge("n2", rows, sources, &[v4, v6].into_iter().zip(answers).collect());
            assert_eq!((test.outcome, &*test.seen), (outcome, said));
            assert_eq!(test.remedy.is_some(), outcome == Outcome::Failed);
        }
    }

    #[test]
    fn a_hundred_nodes_are_asked_those_with_a_doubt_first() {
        let row = |number: usize| {
            let proof = if number < MOST + 1 { "proved" } else { "lost" };
            json!({"node": format!("n{number:03}"), "family": "IPv4", "proof": proof})
        };
        let (nodes, left_out) = chosen(rows((0..MOST + 3).map(row).collect()));
        assert_eq!(
            (nodes.len(), left_out),
            (MOST, vec!["n098".to_owned(), "n099".to_owned(), "n100".to_owned()])
        );
        assert!(nodes.contains_key("n101") && nodes.contains_key("n102"));
    }
}
