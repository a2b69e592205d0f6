//! The table's fixed sets and chains; [`deny`] has those for denied packets. Pure.
//!
//! ```text
//! chain forward, input   filter, priority -15, each leads to the chain of the packet's family:
//!   drop packets of a pod that has ended            former4, former6
//!   drop packets of a pod that is not decided       ingress4 ... links: as in `inet ferrule_pods`
//!   drop the packets of ended flows                 cut4, cut6: each packet renews its element
//!   accept what belongs to a flow                   of ICMP errors of a pod those about its own flows: pods4, pods6
//!   accept what a pod sends to itself               self4, self6
//!   drop TCP that begins no flow                    isolated4, isolated6
//!   the chain of the packet's source                from4, from6
//!   the chain of the packet's destination           to4, to6; not in input
//! ```
//!
//! `from4` and the others lead the health endpoint's addresses to `probe-out` and `probe-in`, which drop marked echo requests only.
//!
//! A pod's chain returns what it allows, and leads all other packets to the chain that counts and drops: so both ends must allow a packet. With
//! the mode dry that chain counts and returns. An allowed packet comes to neither. The node's own packets, on the hook
//! `output`, pass none of this.
//!
//! From its link-local address a pod with isolated egress sends only neighbour discovery and answers to the node. The set `links_out` has its
//! link.

mod deny;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{End, address, ct_bits, family, read_address};
use ferrule_kernel::nftables::{
    Batch, ChainType, CmpOp, CtKey, DIRECTION_REPLY, DataType, Expr, Hook, HookPoint, MetaKey, PayloadBase,
    Policy, Register, STATE_ESTABLISHED, STATE_NEW, STATE_RELATED, Values, Verdict,
};
use ferrule_kit::fixed_chain::FixedChain;
use ferrule_node_policy::model::Direction;
pub(super) use ferrule_policy_kit::decided::{LINKS_OUT, TABLE, cut, former, isolated, map, pods, to_itself};
use ferrule_policy_kit::table as announced;

/// Its comment. Another layout has another one.
pub(super) const COMMENT: &str = "ferrule-node: network policies, layout 2";
/// Behind the plugin's table, before firewalls.
const PRIORITY: i32 = -15;
/// The most ended flows, two elements each, and how many milliseconds they stay without a packet.
pub(super) const CUT: (u32, u64) = (65_536, 180_000);

const R1: Register = Register::R1;
const ICMPV6: u8 = 58;
/// Neighbour solicitation and advertisement.
const NEIGHBOURS: [u8; 2] = [135, 136];
const TCP: u8 = 6;
/// FIN, SYN, RST and ACK; a packet that begins a flow has SYN alone.
const FLAGS: u8 = 0x17;
const SYN: u8 = 2;

pub(super) const fn data_type(of: IpFamily) -> DataType {
    match of {
        IpFamily::V4 => DataType::Ipv4Addr,
        IpFamily::V6 => DataType::Ipv6Addr,
    }
}

/// Where a request has its mark, in bytes from the header of ICMP: behind that header and the token of a request.
const MARK_AT: u32 = 16;

/// The mark of an echo request of the health endpoint that is denied in a direction.
pub const fn mark(direction: Direction) -> [u8; 8] {
    match direction {
        Direction::Ingress => *b"deny-in.",
        Direction::Egress => *b"deny-out",
    }
}

/// The chain of the health endpoint.
pub(super) const fn probe(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "probe-in",
        Direction::Egress => "probe-out",
    }
}

/// The number of 4-byte registers of an address.
const fn words(of: IpFamily) -> u32 {
    match of {
        IpFamily::V4 => 1,
        IpFamily::V6 => 4,
    }
}

/// Loads the packet's source or destination behind the first `word` registers.
pub(super) fn address_at(end: End, of: IpFamily, word: u32) -> Expr {
    match read_address(end, of) {
        Expr::Payload { base, offset, len, .. } => {
            Expr::Payload { base, offset, len, to: Register::word(word) }
        }
        other => other,
    }
}

pub(super) fn l4proto(word: u32) -> Expr {
    Expr::Meta { key: MetaKey::L4Proto, to: Register::word(word) }
}

/// A port of the transport header.
pub(super) fn port(end: End, word: u32) -> Expr {
    let offset = if end == End::Source { 0 } else { 2 };
    Expr::Payload { base: PayloadBase::Transport, offset, len: 2, to: Register::word(word) }
}

/// The destination's address, the protocol and the destination's port, as keys of sets of ports have them.
pub(super) fn place(of: IpFamily) -> [Expr; 3] {
    let words = words(of);
    [address_at(End::Destination, of, 0), l4proto(words), port(End::Destination, words + 1)]
}

pub(super) fn in_set(set: &str) -> Expr {
    Expr::Lookup { set: set.to_owned(), from: R1, to: None }
}

pub(super) fn is(op: CmpOp, value: &[u8]) -> Expr {
    Expr::Cmp { register: R1, op, value: value.to_vec() }
}

pub(super) fn verdict(verdict: Verdict) -> Expr {
    Expr::Verdict(verdict)
}

/// Adds the fixed sets; `is_blind`: without counters. Returns the first number that no set of the batch has.
pub(super) fn add_sets(batch: &mut Batch, is_blind: bool) -> u32 {
    let mut ids = 1..;
    let mut id = || ids.next().unwrap_or_default();
    for (name, key) in announced::SETS {
        batch.add_set(TABLE, name, id(), &[key], None);
    }
    batch.add_set(TABLE, LINKS_OUT, id(), &[DataType::IfName], None);
    for of in IpFamily::ALL {
        let address = data_type(of);
        batch.add_set(TABLE, former(of), id(), &[address], None);
        batch.add_set(TABLE, isolated(of), id(), &[address], None);
        batch.add_set(TABLE, to_itself(of), id(), &[address, address], None);
        batch.add_set(TABLE, pods(of), id(), &[address, address], None);
        for direction in Direction::ALL {
            batch.add_set(TABLE, map(direction, of), id(), &[address], Some(Values::Verdict));
        }
        let flow = [address, address, DataType::Proto, DataType::Service, DataType::Service];
        batch.add_timed_set(TABLE, cut(of), id(), &flow, CUT);
        deny::add_sets(batch, of, is_blind, &mut id);
    }
    id()
}

/// The fixed chains; one comes before those that lead to it.
pub(super) fn chains() -> Vec<FixedChain> {
    let base = |point| {
        let (chain_type, policy) = (ChainType::Filter, Policy::Accept);
        Some(Hook { chain_type, point, priority: PRIORITY, policy })
    };
    let chain = |name: &str, hook, rules| FixedChain { name: name.to_owned(), hook, rules, jumps: 0 };
    let by_family = |prefix: &str| {
        IpFamily::ALL
            .map(|of| [&family(of)[..], &[verdict(Verdict::Goto(format!("{prefix}{}", digit(of))))]].concat())
            .to_vec()
    };
    let mut chains = vec![chain(ANSWERS, None, answers())];
    chains.extend(Direction::ALL.map(|direction| chain(probe(direction), None, vec![of_probe(direction)])));
    chains.extend(deny::chains());
    for of in IpFamily::ALL {
        chains.push(chain(&format!("stray{}", digit(of)), None, stray(of)));
        chains.push(chain(&format!("errors{}", digit(of)), None, errors(of)));
        chains.push(chain(&format!("forward{}", digit(of)), None, forward(of)));
        chains.push(chain(&format!("input{}", digit(of)), None, input(of)));
    }
    chains.push(chain("forward", base(HookPoint::Forward), by_family("forward")));
    chains.push(chain("input", base(HookPoint::Input), by_family("input")));
    chains
}

const ANSWERS: &str = "answers";

fn digit(of: IpFamily) -> char {
    if of == IpFamily::V4 { '4' } else { '6' }
}

fn at(end: End, of: IpFamily, set: &str, then: Verdict) -> Vec<Expr> {
    vec![read_address(end, of), in_set(set), verdict(then)]
}

fn from_undecided_link() -> Vec<Expr> {
    let name = Expr::Meta { key: MetaKey::IifName, to: R1 };
    vec![name, in_set(announced::LINKS), verdict(Verdict::Drop)]
}

fn of_cut_flow(of: IpFamily) -> Vec<Expr> {
    let words = words(of);
    vec![
        address_at(End::Source, of, 0),
        address_at(End::Destination, of, words),
        l4proto(2 * words),
        port(End::Source, 2 * words + 1),
        port(End::Destination, 2 * words + 2),
        in_set(cut(of)),
        Expr::Renew { set: cut(of).to_owned(), from: R1 },
        verdict(Verdict::Drop),
    ]
}

/// Accepts packets of flows. Errors about flows have a chain.
fn known(of: IpFamily) -> [Vec<Expr>; 2] {
    [(STATE_ESTABLISHED, Verdict::Accept), (STATE_RELATED, Verdict::Jump(format!("errors{}", digit(of))))]
        .map(|(state, then)| [&ct_bits(CtKey::State, state, true)[..], &[verdict(then)]].concat())
}

/// A pod may send errors about its own flows alone, a router about all. Others are judged as if no flow existed.
fn errors(of: IpFamily) -> Vec<Vec<Expr>> {
    let source = || address_at(End::Source, of, 0);
    let (second, accept) = (Register::word(words(of)), || verdict(Verdict::Accept));
    let of_router = vec![
        source(),
        address_at(End::Source, of, words(of)),
        Expr::NotIn { set: pods(of).to_owned(), from: R1 },
        accept(),
    ];
    let of_end = |is_reply| {
        vec![source(), Expr::CtSource { family: of, is_reply, to: second }, in_set(pods(of)), accept()]
    };
    vec![of_router, of_end(false), of_end(true)]
}

fn by_map(end: End, direction: Direction, of: IpFamily) -> Vec<Expr> {
    let set = map(direction, of).to_owned();
    vec![read_address(end, of), Expr::Lookup { set, from: R1, to: Some(Register::VERDICT) }]
}

fn of_probe(direction: Direction) -> Vec<Expr> {
    let mark = mark(direction);
    let load =
        Expr::Payload { base: PayloadBase::Transport, offset: MARK_AT, len: mark.len() as u32, to: R1 };
    vec![load, is(CmpOp::Eq, &mark), verdict(Verdict::Drop)]
}

fn forward(of: IpFamily) -> Vec<Vec<Expr>> {
    let undecided = |direction| announced::set(direction, of);
    let flags = Expr::Payload { base: PayloadBase::Transport, offset: 13, len: 1, to: R1 };
    let begins_no_flow = [
        &[l4proto(0), is(CmpOp::Eq, &[TCP]), flags][..],
        &[Expr::Bitwise { register: R1, mask: vec![FLAGS], xor: vec![0] }, is(CmpOp::Neq, &[SYN])],
        &ct_bits(CtKey::State, STATE_NEW, true),
        &[verdict(Verdict::Jump(format!("stray{}", digit(of))))],
    ]
    .concat();
    let both = [read_address(End::Source, of), address_at(End::Destination, of, words(of))];
    let [established, related] = known(of);
    vec![
        at(End::Source, of, former(of), Verdict::Drop),
        at(End::Destination, of, former(of), Verdict::Drop),
        at(End::Destination, of, undecided(Direction::Ingress), Verdict::Drop),
        at(End::Source, of, undecided(Direction::Egress), Verdict::Drop),
        from_undecided_link(),
        of_cut_flow(of),
        established,
        related,
        [&both[..], &[in_set(to_itself(of)), verdict(Verdict::Accept)]].concat(),
        begins_no_flow,
        by_map(End::Source, Direction::Egress, of),
        by_map(End::Destination, Direction::Ingress, of),
    ]
}

fn stray(of: IpFamily) -> Vec<Vec<Expr>> {
    [End::Source, End::Destination].map(|end| at(end, of, isolated(of), Verdict::Drop)).to_vec()
}

fn input(of: IpFamily) -> Vec<Vec<Expr>> {
    let neighbour = |kind| {
        let load = Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 1, to: R1 };
        let is_kind = is(CmpOp::Eq, &[kind]);
        vec![l4proto(0), is(CmpOp::Eq, &[ICMPV6]), load, is_kind, verdict(Verdict::Accept)]
    };
    let mut rules = if of == IpFamily::V6 { NEIGHBOURS.map(neighbour).to_vec() } else { Vec::new() };
    let answers = Verdict::Goto(ANSWERS.to_owned());
    let without_address = |source: &str| {
        let source: Vec<Expr> =
            source.parse().map(|network| address(End::Source, CmpOp::Eq, network)).unwrap_or_default();
        let link = [Expr::Meta { key: MetaKey::IifName, to: R1 }, in_set(LINKS_OUT)];
        [&source[..], &link, &[verdict(answers.clone())]].concat()
    };
    let [established, related] = known(of);
    rules.extend([
        at(End::Source, of, former(of), Verdict::Drop),
        at(End::Source, of, announced::set(Direction::Egress, of), answers.clone()),
        from_undecided_link(),
        of_cut_flow(of),
    ]);
    if of == IpFamily::V6 {
        rules.extend(["fe80::/10", "::/128"].map(without_address));
    }
    rules.extend([established, related, by_map(End::Source, Direction::Egress, of)]);
    rules
}

/// What an undecided pod may send to the node: answers.
fn answers() -> Vec<Vec<Expr>> {
    let reply = Expr::Ct { key: CtKey::Direction, to: R1 };
    vec![
        vec![reply, is(CmpOp::Eq, &[DIRECTION_REPLY]), verdict(Verdict::Accept)],
        vec![verdict(Verdict::Drop)],
    ]
}
