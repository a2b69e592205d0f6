//! Mutants with faults in operations: ADD, DEL, CHECK, GC and STATUS.

use serde_json::json;

use super::super::plugin::Answer;
use super::{Mutant, afterwards, beforehand, checks_nothing, forget, mutant, refused, sh};

pub(super) const MUTANTS: &[Mutant] = &[
    // ADD
    mutant(
        "portmap",
        "does-one-interface-of-a-container",
        "ADD-06/one-container-with-two-interfaces",
        |call| {
            let answer = call.original();
            if call.verb() == "DEL" {
                for ifname in ["eth0", "eth1", "net1"] {
                    call.clone().with("CNI_IFNAME", ifname).original();
                }
            }
            answer
        },
    ),
    mutant("bridge", "leaves-an-interface-when-ipam-fails", "ADD-04/the-ipam-plugin-fails", |call| {
        let answer = call.original();
        if call.verb() == "ADD" && answer.status != 0 {
            sh(&call, "ip link add left0 type veth peer name left1");
        }
        answer
    }),
    // DEL
    mutant("bridge", "leaves-a-file", "DEL-01/nothing-is-left", |call| {
        afterwards(&call, "DEL", "echo leak > /var/lib/cni/leak-$CNI_CONTAINERID")
    }),
    mutant("portmap", "leaves-a-rule", "DEL-01/nothing-is-left", |call| {
        afterwards(&call, "DEL", "nft add table inet leak_$CNI_CONTAINERID")
    }),
    mutant("bandwidth", "leaves-a-policy-rule", "DEL-01/nothing-is-left", |call| {
        afterwards(&call, "ADD", "ip rule add from 192.0.2.77 lookup main")
    }),
    mutant("bridge", "fails-the-second-del", "DEL-02/three-times", |call| {
        let is_second = call.verb() == "DEL"
            && !sh(&call, "ip netns exec \"${CNI_NETNS##*/}\" ip link show \"$CNI_IFNAME\"");
        if is_second { refused(999, "there is no such link") } else { call.original() }
    }),
    mutant("bridge", "needs-a-namespace-to-delete", "DEL-03/namespace-gone", |call| {
        let is_bad = call.verb() == "DEL" && !std::path::Path::new(call.var("CNI_NETNS")).exists();
        if is_bad { refused(999, "cannot open the namespace") } else { call.original() }
    }),
    mutant("portmap", "needs-prev-result-to-delete", "DEL-04/prev-result-absent-or-null", |call| {
        let is_bad = call.verb() == "DEL" && call.json()["prevResult"].is_null();
        if is_bad { refused(7, "no prevResult") } else { call.original() }
    }),
    mutant("bridge", "keeps-the-address-of-a-gone-pod", "DEL-05/ipam-is-called-whatever-is-gone", |call| {
        let mut config = call.json();
        if call.verb() == "DEL" && !std::path::Path::new(call.var("CNI_NETNS")).exists() {
            forget(&mut config, "ipam");
            return call.with_json(&config).original();
        }
        call.original()
    }),
    mutant("portmap", "refuses-to-clean-up", "DEL-08/a-key-of-its-own-is-not-valid", |call| {
        let judged = call.clone().with("CNI_COMMAND", "CHECK").original();
        let is_bad = call.verb() == "DEL" && judged.json()["code"] == 7;
        if is_bad { refused(7, "not valid") } else { call.original() }
    }),
    // CHECK
    mutant("bridge", "checks-nothing", "CHK-03/the-interface-is-gone", checks_nothing),
    mutant("portmap", "checks-nothing-either", "CHK-04/the-firewall-was-flushed", checks_nothing),
    mutant("bandwidth", "checks-nothing-at-all", "CHK-04/the-shaping-towards-it-is-gone", checks_nothing),
    mutant("host-local", "never-looks", "CHK-04/the-reservation-is-gone", checks_nothing),
    mutant("bridge", "minds-another-address", "CHK-02/another-address", |call| {
        let counted = "[ $(ip netns exec \"${CNI_NETNS##*/}\" ip -4 -o address show | wc -l) -le 1 ]";
        if call.verb() == "CHECK" && !sh(&call, counted) {
            return refused(999, "an address that I did not give");
        }
        call.original()
    }),
    mutant("host-local", "writes-at-check", "CHK-08/nothing-is-changed", |call| {
        beforehand(&call, "CHECK", "date +%s%N > /var/lib/cni/checked")
    }),
    // GC
    mutant("host-local", "collects-nothing", "GC-01/one-is-stale", |call| match call.verb() {
        "GC" => Answer::silence(),
        _ => call.original(),
    }),
    mutant("portmap", "collects-everything", "GC-02/both-keys", |call| {
        let mut config = call.json();
        if call.verb() == "GC" {
            config["cni.dev/valid-attachments"] = json!([]);
            config["cni.dev/attachments"] = json!([]);
            return call.with_json(&config).original();
        }
        call.original()
    }),
    // STATUS
    mutant("loopback", "is-never-ready", "STA-01/a-plugin-in-good-order-is-ready", |call| {
        match call.verb() {
            "STATUS" => refused(50, "not yet"),
            _ => call.original(),
        }
    }),
    mutant("bandwidth", "writes-at-status", "STA-07/nothing-is-changed", |call| {
        beforehand(&call, "STATUS", "ip link add status0 type veth peer name status1")
    }),
    mutant("loopback", "makes-a-namespace-at-status", "STA-07/nothing-is-made-in-passing", |call| {
        beforehand(&call, "STATUS", "unshare --net true")
    }),
    mutant("host-local", "tries-its-folder-at-status", "STA-07/nothing-is-made-in-passing", |call| {
        beforehand(&call, "STATUS", "touch /var/lib/cni/try && rm /var/lib/cni/try")
    }),
];
