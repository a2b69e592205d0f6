//! The networks that many nodes share: whether this node's blocks have free addresses, and whether their daemon answers.
//!
//! The ledgers say which networks there are: a configuration of Multus is in no file of the node.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ferrule_blocks::ledger::{Ledger, State};
use ferrule_blocks::plan::Use;
use ferrule_blocks::wire::{FOLDER, PROTOCOL, Request, SOCKET};
use ferrule_shared::{STATUS, client, list};

use super::networks::{Network, type_of};
use super::{Finding, Subject};

const SUBJECT: &str = "blocks";
const NO_DAEMON: &str =
    "start ferrule-node blocks on this node: kubectl apply -f examples/shared/ferrule-blocks.yaml";
const FULL: &str =
    "kubectl get addressblocks names the nodes that have the others; add a range on all nodes, or end pods";
const LOST: &str = "start the pods anew that have these addresses: ferrule inspect addresses";
const UNREADABLE: &str =
    "end the network's pods on this node, remove the file, and start ferrule-node blocks anew";

/// A network, and why its ledger says nothing.
type Listed = (String, Result<Facts, String>);

/// What a ledger says.
#[derive(Debug, Default)]
struct Facts {
    /// Blocks and free addresses of each range set that has a block.
    sets: BTreeMap<usize, (usize, usize)>,
    /// Each lost block, and how many of its addresses are used.
    lost: Vec<(String, usize)>,
}

impl Facts {
    fn read(ledger: &Ledger) -> Result<Facts, String> {
        Ok(Facts::of(list::uses(ledger).map_err(|error| error.to_string())?))
    }

    fn of(uses: Vec<(usize, State, Use)>) -> Facts {
        let mut facts = Facts::default();
        for (set, state, of) in uses {
            let (blocks, free) = facts.sets.entry(set).or_default();
            match state {
                State::Open => (*blocks, *free) = (*blocks + 1, *free + of.capacity.saturating_sub(of.used)),
                State::Closed => {}
                State::Lost => facts.lost.push((of.block.network().to_string(), of.used)),
            }
        }
        facts
    }
}

/// Looks at the ledgers in the default folder, and in those that the networks name. `None` without a ledger and without such a network.
pub fn judge(networks: &[Network]) -> Option<Subject> {
    let places = places(networks);
    let (mut findings, mut seen) = (Vec::new(), Vec::new());
    let is_used = places.len() > 1 || networks.iter().any(|network| network.has(&["shared"]));
    for (folder, socket) in &places {
        let listed = match read(folder) {
            Ok(listed) => listed,
            Err(error) => {
                let problem = format!("{} cannot be read: {error}", folder.display());
                findings.push(Finding::error(SUBJECT, problem, super::WHOLE));
                continue;
            }
        };
        if listed.is_empty() {
            continue;
        }
        let ping = Request { ferrule_blocks: PROTOCOL, ..Request::default() };
        let answer = client::ask(socket, &ping, Instant::now() + STATUS).map_err(|error| error.to_string());
        findings.extend(judge_folder(&listed, answer));
        seen.extend(listed.iter().map(|(network, facts)| summary(network, facts)));
    }
    if seen.is_empty() && findings.is_empty() {
        return is_used.then(|| Subject::new(SUBJECT, "this node has none yet", Vec::new()));
    }
    Some(Subject::new(SUBJECT, seen.join("; "), findings))
}

/// Each folder of ledgers with its daemon's socket.
fn places(networks: &[Network]) -> BTreeMap<PathBuf, PathBuf> {
    let of = |ipam: &serde_json::Value, key: &str, usual: &str| -> PathBuf {
        ipam[key].as_str().filter(|path| !path.is_empty()).unwrap_or(usual).into()
    };
    let ipams = networks.iter().flat_map(|network| &network.plugins).map(|plugin| &plugin["ipam"]);
    let shared = ipams.filter(|ipam| type_of(ipam) == Some("shared"));
    let named = shared.map(|ipam| (of(ipam, "ledgers", FOLDER), of(ipam, "socket", SOCKET)));
    [(FOLDER.into(), SOCKET.into())].into_iter().chain(named).collect()
}

fn read(folder: &Path) -> io::Result<Vec<Listed>> {
    let listed = list::ledgers(folder)?.into_iter();
    let facts = |listed: list::Listed| {
        let facts = listed.ledger.as_ref().map_err(Clone::clone).and_then(Facts::read);
        (listed.network(), facts)
    };
    Ok(listed.map(facts).collect())
}

fn judge_folder(listed: &[Listed], daemon: Result<(), String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (network, facts) in listed {
        let subject = format!("network {network}");
        let facts = match facts {
            Ok(facts) => facts,
            Err(why) => {
                findings.push(Finding::error(subject, format!("its ledger says nothing: {why}"), UNREADABLE));
                continue;
            }
        };
        for (block, used) in &facts.lost {
            let problem = format!("{used} addresses of {block} are used, and another node may give them too");
            findings.push(Finding::error(&subject, problem, LOST));
        }
        for (blocks, free) in facts.sets.values() {
            match (blocks, free, &daemon) {
                (1.., 0, Ok(())) => {
                    let problem = format!(
                        "all addresses of this node's {blocks} blocks are used, and no further block is claimed"
                    );
                    findings.push(Finding::warning(&subject, problem, FULL));
                }
                (1.., 0, Err(why)) => {
                    findings.push(Finding::error(
                        &subject,
                        format!("no address is free, and {why}"),
                        NO_DAEMON,
                    ));
                }
                _ => {}
            }
        }
    }
    // An error above names it already.
    if let (Err(why), false) = (&daemon, findings.iter().any(|finding| finding.remedy == NO_DAEMON)) {
        let problem = format!("{why}; pods get the free addresses of this node's blocks alone");
        findings.push(Finding::warning(SUBJECT, problem, NO_DAEMON));
    }
    findings
}

fn summary(network: &str, facts: &Result<Facts, String>) -> String {
    let counts = facts.as_ref().map_or((0, 0), |facts| {
        let blocks = facts.sets.values().map(|(blocks, _)| blocks).sum();
        (blocks, facts.sets.values().map(|(_, free)| *free).min().unwrap_or_default())
    });
    format!("{network}: {} blocks, {} free addresses", counts.0, counts.1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferrule_blocks::block::Block;

    use super::super::Severity;
    use super::super::networks::tests::network;
    use super::*;

    fn facts(uses: &[(usize, State, usize)]) -> Result<Facts, String> {
        let uses = uses.iter().map(|(set, state, used)| {
            let block = Block::of("10.0.0.8".parse().unwrap(), 8.try_into().unwrap());
            (*set, *state, Use { block, capacity: 8, used: *used, empty_for: Duration::ZERO })
        });
        Ok(Facts::of(uses.collect()))
    }

    #[test]
    fn full_lost_and_unreadable_ledgers() {
        use State::{Closed, Lost, Open};
        let away = || Err("the daemon does not answer".to_owned());
        for (facts, daemon, expected) in [
            (facts(&[]), Ok(()), &[][..]),
            (facts(&[(0, Open, 7)]), Ok(()), &[]),
            (facts(&[(0, Open, 8), (0, Open, 7)]), Ok(()), &[]),
            (facts(&[(0, Closed, 0)]), Ok(()), &[]),
            (
                facts(&[(0, Open, 8), (1, Open, 0)]),
                Ok(()),
                &[(Severity::Warning, "all addresses of this node's 1 blocks")],
            ),
            (
                facts(&[(0, Open, 8)]),
                away(),
                &[(Severity::Error, "no address is free, and the daemon does not answer")],
            ),
            (facts(&[(0, Open, 1)]), away(), &[(Severity::Warning, "the daemon does not answer; pods get")]),
            (
                facts(&[(0, Lost, 3), (0, Open, 1)]),
                Ok(()),
                &[(Severity::Error, "3 addresses of 10.0.0.8/29 are used")],
            ),
            (Err("EOF".to_owned()), Ok(()), &[(Severity::Error, "its ledger says nothing: EOF")]),
        ] {
            let found = judge_folder(&[("net".to_owned(), facts)], daemon);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (finding, (severity, start)) in found.iter().zip(expected) {
                assert!(finding.severity == *severity && finding.problem.starts_with(start), "{finding:?}");
            }
        }
        assert_eq!(summary("net", &facts(&[(0, Open, 2), (1, Open, 5)])), "net: 2 blocks, 3 free addresses");
    }

    #[test]
    fn networks_name_their_folders() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ledgers");
        let text = format!(
            r#"[{{"type":"macvlan","ipam":{{"type":"shared","ledgers":"{}","socket":"/nowhere"}}}}]"#,
            folder.display()
        );
        let networks =
            [network("lan", &text), network("pods", r#"[{"type":"ptp","ipam":{"type":"host-local"}}]"#)];
        assert_eq!(places(&networks)[&folder], PathBuf::from("/nowhere"));
        assert_eq!(places(&networks[1..]).len(), 1);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("lan.json"), "{").unwrap();
        let found = judge(&networks).unwrap().findings;
        let problems: Vec<&str> = found.iter().map(|finding| &*finding.problem).collect();
        assert!(problems[0].starts_with("its ledger says nothing"), "{problems:?}");
        assert!(problems[1].contains("does not answer at /nowhere"), "{problems:?}");
    }
}
