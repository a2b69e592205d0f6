//! What operators see of a full network: metrics, an event, and `ferrule doctor`.

use cni_lab::testing::mac;
use cni_lab::{Place as _, bin_dir};
use serde_json::json;

use crate::fenced::with_events;
use crate::lab::{Lan, Member, network};

/// The figure of a metric of the network `net`.
fn figure(member: &Member, metric: &str) -> Option<u32> {
    let text = member.node.sh("curl --silent --max-time 30 http://127.0.0.1:9478/metrics").ok()?;
    let start = format!("ferrule_blocks_{metric}{{network=\"net\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start))?.parse().ok()
}

#[test]
fn a_host_that_has_an_address_is_told_once() {
    let lan = Lan::new();
    let a = lan.member("a");
    lan.hub.sh("ip addr add 10.20.0.8/24 dev lan").unwrap();
    let mut net = network("net", json!([[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8"}]]), 256);
    net["ipam"]["probe"] = "eth0".into();
    let message = format!(
        "network net: 10.20.0.8 answers on the link, from {}; ADD has put it aside",
        mac(&lan.hub, "lan")
    );
    assert_eq!(a.add_until(&net, "pod"), ["10.20.0.9"]);
    a.until("make an event", || with_events(&lan, "AddressesInUse") == [&*message]);
    // The next GC frees the address, and then an ADD asks for it again.
    a.node.sh("rm /run/stores/net/10.20.0.8 /run/stores/net/last_reserved_ip.0").unwrap();
    assert_eq!(a.add_until(&net, "other"), ["10.20.0.10"]);
    assert_eq!(with_events(&lan, "AddressesInUse"), [message]);
}

#[test]
fn a_full_network_is_told() {
    let lan = Lan::new();
    let a = lan.member("a");
    let range = json!({"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.15"});
    let net = network("net", json!([[range]]), 4);
    a.add_until(&net, "pod0");
    let is = |metric: &str, expected| a.until(metric, || figure(&a, metric) == Some(expected));
    is("free_addresses", 3);
    is("unclaimed", 1);
    let events = || lan.store.list("/api/v1/namespaces/default/events");
    assert!(events().is_empty() && figure(&a, "scarce") == Some(0));
    (1..8).for_each(|pod| drop(a.add_until(&net, &format!("pod{pod}"))));
    for (metric, figure) in
        [("free_addresses", 0), ("unclaimed", 0), ("open", 2), ("scarce", 1), ("problem", 0)]
    {
        is(metric, figure);
    }
    a.until("an event", || !events().is_empty());
    let event = &events()[0];
    assert_eq!(
        (&event["reason"], &event["involvedObject"]["name"]),
        (&json!("AddressesScarce"), &json!("lan"))
    );
    let domain = &lan.store.list("/apis/ferrule.dev/v1alpha1/addressdomains")[0];
    assert_eq!(event["involvedObject"]["uid"], domain["metadata"]["uid"]);

    a.node.write_file("/run/net.d/net.conf", &net.to_string()).unwrap();
    let ferrule = bin_dir().unwrap().join("ferrule");
    let doctor = || {
        let command = format!(
            "{} doctor --conf-dir /run/net.d --bin-dir {} || true",
            ferrule.display(),
            bin_dir().unwrap().display()
        );
        a.node.sh(&command).unwrap()
    };
    let full = "warning: network net: all addresses of this node's 2 blocks are used, and no further block is claimed";
    assert!(doctor().contains(full), "{}", doctor());
    lan.server.kill();
    is("problem", 1);
    // Pods come and go without the API server.
    a.del(&net, "pod0");
    a.add(&net, "new");
    a.kill();
    let away = "error: network net: no address is free, and the daemon that claims addresses does not answer at /run/blocks.sock";
    assert!(doctor().contains(away), "{}", doctor());
}
