//! `ferrule policy watch` beside a table as `ferrule-node` makes it; `daemons/node/tests/parts/policy/denials.rs` compares the sets with packets.

use std::fs;
use std::process::Command;

use cni_lab::{Node, Place as _, TIMEOUT, eventually};

use crate::fixture::command;

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

#[test]
fn watches_print_what_is_denied_from_now_on() {
    let node = Node::new().unwrap();
    let without = node.exec(&mut command("policy watch")).unwrap();
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(1) && said.contains("no table inet ferrule_policy"), "{said}");

    node.sh(&format!("nft -f - <<'END'\n{TABLE}\nEND")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let files = ["one", "two"].map(|name| dir.path().join(name));
    // Two at once, each with a file of its own.
    let watches = files.each_ref().map(|path| {
        fs::write(path, "").unwrap();
        let mut watch = Command::new("sh");
        watch.args(["-c", "exec \"$0\" policy watch >\"$1\""]);
        watch.arg(command("policy watch").get_program()).arg(path);
        node.spawn(watch).unwrap()
    });
    let mut number = 0;
    let lines = |path| fs::read_to_string(path).unwrap();
    let see_one = || {
        // A watch may not have begun: another flow is denied until both see one.
        number += 1;
        node.sh(&format!(
            "nft add element inet ferrule_policy flows_to4 '{{ 10.1.0.8 . 10.1.0.3 . tcp . {number} counter packets 1 bytes 60 }}'"
        ))
        .unwrap();
        files.iter().all(|path| lines(path).contains("10.1.0.8: TCP "))
    };
    assert!(eventually(TIMEOUT, see_one), "{:?}", files.each_ref().map(lines));
    node.sh(&format!("nft -f - <<'END'\n{NEW}\nEND")).unwrap();
    for wanted in [
        "Z denied ingress of shop/web (10.1.0.3) from 10.1.0.4: TCP 80, 2 packets\n",
        "Z would deny egress of tools/job (fd00::9) to fd00:2::1: UDP 53\n",
    ] {
        let has = || files.iter().all(|path| lines(path).contains(wanted));
        assert!(eventually(TIMEOUT, has), "{wanted}: {:?}", files.each_ref().map(lines));
    }
    // Denials from before are not there.
    assert!(files.iter().all(|path| !lines(path).contains("10.1.0.7")), "{:?}", files.each_ref().map(lines));
    drop(watches);
}
