//! What the objects of the API say to a question. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferrule_node_policy::judge::{
    EXPLAINED, Entry, Miss, Place, Reason as Decides, Unlike, Why, unlike, why,
};
use ferrule_node_policy::model::{
    ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject, Direction,
    NetworkPolicy, Port, PortValue, Rule,
};
use ferrule_node_policy::{Applied as AppliedTo, Cluster, Compiler, Named};
use ferrule_policy_kit::ask::{
    Answer, Applied, AppliedPolicy, Ask, By, Flow, MOST, PROTOCOL, Pod, Question, Reason, Side,
};

use super::denied::denial;

/// The most peers and blocks of a policy that are named.
const FEW: usize = 10;
/// The most peers, or names of ports, of an entry that are explained.
const PARTS: usize = 3;
/// The most rules of one end that are named because they were not asked.
const UNREACHED: usize = 3;
/// How long questions are answered: this thread enforces.
const TIME: Duration = Duration::from_secs(1);

/// The answer, without notes.
pub(crate) fn answer(ask: &Ask, compiler: &Compiler) -> Answer {
    let mut answer = Answer { ferrule_policy: PROTOCOL, ..Answer::default() };
    match ask {
        Ask::Why(questions) => {
            answer.flows = in_time(questions, &mut answer, |question| flow(compiler.cluster(), question));
        }
        Ask::Denied(flows) => {
            answer.denials = in_time(flows, &mut answer, |flow| denial(compiler.cluster(), flow, 1));
        }
        Ask::Pod(name) => match pod(compiler.cluster(), name) {
            Some(pod) => answer.pod = Some(pod),
            None => {
                answer.error = Some(format!("ferrule-node knows no pod {name:?} with an address of its own"))
            }
        },
        Ask::Pods => answer.pods = pods(compiler),
    }
    answer
}

/// Looks at one after the other, as long as there is time.
fn in_time<Q, A>(questions: &[Q], answer: &mut Answer, one: impl Fn(&Q) -> A) -> Vec<A> {
    let all = questions.len();
    if all > MOST {
        answer.error = Some(format!("more than {MOST} questions"));
        return Vec::new();
    }
    let end = Instant::now() + TIME;
    let found: Vec<A> =
        questions.iter().map_while(|question| (Instant::now() < end).then(|| one(question))).collect();
    if found.len() < all {
        let found = found.len();
        answer
            .notes
            .push(format!("the policies are many: ferrule-node has looked at {found} of {all} flows"));
    }
    found
}

fn pod(cluster: &Cluster, name: &str) -> Option<Pod> {
    let (namespace, name) = name.split_once('/')?;
    let pod = cluster.pod(namespace, name)?;
    let addresses = pod.addresses().all().collect();
    Some(Pod { addresses, is_here: pod.is_local(), has_part: pod.has_part() })
}

fn flow(cluster: &Cluster, question: &Question) -> Flow {
    let Question { from, to, protocol, port } = *question;
    let found = why(cluster, from, to, port, protocol);
    let ends = Ends { cluster, from, to };
    Flow {
        egress: side(&found.egress, Direction::Egress, &ends),
        ingress: side(&found.ingress, Direction::Ingress, &ends),
    }
}

fn side(why: &Why<'_>, direction: Direction, ends: &Ends<'_>) -> Side {
    let (reason, by) = match &why.reason {
        Decides::Itself => (Reason::Itself, Vec::new()),
        Decides::NotHere => (Reason::NotHere, Vec::new()),
        Decides::NoPolicy => (Reason::NoPolicy, Vec::new()),
        Decides::TwoPods => (Reason::TwoPods, Vec::new()),
        Decides::Closed => (Reason::Closed, Vec::new()),
        Decides::Allowed(place) => (Reason::Allowed, vec![of_place(place, direction)]),
        Decides::Accepted(entry) => (Reason::Accepted, vec![of_entry(entry, direction)]),
        Decides::Refused(entry) => (Reason::Refused, vec![of_entry(entry, direction)]),
        Decides::NothingAllows(all) => {
            let count: usize = all.iter().map(|missed| missed.policy.rules(direction).len().max(1)).sum();
            let by = all.iter().flat_map(|missed| missed_by(missed.policy, &missed.entries, direction, ends));
            let mut by: Vec<By> = by.take(EXPLAINED).collect();
            if let (Some(last), true) = (by.last_mut(), count > EXPLAINED) {
                last.misses += &format!("; and {} more entries of policies", count - EXPLAINED);
            }
            (Reason::NothingAllows, by)
        }
    };
    Side {
        pods: why.pods.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect(),
        reason,
        by,
        passed: why.passed.iter().map(|entry| of_entry(entry, direction)).collect(),
        unreached: unreached(&why.unreached, direction),
        is_dry: why.is_dry,
    }
}

/// Rules behind the reason that would have decided otherwise.
fn unreached(all: &[Decides<'_>], direction: Direction) -> Vec<By> {
    let one = |reason: &Decides<'_>| match reason {
        Decides::Allowed(place) => Some(of_place(place, direction)),
        Decides::Accepted(entry) | Decides::Refused(entry) => Some(of_entry(entry, direction)),
        Decides::NothingAllows(all) => {
            let NetworkPolicy { namespace, name, .. } = all.first()?.policy;
            let more = match all.len() - 1 {
                0 => String::new(),
                more => format!(", nor one of {more} more NetworkPolicies"),
            };
            let misses = format!("no entry of it allows this{more}");
            Some(By { policy: shown(namespace, name), entry: None, misses })
        }
        Decides::Itself | Decides::NotHere | Decides::NoPolicy | Decides::TwoPods | Decides::Closed => None,
    };
    let mut by: Vec<By> = all.iter().filter_map(one).take(UNREACHED).collect();
    if let (Some(last), more @ 1..) = (by.last_mut(), all.len().saturating_sub(UNREACHED)) {
        let and = if last.misses.is_empty() { "and" } else { "; and" };
        last.misses += &format!("{and} {more} more behind it");
    }
    by
}

/// The list of the object that has the entries, and that of an entry's peers.
fn words(direction: Direction) -> (&'static str, &'static str) {
    match direction {
        Direction::Ingress => ("ingress", "from"),
        Direction::Egress => ("egress", "to"),
    }
}

fn shown(namespace: &str, policy: &str) -> String {
    match namespace {
        "" => format!("ClusterNetworkPolicy {policy}"),
        namespace => format!("NetworkPolicy {namespace}/{policy}"),
    }
}

fn of_place(Place { policy, entry, peer, port }: &Place<'_>, direction: Direction) -> By {
    let (list, peers) = words(direction);
    let mut place = format!("{list}[{entry}]");
    place.extend(peer.map(|peer| format!(".{peers}[{peer}]")));
    place.extend(port.map(|port| format!(", ports[{port}]")));
    By { policy: shown(&policy.namespace, &policy.name), entry: Some(place), misses: String::new() }
}

fn of_entry(Entry { policy, rule, is_understood }: &Entry<'_>, direction: Direction) -> By {
    let (list, _) = words(direction);
    let found = policy.rules(direction).get(*rule);
    let name = found.map(|rule| rule.name.as_str()).filter(|name| !name.is_empty());
    let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
    let action = found.map_or("", |rule| rule.action.as_str());
    let order = format!("{action}, tier {}, priority {}", policy.tier, policy.priority);
    By {
        policy: shown("", &policy.name),
        entry: Some(format!("{list}[{rule}]{name} ({order})")),
        misses: match is_understood {
            true => String::new(),
            false => format!(
                "it is not understood, so it denies everything in this direction{}",
                found
                    .and_then(|rule| unread(policy, rule))
                    .map_or_else(String::new, |why| format!(": {why}"))
            ),
        },
    }
}

/// Why the decoder has not understood the rule.
fn unread<'a>(policy: &'a ClusterNetworkPolicy, rule: &'a ClusterRule) -> Option<&'a str> {
    let of_subject = match &policy.subject {
        ClusterSubject::Unknown(why) => Some(why),
        ClusterSubject::Pods(_) => None,
    };
    let of_peers = rule.peers.iter().filter_map(|peer| match peer {
        ClusterPeer::Unknown(why) => Some(why),
        _ => None,
    });
    let of_protocols = rule.protocols.iter().filter_map(|protocol| match protocol {
        ClusterProtocol::Unknown(why) => Some(why),
        _ => None,
    });
    of_subject.into_iter().chain(of_peers).chain(of_protocols).next().map(String::as_str)
}

fn missed_by(policy: &NetworkPolicy, entries: &[Miss], direction: Direction, ends: &Ends<'_>) -> Vec<By> {
    let (list, _) = words(direction);
    let rules = policy.rules(direction);
    let name = shown(&policy.namespace, &policy.name);
    if entries.is_empty() {
        let misses = match policy.unread {
            Some(_) => "it cannot be read: it allows nothing".to_owned(),
            None => format!("it has no entry in {list}: it allows nothing"),
        };
        return vec![By { policy: name, entry: None, misses }];
    }
    let one = |(number, (miss, rule)): (usize, (&Miss, &Rule))| By {
        policy: name.clone(),
        entry: Some(format!("{list}[{number}]")),
        misses: match miss {
            Miss::Peer => {
                "the port matches, no peer does".to_owned() + &ends.stranger(policy, rule, direction)
            }
            Miss::Port => "a peer matches, no port does".to_owned() + &ends.named(rule),
            Miss::Both => {
                "neither a peer nor a port matches".to_owned()
                    + &ends.stranger(policy, rule, direction)
                    + &ends.named(rule)
            }
            Miss::Pair => "a port matches, but for another peer".to_owned() + &ends.named(rule),
            Miss::Void => {
                "it is not understood, or there are too many entries before it: it allows nothing".to_owned()
            }
        },
    };
    entries.iter().zip(rules).take(EXPLAINED).enumerate().map(one).collect()
}

/// A port of a rule, such as `80/TCP`, `8000-8080/TCP`, `dns/UDP`, or `all/SCTP`.
fn port(Port { protocol, port, end_port, unread }: &Port) -> String {
    let number = match port {
        Some(PortValue::Number(number)) => number.to_string(),
        Some(PortValue::Name(name)) => name.clone(),
        None => "all".to_owned(),
    };
    let end = end_port.map_or_else(String::new, |end| format!("-{end}"));
    let protocol = protocol.as_deref().unwrap_or("TCP");
    let unread = if unread.is_some() { " (not understood)" } else { "" };
    format!("{number}{end}/{protocol}{unread}")
}

/// Both ends of a flow.
struct Ends<'c> {
    cluster: &'c Cluster,
    from: IpAddr,
    to: IpAddr,
}

impl Ends<'_> {
    /// Why no peer is the other end.
    fn stranger(&self, policy: &NetworkPolicy, rule: &Rule, direction: Direction) -> String {
        let (_, list) = words(direction);
        let other = if direction == Direction::Ingress { self.from } else { self.to };
        let pod = self.cluster.names_at(other).next();
        let mut text = match pod {
            None => format!("; no pod that is known has {other}: only an ipBlock matches it"),
            Some(_) => String::new(),
        };
        let (namespace, name) = pod.unwrap_or_default();
        let peers = rule.peers.iter().enumerate();
        let all = peers.map(|(number, peer)| (number, unlike(self.cluster, policy, peer, other)));
        let all: Vec<_> = all.filter(|(_, unlike)| !unlike.is_empty()).collect();
        for (number, unlike) in all.iter().take(PARTS) {
            let why = |unlike: &Unlike<'_>| match unlike {
                Unlike::Block(cidr) if cidr.contains(':') != other.is_ipv6() => {
                    let [own, family] = if other.is_ipv6() { ["IPv6", "IPv4"] } else { ["IPv4", "IPv6"] };
                    format!("{other} is {own}, and {cidr} is {family}")
                }
                Unlike::Block(cidr) => format!("{other} is not in {cidr}"),
                Unlike::Except(cidr) => format!("{other} is in its except {cidr}"),
                Unlike::OtherNamespace => format!(
                    "a podSelector alone selects pods of namespace {}, and {namespace}/{name} is of another one",
                    policy.namespace
                ),
                Unlike::NoNamespace => format!("the labels of namespace {namespace} are not known yet"),
                Unlike::Namespace(want) => {
                    format!("the namespace must have {}, and {namespace} {want}", want.wanted)
                }
                Unlike::Pod(want) => {
                    format!("the pod must have {}, and {namespace}/{name} {want}", want.wanted)
                }
                Unlike::Unread(why) => format!("it is not understood: {why}"),
            };
            let why: Vec<String> = unlike.iter().map(why).collect();
            text += &format!("; {list}[{number}]: {}", why.join(", and "));
        }
        if all.len() > PARTS {
            text += &format!("; and {} more peers", all.len() - PARTS);
        }
        text
    }

    /// The ports of the rule, and what their names mean here.
    fn named(&self, rule: &Rule) -> String {
        let ports: Vec<String> = rule.ports.iter().take(PARTS).map(port).collect();
        let more = match rule.ports.len().saturating_sub(PARTS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("; its ports: {}{more}", ports.join(", ")) + &self.meanings(rule)
    }

    fn meanings(&self, rule: &Rule) -> String {
        let name = |port: &Port| match &port.port {
            Some(PortValue::Name(name)) => Some(self.meaning(name)),
            _ => None,
        };
        rule.ports.iter().filter_map(name).take(PARTS).collect()
    }

    fn meaning(&self, name: &str) -> String {
        let own = self.cluster.ports_at(self.to).filter(|port| *port.name == *name);
        let own: Vec<_> =
            own.map(|port| format!("{}/{:?}", port.port, port.protocol).to_uppercase()).collect();
        match own.is_empty() {
            true => format!("; no pod at {} has a port with the name {name:?}", self.to),
            false => format!("; the port {name:?} of the pod at {} is {}", self.to, own.join(", ")),
        }
    }
}

fn pods(compiler: &Compiler) -> Vec<Applied> {
    let faulty: BTreeSet<_> = compiler.faults().map(|fault| (fault.namespace, fault.policy)).collect();
    let mut named = BTreeMap::new();
    let mut all: Vec<Applied> = compiler
        .local_pods()
        .map(|(namespace, name, pod)| Applied {
            pod: format!("{namespace}/{name}"),
            addresses: pod.addresses().all().collect(),
            policies: compiler
                .applied(pod)
                .map(|applied| {
                    let key = (applied.namespace, applied.policy, applied.direction);
                    let make = || of_policy(compiler.cluster(), &compiler.named(&applied));
                    let mut policy: AppliedPolicy = named.entry(key).or_insert_with(make).clone();
                    policy.policy = shown(applied.namespace, applied.policy);
                    policy.direction = applied.direction;
                    policy.does = does(compiler.cluster(), &applied);
                    if faulty.contains(&(applied.namespace, applied.policy)) {
                        policy.does += ", partly not understood";
                    }
                    policy
                })
                .collect(),
            is_dry: compiler.cluster().is_dry_namespace(namespace),
        })
        .collect();
    all.sort_by(|one, other| one.pod.cmp(&other.pod));
    all
}

/// What the rules of a policy do in a direction.
fn does(cluster: &Cluster, AppliedTo { policy, namespace, direction }: &AppliedTo<'_>) -> String {
    let Some(policy) = cluster.cluster_policy(policy).filter(|_| namespace.is_empty()) else {
        return "allows".to_owned();
    };
    let mut actions: Vec<&str> = Vec::new();
    for rule in policy.rules(*direction) {
        if !actions.contains(&rule.action.as_str()) {
            actions.push(&rule.action);
        }
    }
    format!("{} {}: {}", policy.tier, policy.priority, actions.join(", "))
}

fn of_policy(cluster: &Cluster, named: &Named) -> AppliedPolicy {
    let mut peers = Vec::new();
    for (namespace, name) in named.addresses.iter().flat_map(|address| cluster.names_at(*address)) {
        let peer = format!("{namespace}/{name}");
        if !peers.contains(&peer) {
            peers.push(peer);
        }
        if peers.len() == FEW {
            break;
        }
    }
    AppliedPolicy {
        policy: String::new(),
        direction: Direction::Ingress,
        does: String::new(),
        everybody: named.everybody,
        blocks: named.blocks.iter().take(FEW).map(|(first, last)| format!("{first}-{last}")).collect(),
        peers,
        addresses: named.addresses.len(),
    }
}

#[cfg(test)]
mod tests;
