//! Nodes that move from whereabouts one by one.

use cni_lab::Place as _;
use cni_lab::testing::Expect as _;
use serde_json::{Value, json};

use crate::lab::{BLOCKS, Lan, Member, assert_unique, network};

const WHEREABOUTS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system";

/// Addresses that whereabouts has given, by their last number.
fn given(lan: &Lan, addresses: &[u8]) {
    let holder = json!({"id": "c", "podref": "shop/web", "ifname": "net1"});
    let allocations: serde_json::Map<String, Value> =
        addresses.iter().map(|last| (last.to_string(), holder.clone())).collect();
    let pool = json!({"spec": {"range": "10.20.0.0/24", "allocations": allocations}});
    lan.store.put(&format!("{WHEREABOUTS}/ippools/10.20.0.0-24"), pool);
}

/// Runs `import`: its exit status and its lines.
fn import(member: &Member, options: &str) -> (String, Vec<String>) {
    let program = env!("CARGO_BIN_EXE_ferrule-node");
    let words = format!("--kubeconfig /run/kubeconfig import --domain lan --subnet 10.20.0.0/24 {options}");
    let said = member.node.sh(&format!("{program} {words} 2>&1; echo $?")).unwrap();
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    (lines.pop().unwrap(), lines)
}

#[test]
fn addresses_of_whereabouts_are_never_given() {
    let lan = Lan::new();
    // An administrator imports.
    lan.server.faults(|faults| faults.rules = None);
    let (a, b) = (lan.member("a"), lan.member("b"));
    lan.server.faults(|faults| faults.absent = vec!["/apis/whereabouts".to_owned()]);
    let (status, lines) = import(&a, "--block-size 4");
    assert!(status != "0" && lines[0].contains("does not know the kind ippools of whereabouts"), "{lines:?}");
    lan.server.faults(|faults| faults.absent.clear());
    given(&lan, &[9, 17, 90]);
    let reservation = json!({"spec": {"podref": "shop/db"}});
    lan.store.put(&format!("{WHEREABOUTS}/overlappingrangeipreservations/lan-10.20.0.18"), reservation);
    let (status, lines) = import(&a, "--block-size 4 --dry-run");
    assert!(status == "0" && lines.len() == 3 && lan.blocks_of("whereabouts").is_empty(), "{lines:?}");
    for _ in 0..2 {
        let (status, lines) = import(&a, "--block-size 4");
        let claimed = |name: &str, count: u8| {
            format!("lan.10-20-0-{name}: claimed for {count} addresses of whereabouts")
        };
        assert_eq!((&*status, lines), ("0", vec![claimed("8", 1), claimed("16", 2), claimed("88", 1)]));
    }

    // Half of the nodes' blocks are those of whereabouts.
    let range = json!({"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.23"});
    let net = network("net", json!([[range]]), 4);
    let pods = (0..8).map(|pod| (if pod % 2 == 0 { &a } else { &b }, format!("pod{pod}")));
    let mut ips: Vec<String> = pods.flat_map(|(member, pod)| member.add_until(&net, &pod)).collect();
    assert_unique(&ips);
    ips.sort();
    assert_eq!(ips, [12, 13, 14, 15, 20, 21, 22, 23].map(|last| format!("10.20.0.{last}")));
    assert_eq!(a.call(&net, "ADD", "more").error().code, 11);

    // A pod of whereabouts ends; an operator gives its block to the nodes. Another one has an address that is ours by now.
    given(&lan, &[17, 13]);
    let (status, lines) = import(&a, "");
    assert_eq!(status, "1", "{lines:?}");
    let empty =
        "lan.10-20-0-8: whereabouts has no address of it any more: kubectl delete addressblock lan.10-20-0-8";
    assert!(lines.iter().any(|line| line == empty), "{lines:?}");
    let twice = "has it, and whereabouts has 10.20.0.13 of pod shop/web";
    assert!(
        lines.iter().any(|line| line.starts_with("lan.10-20-0-12: node ") && line.ends_with(twice)),
        "{lines:?}"
    );
    lan.store.delete(&format!("{BLOCKS}/lan.10-20-0-8"));
    assert!(
        ["8", "9", "10", "11"].map(|last| format!("10.20.0.{last}")).contains(&a.add_until(&net, "more")[0])
    );
    let (status, lines) = import(&a, "--block-size 8");
    assert!(
        status == "1" && lines[0].contains("has blocks of 4 addresses in 10.20.0.0/24, not 8"),
        "{lines:?}"
    );
}

/// Claims that were made before the domain had its sizes.
#[test]
fn a_claim_of_another_size_stays_while_whereabouts_has_an_address_of_it() {
    let lan = Lan::new();
    lan.server.faults(|faults| faults.rules = None);
    let a = lan.member("a");
    given(&lan, &[9]);
    assert_eq!(import(&a, "--block-size 16").0, "0");
    let range = json!({"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.23"});
    let net = network("net", json!([[range]]), 4);
    let mut ips: Vec<String> = (0..8).flat_map(|pod| a.add_until(&net, &format!("pod{pod}"))).collect();
    ips.sort();
    assert_eq!(ips, [16, 17, 18, 19, 20, 21, 22, 23].map(|last| format!("10.20.0.{last}")));
    let gives_back =
        || import(&a, "").1.iter().any(|line| line.ends_with("kubectl delete addressblock lan.10-20-0-0"));
    assert!(!gives_back());
    given(&lan, &[]);
    assert!(gives_back());
}
