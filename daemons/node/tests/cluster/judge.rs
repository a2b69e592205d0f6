//! The checker: at the end of each test pods ask each other, and each daemon's word must agree with what they get. It prints a row
//! for each node: the test, what the daemon says, what a pod gets. With `FERRULE_WORDS=FILE` the rows go to that file, too.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;

use cni_lab::{Place as _, Pod, eventually};
use serde_json::Value;

use crate::lab::{Cluster, LIMIT, node_path};
use crate::member::Member;

/// A pod that the checker has started, and the addresses of its families.
struct Witness {
    pod: Pod,
    addresses: Vec<IpAddr>,
    mtu: u64,
}

/// What a daemon says.
struct Said {
    word: String,
    /// Code and about.
    reasons: Vec<(String, String)>,
    /// The other nodes, and the families that it has a way for, as `IPv4`.
    ways: Vec<(String, &'static str)>,
}

/// Checks all nodes whose daemon runs.
pub(crate) fn check(cluster: &mut Cluster) {
    let running: Vec<&'static str> =
        cluster.members_mut().into_iter().filter_map(|member| member.runs().then_some(member.name)).collect();
    let cluster = &*cluster;
    let members: Vec<&Member> =
        cluster.members().into_iter().filter(|member| running.contains(&member.name)).collect();
    let witnesses: Vec<Result<Witness, String>> = members.iter().map(|member| witness(member)).collect();
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    let agrees = eventually(LIMIT, || {
        (rows, faults) = (Vec::new(), Vec::new());
        for (at, member) in members.iter().enumerate() {
            let others = members.iter().zip(&witnesses).enumerate().filter(|(other, _)| *other != at);
            let others: Vec<(&str, &Witness)> = others
                .filter_map(|(_, (member, witness))| Some((member.name, witness.as_ref().ok()?)))
                .filter(|(name, _)| cluster.store.get(&node_path(name)).is_some())
                .collect();
            let got = got(&witnesses[at], &others);
            let said = said(member);
            rows.push(row(member, &said, &got));
            faults.extend(fault(&said, &got).map(|fault| format!("{}: {fault}", rows.last().unwrap())));
        }
        faults.is_empty() || cluster.broken.get().is_some()
    });
    let why = cluster.broken.get().map_or_else(String::new, |why| format!(" ({why})"));
    for row in rows {
        tell(&format!("{row}{why} |"));
    }
    assert!(agrees, "the daemon's word and its pods do not agree:\n{}", faults.join("\n"));
}

/// What a pod gets from the pods of the other nodes, by name and family; or why there is no pod.
type Got = Result<Vec<(String, &'static str, bool)>, String>;

fn witness(member: &Member) -> Result<Witness, String> {
    let conflist = member.conflist().filter(|value| value["ferruleNode"].is_object()).ok_or("no conflist")?;
    let (pod, addresses) = member.try_pod("witness")?;
    let mtu = conflist["plugins"][0]["mtu"].as_u64().ok_or("no MTU")?;
    Ok(Witness { pod, addresses, mtu })
}

/// Asks all others at once, with the largest packets.
fn got(witness: &Result<Witness, String>, others: &[(&str, &Witness)]) -> Got {
    let witness = witness.as_ref().map_err(Clone::clone)?;
    let targets = || {
        others.iter().flat_map(|(name, other)| {
            let common = other
                .addresses
                .iter()
                .filter(|to| witness.addresses.iter().any(|from| from.is_ipv4() == to.is_ipv4()));
            common.map(move |to| (*name, *to, witness.mtu.min(other.mtu)))
        })
    };
    let mut script = String::new();
    for (_, to, mtu) in targets() {
        let size = mtu - if to.is_ipv4() { 28 } else { 48 };
        script += &format!("ping -n -q -c 1 -W 4 -M do -s {size} {to} >/dev/null 2>&1 && echo {to} &\n");
    }
    let answers = witness.pod.sh(&format!("{script}wait")).map_err(|error| format!("{error:#}"))?;
    let has = |to: IpAddr| answers.lines().any(|line| line.parse() == Ok(to));
    Ok(targets().map(|(name, to, _)| (name.to_owned(), family(to), has(to))).collect())
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn said(member: &Member) -> Said {
    let (_, text) = member.http("/readyz");
    let word = text.lines().next().unwrap_or("no answer").to_owned();
    let status: Value = member
        .node
        .read_file("/run/ferrule/node/status.json")
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let reasons = list(&status["reasons"]).iter().map(|r| (text(&r["code"]), text(&r["about"]))).collect();
    let mut ways = Vec::new();
    for node in list(&status["nodes"]) {
        for network in list(&node["networks"]) {
            if ["route", "vxlan", "wireguard"].iter().any(|way| network["way"] == *way) {
                let is_v6 = text(&network["network"]).contains(':');
                ways.push((text(&node["name"]), if is_v6 { "IPv6" } else { "IPv4" }));
            }
        }
    }
    Said { word, reasons, ways }
}

fn row(member: &Member, said: &Said, got: &Got) -> String {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let reasons: Vec<String> =
        said.reasons.iter().map(|(code, about)| format!("{code} {about}").trim().to_owned()).collect();
    let says =
        if reasons.is_empty() { said.word.clone() } else { format!("{}: {}", said.word, reasons.join(", ")) };
    let gets = match got {
        Err(why) => format!("no pod: {}", why.lines().next().unwrap_or_default()),
        Ok(got) if got.is_empty() => "nobody to talk to".to_owned(),
        Ok(got) => {
            let one = |(name, family, has): &(String, &str, bool)| {
                format!("{}{name} {family}", if *has { "" } else { "not " })
            };
            got.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    };
    format!("| {test} | {} | {says} | {gets}", member.name)
}

/// How word and pods contradict each other.
fn fault(said: &Said, got: &Got) -> Option<String> {
    let (none, empty) = (String::new(), Vec::new());
    let got_all = got.as_ref().unwrap_or(&empty);
    let no_pod = got.as_ref().err().unwrap_or(&none);
    let has_way = |name: &str, family: &str| said.ways.iter().any(|(to, of)| to == name && *of == family);
    let lost: Vec<&(String, &str, bool)> =
        got_all.iter().filter(|(name, family, has)| has_way(name, family) && !has).collect();
    let names = |name: &str| said.reasons.iter().any(|(_, about)| about.split(' ').next() == Some(name));
    let blamed =
        |family: &str| said.reasons.iter().any(|(code, about)| code == "local-family" && about == family);
    match said.word.as_str() {
        "ready" | "degraded" if !no_pod.is_empty() => Some(format!("there is no pod: {no_pod}")),
        "ready" => lost.first().map(|(name, family, _)| format!("pods do not reach {name} by {family}")),
        "degraded" => {
            let unnamed = lost.iter().find(|(name, family, _)| !names(name) && !blamed(family));
            let innocent = got_all.iter().map(|(name, ..)| name).find(|name| {
                let is_peer = |(code, about): &(String, String)| code == "peer" && about == *name;
                let all = got_all.iter().all(|(other, _, has)| other != *name || *has);
                said.reasons.iter().any(is_peer) && all
            });
            unnamed
                .map(|(name, family, _)| {
                    format!("it does not name {name}, which pods do not reach by {family}")
                })
                .or_else(|| innocent.map(|name| format!("it names {name}, which pods reach")))
        }
        "not ready" if no_pod.is_empty() && lost.is_empty() && !got_all.is_empty() => {
            let is_known =
                |(code, _): &(String, String)| ["first", "masquerade", "node"].contains(&code.as_str());
            let text = "pods reach all others".to_owned();
            (!said.reasons.iter().any(is_known)).then_some(text)
        }
        "not ready" => None,
        word => Some(format!("the word is {word:?}")),
    }
}

fn tell(row: &str) {
    println!("{row}");
    let Ok(path) = std::env::var("FERRULE_WORDS") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(format!("{row}\n").as_bytes()).unwrap();
}
