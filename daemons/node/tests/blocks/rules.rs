//! What one rule of the protocol does.

use std::time::{Duration, Instant};

use cni_lab::Place as _;
use cni_lab::testing::Expect as _;
use serde_json::{Value, json};

use crate::fenced::with_events;
use crate::lab::{BLOCKS, Lan, assert_unique, network};

const LEDGER: &str = "/run/ledgers/net.json";

fn small(start: u8, end: u8) -> Value {
    json!([[{"subnet": "10.20.0.0/24", "rangeStart": format!("10.20.0.{start}"), "rangeEnd": format!("10.20.0.{end}")}]])
}

#[test]
fn pods_start_while_the_api_server_is_away_until_the_blocks_are_full() {
    let lan = Lan::new();
    let a = lan.member("a");
    let net = network("net", small(8, 55), 4);
    a.add_until(&net, "first");
    a.until("a spare block", || lan.blocks_of("a").len() == 1);
    lan.server.kill();
    (0..3).for_each(|pod| drop(a.add(&net, &format!("pod{pod}"))));
    // The first one waits for an answer; then the daemon knows.
    let begin = Instant::now();
    let error = a.call(&net, "ADD", "late").error();
    assert!(
        error.code == 11 && error.contains("network \"net\" has no address for this container"),
        "{error}"
    );
    assert!(error.contains("onnect"), "the reason: {error}");
    // The plugin itself waits for at most 15 seconds.
    assert!(begin.elapsed() < Duration::from_secs(12));
    a.kill();
    let error = a.call(&net, "ADD", "late").error();
    assert!(error.code == 11 && error.contains("remedy: start the daemon: ferrule-node blocks"), "{error}");
    a.call(&net, "STATUS", "").ok();
    // DEL and another ADD need neither.
    a.del(&net, "pod0");
    a.add(&net, "instead");
    lan.server.revive();
    a.start();
    a.add_until(&net, "late");
}

#[test]
fn an_operator_who_takes_a_block_from_a_live_node_is_told() {
    let lan = Lan::new();
    let (a, b) = (lan.member("a"), lan.quiet_member("b"));
    let net = network("net", small(8, 11), 4);
    let ips = a.add_until(&net, "pod");
    a.check(&net, "pod", &ips).ok();
    let [block] = &lan.blocks_of("a")[..] else { panic!("one block") };
    lan.store.delete(&format!("{BLOCKS}/{block}"));
    a.until("notice the loss", || a.log().contains("another node may give them too"));
    a.check(&net, "pod", &ips).error().expect(999, "another node may give it too");
    b.start();
    let other = b.add_until(&net, "pod");
    // The lost block gives no address; its pod ends, and the block comes back when the other node does not need it.
    let error = a.call(&net, "ADD", "new").error();
    assert!(error.code == 11 && error.contains("all blocks of the domain are claimed"), "{error}");
    a.del(&net, "pod");
    b.del(&net, "pod");
    assert_eq!(a.add_until(&net, "new").len(), other.len());
}

#[test]
fn after_a_boot_no_block_is_open_before_the_comparison() {
    let lan = Lan::new();
    let (a, b) = (lan.member("a"), lan.member("b"));
    let net = network("net", small(8, 11), 1);
    let ips: Vec<String> = (0..4).flat_map(|pod| a.add_until(&net, &format!("pod{pod}"))).collect();
    // The machine stops, and an operator gives its blocks to others.
    a.kill();
    for block in lan.blocks_of("a") {
        lan.store.delete(&format!("{BLOCKS}/{block}"));
    }
    let theirs: Vec<String> = (0..4).flat_map(|pod| b.add_until(&net, &format!("pod{pod}"))).collect();
    let sorted = |mut ips: Vec<String>| {
        ips.sort();
        ips
    };
    assert_eq!(sorted(theirs), sorted(ips));
    // It boots: its pods are gone, its ledger is of an earlier boot.
    a.node
        .sh(&format!(
            "rm /run/stores/net/10.*; sed -i 's/\"boot\":\"[^\"]*\"/\"boot\":\"earlier\"/' {LEDGER}"
        ))
        .unwrap();
    assert_eq!(a.call(&net, "ADD", "early").error().code, 11);
    assert_eq!(a.call(&net, "STATUS", "").error().code, 50);
    a.start();
    a.answers();
    let error = a.call(&net, "ADD", "early").error();
    assert!(error.code == 11 && error.contains("all blocks of the domain are claimed"), "{error}");
    (0..4).for_each(|pod| b.del(&net, &format!("pod{pod}")));
    a.add_until(&net, "early");
}

#[test]
fn configurations_that_contradict_each_other_are_refused() {
    let lan = Lan::new();
    let (a, b) = (lan.member("a"), lan.member("b"));
    a.add_until(&network("net", small(8, 55), 4), "pod");
    for (ranges, size) in [(small(8, 55), 8), (small(8, 99), 4), (json!([[{"subnet": "10.20.0.0/16"}]]), 4)] {
        for member in [&a, &b] {
            let error = member.call(&network("net", ranges.clone(), size), "ADD", "new").error();
            assert!(error.code == 7 && error.contains("the domain lan has other ranges"), "{error}");
        }
    }
    assert!(lan.blocks_of("b").is_empty());
    // The old configuration, and another network on the same subnet, on both nodes.
    let mut ips = Vec::new();
    for member in [&a, &b] {
        for name in ["net", "other"] {
            let net = network(name, small(8, 55), 4);
            ips.extend((0..3).flat_map(|pod| member.add_until(&net, &format!("{name}{pod}"))));
        }
    }
    assert_unique(&ips);
}

#[test]
fn requested_addresses_come_from_their_blocks() {
    let lan = Lan::new();
    let (a, b) = (lan.member("a"), lan.member("b"));
    let mut net = network("net", small(8, 55), 4);
    net["args"] = json!({"cni": {"ips": ["10.20.0.41"]}});
    assert_eq!(a.add_until(&net, "pod"), ["10.20.0.41"]);
    assert_eq!(lan.blocks_of("a"), ["lan.10-20-0-40"]);
    let error = b.call(&net, "ADD", "pod").error();
    assert!(error.code == 11 && error.contains("10.20.0.41 is in a block of node a"), "{error}");
    let error = a.call(&net, "ADD", "other").error();
    assert!(error.contains("10.20.0.41 is not available"), "{error}");
    a.del(&net, "pod");
    assert_eq!(a.add_until(&net, "other"), ["10.20.0.41"]);
}

/// Both families, and one claim for each address.
#[test]
fn one_address_for_each_claim() {
    let lan = Lan::new();
    let a = lan.member("a");
    let net = network(
        "net",
        json!([[{"subnet": "10.20.0.0/29"}], [{"subnet": "fd00:20::/125", "rangeEnd": "fd00:20::6"}]]),
        1,
    );
    let ips: Vec<String> = (0..5).flat_map(|pod| a.add_until(&net, &format!("pod{pod}"))).collect();
    assert_unique(&ips);
    assert_eq!(ips.len(), 10);
    let mut blocks = lan.blocks_of("a");
    blocks.sort();
    assert!(
        blocks.contains(&"lan.10-20-0-6".to_owned())
            && blocks.contains(&"lan.fd00-0020-0000-0000-0000-0000-0000-0006".to_owned())
    );
    assert_eq!(a.call(&net, "ADD", "more").error().code, 11);
    (0..5).for_each(|pod| a.del(&net, &format!("pod{pod}")));
    a.until("give back what it does not need", || lan.blocks_of("a").len() <= 2);
}

/// A network moves to another subnet of its domain while the API server lets its node claim no further block.
#[test]
fn blocks_go_back_although_none_can_be_claimed() {
    let lan = Lan::new();
    let a = lan.member("a");
    let former = network("net", small(8, 23), 4);
    a.add_until(&former, "pod");
    let range = json!({"subnet": "10.21.0.0/24", "rangeStart": "10.21.0.8", "rangeEnd": "10.21.0.31"});
    let net = network("net", json!([[range]]), 4);
    (0..3).for_each(|pod| drop(a.add_until(&net, &format!("pod{pod}"))));
    let refusal = r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 422, "reason": "Invalid", "message": "no more"}"#;
    lan.server.faults(|faults| {
        (faults.of, faults.proxy) = (BLOCKS.to_owned(), Some(("create", 422, refusal)));
    });
    a.add(&net, "pod3");
    a.until("ask for a spare block", || a.log().contains("422: no more"));
    a.del(&net, "pod");
    a.until("give back the former block", || lan.blocks_of("a").len() == 1);
    assert!(lan.blocks_of("a")[0].starts_with("lan.10-21-"));
}

/// Claims of other sizes, and objects that have the name of a block and are no claims. They have no labels.
#[test]
fn odd_blocks_cost_no_more_than_their_addresses() {
    let lan = Lan::new();
    let put = |last: u8, first: &str, size: u32| {
        let spec = json!({"domain": "lan", "first": first, "size": size, "node": "x", "machine": "m", "store": "s", "network": "net", "slot": last});
        lan.store.put(&format!("{BLOCKS}/lan.10-20-0-{last}"), json!({ "spec": spec }));
    };
    let own = |last: u8| format!("10.20.0.{last}");
    put(16, &own(16), 8);
    put(26, &own(26), 2);
    (32..192).step_by(4).for_each(|last| put(last, "10.9.9.9", 4));
    let a = lan.member("a");
    let net = network("net", small(8, 199), 4);
    let free = [8..=15, 28..=31, 192..=199].into_iter().flatten().map(own).collect::<Vec<_>>();
    let given: Vec<String> = (0..12).flat_map(|pod| a.add_until(&net, &format!("pod{pod}"))).collect();
    assert!(given.iter().all(|ip| free.contains(ip)), "{given:?}");
    assert_unique(&given);
    let mut asks = net.clone();
    asks["args"] = json!({"cni": {"ips": ["10.20.0.22"]}});
    let error = a.call(&asks, "ADD", "asks").error();
    assert!(error.code == 11 && error.contains("10.20.0.22 is in a block of node x"), "{error}");
    a.until("make an event", || {
        let events = with_events(&lan, "AddressBlockOdd");
        events.iter().any(|message| message.contains("is no block of its domain"))
    });
}

#[test]
fn a_disk_that_takes_no_ledger_costs_one_block() {
    let lan = Lan::new();
    let a = lan.member("a");
    let net = network("net", small(8, 55), 4);
    (0..4).for_each(|pod| drop(a.add_until(&net, &format!("pod{pod}"))));
    a.until("claim a spare block", || lan.blocks_of("a").len() == 2);
    a.node.sh("mount --bind /run/ledgers /run/ledgers && mount -o remount,bind,ro /run/ledgers").unwrap();
    (4..8).for_each(|pod| drop(a.add(&net, &format!("pod{pod}"))));
    for _ in 0..4 {
        assert_eq!(a.call(&net, "ADD", "more").error().code, 11);
        std::thread::sleep(Duration::from_millis(1200));
    }
    assert_eq!(lan.blocks_of("a").len(), 3, "{}", a.log());
    // Nor does a network that is new.
    assert_eq!(a.call(&network("new", small(8, 55), 4), "ADD", "pod").error().code, 11);
    assert_eq!(lan.blocks_of("a").len(), 3, "{}", a.log());
    a.node.sh("mount -o remount,bind,rw /run/ledgers").unwrap();
    a.add_until(&net, "more");
}

/// A network had a wrong domain when the API server let it claim nothing.
#[test]
fn each_domain_is_asked_for_its_ranges_and_seldom() {
    let lan = Lan::new();
    let [a, b] = ["a", "b"].map(|name| lan.member(name));
    b.add_until(&network("net", small(8, 55), 8), "pod");
    let net = network("net", small(8, 55), 4);
    let mut wrong = net.clone();
    wrong["ipam"]["domain"] = "wrong".into();
    lan.server.faults(|faults| (faults.of, faults.proxy) = (BLOCKS.to_owned(), Some(("create", 422, "no"))));
    assert_eq!(a.call(&wrong, "ADD", "pod").error().code, 11);
    lan.server.faults(|faults| faults.proxy = None);
    a.call(&net, "ADD", "pod").error().expect(7, "the domain lan has other ranges");
    assert_eq!(lan.blocks_of("a"), [""; 0]);
    // A network whose first configuration is wrong.
    let other = network("other", small(8, 55), 4);
    a.call(&other, "ADD", "pod").error().expect(7, "the domain lan has other ranges");
    let questions =
        || lan.server.requests().iter().filter(|asked| asked.path.contains("/addressdomains/")).count();
    let before = questions();
    std::thread::sleep(Duration::from_secs(6));
    assert!(questions() - before < 3, "{} questions", questions() - before);
    a.add_until(&network("other", small(8, 55), 8), "pod");
}

/// The token of one node is enough to add it, and the API server lets no range be removed.
#[test]
fn a_range_that_is_none_stops_no_domain() {
    let lan = Lan::new();
    let none = json!({"subnet": "x", "rangeStart": "", "rangeEnd": "", "blockSize": 3});
    let path = "/apis/ferrule.dev/v1alpha1/addressdomains/lan";
    lan.store.put(path, json!({"spec": {"ranges": [none]}}));
    let a = lan.member("a");
    a.add(&network("net", small(8, 55), 4), "pod");
    let ranges = lan.store.get(path).unwrap()["spec"]["ranges"].clone();
    assert_eq!((&ranges[0], &ranges[1]["blockSize"]), (&none, &json!(4)));
}
