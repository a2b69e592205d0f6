//! The chains for denied packets.
//!
//! ```text
//! deny_to4:       count in the element of the pod, and note the flow unless the pod has too many; drop
//! dry_to4:        the same without the drop, so that the packet goes on
//! note_to4:       note the flow
//! ```

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{End, read_address};
use ferrule_kernel::nftables::{Batch, CmpOp, DataType, Expr, Register, Verdict};
use ferrule_kit::fixed_chain::FixedChain;
use ferrule_node_policy::model::{Direction, Protocol};
use ferrule_policy_kit::denials::{self, counted, noted};

use super::{R1, TABLE, address_at, data_type, in_set, is, l4proto, port, verdict, words};

/// Adds the sets of a family. Without counters each denied packet is noted.
pub(super) fn add_sets(batch: &mut Batch, of: IpFamily, is_blind: bool, mut id: impl FnMut() -> u32) {
    let address = data_type(of);
    for direction in Direction::ALL {
        let (exprs, set) = ([Expr::Counter, denials::LIMIT], counted(direction, of));
        match is_blind {
            false => batch.add_set_of_exprs(TABLE, set, id(), address, &exprs),
            true => batch.add_set(TABLE, set, id(), &[address], None),
        };
        let flow = [address, address, DataType::Proto, DataType::Service];
        batch.add_timed_set(TABLE, noted(direction, of), id(), &flow, denials::NOTED);
    }
}

/// The chains; one comes before those that lead to it.
pub(super) fn chains() -> Vec<FixedChain> {
    let mut chains = Vec::new();
    for (direction, of) in Direction::ALL.into_iter().flat_map(|one| IpFamily::ALL.map(|of| (one, of))) {
        let note = denials::note(direction, of);
        let pod = if direction == Direction::Ingress { End::Destination } else { End::Source };
        let count = vec![
            read_address(pod, of),
            in_set(counted(direction, of)),
            verdict(Verdict::Jump(note.to_owned())),
        ];
        let chain = |name: &str, rules| FixedChain { name: name.to_owned(), hook: None, rules, jumps: 0 };
        chains.push(chain(note, notes(direction, of)));
        let dropped = vec![count.clone(), vec![verdict(Verdict::Drop)]];
        chains.push(chain(denials::chain(direction, of, false), dropped));
        chains.push(chain(denials::chain(direction, of, true), vec![count]));
    }
    chains
}

/// A packet without a port is noted with port 0: that of another protocol, or a fragment.
fn notes(direction: Direction, of: IpFamily) -> Vec<Vec<Expr>> {
    let words = words(of);
    let note = |port: Expr| {
        let ends = [address_at(End::Source, of, 0), address_at(End::Destination, of, words)];
        let set = noted(direction, of).to_owned();
        let add = Expr::Count { set, from: R1 };
        [&ends[..], &[l4proto(2 * words), port, add, verdict(Verdict::Return)]].concat()
    };
    let with_port = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| {
        let own = [l4proto(0), is(CmpOp::Eq, &[protocol.number()])];
        [&own[..], &note(port(End::Destination, 2 * words + 1))].concat()
    });
    let none = Expr::Immediate { to: Register::word(2 * words + 1), value: vec![0; 4] };
    with_port.into_iter().chain([note(none)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_walks_the_rules_knows_each_chain_that_only_counts() {
        let other = super::super::chains().into_iter().filter(|chain| !denials::counts(&chain.name));
        let counted = chains();
        assert!(counted.iter().all(|chain| denials::counts(&chain.name)));
        assert_eq!(other.count() + counted.len(), super::super::chains().len());
    }
}
