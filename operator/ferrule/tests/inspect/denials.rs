//! `ferrule policy watch` beside a table as `ferrule-node` makes it; `daemons/node/tests/parts/policy/denials.rs` compares the sets with packets.

use std::fs;
use std::process::Command;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, TIMEOUT, eventually};

use crate::fixture::{Fixture, PROGRAM};

/// The sets that it reads.
const TABLE: &str = "add table inet ferrule_policy
add set inet ferrule_policy denied_to4 { type ipv4_addr; counter; }
add set inet ferrule_policy denied_from6 { type ipv6_addr; counter; }
add set inet ferrule_policy flows_to4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; size 4096; flags dynamic,timeout; timeout 1m; counter; }
add set inet ferrule_policy flows_from6 { type ipv6_addr . ipv6_addr . inet_proto . inet_service; size 4096; flags dynamic,timeout; timeout 1m; counter; }
add element inet ferrule_policy denied_to4 { 10.1.0.3 comment \"shop/web\" }
add element inet ferrule_policy denied_from6 { fd00::9 comment \"dry tools/job\" }
add element inet ferrule_policy flows_to4 { 10.1.0.7 . 10.1.0.3 . tcp . 79 counter packets 5 bytes 300 }";
/// Denials while it runs.
const NEW: &str =
    "add element inet ferrule_policy flows_to4 { 10.1.0.4 . 10.1.0.3 . tcp . 80 counter packets 2 bytes 120 }
add element inet ferrule_policy flows_from6 { fd00::9 . fd00:2::1 . udp . 53 counter packets 1 bytes 60 }";

/// What a watch is for, and whether it prints the first and the second of these.
const WATCHES: [(&str, [bool; 2]); 5] = [
    ("", [true, true]),
    ("10.1.0.4 10.9.9.9", [true, false]),
    ("--egress", [false, true]),
    ("--namespace tools", [false, true]),
    ("shop/pod-watched", [false, false]),
];

#[test]
fn watches_print_what_is_denied_from_now_on() {
    let f = Fixture::new();
    let without = f.run("policy watch");
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(1) && said.contains("no table inet ferrule_policy"), "{said}");

    let pod = f.add(Origin::Ours, "watched", 18961);
    f.node.sh(&format!("nft -f - <<'END'\n{TABLE}\nEND")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // All at once, each with a file of its own.
    let started = WATCHES.map(|(arguments, sees)| {
        let path = dir.path().join(format!("watch {}", arguments.replace('/', " ")));
        fs::write(&path, "").unwrap();
        let mut watch = Command::new("sh");
        watch.args([
            "-c",
            &format!("exec {PROGRAM} {} >\"$0\" 2>&1", f.words(&format!("policy watch {arguments}"))),
        ]);
        watch.arg(&path);
        (f.node.spawn(watch).unwrap(), path, sees)
    });
    let lines = |at: usize| fs::read_to_string(&started[at].1).unwrap();
    let all = || (0..WATCHES.len()).map(|at| (WATCHES[at].0, lines(at))).collect::<Vec<_>>();
    let mut number = 0;
    let see_one = || {
        // A watch may not have begun: other flows are denied until each sees one.
        number += 1;
        let element =
            |rest: &str| format!("add element inet ferrule_policy {rest} counter packets 1 bytes 60 }}\n");
        let script = element(&format!("flows_to4 {{ 10.1.0.4 . 10.1.0.3 . tcp . {number}"))
            + &element(&format!("flows_from6 {{ fd00::9 . fd00:2::2 . udp . {number}"))
            + &element(&format!("flows_to4 {{ {} . 10.1.0.3 . tcp . {number}", pod.address));
        f.node.sh(&format!("nft -f - <<'END'\n{script}END")).unwrap();
        (0..WATCHES.len()).all(|at| lines(at).contains('Z'))
    };
    assert!(eventually(TIMEOUT, see_one), "{:?}", all());
    f.node.sh(&format!("nft -f - <<'END'\n{NEW}\nEND")).unwrap();
    let wanted = [
        "Z denied ingress of shop/web (10.1.0.3) from 10.1.0.4: TCP 80, 2 packets\n",
        "Z would deny egress of tools/job (fd00::9) to fd00:2::1: UDP 53\n",
    ];
    let has = |at: usize| (0..2).all(|line| !started[at].2[line] || lines(at).contains(wanted[line]));
    assert!(eventually(TIMEOUT, || (0..WATCHES.len()).all(has)), "{:?}", all());
    for (at, (_, _, sees)) in started.iter().enumerate() {
        let said = ["ingress of", "egress of"].map(|word| lines(at).contains(word));
        let is_of_pod = at == 4 && said == [true, false] && !lines(at).contains("10.1.0.4");
        assert!(said == *sees || is_of_pod, "{:?}", all());
        // Denials from before are not there.
        assert!(!lines(at).contains("10.1.0.7"), "{:?}", all());
    }
    // One line when the pod ends, and one when nothing is denied any more.
    pod.pod.delete().unwrap();
    let has_ended = || lines(4).contains("Z shop/pod-watched has ended: it is not on this node any more\n");
    assert!(eventually(TIMEOUT, has_ended), "{:?}", all());
    f.node.sh("nft delete table inet ferrule_policy").unwrap();
    let all_know = || (0..WATCHES.len()).all(|at| lines(at).contains("Z no policies are enforced"));
    assert!(eventually(TIMEOUT, all_know), "{:?}", all());
    assert!(
        all()
            .iter()
            .all(|(_, said)| said.matches("has ended").count() <= 1
                && said.matches("no policies").count() == 1)
    );
}
