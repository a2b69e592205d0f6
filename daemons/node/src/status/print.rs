//! `ferrule-node status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use cni_common::line::{Line, Text, clean};
use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use super::{Source, Status, Way, read, runs};
use crate::arguments::Options;
use crate::guard::{self, Offender};
use crate::probe::probe;
use crate::store::addresses;
use crate::word::Word;

/// How long a node may take to answer.
const LIMIT: Duration = Duration::from_secs(1);

/// The text of `ferrule-node status`, and whether the word is ready.
///
/// # Errors
/// There is no status file, or it cannot be read.
pub async fn print(options: &Options, as_json: bool, with_probe: bool) -> Result<(Text, bool)> {
    let Some(status) = read(&options.state)? else {
        bail!("there is no {}/status.json: no daemon has run since the last boot", options.state.display());
    };
    let probes: Vec<IpAddr> =
        status.nodes.iter().flat_map(|node| &node.networks).filter_map(|n| n.probe).collect();
    let answers: BTreeMap<IpAddr, Option<Duration>> = match with_probe {
        true => {
            let answers =
                probe(&probes, LIMIT).await.context("give --no-probe, or run it with CAP_NET_RAW")?;
            probes.iter().copied().zip(answers).collect()
        }
        false => BTreeMap::new(),
    };
    let (is_running, former) = (runs(&options.state), former(&status));
    // Whoever may not ask the kernel sees the rest.
    let offenders = guard::offenders().unwrap_or_default();
    let text = match as_json {
        true => {
            let mut value = to_json(&status, is_running, &former, &answers);
            value["forgedSources"] = json!(offenders);
            Text::json(format_args!("{value:#}\n"))
        }
        false => Text::lines(
            to_text(&status, is_running, &former, &answers, SystemTime::now()) + &forgeries(&offenders),
        ),
    };
    Ok((text, is_running && status.word == Word::Ready.to_string()))
}

fn forgeries(offenders: &[Offender]) -> String {
    let line = |Offender { link, addresses, packets }: &Offender| {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let pod = addresses.join(" ");
        format!(
            "{}\n",
            Line::new(format_args!(
                "dropped: {packets} packets of the pod {pod} on {link}, with sources of others"
            ))
        )
    };
    offenders.iter().map(line).collect()
}

/// The addresses in use outside of this node's podCIDRs: of pods from before a change.
fn former(status: &Status) -> Vec<IpAddr> {
    let own = status.own();
    let used = addresses(&status.conflist.store).unwrap_or_default().into_iter();
    used.filter(|address| !own.iter().any(|network| network.contains(*address))).collect()
}

type Answers = BTreeMap<IpAddr, Option<Duration>>;

fn to_json(status: &Status, is_running: bool, former: &[IpAddr], answers: &Answers) -> Value {
    let mut value = json!(status);
    value["running"] = json!(is_running);
    value["formerAddresses"] = json!(former);
    for network in value["nodes"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .flat_map(|node| node["networks"].as_array_mut().into_iter().flatten())
    {
        let address = network["probe"].as_str().and_then(|text| text.parse().ok());
        if let Some(answer) = address.and_then(|address: IpAddr| answers.get(&address)) {
            network["answerSeconds"] = json!(answer.map(|answer| answer.as_secs_f64()));
        }
    }
    value
}

fn to_text(
    status: &Status,
    is_running: bool,
    former: &[IpAddr],
    answers: &Answers,
    now: SystemTime,
) -> String {
    let Status { node, mode, word, reasons, api, conflist, nodes, health, policy } = status;
    let mut text = match is_running {
        true => format!("{}\n", Line::new(word)),
        false => format!("the daemon does not run; its last word was: {}\n", Line::new(word)),
    };
    for reason in reasons {
        let _ = writeln!(
            text,
            "{}",
            Line::new(format_args!("{}: {}: {}", reason.word, reason.code, reason.text))
        );
        let _ = writeln!(text, "    {}", Line::new(&reason.remedy));
    }
    let _ = writeln!(text, "{}", Line::new(format_args!("node {node}, mode {mode}")));
    let _ = match &api.error {
        None if api.connected => writeln!(text, "API server: followed since {}", api.since),
        None => writeln!(text, "API server: not reached yet"),
        Some(error) => {
            writeln!(text, "{}", Line::new(format_args!("API server: away since {}: {error}", api.since)))
        }
    };
    if let Source::File(time) = &api.source {
        let shown = Line::new(format_args!("nodes: by the file of {time}, as the API server is away"));
        let _ = writeln!(text, "{shown}");
    }
    let networks = match conflist.networks.as_slice() {
        [] => "this node has no podCIDR".to_owned(),
        networks => format!("{}, MTU {}", networks.join(" "), conflist.mtu),
    };
    let state = if conflist.written { "" } else { " (not written)" };
    let shown = Line::new(format_args!("conflist {}{state}: {networks}", conflist.path.display()));
    let _ = writeln!(text, "{shown}");
    if let [first, ..] = former {
        let count = former.len();
        let _ = writeln!(
            text,
            "addresses in use outside of these networks: {count}, such as {first}: pods from before a change keep theirs"
        );
    }
    text.push_str(&health.as_ref().map(|health| health.to_text(now)).unwrap_or_default());
    text.push_str(&policy.as_ref().map(super::Policy::to_text).unwrap_or_default());
    let peers = health.iter().flat_map(|health| &health.peers);
    let proofs: BTreeMap<_, _> = peers.map(|row| ((row.node.as_str(), row.family.clone()), row)).collect();
    let mut rows = vec![["NODE", "PODS", "WAY", "SINCE", "PROOF", "ANSWER"].map(str::to_owned)];
    for node in nodes {
        for network in &node.networks {
            let way = match network.way {
                Way::Route => network.detail.clone(),
                Way::Vxlan => format!("vxlan {}", network.detail),
                Way::Wireguard => format!("wireguard {}", network.detail),
                Way::Waits => format!("waits: {}", network.detail),
                Way::Refused => format!("refused: {}", network.detail),
            };
            let answer = match network.probe.and_then(|address| answers.get(&address)) {
                Some(Some(time)) => format!("{:.1} ms", time.as_secs_f64() * 1000.0),
                Some(None) => "none".to_owned(),
                None => "-".to_owned(),
            };
            let family =
                network.network.parse().ok().map(|network: IpNetwork| IpFamily::of(network.ip()).to_string());
            let found = family.and_then(|family| proofs.get(&(node.name.as_str(), family)));
            let shown = match (found, node.standing.as_str()) {
                (None, _) => "-".to_owned(),
                // The way has said it.
                (Some(row), _) if row.why.as_ref() == Some(&network.detail) => row.proof.clone(),
                (Some(row), standing @ ("new" | "not_ready" | "restarting")) if row.proof == "lost" => {
                    format!("{} ({})", row.to_text(now), standing.replace('_', " "))
                }
                (Some(row), _) => row.to_text(now),
            };
            rows.push([node.name.clone(), network.network.clone(), way, node.since.clone(), shown, answer]);
        }
        if node.networks.is_empty() {
            let none = ["-", "waits: the node has no podCIDR", &node.since, "-", "-"].map(str::to_owned);
            let [pods, way, since, proof, answer] = none;
            rows.push([node.name.clone(), pods, way, since, proof, answer]);
        }
    }
    text.push_str(&columns(&rows));
    text
}

/// A table: two spaces between the columns.
fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| clean(cell))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use humantime::parse_rfc3339;

    use super::*;
    use crate::status::{Health, Network, Node, Reason, Row};

    fn health() -> Health {
        let row = |node: &str, family: &str, proof: &str, since: Option<&str>, why: Option<&str>| Row {
            node: node.into(),
            family: family.into(),
            proof: proof.into(),
            since: since.map(str::to_owned),
            why: why.map(str::to_owned),
            address: None,
            size: None,
        };
        let begin = Some("2026-01-01T00:00:00Z");
        let peers = vec![
            row("n2", "IPv4", "lost", begin, Some("no answer")),
            row("n3", "IPv6", "proved", Some("2026-01-01T00:01:00Z"), None),
            row("n3", "IPv4", "unknown", None, Some("it is so")),
        ];
        let local =
            vec![row("", "IPv4", "proved", begin, None), row("", "IPv6", "unknown", None, Some("it is off"))];
        Health { local, peers, ..Health::default() }
    }

    fn status(store: &std::path::Path) -> Status {
        let network = |network: &str, way, detail: &str, probe: Option<&str>| Network {
            network: network.into(),
            way,
            detail: detail.into(),
            probe: probe.map(|text| text.parse().unwrap()),
        };
        let node = |name: &str, networks| Node {
            name: name.into(),
            addresses: Vec::new(),
            networks,
            since: "2026-01-01T00:00:00Z".into(),
            standing: "restarting".into(),
        };
        let mut status = Status {
            node: "n1".into(),
            mode: "auto".into(),
            word: "degraded".into(),
            reasons: vec![Reason {
                code: "peer".into(),
                about: "n2".into(),
                text: "node n2: no answer".into(),
                remedy: "look there".into(),
                word: "degraded".into(),
            }],
            health: Some(health()),
            nodes: vec![
                node(
                    "n2",
                    vec![network("10.244.2.0/24", Way::Route, "via 192.0.2.2 dev eth0", Some("192.0.2.2"))],
                ),
                node(
                    "n3",
                    ["fd00::/64", "10.244.3.0/24"]
                        .map(|pods| network(pods, Way::Refused, "it is so", None))
                        .to_vec(),
                ),
                node("n4", vec![]),
            ],
            ..Status::default()
        };
        status.conflist.networks = vec!["10.244.1.0/24".into()];
        status.conflist.store = store.into();
        status
    }

    #[test]
    fn people_see_each_node() {
        let status = status(std::path::Path::new("/nowhere"));
        let answers = Answers::from([("192.0.2.2".parse().unwrap(), Some(Duration::from_micros(250)))]);
        let now = parse_rfc3339("2026-01-01T00:01:05Z").unwrap();
        let text = to_text(&status, true, &[], &answers, now);
        let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(plain).collect();
        let expected = [
            "degraded",
            "degraded: peer: node n2: no answer",
            "look there",
            "node n1, mode auto",
            "API server: not reached yet",
            "conflist (not written): 10.244.1.0/24, MTU 0",
            "no health endpoint",
            "other nodes: 1 of 3 proved, the oldest 5 s ago",
            "pods of this node, IPv4: 65 s ago",
            "pods of this node, IPv6: unknown: it is off",
            "NODE PODS WAY SINCE PROOF ANSWER",
            "n2 10.244.2.0/24 via 192.0.2.2 dev eth0 2026-01-01T00:00:00Z lost since 2026-01-01T00:00:00Z: no answer (restarting) 0.2 ms",
            "n3 fd00::/64 refused: it is so 2026-01-01T00:00:00Z 5 s ago -",
            "n3 10.244.3.0/24 refused: it is so 2026-01-01T00:00:00Z unknown -",
            "n4 - waits: the node has no podCIDR 2026-01-01T00:00:00Z - -",
        ];
        assert_eq!(lines, expected, "{text}");
        let text = to_text(&status, false, &[], &answers, now);
        assert!(text.starts_with("the daemon does not run; its last word was: degraded\n"), "{text}");
        let value = to_json(&status, true, &[], &answers);
        assert_eq!(value["nodes"][0]["networks"][0]["answerSeconds"], json!(0.00025));
        assert_eq!(value["nodes"][1]["networks"][0].get("answerSeconds"), None);
    }

    #[test]
    fn addresses_from_before_a_change_are_told() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["10.244.1.2", "10.244.9.3", "fd00::2", "last_reserved_ip.0", "lock"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let status = status(folder.path());
        assert_eq!(former(&status), ["10.244.9.3", "fd00::2"].map(|text| text.parse::<IpAddr>().unwrap()));
        let text = to_text(&status, true, &former(&status), &Answers::new(), SystemTime::now());
        assert!(text.contains("addresses in use outside of these networks: 2, such as 10.244.9.3"), "{text}");
    }
}
