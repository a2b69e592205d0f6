//! Walks a ruleset with a packet, as the kernel does.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_node_policy::Name;
use ferrule_node_policy::judge::Packet;
use ferrule_node_policy::model::{Direction, IpFamily};
use ferrule_node_policy::ruleset::{Chain, Contents, Entry, Peer, Ports, Rule, Ruleset, Verdict};

/// Whether the packet passes.
pub(crate) fn passes(rules: &Ruleset, packet: &Packet) -> bool {
    Direction::ALL.into_iter().all(|direction| end(rules, packet, direction) != Verdict::Deny)
}

/// What one end says.
pub(crate) fn end(rules: &Ruleset, packet: &Packet, direction: Direction) -> Verdict {
    // The base chain lets a pod reach itself.
    if packet.source == packet.destination {
        return Verdict::Allow;
    }
    let (pod, peer) = match direction {
        Direction::Ingress => (packet.destination, packet.source),
        Direction::Egress => (packet.source, packet.destination),
    };
    let Some(chain) = rules.maps.get(&Entry { direction, pod }) else { return Verdict::Allow };
    let mut chain = &rules.chains[chain];
    loop {
        assert_eq!((chain.direction, chain.family), (direction, IpFamily::of(pod)));
        let first = chain.rules.iter().find(|rule| matches(rules, chain, rule, packet, peer));
        match first.map_or(chain.otherwise, |rule| rule.verdict) {
            Verdict::Goto(next) => chain = &rules.chains[&next],
            verdict => return verdict,
        }
    }
}

fn matches(rules: &Ruleset, chain: &Chain, rule: &Rule, packet: &Packet, peer: IpAddr) -> bool {
    let contents = |name| {
        let set = &rules.sets[name];
        assert_eq!(set.family, chain.family);
        &set.contents
    };
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
}

/// What must hold of every ruleset: nothing is used that is missing, and nothing is there that is not used.
pub(crate) fn is_whole(rules: &Ruleset) {
    let mut used: BTreeSet<_> = rules.maps.values().copied().collect();
    used.extend(rules.chains.values().filter_map(Chain::next));
    assert!(used.iter().eq(rules.chains.keys()), "{rules:#?}");
    let is_last = |name: Name| rules.chains[&name].next().is_none();
    assert!(rules.chains.values().filter_map(Chain::next).all(is_last), "{rules:#?}");
    // A chain denies, or would deny, but never both.
    let denies = |chain: &Chain, verdict| {
        chain.otherwise == verdict || chain.rules.iter().any(|rule| rule.verdict == verdict)
    };
    for (entry, name) in &rules.maps {
        let all = [Some(*name), rules.chains[name].next()];
        let has = |verdict| all.into_iter().flatten().any(|name| denies(&rules.chains[&name], verdict));
        let is_dry = rules.dry.contains(&entry.pod);
        assert!(!has(if is_dry { Verdict::Deny } else { Verdict::Dry }), "{entry:?}: {rules:#?}");
    }
    assert!(rules.dry.iter().all(|pod| rules.maps.keys().any(|entry| entry.pod == *pod)), "{rules:#?}");
    let used: BTreeSet<_> = rules.chains.values().flat_map(|chain| chain.sets()).collect();
    assert!(used.iter().eq(rules.sets.keys()), "{rules:#?}");
}
