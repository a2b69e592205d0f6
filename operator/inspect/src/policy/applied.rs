//! `inspect policies`: which policies are for each pod of this node, and whom they name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::ip::{IpFamily, from_octets};
use ferrule_kernel::nftables::{Element, Expr, Value, Verdict, elements, rules};
use ferrule_policy_kit::Direction;
use ferrule_policy_kit::ask::{Applied, AppliedPolicy, Ask};
use ferrule_policy_kit::decided::{TABLE, map};
use serde::Serialize;
use serde_json::json;

use super::daemon::Daemon;
use super::places::Places;
use crate::line::Text;
use crate::model::{SCHEMA, Sockets};
use crate::node::Roots;
use crate::table::{Row, Style, layout};

/// The pods of this node. Serialised, it is the JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct View {
    /// From the daemon: with the names of policies and peers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Applied>,
    /// From the kernel, without the daemon: the chains of the addresses that are isolated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chains: Vec<Chain>,
}

/// A direction in which an address of this node is isolated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chain {
    /// The pod, as the cached results have it; empty if they have none.
    pub pod: String,
    /// The address.
    pub address: IpAddr,
    /// The direction.
    pub direction: Direction,
    /// The chain. Its name is a hash.
    pub chain: String,
    /// How many rules it has.
    pub rules: usize,
    /// How many sets of peers they ask.
    pub sets: usize,
    /// How many addresses, blocks and ports these have.
    pub elements: usize,
}

/// Reads and prints the view. Also returns what could not be read.
///
/// # Errors
/// The kernel refuses to list something.
pub fn inspect(roots: &Roots, style: Style, as_json: bool) -> Result<(Text, Vec<String>), CniError> {
    let mut daemon = Daemon::default();
    let mut failures = Vec::new();
    let mut view = View::default();
    let answer = daemon.ask(Ask::Pods);
    if let Some(answer) = answer {
        failures.extend(answer.notes);
        failures.extend(answer.error);
        view.pods = answer.pods;
    } else {
        view.chains = chains(roots)?;
    }
    failures.extend(daemon.failure);
    let text = match as_json {
        true => {
            let mut document = json!(view);
            document["schema"] = SCHEMA.into();
            document["failures"] = json!(failures);
            Text::json(document)
        }
        false => Text::lines(view.text(style)),
    };
    Ok((text, failures))
}

fn chains(roots: &Roots) -> Result<Vec<Chain>, CniError> {
    let step = || "read the rules of policies";
    let mut sockets = Sockets::open()?;
    let places = Places::read(&roots.results, &roots.sight(), &mut sockets.route)?;
    let socket = &mut sockets.netfilter;
    let mut known: BTreeMap<String, (usize, usize, usize)> = BTreeMap::new();
    let mut found = Vec::new();
    for (direction, of) in Direction::ALL.into_iter().flat_map(|one| IpFamily::ALL.map(|of| (one, of))) {
        for element in elements(socket, TABLE, map(direction, of)).context(step)? {
            let Some((address, chain)) = leads(&element) else { continue };
            if !known.contains_key(&chain) {
                let rules = rules(socket, TABLE, &chain).context(step)?;
                let sets: Vec<String> = rules.iter().flat_map(sets_of).collect();
                let mut count = 0;
                for set in &sets {
                    let all = elements(socket, TABLE, set).context(step)?;
                    count += all.iter().filter(|element| !element.is_end).count();
                }
                known.insert(chain.clone(), (rules.len(), sets.len(), count));
            }
            let (rules, sets, elements) = known.get(&chain).copied().unwrap_or_default();
            let pod = places.pod_of(address);
            found.push(Chain { pod, address, direction, chain, rules, sets, elements });
        }
    }
    found.sort_by(|one, other| {
        (&one.pod, one.address, one.direction).cmp(&(&other.pod, other.address, other.direction))
    });
    Ok(found)
}

fn leads(element: &Element) -> Option<(IpAddr, String)> {
    match &element.value {
        Some(Value::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) => {
            Some((from_octets(&element.key)?, chain.clone()))
        }
        _ => None,
    }
}

fn sets_of(rule: &ferrule_kernel::nftables::Rule) -> Vec<String> {
    let of = |expr: Option<Expr>| match expr {
        Some(Expr::Lookup { set, .. }) => Some(set),
        _ => None,
    };
    rule.expressions.iter().filter_map(|expr| of(expr.decode())).collect()
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

impl View {
    fn text(&self, style: Style) -> String {
        if self.pods.is_empty() && self.chains.is_empty() {
            return "no pod of this node has policies\n".to_owned();
        }
        let row = |cells: Vec<String>| Row { cells, note: None };
        if !self.chains.is_empty() {
            let of_chain = |one: &Chain| {
                let counts = format!("{} rules, {} sets, {} elements", one.rules, one.sets, one.elements);
                let (pod, chain) = (one.pod.clone(), one.chain.clone());
                row(vec![pod, one.address.to_string(), word(one.direction).to_owned(), chain, counts])
            };
            let rows: Vec<Row> = self.chains.iter().map(of_chain).collect();
            return layout(&["POD", "ADDRESS", "DIRECTION", "CHAIN", "CONTENT"], &rows, style);
        }
        let mut rows = Vec::new();
        for pod in &self.pods {
            let addresses = pod.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let first =
                |rest: [String; 4]| row([vec![pod.pod.clone(), addresses.clone()], rest.to_vec()].concat());
            if pod.policies.is_empty() {
                rows.push(first(["-".to_owned(), "none".to_owned(), String::new(), String::new()]));
            }
            let of = |policy: &AppliedPolicy| {
                let does = policy.does.clone() + if pod.is_dry { ", mode dry" } else { "" };
                first([word(policy.direction).to_owned(), policy.policy.clone(), does, peers(policy)])
            };
            rows.extend(pod.policies.iter().map(of));
        }
        layout(&["POD", "ADDRESSES", "DIRECTION", "POLICY", "RULES", "PEERS"], &rows, style)
    }
}

/// Whom a policy names.
fn peers(policy: &AppliedPolicy) -> String {
    let AppliedPolicy { everybody, blocks, peers, addresses, .. } = policy;
    let mut parts = Vec::new();
    if *everybody {
        parts.push("everybody".to_owned());
    }
    if *addresses > 0 {
        let known = peers.join(" ");
        parts.push(format!(
            "{addresses} addresses of pods: {known}{}",
            if *addresses > 2 * peers.len() { " …" } else { "" }
        ));
    }
    if !blocks.is_empty() {
        parts.push(blocks.join(" "));
    }
    if parts.is_empty() { "nobody".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_chains_are_rows() {
        let policy = |direction, everybody, peers: &[&str], addresses| AppliedPolicy {
            policy: "NetworkPolicy shop/web".into(),
            direction,
            does: "Admin 20: Accept, Deny".into(),
            everybody,
            blocks: Vec::new(),
            peers: peers.iter().map(|one| one.to_string()).collect(),
            addresses,
        };
        let ingress = policy(Direction::Ingress, false, &["shop/a", "shop/b"], 40);
        let egress = policy(Direction::Egress, false, &[], 0);
        let address = |last| vec![IpAddr::from([10, 1, 0, last])];
        let pods = vec![
            Applied {
                pod: "shop/web".into(),
                addresses: address(2),
                policies: vec![ingress, egress],
                is_dry: true,
            },
            Applied { pod: "shop/open".into(), addresses: address(3), policies: Vec::new(), is_dry: false },
        ];
        let text = View { pods, ..View::default() }.text(Style::default());
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines[1..],
            [
                "shop/web 10.1.0.2 ingress NetworkPolicy shop/web Admin 20: Accept, Deny, mode dry 40 addresses of pods: shop/a shop/b …",
                "shop/web 10.1.0.2 egress NetworkPolicy shop/web Admin 20: Accept, Deny, mode dry nobody",
                "shop/open 10.1.0.3 - none",
            ]
        );
        assert_eq!(peers(&policy(Direction::Ingress, true, &[], 0)), "everybody");
        let (pod, chain, direction) = ("shop/web".to_owned(), "c1".to_owned(), Direction::Egress);
        let chains =
            vec![Chain { pod, address: address(2)[0], direction, chain, rules: 3, sets: 1, elements: 9 }];
        let text = View { chains, ..View::default() }.text(Style::default());
        assert!(text.contains("egress     c1     3 rules, 1 sets, 9 elements"), "{text}");
        assert_eq!(View::default().text(Style::default()), "no pod of this node has policies\n");
    }
}
