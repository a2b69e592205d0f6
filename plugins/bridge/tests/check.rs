//! CHECK is content with what ADD has made, whatever others have added since, and notices every single loss.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::Command;

use common::{Lab, Stub, config, host_local, overlay, try_link, unchanged, with_prev};
use conformance::fixture::{Place as _, Pod, Snapshot};
use conformance::runner::Attachment;
use serde_json::{Value, json};

/// An attachment with everything that can be lost.
struct Attached {
    lab: Lab,
    pod: Pod,
    conf: Value,
    result: Value,
}

impl Attached {
    fn new(version: &str, keys: &Value) -> Attached {
        let lab = Lab::new();
        let pod = lab.pod("pod1");
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.50.0.0/16", "table": 123}, {"dst": "::/0"}]);
        let ipam = overlay(&host_local(&["10.1.0.0/24", "fd00:1::/64"]), &json!({"routes": routes}));
        let base = json!({"isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ipam});
        let conf = config(version, &overlay(&base, keys));
        let result = lab.add(&pod.attachment("eth0"), &conf);
        let attached = Attached { lab, pod, conf, result };
        attached.passes(&attached.result);
        attached
    }

    fn port(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    fn passes(&self, result: &Value) {
        self.lab.check(&self.pod.attachment("eth0"), &with_prev(&self.conf, result));
    }

    fn fails(&self, text: &str) {
        let conf = with_prev(&self.conf, &self.result);
        let refusal = self.lab.refused("CHECK", &self.pod.attachment("eth0"), &conf);
        refusal.expect(999, text);
    }
}

/// CRI-O does exactly this for every pod: a false alarm would mean that no pod starts.
#[test]
fn straight_after_add_fifty_times() {
    for keys in [json!({}), json!({"ipMasq": false, "isDefaultGateway": true})] {
        let it = Attached::new("1.0.0", &keys);
        for round in 0..25 {
            let pod = it.lab.pod(&format!("round{round}"));
            let result = it.lab.add(&pod.attachment("eth0"), &it.conf);
            it.lab.check(&pod.attachment("eth0"), &with_prev(&it.conf, &result));
            it.lab.del(&pod.attachment("eth0"), &with_prev(&it.conf, &result));
        }
    }
}

/// The first CHECK on a bridge that has just been made.
#[test]
fn straight_after_the_very_first_add() {
    for _ in 0..5 {
        Attached::new("1.1.0", &json!({}));
    }
}

#[test]
fn without_ipam() {
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let lab = Lab::new();
        let pod = lab.pod("pod1");
        let conf = config(version, &json!({"ipMasq": true, "isGateway": true}));
        let result = lab.add(&pod.attachment("eth0"), &conf);
        lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        pod.sh("ip link set eth0 down").unwrap();
        lab.refused("CHECK", &pod.attachment("eth0"), &with_prev(&conf, &result)).expect(999, "down");
    }
}

#[test]
fn what_others_have_added_is_tolerated() {
    let it = Attached::new("1.0.0", &json!({}));
    for script in [
        "ip address add 10.77.0.1/24 dev eth0",
        "ip address add 10.1.0.200/24 dev eth0",
        "ip route add 10.78.0.0/16 via 10.1.0.1",
        "ip route add 10.50.0.0/16 via 10.1.0.77",
        "ip route add default via 10.1.0.77 metric 5",
        "ip link set eth0 mtu 1400",
        "ip link add extra type veth peer name extra-peer",
        "tc qdisc add dev eth0 root tbf rate 1mbit burst 10kb latency 25ms",
    ] {
        it.pod.sh(script).unwrap();
        it.passes(&it.result);
    }
    for script in [
        "ip link set br0 mtu 1400",
        "ip address add 10.77.0.2/24 dev br0",
        "ip link set br0 promisc on",
        "nft 'add rule inet cni_plugins_masquerade masq_checks ip saddr 10.99.0.1 masquerade'",
        "nft add table inet stranger",
    ] {
        it.lab.node.sh(script).unwrap();
        it.passes(&it.result);
    }
    // A later plugin of the chain has made a second interface, with an address and a route.
    let mut result = it.result.clone();
    result["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "eth7", "mac": "02:00:00:00:00:07", "sandbox": "/run/netns/pod1"}));
    result["interfaces"].as_array_mut().unwrap().push(json!({"name": "ifb7", "mac": "02:00:00:00:00:08"}));
    result["ips"].as_array_mut().unwrap().push(json!({"address": "10.70.0.2/24", "interface": 3}));
    it.passes(&result);
    // And an earlier one, in front.
    let mut result = it.result.clone();
    let earlier = json!({"name": "eth7", "mac": "02:00:00:00:00:07", "sandbox": "/run/netns/pod1"});
    result["interfaces"].as_array_mut().unwrap().insert(0, earlier);
    for ip in result["ips"].as_array_mut().unwrap() {
        ip["interface"] = json!(3);
    }
    result["ips"].as_array_mut().unwrap().push(json!({"address": "10.70.0.2/24", "interface": 0}));
    it.passes(&result);
}

#[test]
fn a_result_without_hardware_addresses_is_enough() {
    let it = Attached::new("1.0.0", &json!({}));
    let mut result = it.result.clone();
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface.as_object_mut().unwrap().remove("mac");
    }
    it.passes(&result);
    // In upper case they are the same.
    let mut result = it.result.clone();
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface["mac"] = json!(interface["mac"].as_str().unwrap().to_uppercase());
    }
    it.passes(&result);
}

#[test]
fn every_loss_in_the_container_is_noticed() {
    for (script, text) in [
        ("ip link del eth0", "lost its interface \"eth0\""),
        ("ip link set eth0 down; ip link set eth0 name net7", "lost its interface \"eth0\""),
        ("ip link del eth0; ip link add eth0 type bridge", "\"eth0\""),
        ("ip link del eth0; ip link add eth0 type veth peer name x0; ip link set eth0 up", "\"eth0\""),
        ("ip link set eth0 down", "is down"),
        ("ip link set eth0 address 02:00:00:00:00:99", "MAC address"),
        ("ip address del 10.1.0.2/24 dev eth0", "10.1.0.2/24"),
        ("ip address del fd00:1::2/64 dev eth0", "fd00:1::2/64"),
        ("ip address add 10.1.0.2/16 dev eth0; ip address del 10.1.0.2/24 dev eth0", "10.1.0.2/24"),
        ("ip route del default", "0.0.0.0/0"),
        ("ip -6 route del default", "::/0"),
        ("ip route flush table 123", "10.50.0.0/16"),
        ("ip route flush table 123; ip route add 10.50.0.0/16 via 10.1.0.1", "10.50.0.0/16"),
    ] {
        println!("{script}");
        let it = Attached::new("1.0.0", &json!({}));
        it.pod.sh(script).unwrap();
        it.fails(text);
    }
}

#[test]
fn every_loss_on_the_host_is_noticed() {
    for (script, text) in [
        ("ip link del br0", "br0"),
        ("ip link del br0; ip link add br0 type veth peer name x0", "br0"),
        ("ip link set br0 down", "br0\" is down"),
        ("ip link set br0 address 02:00:00:00:00:99", "MAC address"),
        ("ip link set $PORT nomaster", "not a port of bridge \"br0\""),
        ("ip link add br9 type bridge; ip link set $PORT master br9", "not a port of bridge \"br0\""),
        ("ip link set $PORT down", "is down"),
        ("ip link set $PORT name other0", "CNI veth created for bridge br0 was not found"),
        ("ip link set $PORT address 02:00:00:00:00:98", "MAC address"),
        ("ip link set $PORT type bridge_slave hairpin off", "hairpin"),
        ("ip address del 10.1.0.1/24 dev br0", "10.1.0.1/24"),
        ("ip address del fd00:1::1/64 dev br0", "fd00:1::1/64"),
        ("echo 0 > /proc/sys/net/ipv4/ip_forward", "ip_forward"),
        ("echo 0 > /proc/sys/net/ipv6/conf/all/forwarding", "ipv6/conf/all/forwarding"),
        ("nft delete table inet cni_plugins_masquerade", "masquerade"),
        ("nft flush chain inet cni_plugins_masquerade masq_checks", "10.1.0.2"),
        ("nft flush chain inet cni_plugins_masquerade postrouting", "masquerade"),
        (
            "rm /var/lib/cni/networks/net/10.1.0.2 /var/lib/cni/networks/net/fd00:1::2",
            "Failed to find address",
        ),
    ] {
        println!("{script}");
        let it = Attached::new("1.0.0", &json!({}));
        it.lab.node.sh(&script.replace("$PORT", it.port())).unwrap();
        it.fails(text);
    }
    let it = Attached::new("1.0.0", &json!({"hairpinMode": false}));
    it.lab.node.sh(&format!("ip link set {} type bridge_slave hairpin on", it.port())).unwrap();
    it.fails("hairpin");
    let it = Attached::new("1.0.0", &json!({"hairpinMode": false, "promiscMode": true}));
    it.lab.node.sh("ip link set br0 promisc off").unwrap();
    it.fails("Promisc");
}

/// Only one rule of two: the other family is still masqueraded.
#[test]
fn one_rule_of_two_is_noticed() {
    for family in ["ip", "ip6"] {
        let it = Attached::new("1.0.0", &json!({}));
        let delete = format!(
            "handle=$(nft -a list chain inet cni_plugins_masquerade masq_checks |
                sed -n '/{family} saddr/s/.*# handle //p') &&
            nft delete rule inet cni_plugins_masquerade masq_checks handle $handle"
        );
        it.lab.node.sh(&delete).unwrap();
        it.fails(if family == "ip" { "10.1.0.2" } else { "fd00:1::2" });
    }
}

#[test]
fn what_is_not_asked_for_is_not_missed() {
    let it = Attached::new(
        "1.0.0",
        &json!({"ipMasq": false, "isGateway": false, "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}),
    );
    it.lab
        .node
        .sh("echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding;
            ip address flush dev br0 scope global")
        .unwrap();
    it.passes(&it.result);
    // An IPv4 network does not need IPv6 forwarding.
    let it = Attached::new(
        "1.0.0",
        &json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}),
    );
    it.lab.node.sh("echo 0 > /proc/sys/net/ipv6/conf/all/forwarding").unwrap();
    it.passes(&it.result);
}

#[test]
fn prev_result_is_required_and_its_sandbox_must_be_the_namespace() {
    let it = Attached::new("1.0.0", &json!({}));
    let attachment = it.pod.attachment("eth0");
    for conf in [it.conf.clone(), with_prev(&it.conf, &json!(null))] {
        it.lab.refused("CHECK", &attachment, &conf).expect(7, "Required prevResult missing");
    }
    it.lab.pod("pod2");
    let mut result = it.result.clone();
    result["interfaces"][2]["sandbox"] = json!("/run/netns/pod2");
    let refusal = it.lab.refused("CHECK", &attachment, &with_prev(&it.conf, &result));
    refusal
        .expect(999, "Sandbox in prevResult /run/netns/pod2 doesn't match configured netns: /run/netns/pod1");
    result["interfaces"][2]["sandbox"] = json!("/run/netns/gone");
    let refusal = it.lab.refused("CHECK", &attachment, &with_prev(&it.conf, &result));
    refusal.expect(999, "doesn't match configured netns");
    // A result that knows no interface of the container, and one that knows no bridge.
    let mut result = it.result.clone();
    result["interfaces"].as_array_mut().unwrap().pop();
    for ip in result["ips"].as_array_mut().unwrap() {
        ip.as_object_mut().unwrap().remove("interface");
    }
    it.lab.refused("CHECK", &attachment, &with_prev(&it.conf, &result)).expect(999, "eth0");
    let mut result = it.result.clone();
    result["interfaces"][0]["name"] = json!("br7");
    it.lab.refused("CHECK", &attachment, &with_prev(&it.conf, &result)).expect(999, "br0");
}

/// The same namespace by another path is the same.
#[test]
fn another_path_to_the_namespace_is_fine() {
    let it = Attached::new("1.0.0", &json!({}));
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let mut process = it.pod.spawn(sleep).unwrap();
    let conf = with_prev(&it.conf, &it.result);
    for netns in ["//run/netns/pod1".to_owned(), format!("/proc/{}/ns/net", process.child().id())] {
        it.lab.check(&Attachment::new("pod1", netns, "eth0"), &conf);
    }
}

#[test]
fn ipam_has_its_say() {
    let stub = Stub::assigning("1.0.0", &["10.1.0.2/24"]);
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    let prev = with_prev(&conf, &lab.add(&pod.attachment("eth0"), &conf));
    let before = lab.snapshot();
    stub.fail("CHECK", 117, "that is not mine");
    let refusal = lab.refused("CHECK", &pod.attachment("eth0"), &prev);
    refusal.expect(117, "that is not mine");
    assert_eq!(stub.calls(), ["ADD", "CHECK"]);
    assert_eq!(stub.stdin("CHECK"), prev.to_string());
    unchanged(&lab.node, &before, "CHECK");
}

#[test]
fn a_failing_check_changes_nothing_either() {
    let it = Attached::new("1.0.0", &json!({}));
    it.lab.node.sh("ip address del 10.1.0.1/24 dev br0; echo 0 > /proc/sys/net/ipv4/ip_forward").unwrap();
    it.pod.sh("ip link set eth0 down").unwrap();
    let (before, pod_before) = (it.lab.snapshot(), Snapshot::take(&it.pod).unwrap());
    it.fails("");
    unchanged(&it.lab.node, &before, "CHECK");
    unchanged(&it.pod, &pod_before, "CHECK");
    // In a namespace where nothing is, or that is gone.
    let empty = it.lab.pod("empty");
    let conf = with_prev(&it.conf, &it.result);
    it.lab.refused("CHECK", &empty.attachment("eth0"), &conf);
    assert!(try_link(&empty, "eth0").is_none());
    let gone = Attachment::new("pod1", "/run/netns/gone", "eth0");
    it.lab.refused("CHECK", &gone, &conf).expect(4, "/run/netns/gone");
    unchanged(&it.lab.node, &before, "CHECK");
}
