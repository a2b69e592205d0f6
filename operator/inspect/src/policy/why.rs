//! Asks both sources about a connection, and puts the answer together.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use cni_common::spec::{CniError, Code, Context as _};
use ferrule_kernel::nftables::{Family, Table};
use ferrule_policy_kit::ask::{Ask, Flow, MOST, Question};
use ferrule_policy_kit::in_kernel::{Hook, InKernel, ruled};
use ferrule_policy_kit::ruled::{Cause, Ruled};
use ferrule_policy_kit::walk::{End, Packet, walk};
use serde::Serialize;

use super::daemon::Daemon;
use super::host_ports;
use super::notes::{Asked, ended, no_part, notes, source_to};
use super::places::{Place, Places, Where};
use super::services::{self, Service};
use super::verdict::{Verdict, Word, verdict};
use crate::model::{SCHEMA, Sockets};
use crate::sight::Sight;

/// The table in which `ferrule-node` masquerades.
const MASQUERADE: Table<'static> = Table::new(Family::Inet, "ferrule_node");
const ICMP: [u8; 2] = [1, 58];

/// An end, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Party {
    /// An address.
    Address(IpAddr),
    /// A pod, as NAMESPACE/NAME.
    Pod(String),
}

impl FromStr for Party {
    type Err = String;

    fn from_str(text: &str) -> Result<Party, String> {
        let is_name = |part: &str| !part.is_empty() && !part.contains('/');
        match (text.parse(), text.split_once('/')) {
            (Ok(address), _) => match IpAddr::to_canonical(&address) {
                ip if ip.is_loopback() || ip.is_unspecified() => {
                    Err("no packet with this address leaves a pod or a node".to_owned())
                }
                ip if ip.is_multicast() || matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()) => {
                    Err("no policy is for packets with this address, which no node forwards".to_owned())
                }
                ip => Ok(Party::Address(ip)),
            },
            (_, Some((namespace, name)))
                if is_name(namespace) && is_name(name) && name.parse::<u8>().is_err() =>
            {
                Ok(Party::Pod(text.to_owned()))
            }
            _ => {
                Err("neither an address nor a pod as NAMESPACE/NAME; names in DNS are not resolved"
                    .to_owned())
            }
        }
    }
}

/// A destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// TCP, UDP or SCTP.
    pub protocol: u8,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Port, String> {
        let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let number = number.parse().ok().filter(|number| *number > 0);
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Some(6),
            "udp" => Some(17),
            "sctp" => Some(132),
            _ => None,
        };
        let port = number.zip(protocol).map(|(number, protocol)| Port { number, protocol });
        port.ok_or_else(|| "no port, as 80, 80/tcp, 53/udp or 99/sctp".to_owned())
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
    /// Who begins the connection.
    pub from: Party,
    /// Who gets it.
    pub to: Party,
    /// The destination port; `None` for an ICMP echo request.
    pub port: Option<Port>,
}

/// The answer. Serialised, it is the JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The version of the schema.
    pub schema: u32,
    /// `TCP`, `UDP`, `SCTP`, or `ICMP` for an echo request.
    pub protocol: String,
    /// The Service or host port whose address was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// One for each pair of addresses.
    pub flows: Vec<Explained>,
    /// What restricts the answer.
    pub notes: Vec<String>,
    /// What could not be read.
    pub failures: Vec<String>,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// From where.
    pub from: IpAddr,
    /// To where, after the translation of a Service's address.
    pub to: IpAddr,
    /// The destination port; 0 for ICMP.
    pub port: u16,
    /// The answer.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What the kernel's rules do; `None` if it asks none.
    pub kernel: Option<Ruled>,
    /// What the objects of the API say; `None` without the daemon.
    pub api: Option<Flow>,
    /// The way of the packet.
    pub path: Vec<String>,
    /// What is not known of it.
    pub notes: Vec<String>,
}

impl Explanation {
    /// The worst answer.
    pub fn word(&self) -> Word {
        let has = |word: Word| self.flows.iter().any(|flow| flow.verdict.verdict == word);
        let words = [Word::Denied, Word::Unknown, Word::AllowedHere];
        words.into_iter().find(|word| has(*word)).unwrap_or(if self.flows.is_empty() {
            Word::Unknown
        } else {
            Word::Allowed
        })
    }
}

/// Explains a connection.
///
/// # Errors
/// A pod is not known, both ends have no common family, or the kernel refuses to list something.
pub fn explain(options: &Options) -> Result<Explanation, CniError> {
    let mut sockets = Sockets::open()?;
    let sight = Sight::of_all(options.init, [options.results.as_path()].into_iter());
    let places = Places::read(&options.results, &sight, &mut sockets.route)?;
    let mut asker =
        Asker { sockets, places, daemon: Daemon::default(), notes: Vec::new(), failures: Vec::new() };
    let [from, to] = [asker.addresses(&options.from)?, asker.addresses(&options.to)?];
    let pairs = pairs(&from, &to);
    if pairs.is_empty() {
        let msg = "both ends have no addresses of one family".to_owned();
        return Err(CniError::new(Code::InvalidConfig, msg));
    }
    let mut service = None;
    let mut questions = Vec::new();
    for (from, to) in pairs {
        let icmp = ICMP[usize::from(to.is_ipv6())];
        let Port { number, protocol } = options.port.unwrap_or(Port { number: 0, protocol: icmp });
        let question = |to, port| Question { from, to, protocol, port };
        let found = match options.port {
            Some(_) => asker.behind(SocketAddr::new(to, number), protocol),
            None => Ok(None),
        };
        let found = found.unwrap_or_else(|error| {
            asker.failures.push(format!(
                "whether {to} is the address of a Service or has a host port is not known: {error}"
            ));
            None
        });
        match found {
            Some(found) => {
                questions.extend(found.backends.iter().map(|end| question(end.ip(), end.port())));
                service = Some(found);
            }
            None => questions.push(question(to, number)),
        }
    }
    if questions.len() > MOST {
        asker.notes.push(format!("the first {MOST} of {} backends are looked at", questions.len()));
        questions.truncate(MOST);
    }
    if questions.is_empty() {
        asker.notes.push(
            "the Service has no ready endpoint: kube-proxy refuses the connection, not a policy".to_owned(),
        );
    }
    let flows = asker.flows(&questions, service.is_some())?;
    asker.failures.extend(asker.daemon.failure.take());
    if options.port.is_none() {
        asker.notes.push(
            "no port was given: only entries without ports match ICMP. Give one, as 80 or 53/udp".to_owned(),
        );
    }
    let Asker { notes, failures, .. } = asker;
    let protocol = options.port.map_or("icmp", |port| services::protocol_name(port.protocol)).to_uppercase();
    Ok(Explanation { schema: SCHEMA, protocol, service, flows, notes, failures })
}

fn pairs(from: &BTreeSet<IpAddr>, to: &BTreeSet<IpAddr>) -> Vec<(IpAddr, IpAddr)> {
    let of = |from: &IpAddr| {
        to.iter().filter(|to| to.is_ipv4() == from.is_ipv4()).map(|to| (*from, *to)).collect::<Vec<_>>()
    };
    from.iter().flat_map(of).collect()
}

struct Asker {
    sockets: Sockets,
    places: Places,
    daemon: Daemon,
    notes: Vec<String>,
    failures: Vec<String>,
}

impl Asker {
    /// The Service or the host port with this address and port. The kernel asks kube-proxy's rules first.
    fn behind(&mut self, to: SocketAddr, protocol: u8) -> Result<Option<Service>, CniError> {
        let Sockets { route, netfilter, .. } = &mut self.sockets;
        let is_own = self.places.of(to.ip(), route).is_ok_and(|place| place.of == Where::ThisNode);
        match services::find(netfilter, to, protocol, is_own)? {
            None if is_own => host_ports::find(netfilter, to, protocol),
            found => Ok(found),
        }
    }

    /// The addresses of an end.
    fn addresses(&mut self, party: &Party) -> Result<BTreeSet<IpAddr>, CniError> {
        let name = match party {
            Party::Address(address) => return Ok([*address].into()),
            Party::Pod(name) => name,
        };
        let (own, has_ended) = self.places.addresses_of(name);
        if has_ended {
            self.notes.push(format!("{name} has ended: its network namespace is gone"));
        }
        if !own.is_empty() {
            return Ok(own);
        }
        let answer = self.daemon.ask(Ask::Pod(name.clone()));
        let (pod, error) = answer.map(|answer| (answer.pod, answer.error)).unwrap_or_default();
        let unknown = || {
            let why = error.or(self.daemon.failure.clone()).unwrap_or_default();
            let msg = format!("pod {name:?} is not known: no cached result of this node has it, and {why}");
            CniError::new(Code::InvalidConfig, msg)
                .with_remedy("kubectl get pod -o wide shows its node and its address. If it has ended, or uses its node's network, ask on that node; otherwise give the address")
        };
        let pod = pod.filter(|pod| !pod.addresses.is_empty()).ok_or_else(unknown)?;
        if !pod.has_part {
            let mut is_own = |address: &IpAddr| {
                self.places
                    .of(*address, &mut self.sockets.route)
                    .is_ok_and(|place| place.of == Where::ThisNode)
            };
            self.notes.push(no_part(name, pod.addresses.iter().any(&mut is_own)));
        }
        Ok(pod.addresses.into_iter().collect())
    }

    fn flows(&mut self, questions: &[Question], is_service: bool) -> Result<Vec<Explained>, CniError> {
        let answer = self.daemon.ask(Ask::Why(questions.to_vec())).unwrap_or_default();
        self.notes.extend(answer.notes);
        self.failures.extend(answer.error.map(|error| format!("ferrule-node does not know it: {error}")));
        let mut said = answer.flows.into_iter();
        questions.iter().map(|question| self.flow(question, said.next(), is_service)).collect()
    }

    fn flow(
        &mut self,
        question: &Question,
        api: Option<Flow>,
        is_service: bool,
    ) -> Result<Explained, CniError> {
        let Question { from, to, protocol, port } = *question;
        let route = &mut self.sockets.route;
        let places = [self.places.of(from, route)?, self.places.of(to, route)?];
        let input = places[0].link.clone();
        let packet = Packet { source: from, destination: to, protocol, port, input };
        let hook = if places[1].of == Where::ThisNode { Hook::Input } else { Hook::Forward };
        let kernel = match places[0].of {
            Where::ThisNode => None,
            _ => Some(
                ruled(&mut self.sockets.netfilter, &packet, hook).context(|| "read the rules of policies")?,
            ),
        };
        let verdict = verdict([&places[0], &places[1]], kernel.as_ref(), api.as_ref());
        let path = self.path(&places, &packet)?;
        let inner = self.places.inner(from);
        let asked = Asked { question: *question, is_service, source: source_to(to), inner };
        let mut notes = notes(&asked, &places, api.as_ref());
        if kernel.as_ref().is_some_and(|ruled| ruled.cause == Cause::EndedPod) {
            for pod in places.iter().filter_map(Place::pod) {
                let answer = self.daemon.ask(Ask::Pod(pod.to_owned()));
                notes.extend(answer.and_then(|answer| ended(pod, answer.pod.as_ref())));
            }
        }
        Ok(Explained { from, to, port, verdict, kernel, api, path, notes })
    }

    fn path(&mut self, [from, to]: &[Place; 2], packet: &Packet) -> Result<Vec<String>, CniError> {
        let on = |place: &Place| place.link.as_ref().map_or_else(String::new, |link| format!(" by {link}"));
        let end = |place: &Place| match &place.of {
            Where::ThisNode => "this node".to_owned(),
            Where::Pod(_) | Where::Nobody => format!("a pod of this node{}", on(place)),
            Where::OtherNode(node) | Where::Node(node) => format!("node {node:?}{}", on(place)),
            Where::Outside => format!("elsewhere{}", on(place)),
        };
        let mut path = vec![format!("{} to {}", end(from), end(to))];
        let leaves = matches!(from.of, Where::Pod(_) | Where::Nobody)
            && matches!(to.of, Where::Outside | Where::OtherNode(_) | Where::Node(_));
        if leaves {
            let mut tables = InKernel::new(&mut self.sockets.netfilter, MASQUERADE);
            let walked =
                walk(&mut tables, "postrouting", packet).context(|| "read the rules that masquerade")?;
            let plugins = ferrule_masquerade::list::list(&mut self.sockets.netfilter)?;
            if walked.end == End::Masquerade {
                path.push(format!("it leaves with an address of this node (table {MASQUERADE}): policies at the other end judge that one"));
            } else if plugins.iter().any(|rule| rule.source == Some(packet.source)) {
                path.push("it may leave with an address of this node (ipMasq of the plugin): policies at the other end judge that one".to_owned());
            }
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_ports_are_read() {
        let party = |text: &str| text.parse::<Party>();
        assert_eq!(party("10.1.0.2"), Ok(Party::Address([10, 1, 0, 2].into())));
        assert_eq!(party("::ffff:10.1.0.2"), party("10.1.0.2"));
        assert_eq!(party("fd00::1").map(|one| matches!(one, Party::Address(_))), Ok(true));
        assert_eq!(party("shop/web-0"), Ok(Party::Pod("shop/web-0".into())));
        for text in [
            "",
            "web",
            "web.shop.svc",
            "/web",
            "shop/",
            "shop/web/0",
            "10.1.0.0/24",
            "10.1.0.300",
            "fe80::1%eth0",
            "%s",
            "127.0.0.1",
            "::",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(party(text).is_err(), "{text}");
        }
        let port = |text: &str| text.parse::<Port>().map(|port| (port.number, port.protocol));
        for (text, read) in [("80", (80, 6)), ("80/TCP", (80, 6)), ("53/udp", (53, 17)), ("9/sctp", (9, 132))]
        {
            assert_eq!(port(text), Ok(read));
        }
        for text in ["", "0", "65536", "http", "80/", "80/icmp", "/tcp", "80/tcp/x"] {
            assert!(port(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pairs_are_of_one_family() {
        let of =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<BTreeSet<IpAddr>>();
        assert_eq!(pairs(&of(&["10.0.0.1", "fd00::1"]), &of(&["10.0.0.2", "fd00::2"])).len(), 2);
        assert!(pairs(&of(&["10.0.0.1"]), &of(&["fd00::2"])).is_empty());
    }
}
