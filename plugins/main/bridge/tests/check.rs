//! CHECK succeeds after ADD even if other programs have added things, and fails for every lost or altered
//! object.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::Command;

use cni_lab::testing::{StubIpam, TestContext, assert_unchanged, host_local, overlay, try_link, with_prev};
use cni_lab::{Place as _, Pod, Snapshot};
use cni_runner::Attachment;
use common::{config, ours, with_stub};
use serde_json::{Value, json};

/// An attachment with every object that CHECK looks at.
struct Attached {
    ctx: TestContext,
    pod: Pod,
    conf: Value,
    result: Value,
}

impl Attached {
    fn new(version: &str, keys: &Value) -> Attached {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.50.0.0/16", "table": 123}, {"dst": "::/0"}]);
        let ipam = overlay(&host_local(&["10.1.0.0/24", "fd00:1::/64"]), &json!({"routes": routes}));
        let base = json!({"isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ipam});
        let conf = config(version, &overlay(&base, keys));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        let attached = Attached { ctx, pod, conf, result };
        attached.assert_check_passes(&attached.result);
        attached
    }

    fn port(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    fn assert_check_passes(&self, result: &Value) {
        self.ctx.check(&self.pod.attachment("eth0"), &with_prev(&self.conf, result));
    }

    fn assert_check_fails(&self, text: &str) {
        let conf = with_prev(&self.conf, &self.result);
        let failure = self.ctx.fail("CHECK", &self.pod.attachment("eth0"), &conf);
        failure.expect(999, text);
    }
}

/// CRI-O calls CHECK after every ADD: a wrong failure would keep every pod from starting.
#[test]
fn check_passes_right_after_add_fifty_times() {
    for keys in [json!({}), json!({"ipMasq": false, "isDefaultGateway": true})] {
        let attached = Attached::new("1.0.0", &keys);
        for round in 0..25 {
            let pod = attached.ctx.pod(&format!("round{round}"));
            let result = attached.ctx.add(&pod.attachment("eth0"), &attached.conf);
            attached.ctx.check(&pod.attachment("eth0"), &with_prev(&attached.conf, &result));
            attached.ctx.del(&pod.attachment("eth0"), &with_prev(&attached.conf, &result));
        }
    }
}

/// The first ADD has just made the bridge.
#[test]
fn check_passes_right_after_the_first_add() {
    for _ in 0..5 {
        Attached::new("1.1.0", &json!({}));
    }
}

#[test]
fn without_ipam() {
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let conf = config(version, &json!({"ipMasq": true, "isGateway": true}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        pod.sh("ip link set eth0 down").unwrap();
        ctx.fail("CHECK", &pod.attachment("eth0"), &with_prev(&conf, &result)).expect(999, "down");
    }
}

#[test]
fn additions_of_other_programs_are_tolerated() {
    let attached = Attached::new("1.0.0", &json!({}));
    for script in [
        "ip address add 10.77.0.1/24 dev eth0",
        "ip address add 10.1.0.200/24 dev eth0",
        "ip route add 10.78.0.0/16 via 10.1.0.1",
        "ip route add 10.50.0.0/16 via 10.1.0.77",
        "ip route add default via 10.1.0.77 metric 5",
        "ip link set eth0 mtu 1400",
        "ip link add extra type veth peer name extra-peer",
        "tc qdisc add dev eth0 root tbf rate 1mbit burst 10kb latency 25ms",
        // Multipath routes with one next hop through the interface.
        "ip link set extra up; ip address add fd00:9::2/64 dev extra nodad; \
         ip -6 route append default via fd00:9::1 dev extra; ip -6 route show default | grep 'nexthop via fd00:1::1'",
        "ip route replace default nexthop via 10.78.0.1 dev extra onlink nexthop via 10.1.0.1 dev eth0",
    ] {
        attached.pod.sh(script).unwrap();
        attached.assert_check_passes(&attached.result);
    }
    for script in [
        "ip link set br0 mtu 1400",
        "ip address add 10.77.0.2/24 dev br0",
        "ip link set br0 promisc on",
        "nft 'add rule inet cni_plugins_masquerade masq_checks ip saddr 10.99.0.1 masquerade'",
        "nft add table inet stranger",
    ] {
        attached.ctx.node.sh(script).unwrap();
        attached.assert_check_passes(&attached.result);
    }
    // A later plugin of the chain has added a second interface with an address.
    let mut result = attached.result.clone();
    result["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "eth7", "mac": "02:00:00:00:00:07", "sandbox": "/run/netns/pod1"}));
    result["interfaces"].as_array_mut().unwrap().push(json!({"name": "ifb7", "mac": "02:00:00:00:00:08"}));
    result["ips"].as_array_mut().unwrap().push(json!({"address": "10.70.0.2/24", "interface": 3}));
    attached.assert_check_passes(&result);
    // An earlier plugin's interface precedes ours in the result.
    let mut result = attached.result.clone();
    let earlier = json!({"name": "eth7", "mac": "02:00:00:00:00:07", "sandbox": "/run/netns/pod1"});
    result["interfaces"].as_array_mut().unwrap().insert(0, earlier);
    for ip in result["ips"].as_array_mut().unwrap() {
        ip["interface"] = json!(3);
    }
    result["ips"].as_array_mut().unwrap().push(json!({"address": "10.70.0.2/24", "interface": 0}));
    attached.assert_check_passes(&result);
}

#[test]
fn mac_addresses_in_the_result_are_optional_and_case_insensitive() {
    let attached = Attached::new("1.0.0", &json!({}));
    let mut result = attached.result.clone();
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface.as_object_mut().unwrap().remove("mac");
    }
    attached.assert_check_passes(&result);
    // MAC addresses are compared case-insensitively.
    let mut result = attached.result.clone();
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface["mac"] = json!(interface["mac"].as_str().unwrap().to_uppercase());
    }
    attached.assert_check_passes(&result);
}

#[test]
fn every_change_in_the_container_is_detected() {
    for (script, text) in [
        ("ip link del eth0", "interface \"eth0\" not found"),
        ("ip link set eth0 down; ip link set eth0 name net7", "interface \"eth0\" not found"),
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
        // Other next hops of a multipath route stay.
        (
            "OTHER; ip route replace default nexthop via 10.1.0.1 dev x0 onlink nexthop via 10.1.0.1 dev x1 onlink",
            "0.0.0.0/0",
        ),
        (
            "OTHER; ip address add fd00:9::2/64 dev x0 nodad; ip -6 route append default via fd00:9::1 dev x0; \
             ip -6 route del default via fd00:1::1 dev eth0",
            "::/0",
        ),
    ] {
        println!("{script}");
        let attached = Attached::new("1.0.0", &json!({}));
        let other = "set -e; ip link add x0 type veth peer name x1; ip link set x1 up; ip link set x0 up";
        attached.pod.sh(&script.replace("OTHER", other)).unwrap();
        attached.assert_check_fails(text);
    }
}

#[test]
fn every_change_on_the_host_is_detected() {
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
        let attached = Attached::new("1.0.0", &json!({}));
        attached.ctx.node.sh(&script.replace("$PORT", attached.port())).unwrap();
        attached.assert_check_fails(text);
    }
    let attached = Attached::new("1.0.0", &json!({"hairpinMode": false}));
    attached.ctx.node.sh(&format!("ip link set {} type bridge_slave hairpin on", attached.port())).unwrap();
    attached.assert_check_fails("hairpin");
    let attached = Attached::new("1.0.0", &json!({"hairpinMode": false, "promiscMode": true}));
    attached.ctx.node.sh("ip link set br0 promisc off").unwrap();
    attached.assert_check_fails("Promisc");
}

/// One of the two rules is deleted; the other family is still masqueraded.
#[test]
fn missing_rule_of_one_family_is_detected() {
    for family in ["ip", "ip6"] {
        let attached = Attached::new("1.0.0", &json!({}));
        let delete = format!(
            "handle=$(nft -a list chain inet cni_plugins_masquerade masq_checks |
                sed -n '/{family} saddr/s/.*# handle //p') &&
            nft delete rule inet cni_plugins_masquerade masq_checks handle $handle"
        );
        attached.ctx.node.sh(&delete).unwrap();
        attached.assert_check_fails(if family == "ip" { "10.1.0.2" } else { "fd00:1::2" });
    }
}

#[test]
fn unrequested_features_are_not_checked() {
    let attached = Attached::new(
        "1.0.0",
        &json!({"ipMasq": false, "isGateway": false, "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}),
    );
    attached
        .ctx
        .node
        .sh("echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding;
            ip address flush dev br0 scope global")
        .unwrap();
    attached.assert_check_passes(&attached.result);
    // An IPv4 network does not need IPv6 forwarding.
    let attached = Attached::new(
        "1.0.0",
        &json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}),
    );
    attached.ctx.node.sh("echo 0 > /proc/sys/net/ipv6/conf/all/forwarding").unwrap();
    attached.assert_check_passes(&attached.result);
}

#[test]
fn prev_result_is_required_and_its_sandbox_must_be_the_namespace() {
    let attached = Attached::new("1.0.0", &json!({}));
    let attachment = attached.pod.attachment("eth0");
    for conf in [attached.conf.clone(), with_prev(&attached.conf, &json!(null))] {
        attached.ctx.fail("CHECK", &attachment, &conf).expect(7, "Required prevResult missing");
    }
    attached.ctx.pod("pod2");
    let mut result = attached.result.clone();
    result["interfaces"][2]["sandbox"] = json!("/run/netns/pod2");
    let failure = attached.ctx.fail("CHECK", &attachment, &with_prev(&attached.conf, &result));
    failure
        .expect(999, "Sandbox in prevResult /run/netns/pod2 doesn't match configured netns: /run/netns/pod1");
    result["interfaces"][2]["sandbox"] = json!("/run/netns/gone");
    let failure = attached.ctx.fail("CHECK", &attachment, &with_prev(&attached.conf, &result));
    failure.expect(999, "doesn't match configured netns");
    // A result without the container's interface, and one without the bridge.
    let mut result = attached.result.clone();
    result["interfaces"].as_array_mut().unwrap().pop();
    for ip in result["ips"].as_array_mut().unwrap() {
        ip.as_object_mut().unwrap().remove("interface");
    }
    attached.ctx.fail("CHECK", &attachment, &with_prev(&attached.conf, &result)).expect(999, "eth0");
    let mut result = attached.result.clone();
    result["interfaces"][0]["name"] = json!("br7");
    attached.ctx.fail("CHECK", &attachment, &with_prev(&attached.conf, &result)).expect(999, "br0");
}

/// `sandbox` may be another path of the same namespace.
#[test]
fn another_path_of_the_namespace_is_accepted() {
    let attached = Attached::new("1.0.0", &json!({}));
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let mut process = attached.pod.spawn(sleep).unwrap();
    let conf = with_prev(&attached.conf, &attached.result);
    for netns in ["//run/netns/pod1".to_owned(), format!("/proc/{}/ns/net", process.child().id())] {
        attached.ctx.check(&Attachment::new("pod1", netns, "eth0"), &conf);
    }
}

#[test]
fn ipams_check_error_is_reported() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    let prev = with_prev(&conf, &ctx.add(&pod.attachment("eth0"), &conf));
    let before = ctx.snapshot();
    stub.fail("CHECK", 117, "that is not mine");
    let failure = ctx.fail("CHECK", &pod.attachment("eth0"), &prev);
    failure.expect(117, "that is not mine");
    assert_eq!(stub.calls(), ["ADD", "CHECK"]);
    assert_eq!(stub.stdin("CHECK"), prev.to_string());
    assert_unchanged(&ctx.node, &before, "CHECK");
}

#[test]
fn failing_check_changes_nothing() {
    let attached = Attached::new("1.0.0", &json!({}));
    attached
        .ctx
        .node
        .sh("ip address del 10.1.0.1/24 dev br0; echo 0 > /proc/sys/net/ipv4/ip_forward")
        .unwrap();
    attached.pod.sh("ip link set eth0 down").unwrap();
    let (before, pod_before) = (attached.ctx.snapshot(), Snapshot::take(&attached.pod).unwrap());
    attached.assert_check_fails("");
    assert_unchanged(&attached.ctx.node, &before, "CHECK");
    assert_unchanged(&attached.pod, &pod_before, "CHECK");
    // In a namespace without the interface, and with a missing namespace.
    let empty = attached.ctx.pod("empty");
    let conf = with_prev(&attached.conf, &attached.result);
    attached.ctx.fail("CHECK", &empty.attachment("eth0"), &conf);
    assert!(try_link(&empty, "eth0").is_none());
    let gone = Attachment::new("pod1", "/run/netns/gone", "eth0");
    attached.ctx.fail("CHECK", &gone, &conf).expect(4, "/run/netns/gone");
    assert_unchanged(&attached.ctx.node, &before, "CHECK");
}
