use std::collections::BTreeMap;
use std::convert::Infallible;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::ip::octets;
use ferrule_kernel::nftables::matches::{End as Of, read_address};
use ferrule_kernel::nftables::{CmpOp, Element, Expr, MetaKey, PayloadBase, RawExpr, Register, Value};

use super::*;

#[derive(Default)]
struct Table {
    rules: BTreeMap<&'static str, Rc<[Rule]>>,
    sets: BTreeMap<&'static str, Rc<Set>>,
}

impl Tables for Table {
    type Error = Infallible;

    fn rules(&mut self, chain: &str) -> Result<Rc<[Rule]>, Infallible> {
        Ok(self.rules.get(chain).cloned().unwrap_or_default())
    }

    fn set(&mut self, name: &str) -> Result<Rc<Set>, Infallible> {
        Ok(self.sets.get(name).cloned().unwrap_or_default())
    }
}

impl Table {
    fn with(mut self, chain: &'static str, rules: &[&[Expr]]) -> Table {
        let known = |rule: &&[Expr]| rule.iter().cloned().map(Step::Known).collect();
        self.rules.insert(chain, rules.iter().map(known).collect());
        self
    }

    fn with_set(mut self, name: &'static str, elements: &[Element], has_intervals: bool) -> Table {
        self.sets.insert(name, Rc::new(Set::of(elements, has_intervals)));
        self
    }

    fn walk(&mut self, packet: &Packet) -> Walk {
        let Ok(walk) = walk(self, "base", packet);
        walk
    }
}

fn packet(protocol: u8, port: u16) -> Packet {
    let (source, destination) = ([10, 1, 0, 2].into(), [10, 1, 0, 3].into());
    Packet { source, destination, protocol, port, input: None }
}

fn verdict(verdict: Verdict) -> Expr {
    Expr::Verdict(verdict)
}

fn protocol(number: u8) -> [Expr; 2] {
    [
        Expr::Meta { key: MetaKey::L4Proto, to: Register::R1 },
        Expr::Cmp { register: Register::R1, op: CmpOp::Eq, value: vec![number] },
    ]
}

fn port(offset: u32, op: CmpOp, number: u16) -> [Expr; 2] {
    [
        Expr::Payload { base: PayloadBase::Transport, offset, len: 2, to: Register::R1 },
        Expr::Cmp { register: Register::R1, op, value: number.to_be_bytes().to_vec() },
    ]
}

fn lookup(set: &str, to: Option<Register>) -> Expr {
    Expr::Lookup { set: set.to_owned(), from: Register::R1, to }
}

#[test]
fn jumps_return_and_gotos_do_not() {
    let jump = |to: &str| verdict(Verdict::Jump(to.to_owned()));
    let goto = |to: &str| verdict(Verdict::Goto(to.to_owned()));
    let of = |called: &[&[Expr]], next: &[&[Expr]]| {
        let mut table = Table::default()
            .with("base", &[&[jump("called")], &[verdict(Verdict::Drop)]])
            .with("called", called)
            .with("next", next);
        let walk = table.walk(&packet(6, 80));
        (
            walk.end,
            walk.path
                .iter()
                .map(|place| format!("{}{}", place.chain, place.rule))
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    let is = |found: (End, String), end: End, path: &str| assert_eq!(found, (end, path.to_owned()));
    is(of(&[], &[]), End::Drop, "base0 base1");
    is(
        of(&[&[verdict(Verdict::Return)], &[verdict(Verdict::Accept)]], &[]),
        End::Drop,
        "base0 called0 base1",
    );
    is(of(&[&[verdict(Verdict::Accept)]], &[]), End::Accept, "base0 called0");
    // Behind a goto the caller of the chain goes on, not the chain.
    is(of(&[&[goto("next")], &[verdict(Verdict::Accept)]], &[]), End::Drop, "base0 called0 base1");
    is(of(&[&[goto("next")]], &[&[verdict(Verdict::Return)]]), End::Drop, "base0 called0 next0 base1");
    let mut table = Table::default().with("base", &[&[goto("gone")], &[verdict(Verdict::Drop)]]);
    assert_eq!(table.walk(&packet(6, 80)).end, End::Through);
    let mut circle = Table::default().with("base", &[&[goto("base")]]);
    assert!(matches!(circle.walk(&packet(6, 80)).end, End::Unknown(_)));
}

#[test]
fn sets_maps_and_ports() {
    let of = IpFamily::V4;
    let key = |last: u8| Element::new(octets([10, 1, 0, last].into()));
    let to = |element: Element, chain: &str| Element {
        value: Some(Value::Verdict(Verdict::Jump(chain.to_owned()))),
        ..element
    };
    let end = |element: Element| Element { is_end: true, ..element };
    let by_map = [read_address(Of::Destination, of), lookup("to4", Some(Register::VERDICT))];
    let peer = [read_address(Of::Source, of), lookup("peers", None), verdict(Verdict::Return)];
    let ports =
        [&protocol(6)[..], &port(2, CmpOp::Gte, 80), &port(2, CmpOp::Lte, 82), &[verdict(Verdict::Return)]]
            .concat();
    let mut table = Table::default()
        .with("base", &[&by_map, &[verdict(Verdict::Accept)]])
        .with("pod", &[&peer, &ports, &[verdict(Verdict::Drop)]])
        .with_set("to4", &[to(key(3), "pod"), to(key(4), "other")], false);
    let mut ends = |elements: &[Element], has_intervals: bool, asked: &Packet| {
        table.sets.insert("peers", Rc::new(Set::of(elements, has_intervals)));
        let walk = table.walk(asked);
        (walk.end, walk.path[1].rule)
    };
    assert_eq!(ends(&[key(2)], false, &packet(17, 80)), (End::Accept, 0));
    assert_eq!(ends(&[key(1)], false, &packet(17, 80)), (End::Drop, 2));
    // From 1 to 2; from 2 to 2; up to 1; behind 2.
    assert_eq!(ends(&[key(1), end(key(3))], true, &packet(17, 80)), (End::Accept, 0));
    assert_eq!(ends(&[end(key(2)), key(2), end(key(3))], true, &packet(17, 80)), (End::Accept, 0));
    assert_eq!(ends(&[key(2), end(key(2)), end(key(3))], true, &packet(17, 80)), (End::Accept, 0));
    assert_eq!(ends(&[key(1), end(key(2))], true, &packet(17, 80)), (End::Drop, 2));
    assert_eq!(ends(&[key(3)], true, &packet(17, 80)), (End::Drop, 2));
    for (number, rule) in [(79, 2), (80, 1), (82, 1), (83, 2)] {
        assert_eq!(ends(&[], false, &packet(6, number)).1, rule, "{number}");
    }
    // ICMP has no ports.
    assert_eq!(ends(&[], false, &packet(1, 80)), (End::Drop, 2));
}

#[test]
fn what_is_not_known_is_no_match_but_said() {
    let undecided = [
        Expr::Meta { key: MetaKey::IifName, to: Register::R1 },
        lookup("links", None),
        verdict(Verdict::Drop),
    ];
    let source_port = [&port(0, CmpOp::Eq, 999)[..], &[verdict(Verdict::Drop)]].concat();
    let mut name = b"veth1".to_vec();
    name.resize(16, 0);
    let mut table = Table::default()
        .with("base", &[&undecided, &source_port, &[verdict(Verdict::Accept)]])
        .with_set("links", &[Element::new(name)], false);
    let places = |walk: &Walk| walk.maybe.iter().map(|place| place.rule).collect::<Vec<_>>();
    let mut asked = packet(6, 80);
    let walk = table.walk(&asked);
    assert_eq!((&walk.end, places(&walk)), (&End::Accept, vec![0, 1]));
    assert_eq!(walk.maybe[0].sets, ["links"]);
    asked.input = Some("veth1".into());
    assert_eq!(table.walk(&asked).end, End::Drop);
    asked.input = Some("veth2".into());
    let walk = table.walk(&asked);
    assert_eq!((&walk.end, places(&walk)), (&End::Accept, vec![1]));
}

#[test]
fn rules_that_are_not_understood() {
    let raw = |name: &str| RawExpr { name: name.to_owned(), data: Vec::new() };
    let of = |expressions: &[RawExpr]| {
        let rule = nftables::Rule { expressions: expressions.to_vec(), ..nftables::Rule::default() };
        let mut table = Table::default();
        table.rules.insert("base", [steps(&rule), vec![Step::Known(verdict(Verdict::Accept))]].into());
        table.walk(&packet(6, 80)).end
    };
    assert_eq!(of(&[raw("counter"), raw("log")]), End::Accept);
    assert_eq!(of(&[raw("counter"), raw("reject")]), End::Drop);
    assert_eq!(of(&[raw("limit"), raw("log")]), End::Accept);
    assert_eq!(of(&[raw("limit"), raw("reject")]), End::Unknown("limit".to_owned()));
}

#[test]
fn what_a_chain_allows_is_text() {
    let of = IpFamily::V4;
    let key = |last: u8| octets([10, 1, 0, last].into());
    let place = [&key(7)[..], &[17, 0, 0, 0, 0, 53, 0, 0]].concat();
    let behind = Element { is_end: true, ..Element::new(key(64)) };
    let many: Vec<Element> = (1..=20).map(|last| Element::new(key(last))).collect();
    let mut table = Table::default()
        .with_set("peers", &[Element::new(key(2)), Element::new(key(3))], false)
        .with_set("none", &[], false)
        .with_set("many", &many, false)
        .with_set("block", &[Element::new(key(32)), behind], true)
        .with_set("ports", &[Element::new(place)], false);
    let returns = || vec![verdict(Verdict::Return)];
    let peer = |set: &str| vec![read_address(Of::Source, of), lookup(set, None)];
    let load = |offset, to| Expr::Payload { base: PayloadBase::Transport, offset, len: 2, to };
    let mut says = |parts: &[Vec<Expr>]| {
        let rule = parts.concat().into_iter().map(Step::Known).collect();
        let Ok(text) = allows(&mut table, &rule);
        text
    };
    let range = vec![
        load(2, Register::R1),
        Expr::Cmp { register: Register::R1, op: CmpOp::Gte, value: vec![0, 80] },
        Expr::Cmp { register: Register::R1, op: CmpOp::Lte, value: vec![0, 90] },
    ];
    let by_place = vec![
        read_address(Of::Destination, of),
        Expr::Meta { key: MetaKey::L4Proto, to: Register::word(1) },
        load(2, Register::word(2)),
        lookup("ports", None),
    ];
    for (parts, text) in [
        (vec![returns()], "everything"),
        (vec![peer("peers"), returns()], "10.1.0.2, 10.1.0.3"),
        (
            vec![peer("peers"), protocol(6).to_vec(), port(2, CmpOp::Eq, 80).to_vec(), returns()],
            "10.1.0.2, 10.1.0.3 TCP port 80",
        ),
        (vec![protocol(17).to_vec(), returns()], "UDP"),
        (vec![protocol(6).to_vec(), range, returns()], "TCP ports from 80 to 90"),
        (vec![peer("block"), returns()], "10.1.0.32 to before 10.1.0.64"),
        (vec![peer("none"), returns()], "nobody"),
        (vec![by_place, returns()], "10.1.0.7 UDP 53"),
    ] {
        assert_eq!(says(&parts).as_deref(), Some(text));
    }
    assert!(says(&[peer("many"), returns()]).unwrap().ends_with("10.1.0.8, … 20 in all"));
    assert_eq!(says(&[vec![verdict(Verdict::Drop)]]), None);
    assert_eq!(says(&[peer("peers"), vec![verdict(Verdict::Drop)]]), None);
}
