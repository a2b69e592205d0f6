//! What an operator's taint allows, and what nothing else does.

use cni_lab::Place as _;
use cni_lab::testing::{Expect as _, mac};
use serde_json::json;

use crate::lab::{BLOCKS, Lan, Member, assert_unique, network};

const NODES: &str = "/api/v1/nodes";
const FENCED: &str = "node.kubernetes.io/out-of-service";

/// The Node of a member, with a taint.
fn node(lan: &Lan, name: &str, machine: &str, taint: &str) {
    let product = std::fs::read_to_string("/sys/class/dmi/id/product_uuid").unwrap_or_default();
    lan.store.put(
        &format!("{NODES}/{name}"),
        json!({"metadata": {"name": name}, "spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
            "status": {"nodeInfo": {"machineID": machine, "systemUUID": product.trim()}}}),
    );
}

pub(crate) fn with_events(lan: &Lan, reason: &str) -> Vec<String> {
    let events = lan.store.list("/api/v1/namespaces/default/events");
    let of_reason = events.iter().filter(|event| event["reason"] == reason);
    of_reason.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_requested_address_moves_with_its_container_and_from_a_fenced_node() {
    let lan = Lan::new();
    let (a, b) = (lan.member("a"), lan.member("b"));
    let usual = network(
        "net",
        json!([[
        {"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.31"},
        {"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.224", "rangeEnd": "10.20.0.239"}]]),
        4,
    );
    let mut usual = usual;
    usual["ipam"]["onRequest"] = json!(["10.20.0.224/28"]);
    let mut fixed = usual.clone();
    fixed["args"] = json!({"cni": {"ips": ["10.20.0.225"]}});
    let waits = |member: &Member| {
        let error = member.call(&fixed, "ADD", "db-0").error();
        assert!(error.code == 11 && error.contains("has 10.20.0.225: waits until"), "{error}");
    };
    assert_eq!(a.add_until(&fixed, "db-0"), ["10.20.0.225"]);
    assert_eq!(lan.blocks_of("a"), ["lan.10-20-0-225"]);
    // No other container gets it, or another one of these addresses.
    let others: Vec<String> = (0..4).flat_map(|pod| a.add_until(&usual, &format!("pod{pod}"))).collect();
    assert!(others.iter().all(|ip| ip.len() < "10.20.0.225".len()), "{others:?}");

    // None of these proves anything: no Node, a Node that is not ready, a daemon that is gone, another machine.
    waits(&b);
    node(&lan, "a", "a", "node.kubernetes.io/unreachable");
    a.kill();
    waits(&b);
    node(&lan, "a", "other", FENCED);
    waits(&b);
    lan.store.delete(&format!("{NODES}/a"));
    waits(&b);
    // DEL does, when the daemon has confirmed it.
    a.del(&fixed, "db-0");
    waits(&b);
    a.start();
    a.answers();
    assert_eq!(b.add_until(&fixed, "db-0"), ["10.20.0.225"]);
    waits(&a);
    // So does the taint.
    b.kill();
    node(&lan, "b", "b", FENCED);
    assert_eq!(a.add_until(&fixed, "db-0"), ["10.20.0.225"]);
    // The machine boots while the Node still has the taint.
    b.node.sh("rm -f /run/stores/net/10.*").unwrap();
    b.forget_boot();
    b.start_with("--compare-every 2 --keep-empty 2 --keep-scarce 1 --quarantine 1");
    b.answers();
    let error = b.call(&usual, "ADD", "pod").error();
    assert!(
        error.code == 11 && error.contains("the Node b has the taint node.kubernetes.io/out-of-service"),
        "{error}"
    );
    lan.store.delete(&format!("{NODES}/b"));
    b.add_until(&usual, "pod");
    waits(&b);
}

/// Four addresses: those of a machine that is off, as its operator says, are given again when nobody answers for them.
#[test]
fn blocks_of_a_fenced_machine_stay_claimed_while_an_address_answers() {
    let lan = Lan::new();
    let (a, b) = (lan.member("a"), lan.quiet_member("b"));
    let net = network(
        "net",
        json!([[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.11"}]]),
        4,
    );
    let theirs = a.add_until(&net, "pod");
    a.kill();
    lan.hub.sh("ip addr add 10.20.0.10/24 dev lan").unwrap();
    b.start_with("--compare-every 2 --keep-empty 2 --keep-scarce 1 --quarantine 1");
    b.answers();
    let why = |member: &Member| member.call(&net, "ADD", "new").error().to_string();
    assert!(why(&b).contains("all blocks of the domain are claimed"));
    node(&lan, "a", "a", FENCED);
    let owner = format!("10.20.0.10 answers on the link, from {}", mac(&lan.hub, "lan"));
    b.until("name the owner", || why(&b).contains(&owner));
    assert_eq!(lan.blocks_of("a").len(), 1);
    b.until("make an event", || {
        with_events(&lan, "AddressesInUse").iter().any(|message| message.contains(&owner))
    });
    lan.hub.sh("ip addr del 10.20.0.10/24 dev lan").unwrap();
    b.add_until(&net, "new");
    assert_eq!(lan.blocks_of("a"), [""; 0]);

    // The machine was not off. Its container's address is reported, and it gives none.
    lan.store.delete(&format!("{NODES}/a"));
    a.start();
    a.answers();
    a.until("report", || a.log().contains(&format!("another node may give them too: {}", theirs[0])));
    a.until("make an event", || {
        with_events(&lan, "AddressesLost").iter().any(|message| message.contains(&theirs[0]))
    });
    a.check(&net, "pod", &theirs).error().expect(999, "another node may give it too");
    assert!(why(&a).contains("all blocks of the domain are claimed"));
}

/// Three nodes. One loses its disk and its Node, and comes back under its name.
#[test]
fn a_node_that_has_lost_its_disk_gives_nothing_twice() {
    let lan = Lan::new();
    let members = ["a", "b", "c"].map(|name| lan.member(name));
    let net = network(
        "net",
        json!([[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.39"}]]),
        4,
    );
    let mut ips: Vec<String> = members.iter().flat_map(|member| member.add_until(&net, "pod")).collect();
    let [a, b, c] = &members;
    node(&lan, "a", "a", "node.kubernetes.io/unreachable");
    a.kill();
    lan.store.delete(&format!("{NODES}/a"));
    let former = lan.blocks_of("a");
    a.node.sh("rm -r /run/ledgers /run/stores").unwrap();
    // Its container may run on: its address stays claimed, also for the node itself.
    a.start();
    for pod in 0..4 {
        ips.extend([a, b, c].iter().flat_map(|member| member.add_until(&net, &format!("more{pod}"))));
    }
    assert_unique(&ips);
    // Another one boots: it writes its boot into its objects before it opens their blocks.
    c.kill();
    c.node.sh("rm /run/stores/net/10.*").unwrap();
    c.forget_boot();
    let blocks: Vec<String> = lan.blocks_of("c").iter().map(|name| format!("{BLOCKS}/{name}")).collect();
    let boot =
        |path: &String| lan.store.get(path).unwrap()["metadata"]["annotations"]["ferrule.dev/boot"].clone();
    for path in &blocks {
        assert_ne!(boot(path), "earlier");
        lan.store.patch(path, &json!({"metadata": {"annotations": {"ferrule.dev/boot": "earlier"}}}));
    }
    c.start();
    c.add_until(&net, "new");
    assert!(blocks.iter().all(|path| boot(path) != "earlier"), "{blocks:?}");
    let now = lan.blocks_of("a");
    assert!(former.iter().all(|block| now.contains(block)) && now.len() > former.len(), "{former:?} {now:?}");
}
