//! Flows that exist: those that a change denies end, and those of an earlier pod of an address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Result, ensure};
use ferrule_kernel::conntrack::{self, Flow, Peer, SCTP, TCP, Tuple, UDP, all_flows, flows_of};
use ferrule_kernel::ip::{IpFamily, from_octets, octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Element, find_elements};
use ferrule_node_policy::Cluster;
use ferrule_node_policy::judge::{Packet, judge};

use super::encode::padded;
use super::layout::{CUT, TABLE, cut};

/// What the kernel does to list flows, in listed flows: a walk through its table without any, and how many flows it passes by meanwhile that
/// the filter excludes.
const WALK: usize = 6_000;
const PASSES: usize = 8;
/// The most flows that one change puts into the set of ended ones. Of the others only the entries are deleted.
const MOST: usize = 16_384;
/// The most deletions of one element. Packets without a pause made it again after 2 of 5.
const LOOKS: usize = 32;
/// The most flows in the sets, which have two elements for each.
const ROOM: usize = CUT.0 as usize / 2;
/// In the comment of the elements of a flow: the direction of its packets.
const DIRECTIONS: [&str; 2] = ["original", "reply"];

/// The packets of a flow, as the hook `forward` sees them: after the translation of the destination, before that of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    source: IpAddr,
    destination: IpAddr,
    proto: u8,
    source_port: u16,
    destination_port: u16,
}

impl Seen {
    /// Those in the original direction.
    fn of(flow: &Flow) -> Seen {
        Seen {
            source: flow.original.src,
            destination: flow.reply.src,
            proto: flow.proto,
            source_port: flow.original.src_port,
            destination_port: flow.reply.src_port,
        }
    }

    fn reversed(self) -> Seen {
        Seen {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }

    fn has_ports(self) -> bool {
        matches!(self.proto, TCP | UDP | SCTP)
    }

    fn is_denied(self, cluster: &Cluster) -> bool {
        let Seen { source, destination, proto: protocol, destination_port, .. } = self;
        !judge(cluster, &Packet { source, destination, protocol, destination_port }).is_allowed()
    }

    fn key(self) -> Vec<u8> {
        let Seen { source, destination, proto, source_port, destination_port } = self;
        let ports = [source_port, destination_port].map(|port| padded(&port.to_be_bytes()));
        [&octets(source)[..], &octets(destination), &padded(&[proto]), &ports[0], &ports[1]].concat()
    }

    fn of_key(key: &[u8]) -> Option<Seen> {
        let (source, rest) = key.split_at_checked(key.len().checked_sub(12)? / 2)?;
        let (destination, rest) = rest.split_at_checked(source.len())?;
        if rest.len() != 12 {
            return None;
        }
        let port = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
        Some(Seen {
            source: from_octets(source)?,
            destination: from_octets(destination)?,
            proto: *rest.first()?,
            source_port: port(4)?,
            destination_port: port(8)?,
        })
    }

    /// The element of each direction.
    fn elements(self) -> [Element; 2] {
        let element = |(seen, direction): (Seen, &str)| Element {
            comment: Some(direction.to_owned()),
            ..Element::new(seen.key())
        };
        [(self, DIRECTIONS[0]), (self.reversed(), DIRECTIONS[1])].map(element)
    }
}

/// The flows that were ended, in their original direction.
#[derive(Debug, Default)]
pub(super) struct Cut(BTreeSet<Seen>);

impl Cut {
    /// The flows whose elements these are.
    pub(super) fn of(elements: &[Element]) -> Cut {
        let is_original = |element: &&Element| element.comment.as_deref() == Some(DIRECTIONS[0]);
        Cut(elements.iter().filter(is_original).filter_map(|element| Seen::of_key(&element.key)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds all elements to the batch that makes the table.
    pub(super) fn push(&self, batch: &mut Batch) {
        put(batch, &self.0);
    }

    /// Ends these flows. No packet of them passes until neither end has sent for three minutes.
    ///
    /// # Errors
    /// The kernel refuses a request. The others are done.
    pub(super) fn end(&mut self, owner: &mut Socket, flows: &[Flow]) -> Result<()> {
        let new = flows.iter().map(Seen::of).filter(|seen| seen.has_ports()).collect();
        let new = fair(new, MOST);
        let kept = fair(self.0.union(&new).copied().collect(), ROOM);
        let pushed_out: Vec<Seen> = self.0.difference(&kept).copied().collect();
        remove(owner, &pushed_out)?;
        self.0.retain(|seen| kept.contains(seen));
        let new = &new & &kept;
        let mut batch = Batch::new();
        put(&mut batch, &new);
        let is_put = batch.commit(owner);
        if is_put.is_ok() {
            self.0.extend(new);
        }
        conntrack::delete(owner, flows)?;
        Ok(is_put?)
    }

    /// Lets flows pass that are allowed again.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn review(&mut self, owner: &mut Socket, cluster: &Cluster) -> Result<()> {
        let allowed: Vec<Seen> = self.0.iter().filter(|seen| !seen.is_denied(cluster)).copied().collect();
        remove(owner, &allowed)?;
        for seen in &allowed {
            self.0.remove(seen);
        }
        Ok(())
    }

    /// Takes over what the kernel still has.
    pub(super) fn refresh(&mut self, elements: &[Element]) {
        *self = Cut::of(elements);
    }
}

/// Deletes their elements. While a transaction adds or deletes an element, the kernel adds a second one for each packet that would
/// renew it. So this deletes until none is left.
fn remove(owner: &mut Socket, flows: &[Seen]) -> Result<()> {
    for part in flows.chunks(Batch::ROOM / 2) {
        let mut elements: Vec<_> =
            part.iter().flat_map(|seen| seen.elements().map(|one| (cut(seen.family()), one.key))).collect();
        for _ in 0..LOOKS {
            let wanted: Vec<_> = elements.iter().map(|(set, key)| (*set, key.as_slice())).collect();
            // Their time may be over between both requests; then the next review tries again.
            let mut found = find_elements(owner, TABLE, &wanted)?.into_iter();
            elements.retain(|_| found.next().flatten().is_some());
            if elements.is_empty() {
                break;
            }
            let mut batch = Batch::new();
            for (set, key) in &elements {
                batch.delete_elements(TABLE, set, std::slice::from_ref(key));
            }
            batch.commit(owner)?;
        }
        ensure!(
            elements.is_empty(),
            "{} flows are allowed again, and their packets keep them ended",
            elements.len()
        );
    }
    Ok(())
}

/// Those that stay if there is room for so many: of each source as many as of every other one. A pod then cannot push out the flows of
/// another one. TCP comes last, because it ends without its entry.
fn fair(all: BTreeSet<Seen>, room: usize) -> BTreeSet<Seen> {
    if all.len() <= room {
        return all;
    }
    let mut counts = BTreeMap::<(bool, IpAddr), usize>::new();
    let mut ranked: Vec<_> = { all.into_iter() }
        .map(|seen| {
            let is_tcp = seen.proto == TCP;
            let rank = counts.entry((is_tcp, seen.source)).or_default();
            *rank += 1;
            (is_tcp, *rank, seen)
        })
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().take(room).map(|(.., seen)| seen).collect()
}

impl Seen {
    fn family(self) -> IpFamily {
        IpFamily::of(self.source)
    }
}

fn put(batch: &mut Batch, flows: &BTreeSet<Seen>) {
    for of in IpFamily::ALL {
        let own = flows.iter().filter(|seen| seen.family() == of);
        let elements: Vec<Element> = own.flat_map(|seen| seen.elements()).collect();
        batch.put_elements(TABLE, cut(of), &elements);
    }
}

/// The flows with one of these addresses at an end, without those that the node itself has begun.
///
/// # Errors
/// The kernel refuses the list.
pub(super) fn with_end(
    socket: &mut Socket,
    addresses: &BTreeSet<IpAddr>,
    node: &BTreeSet<IpAddr>,
) -> Result<Vec<Flow>> {
    let is_wanted = |original: &Tuple, reply: &Tuple| {
        !node.contains(&original.src) && (addresses.contains(&original.src) || addresses.contains(&reply.src))
    };
    let [v4, v6]: [Vec<IpAddr>; 2] = IpFamily::ALL
        .map(|of| addresses.iter().filter(|address| IpFamily::of(**address) == of).copied().collect());
    if !is_by_address(v4.len(), !v6.is_empty(), conntrack::count(socket)?) {
        return Ok(unique(all_flows(socket, None, is_wanted)?));
    }
    let mut found = Vec::new();
    for address in v4 {
        for peer in [Peer::Client(address), Peer::Server(address)] {
            found.append(&mut flows_of(socket, peer)?);
        }
    }
    found.retain(|flow| is_wanted(&flow.original, &flow.reply));
    if !v6.is_empty() {
        found.append(&mut all_flows(socket, Some(IpFamily::V6), is_wanted)?);
    }
    Ok(unique(found))
}

/// Whether it costs less to ask the kernel for the flows of each address than for all that it tracks: two walks for each IPv4 address, one
/// for all of IPv6. The kernel has no filter for IPv6.
fn is_by_address(v4: usize, v6: bool, tracked: usize) -> bool {
    let walks = 2 * v4 + usize::from(v6);
    walks.saturating_mul(WALK + tracked / PASSES) < WALK + tracked
}

/// A flow may have come twice: by both of its ends, or by a list that began anew.
fn unique(flows: Vec<Flow>) -> Vec<Flow> {
    let key = |flow: &Flow| {
        let Flow { proto, original, reply, .. } = flow;
        (*proto, original.src, original.dst, original.src_port, original.dst_port, reply.src)
    };
    { flows.into_iter() }.map(|flow| (key(&flow), flow)).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Those of the flows that the policies deny.
pub(super) fn denied(mut flows: Vec<Flow>, cluster: &Cluster) -> Vec<Flow> {
    flows.retain(|flow| Seen::of(flow).is_denied(cluster));
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_with_many_flows_leaves_room_for_those_of_others() {
        let flow = |source: &str, proto, source_port| Seen {
            source: source.parse().unwrap(),
            destination: "10.1.0.9".parse().unwrap(),
            proto,
            source_port,
            destination_port: 53,
        };
        let many = (0..100).map(|port| flow("10.1.0.2", UDP, port));
        let few = [flow("10.1.0.3", UDP, 1), flow("10.1.0.4", UDP, 1), flow("10.1.0.4", UDP, 2)];
        let tcp = (0..100).map(|port| flow("10.1.0.1", TCP, port));
        let all: BTreeSet<Seen> = many.chain(few).chain(tcp).collect();
        let kept = fair(all.clone(), 10);
        assert!(few.iter().all(|seen| kept.contains(seen)) && kept.len() == 10, "{kept:?}");
        assert!(kept.iter().all(|seen| seen.proto == UDP));
        assert_eq!(fair(all.clone(), 203), all);
    }

    #[test]
    fn the_kernel_is_asked_in_the_cheaper_way() {
        // A pod with both families, in a table with few flows and with many; many pods.
        assert!(!is_by_address(1, true, 0) && !is_by_address(1, true, 15_000));
        assert!(is_by_address(1, true, 25_000) && is_by_address(2, true, 200_000));
        assert!(is_by_address(1, false, 10_000) && is_by_address(0, true, 10));
        assert!(!is_by_address(4, false, 1_000_000) && !is_by_address(1000, true, 1_000_000));
    }

    #[test]
    fn a_flow_is_read_back_from_its_elements() {
        for (source, destination) in [("10.1.0.2", "10.2.0.3"), ("fd00::2", "fd00:1::3")] {
            let seen = Seen {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                proto: UDP,
                source_port: 4000,
                destination_port: 53,
            };
            assert_eq!(Seen::of_key(&seen.key()), Some(seen));
            assert_eq!(Cut::of(&seen.elements()).0, BTreeSet::from([seen]));
            assert_ne!(seen.key(), seen.reversed().key());
            assert_eq!(seen.reversed().reversed(), seen);
        }
        for bad in [&[][..], &[0; 11], &[0; 12], &[0; 19], &[0; 21]] {
            assert_eq!(Seen::of_key(bad), None, "{bad:?}");
        }
    }
}
