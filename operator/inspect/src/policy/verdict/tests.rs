use ferrule_policy_kit::ruled::{At, Passed};

use super::*;

fn place(of: Where) -> Place {
    Place { of, link: None }
}

fn pod(name: &str) -> Place {
    place(Where::Pod(name.to_owned()))
}

fn side(reason: Reason, pods: &[&str]) -> Side {
    let pods = pods.iter().map(|pod| pod.to_string()).collect();
    Side { pods, reason, by: Vec::new(), passed: Vec::new(), unreached: Vec::new(), is_dry: false }
}

fn flow(egress: Reason, ingress: Reason) -> Flow {
    Flow { egress: side(egress, &["shop/a"]), ingress: side(ingress, &["shop/b"]) }
}

fn passed(directions: &[Direction]) -> Ruled {
    let at = |direction: &Direction| Passed {
        direction: *direction,
        at: At { rule: 2, rules: 3, chain: "c1".into(), ..At::default() },
        is_dry: false,
    };
    Ruled {
        allowed: Some(true),
        cause: Cause::Passes,
        passed: directions.iter().map(at).collect(),
        ..Ruled::default()
    }
}

fn denied(cause: Cause, direction: Option<Direction>) -> Ruled {
    Ruled { allowed: Some(false), cause, direction, ..Ruled::default() }
}

#[test]
fn the_kernel_decides_and_differences_are_said() {
    use Direction::{Egress, Ingress};
    let ends = [&pod("shop/a"), &pod("shop/b")];
    let of = |ruled: &Ruled, flow: &Flow| {
        let found = verdict(ends, Some(ruled), Some(flow));
        (found.verdict, found.warnings.first().cloned().unwrap_or_default())
    };
    let none = String::new();
    for (ruled, egress, ingress, word, warning) in [
        (passed(&[]), Reason::NoPolicy, Reason::NoPolicy, Word::Allowed, ""),
        (passed(&[Ingress]), Reason::NoPolicy, Reason::Allowed, Word::Allowed, ""),
        (passed(&[Egress, Ingress]), Reason::Allowed, Reason::Accepted, Word::Allowed, ""),
        (denied(Cause::Policy, Some(Ingress)), Reason::NoPolicy, Reason::NothingAllows, Word::Denied, ""),
        (denied(Cause::Policy, Some(Egress)), Reason::Refused, Reason::NothingAllows, Word::Denied, ""),
        // Not by a policy: the objects of the API do not say it.
        (denied(Cause::Undecided, Some(Ingress)), Reason::NoPolicy, Reason::Allowed, Word::Denied, ""),
        (denied(Cause::EndedPod, None), Reason::NotHere, Reason::NoPolicy, Word::Denied, ""),
        // The difference in each direction.
        (
            denied(Cause::Policy, Some(Ingress)),
            Reason::NoPolicy,
            Reason::Allowed,
            Word::Denied,
            "the kernel's rules deny it (ingress)",
        ),
        (
            denied(Cause::Policy, Some(Egress)),
            Reason::NoPolicy,
            Reason::NothingAllows,
            Word::Denied,
            "the kernel's rules deny it (egress)",
        ),
        (
            passed(&[]),
            Reason::NoPolicy,
            Reason::NothingAllows,
            Word::Allowed,
            "the objects of the API deny it (ingress)",
        ),
        (
            Ruled { cause: Cause::NotEnforced, ..passed(&[]) },
            Reason::Refused,
            Reason::NoPolicy,
            Word::Allowed,
            "the objects of the API deny it (egress)",
        ),
        (
            passed(&[]),
            Reason::Allowed,
            Reason::NoPolicy,
            Word::Allowed,
            "a policy isolates the pod (egress), and the kernel has no rules",
        ),
        (
            passed(&[Ingress]),
            Reason::NoPolicy,
            Reason::NotHere,
            Word::Allowed,
            "the kernel has rules for a pod (ingress)",
        ),
    ] {
        let found = of(&ruled, &flow(egress, ingress));
        assert_eq!(found.0, word, "{ruled:?}");
        assert!(
            if warning.is_empty() { found.1 == none } else { found.1.starts_with(warning) },
            "{found:?} {ruled:?}"
        );
    }
}

#[test]
fn without_the_daemon_the_kernel_says_it() {
    use Direction::{Egress, Ingress};
    let of = |ruled: &Ruled| {
        let found = verdict([&pod("shop/a"), &pod("shop/b")], Some(ruled), None);
        let ends: Vec<_> = found.ends.iter().map(|end| (end.allowed, end.why.clone())).collect();
        assert_eq!(found.ends[0].pods, ["shop/a"]);
        (found.verdict, ends)
    };
    let (word, ends) = of(&denied(Cause::Policy, Some(Ingress)));
    assert_eq!((word, ends[0].0, ends[1].0), (Word::Denied, None, Some(false)));
    assert!(ends[0].1.contains("do not get that far"), "{ends:?}");
    let (word, ends) = of(&passed(&[Egress]));
    assert_eq!((word, ends[0].0, ends[1].0), (Word::Allowed, Some(true), Some(true)));
    assert!(
        ends[0].1.contains("rule 2 of 3 in chain c1") && ends[1].1.contains("no policy isolates it"),
        "{ends:?}"
    );
    assert!(of(&denied(Cause::Undecided, Some(Egress))).1[0].1.contains("not decided yet"));
    let unknown = Ruled { cause: Cause::Unknown, ..Ruled::default() };
    assert_eq!(of(&unknown).0, Word::Unknown);
}

#[test]
fn what_this_node_does_not_decide() {
    let (here, passes) = (pod("shop/a"), passed(&[]));
    let not_here = |pods: &[&str]| Flow {
        egress: side(Reason::NoPolicy, &["shop/a"]),
        ingress: side(Reason::NotHere, pods),
    };
    let of = |to: Where, flow: Option<&Flow>| {
        let found = verdict([&here, &place(to)], Some(&passes), flow);
        assert_eq!(found.ends[1].allowed, None);
        (found.verdict, found.ends[1].why.clone())
    };
    let node = of(Where::OtherNode("n2".into()), None);
    assert!(
        node.0 == Word::AllowedHere && node.1.contains("its node \"n2\" judges what it gets"),
        "{node:?}"
    );
    let itself = of(Where::Node("n2".into()), None);
    assert!(itself.0 == Word::Allowed && itself.1.contains("an address of node \"n2\" itself"), "{itself:?}");
    let named = of(Where::Outside, Some(&not_here(&["shop/far"])));
    assert!(named.0 == Word::AllowedHere && named.1.contains("another node"), "{named:?}");
    let outside = of(Where::Outside, Some(&not_here(&[])));
    assert!(outside.0 == Word::Allowed && outside.1.contains("nobody judges"), "{outside:?}");
    let own = of(Where::ThisNode, None);
    assert!(own.0 == Word::Allowed && own.1.contains("an address of this node"), "{own:?}");
    // The node's own packets pass no rules.
    let sent =
        verdict([&place(Where::ThisNode), &here], None, Some(&flow(Reason::NotHere, Reason::NothingAllows)));
    assert_eq!((sent.verdict, sent.ends[1].allowed, sent.warnings.len()), (Word::Allowed, None, 0));
    assert!(sent.ends[1].why.contains("the node itself sends"), "{sent:?}");
    // An address that nobody has.
    let nobody = verdict([&here, &place(Where::Nobody)], Some(&passes), None);
    assert!(nobody.ends[1].why.contains("no running pod"), "{nobody:?}");
}

#[test]
fn an_ended_pod_and_a_passed_rule_are_named() {
    let ends = [&pod("shop/a"), &pod("shop/b")];
    let ended = denied(Cause::EndedPod, None);
    let found = verdict(ends, Some(&ended), Some(&flow(Reason::NotHere, Reason::NoPolicy)));
    assert_eq!([found.ends[0].allowed, found.ends[1].allowed], [Some(false), Some(true)]);
    assert!(found.ends[0].why.contains("it has ended"), "{found:?}");
    // Without the daemon it may be either of them.
    assert_eq!(verdict(ends, Some(&ended), None).ends[0].allowed, None);
    let by = |policy: &str| By { policy: policy.into(), ..By::default() };
    let mut asked = flow(Reason::NoPolicy, Reason::Refused);
    (asked.ingress.passed, asked.ingress.by) = (vec![by("first")], vec![by("second")]);
    let by =
        verdict(ends, Some(&denied(Cause::Policy, Some(Direction::Ingress))), Some(&asked)).ends.remove(1).by;
    assert_eq!(by.iter().map(|by| by.policy.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert!(by[0].misses.contains("passes this on") && by[1].misses.is_empty(), "{by:?}");
}
