//! Walks a ruleset with a packet, as the kernel does.

use ferrule_node_policy::judge::Packet;
use ferrule_node_policy::model::{Direction, IpFamily};
use ferrule_node_policy::ruleset::{Contents, Entry, Peer, Ports, Ruleset};

/// Whether the packet passes.
pub(crate) fn passes(rules: &Ruleset, packet: &Packet) -> bool {
    // The base chain lets a pod reach itself.
    packet.source == packet.destination
        || Direction::ALL.into_iter().all(|direction| passes_one(rules, packet, direction))
}

fn passes_one(rules: &Ruleset, packet: &Packet, direction: Direction) -> bool {
    let (pod, peer) = match direction {
        Direction::Ingress => (packet.destination, packet.source),
        Direction::Egress => (packet.source, packet.destination),
    };
    let Some(chain) = rules.maps.get(&Entry { direction, pod }) else { return true };
    let chain = &rules.chains[chain];
    assert_eq!((chain.direction, chain.family), (direction, IpFamily::of(pod)));
    let contents = |name| {
        let set = &rules.sets[name];
        assert_eq!(set.family, chain.family);
        &set.contents
    };
    chain.rules.iter().any(|rule| {
        let is_peer = match &rule.peer {
            Peer::Any => true,
            Peer::In(name) => match contents(name) {
                Contents::Addresses(all) => all.contains(&peer),
                Contents::Blocks(all) => all.iter().any(|(first, last)| (first..=last).contains(&&peer)),
                Contents::Ports(_) => panic!("{name} has ports"),
            },
        };
        let port = packet.destination_port;
        is_peer
            && match &rule.ports {
                Ports::Any => true,
                Ports::Protocol(protocol) => packet.protocol == protocol.number(),
                Ports::Range { protocol, first, last } => {
                    packet.protocol == protocol.number() && (*first..=*last).contains(&port)
                }
                Ports::In(name) => match contents(name) {
                    Contents::Ports(all) => all.iter().any(|(of, protocol, number)| {
                        *of == peer && protocol.number() == packet.protocol && *number == port
                    }),
                    _ => panic!("{name} has no ports"),
                },
            }
    })
}

/// What must hold of every ruleset: nothing is used that is missing, and nothing is there that is not used.
pub(crate) fn is_whole(rules: &Ruleset) {
    let used: std::collections::BTreeSet<_> = rules.maps.values().collect();
    assert!(used.into_iter().eq(rules.chains.keys()), "{rules:#?}");
    let used: std::collections::BTreeSet<_> = rules.chains.values().flat_map(|chain| chain.sets()).collect();
    assert!(used.iter().eq(rules.sets.keys()), "{rules:#?}");
}
