//! What policies deny, as `ferrule-node`'s table has it: a counter for each isolated pod and direction, and the last denied flows.
//!
//! A denied packet raises the counter of its pod. Then it is noted with its addresses, its protocol and its destination port, unless the pod
//! has more denials than [`LIMIT`]. With the mode dry it then passes.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use ferrule_kernel::ip::{IpFamily, from_octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Element, Error, Expr, Table, cut_comment, elements};
use serde::{Deserialize, Serialize};

use crate::Direction;

/// The packets of each pod and direction that are noted.
pub const LIMIT: Expr = Expr::Limit { rate: 2, burst: 20 };
/// The most noted flows of a direction and family, and how many milliseconds they stay without a packet.
pub const NOTED: (u32, u64) = (4096, 60_000);

/// The set with a counter for each isolated pod, by its address. The comment is the pod, as NAMESPACE/NAME.
pub const fn counted(direction: Direction, of: IpFamily) -> &'static str {
    match direction {
        Direction::Ingress => ["denied_to4", "denied_to6"][of as usize],
        Direction::Egress => ["denied_from4", "denied_from6"][of as usize],
    }
}

/// The set of denied flows: source, destination, protocol and destination port, or 0 for a protocol without ports.
pub const fn noted(direction: Direction, of: IpFamily) -> &'static str {
    match direction {
        Direction::Ingress => ["flows_to4", "flows_to6"][of as usize],
        Direction::Egress => ["flows_from4", "flows_from6"][of as usize],
    }
}

/// The chain that a denied packet ends in, or with the mode dry passes through.
pub const fn chain(direction: Direction, of: IpFamily, is_dry: bool) -> &'static str {
    match (direction, is_dry) {
        (Direction::Ingress, false) => ["deny_to4", "deny_to6"][of as usize],
        (Direction::Egress, false) => ["deny_from4", "deny_from6"][of as usize],
        (Direction::Ingress, true) => ["dry_to4", "dry_to6"][of as usize],
        (Direction::Egress, true) => ["dry_from4", "dry_from6"][of as usize],
    }
}

/// The chain that notes the flow of a denied packet.
pub const fn note(direction: Direction, of: IpFamily) -> &'static str {
    match direction {
        Direction::Ingress => ["note_to4", "note_to6"][of as usize],
        Direction::Egress => ["note_from4", "note_from6"][of as usize],
    }
}

/// Whether a chain only counts and notes what others deny.
pub fn counts(name: &str) -> bool {
    places().any(|(direction, of)| {
        [chain(direction, of, false), chain(direction, of, true), note(direction, of)].contains(&name)
    })
}

/// A denied flow: what its packets have in common before the translation of the source and after that of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// The direction in which the pod's policies deny it.
    pub direction: Direction,
    /// From where.
    pub source: IpAddr,
    /// To where.
    pub destination: IpAddr,
    /// The number of the protocol.
    pub protocol: u8,
    /// The destination port; 0 for a protocol without ports, and for a fragment.
    pub port: u16,
}

impl Flow {
    /// The pod whose policies deny it.
    pub fn pod(&self) -> IpAddr {
        if self.direction == Direction::Ingress { self.destination } else { self.source }
    }

    /// The other end.
    pub fn peer(&self) -> IpAddr {
        if self.direction == Direction::Ingress { self.source } else { self.destination }
    }

    /// The flow of an element.
    fn of_key(direction: Direction, key: &[u8]) -> Option<Flow> {
        let (addresses, rest) = key.split_at_checked(key.len().checked_sub(8)?)?;
        let (source, destination) = addresses.split_at_checked(addresses.len() / 2)?;
        let [protocol, _, _, _, high, low, _, _] = *rest else { return None };
        let port = u16::from_be_bytes([high, low]);
        let (source, destination) = (from_octets(source)?, from_octets(destination)?);
        Some(Flow { direction, source, destination, protocol, port })
    }
}

/// What a pod is denied in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The direction.
    pub direction: Direction,
    /// The pod's address.
    pub address: IpAddr,
    /// The pod as NAMESPACE/NAME; empty if it is unknown.
    pub pod: String,
    /// The pod's mode is dry: nothing is denied, only counted.
    pub is_dry: bool,
    /// The packets since the counter was made; `None` before Linux 5.12.
    pub packets: Option<u64>,
}

/// Before the name of a pod that is denied nothing.
const DRY: &str = "dry ";
/// The most policies that a line names.
const MOST_POLICIES: usize = 5;

/// The comment of a pod's counter.
pub fn comment(pod: &str, is_dry: bool) -> String {
    cut_comment(&format!("{}{pod}", if is_dry { DRY } else { "" })).to_owned()
}

/// The counters of all isolated pods.
///
/// # Errors
/// The kernel refuses a list.
pub fn counters(socket: &mut Socket, table: Table<'_>) -> Result<Vec<Counter>, Error> {
    let mut all = Vec::new();
    for (direction, of) in places() {
        let found = elements(socket, table, counted(direction, of))?;
        all.extend(found.into_iter().filter_map(|one| {
            let comment = one.comment.unwrap_or_default();
            let (is_dry, pod) = comment.strip_prefix(DRY).map_or((false, &*comment), |pod| (true, pod));
            let (address, pod) = (from_octets(&one.key)?, pod.to_owned());
            Some(Counter { direction, address, pod, is_dry, packets: one.packets })
        }));
    }
    Ok(all)
}

/// The flows that the kernel has noted, each with its packets.
///
/// # Errors
/// The kernel refuses a list.
pub fn flows(socket: &mut Socket, table: Table<'_>) -> Result<Vec<(Flow, u64)>, Error> {
    let mut all = Vec::new();
    for (direction, of) in places() {
        let found = elements(socket, table, noted(direction, of))?;
        let flow = |one: Element| Some((Flow::of_key(direction, &one.key)?, one.packets.unwrap_or(1)));
        all.extend(found.into_iter().filter_map(flow));
    }
    Ok(all)
}

/// All directions and families.
fn places() -> impl Iterator<Item = (Direction, IpFamily)> {
    Direction::ALL.into_iter().flat_map(|direction| IpFamily::ALL.map(|of| (direction, of)))
}

/// Finds the flows with new packets from one list to the next. Pure.
#[derive(Debug, Default)]
pub struct News {
    known: HashMap<Flow, u64>,
}

impl News {
    /// The flows that have had packets since the last list, with the number of these, in their order.
    pub fn of(&mut self, list: Vec<(Flow, u64)>) -> Vec<(Flow, u64)> {
        let known = std::mem::replace(&mut self.known, list.iter().copied().collect());
        let mut new: Vec<_> = list
            .into_iter()
            .filter_map(|(flow, packets)| {
                let before = known.get(&flow).copied().unwrap_or_default();
                // A flow that was forgotten and noted again begins anew.
                let new = packets.checked_sub(before).unwrap_or(packets);
                (new > 0).then_some((flow, new))
            })
            .collect();
        new.sort_unstable();
        new
    }
}

/// A denied flow with names, as one line of text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    /// The flow.
    pub flow: Flow,
    /// Its packets since the last line about it.
    pub packets: u64,
    /// The pod that denies it, as NAMESPACE/NAME; empty if it is unknown.
    pub pod: String,
    /// The other end, if it is a known pod; else empty.
    pub peer: String,
    /// The policies that deny it, as far as they are known.
    pub policies: Vec<String>,
    /// The pod's mode is dry: it would be denied.
    pub is_dry: bool,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denial { flow, packets, pod, peer, policies, is_dry } = self;
        let verb = if *is_dry { "would deny" } else { "denied" };
        let end = |name: &str, address: IpAddr| match name {
            "" => address.to_string(),
            name => format!("{name} ({address})"),
        };
        let (pod, peer) = (end(pod, flow.pod()), end(peer, flow.peer()));
        match flow.direction {
            Direction::Ingress => write!(f, "{verb} ingress of {pod} from {peer}: ")?,
            Direction::Egress => write!(f, "{verb} egress of {pod} to {peer}: ")?,
        }
        match (protocol(flow.protocol), flow.port) {
            (name, 0) => f.write_str(&name)?,
            (name, port) => write!(f, "{name} {port}")?,
        }
        if *packets > 1 {
            write!(f, ", {packets} packets")?;
        }
        if let Some((first, others)) = policies.split_first() {
            write!(f, "; by {first}")?;
            others.iter().take(MOST_POLICIES - 1).try_for_each(|policy| write!(f, ", {policy}"))?;
        }
        match policies.len().saturating_sub(MOST_POLICIES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn protocol(number: u8) -> String {
    match number {
        1 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        132 => "SCTP".to_owned(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_few_policies() {
        let [source, destination] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let flow = Flow { direction: Direction::Ingress, source, destination, protocol: 6, port: 80 };
        let line = |count: usize| {
            let policies = (1..=count).map(|number| format!("p{number}")).collect();
            let (pod, peer) = Default::default();
            Denial { flow, packets: 1, pod, peer, policies, is_dry: false }.to_string()
        };
        assert!(line(0).ends_with(": TCP 80") && line(1).ends_with("; by p1"));
        assert!(line(5).ends_with("; by p1, p2, p3, p4, p5"));
        assert!(line(1000).ends_with("; by p1, p2, p3, p4, p5 and 995 more"));
    }

    #[test]
    fn a_flow_is_read_from_a_key_and_nothing_else_is_one() {
        let v4 = [10, 0, 0, 1, 10, 0, 0, 2, 6, 0, 0, 0, 0, 80, 0, 0];
        let flow = Flow::of_key(Direction::Ingress, &v4).unwrap();
        assert_eq!((flow.pod(), flow.peer()), ([10, 0, 0, 2].into(), [10, 0, 0, 1].into()));
        assert_eq!((flow.protocol, flow.port), (6, 80));
        let mut v6 = [0; 40];
        (v6[0], v6[31], v6[32], v6[36]) = (0xfd, 7, 17, 1);
        let flow = Flow::of_key(Direction::Egress, &v6).unwrap();
        assert_eq!((flow.pod().to_string(), flow.peer().to_string()), ("fd00::".into(), "::7".into()));
        assert_eq!((flow.protocol, flow.port), (17, 256));
        for len in (0..40).filter(|len| *len != 16) {
            assert_eq!(Flow::of_key(Direction::Egress, &v6[..len]), None, "{len}");
        }
    }

    #[test]
    fn a_line_has_what_is_known() {
        let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let flow = Flow { direction: Direction::Ingress, source, destination, protocol: 6, port: 80 };
        let denial = Denial {
            flow,
            packets: 3,
            pod: "shop/web".into(),
            peer: "tools/other".into(),
            policies: vec!["NetworkPolicy shop/web".into()],
            is_dry: false,
        };
        let line = "denied ingress of shop/web (10.0.0.2) from tools/other (10.0.0.1): TCP 80, 3 packets; by NetworkPolicy shop/web";
        assert_eq!(denial.to_string(), line);
        let unknown = Denial {
            flow: Flow { direction: Direction::Egress, protocol: 1, port: 0, ..flow },
            packets: 1,
            pod: String::new(),
            peer: String::new(),
            policies: Vec::new(),
            is_dry: true,
        };
        assert_eq!(unknown.to_string(), "would deny egress of 10.0.0.1 to 10.0.0.2: ICMP");
    }

    #[test]
    fn only_flows_with_new_packets_are_news() {
        let flow = |last: u8| Flow {
            direction: Direction::Ingress,
            source: [10, 0, 0, last].into(),
            destination: [10, 0, 0, 9].into(),
            protocol: 6,
            port: 80,
        };
        let mut news = News::default();
        assert_eq!(news.of(vec![(flow(2), 1), (flow(1), 3)]), [(flow(1), 3), (flow(2), 1)]);
        assert_eq!(news.of(vec![(flow(1), 3), (flow(2), 4)]), [(flow(2), 3)]);
        assert_eq!(news.of(vec![(flow(2), 1)]), [(flow(2), 1)], "noted again");
        assert_eq!(news.of(vec![(flow(1), 3), (flow(2), 1)]), [(flow(1), 3)], "forgotten");
    }
}
