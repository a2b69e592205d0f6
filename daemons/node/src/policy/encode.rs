//! The compiler's changes as requests to the kernel. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::matches::{End, read_address};
use ferrule_kernel::nftables::{Batch, CmpOp, DataType, Element, Expr, Value, Verdict};
use ferrule_node_policy::model::{Direction, Protocol};
use ferrule_node_policy::ruleset::{Chain, Contents, Entry, MapChange, Peer, Ports, Rule, Set};
use ferrule_node_policy::{Change, Compiler, Ruleset, ruleset};
use ferrule_policy_kit::denials;

use super::layout::{TABLE, data_type, in_set, is, isolated, l4proto, map, place, port, to_itself, verdict};

/// Adds to the batch what makes the change, with which the compiler's ruleset is as it is now. `id` is a number from which on no set of the
/// batch has one.
pub(super) fn push(batch: &mut Batch, change: &Change, compiler: &Compiler, id: u32) {
    for ((name, set), id) in change.new_sets.iter().zip(id..) {
        make(batch, &name.to_string(), set, id);
    }
    // A rule of one chain may lead to another one.
    for name in change.new_chains.keys() {
        batch.add_new_chain(TABLE, &name.to_string());
    }
    for (name, chain) in &change.new_chains {
        let name = name.to_string();
        for rule in rules(chain) {
            batch.add_rule(TABLE, &name, &rule, None);
        }
    }
    for (name, elements) in &change.elements {
        let name = name.to_string();
        let all = |of: &BTreeSet<ruleset::Element>| of.iter().map(|one| element(*one)).collect::<Vec<_>>();
        batch.delete(TABLE, &name, &all(&elements.removed));
        batch.add_elements(TABLE, &name, &all(&elements.added));
    }
    maps(batch, change);
    counters(batch, change, compiler);
    isolation(batch, change, compiler.ruleset());
    for name in &change.gone_chains {
        batch.flush_chain(TABLE, &name.to_string());
    }
    for name in &change.gone_chains {
        batch.delete_chain(TABLE, &name.to_string());
    }
    for name in &change.gone_sets {
        batch.delete_set(TABLE, &name.to_string());
    }
}

fn make(batch: &mut Batch, name: &str, set: &Set, id: u32) {
    let address = data_type(set.family);
    match &set.contents {
        Contents::Addresses(_) => batch.add_set(TABLE, name, id, &[address], None),
        Contents::Ports(_) => {
            batch.add_set(TABLE, name, id, &[address, DataType::Proto, DataType::Service], None)
        }
        Contents::Blocks(_) => batch.add_interval_set(TABLE, name, id, address),
    };
    batch.add_elements(TABLE, name, &elements(set));
}

/// The elements of a set.
pub(super) fn elements(set: &Set) -> Vec<Element> {
    match &set.contents {
        Contents::Addresses(all) => {
            all.iter().map(|address| element(ruleset::Element::Address(*address))).collect()
        }
        Contents::Ports(all) => {
            let one = |(address, protocol, port): &_| ruleset::Element::Port(*address, *protocol, *port);
            all.iter().map(|port| element(one(port))).collect()
        }
        Contents::Blocks(all) => all.iter().flat_map(|(first, last)| interval(*first, *last)).collect(),
    }
}

/// The first address, and the one behind the last, if there is one.
fn interval(first: IpAddr, last: IpAddr) -> Vec<Element> {
    let behind = match last {
        IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| next.to_be_bytes().to_vec()),
        IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| next.to_be_bytes().to_vec()),
    };
    let end = behind.map(|key| Element { is_end: true, ..Element::new(key) });
    [Element::new(octets(first))].into_iter().chain(end).collect()
}

fn element(of: ruleset::Element) -> Element {
    Element::new(match of {
        ruleset::Element::Address(address) => octets(address),
        ruleset::Element::Port(address, protocol, port) => {
            [&octets(address)[..], &padded(&[protocol.number()]), &padded(&port.to_be_bytes())].concat()
        }
    })
}

/// A part of a concatenation.
pub(super) fn padded(bytes: &[u8]) -> [u8; 4] {
    let mut part = [0; 4];
    part.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    part
}

fn maps(batch: &mut Batch, change: &Change) {
    for direction in Direction::ALL {
        for of in IpFamily::ALL {
            let name = map(direction, of);
            let own = || {
                change
                    .maps
                    .iter()
                    .filter(move |(entry, _)| entry.direction == direction && IpFamily::of(entry.pod) == of)
            };
            let removed: Vec<_> = own()
                .filter(|(_, change)| change.from.is_some())
                .map(|(entry, _)| octets(entry.pod))
                .collect();
            let jump = |entry: &Entry, chain: ferrule_node_policy::Name| {
                let value = Some(Value::Verdict(Verdict::Jump(chain.to_string())));
                Element { value, ..Element::new(octets(entry.pod)) }
            };
            let added: Vec<_> = own().filter_map(|(entry, change)| Some(jump(entry, change.to?))).collect();
            batch.delete_elements(TABLE, name, &removed);
            batch.add_elements(TABLE, name, &added);
        }
    }
}

/// The counters of denials. That of a pod whose mode changes begins anew.
fn counters(batch: &mut Batch, change: &Change, compiler: &Compiler) {
    let comment = |pod: IpAddr| {
        let name = compiler.cluster().name_at(pod)?;
        Some(denials::comment(&name, compiler.ruleset().dry.contains(&pod)))
    };
    for (direction, of) in Direction::ALL.into_iter().flat_map(|one| IpFamily::ALL.map(|of| (one, of))) {
        let own = change
            .maps
            .iter()
            .filter(|(entry, _)| entry.direction == direction && IpFamily::of(entry.pod) == of);
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for (Entry { pod, .. }, MapChange { from, to }) in own {
            let is_other = change.dry.contains_key(pod);
            if from.is_some() && (to.is_none() || is_other) {
                removed.push(octets(*pod));
            }
            if to.is_some() && (from.is_none() || is_other) {
                added.push(Element { comment: comment(*pod), ..Element::new(octets(*pod)) });
            }
        }
        let set = denials::counted(direction, of);
        batch.delete_elements(TABLE, set, &removed).add_elements(TABLE, set, &added);
    }
}

/// The sets of the pods that are isolated in a direction: in `isolated` only those that something may be denied to.
fn isolation(batch: &mut Batch, change: &Change, after: &Ruleset) {
    let mut lists =
        IpFamily::ALL.map(|of| [(isolated(of), [vec![], vec![]]), (to_itself(of), [vec![], vec![]])]);
    for pod in change.maps.keys().map(|entry| entry.pod).collect::<BTreeSet<_>>() {
        let has = |of: &dyn Fn(Entry) -> bool| {
            Direction::ALL.iter().any(|direction| of(Entry { direction: *direction, pod }))
        };
        let has_now = has(&|entry| after.maps.contains_key(&entry));
        let had = has(&|entry| match change.maps.get(&entry) {
            Some(change) => change.from.is_some(),
            None => after.maps.contains_key(&entry),
        });
        let was_enforced = had && !change.was_dry(pod, after);
        let is_enforced = has_now && !after.dry.contains(&pod);
        let [isolated, to_itself] = &mut lists[IpFamily::of(pod) as usize];
        let rows = [
            (isolated, octets(pod), was_enforced, is_enforced),
            (to_itself, octets(pod).repeat(2), had, has_now),
        ];
        for ((_, [removed, added]), key, was, is) in rows {
            if was != is {
                let list = if is { added } else { removed };
                list.push(Element::new(key));
            }
        }
    }
    for (set, [removed, added]) in lists.iter().flatten() {
        batch.delete(TABLE, set, removed).add_elements(TABLE, set, added);
    }
}

/// The rules of a chain. The last one is its verdict for all other packets.
pub(super) fn rules(chain: &Chain) -> Vec<Vec<Expr>> {
    let all = chain.rules.iter().map(|one| rule(chain, one));
    all.chain([vec![decides(chain, chain.otherwise)]]).collect()
}

fn rule(chain: &Chain, Rule { peer, ports, verdict: then }: &Rule) -> Vec<Expr> {
    let mut exprs = Vec::new();
    if let Peer::In(set) = peer {
        let end = if chain.direction == Direction::Ingress { End::Source } else { End::Destination };
        exprs.extend([read_address(end, chain.family), in_set(&set.to_string())]);
    }
    let of_protocol = |protocol: &Protocol| [l4proto(0), is(CmpOp::Eq, &[protocol.number()])];
    match ports {
        Ports::Any => {}
        Ports::Protocol(protocol) => exprs.extend(of_protocol(protocol)),
        Ports::Range { protocol, first, last } => {
            exprs.extend(of_protocol(protocol));
            exprs.push(port(End::Destination, 0));
            if first == last {
                exprs.push(is(CmpOp::Eq, &first.to_be_bytes()));
            } else {
                exprs.push(is(CmpOp::Gte, &first.to_be_bytes()));
                exprs.push(is(CmpOp::Lte, &last.to_be_bytes()));
            }
        }
        Ports::In(set) => exprs.extend(place(chain.family).into_iter().chain([in_set(&set.to_string())])),
    }
    exprs.push(decides(chain, *then));
    exprs
}

/// A packet that one direction allows goes on to the other direction.
fn decides(Chain { direction, family, .. }: &Chain, then: ruleset::Verdict) -> Expr {
    let denied = |is_dry| Verdict::Goto(denials::chain(*direction, *family, is_dry).to_owned());
    verdict(match then {
        ruleset::Verdict::Allow => Verdict::Return,
        ruleset::Verdict::Deny => denied(false),
        ruleset::Verdict::Dry => denied(true),
        ruleset::Verdict::Goto(chain) => Verdict::Goto(chain.to_string()),
    })
}
