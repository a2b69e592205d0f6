//! What only macvlan has: modes, master, MAC address, traffic.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::link_plugin::{LAN, config, ours, uplink};
use cni_lab::testing::{
    TestContext, flags, ips_of, link, mac, network_config, overlay, routes, sysctl, with_prev,
};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use serde_json::{Value, json};

fn node() -> TestContext {
    ours(env!("CARGO_BIN_EXE_macvlan"))
}

fn conf(keys: &Value) -> Value {
    config("macvlan", "1.1.0", &overlay(&json!({"master": "uplink0", "dad": "off"}), keys))
}

#[test]
fn pods_reach_the_lan_and_each_other() {
    let ctx = node();
    let lan = uplink(&ctx);
    let pods = ["pod1", "pod2"].map(|name| ctx.pod(name));
    let ips = pods.each_ref().map(|pod| ips_of(&ctx.add(&pod.attachment("eth0"), &conf(&json!({})))));
    for ip in LAN.iter().map(ToString::to_string).chain(ips[1].clone()) {
        pods[0].sh(&format!("ping -n -c 1 -w 30 {ip}")).unwrap();
    }
    // arp_notify and ndisc_notify: the LAN knew the addresses before it got a packet from them.
    for ip in &ips[1] {
        lan.sh(&format!("ping -n -c 1 -w 30 {ip}")).unwrap();
    }
    let pod = &pods[0];
    assert_eq!(routes(pod, "10.9.0.0/16")[0]["gateway"], "10.1.2.1");
    assert_eq!(
        (sysctl(pod, "ipv4/conf/eth0/arp_notify"), sysctl(pod, "ipv6/conf/eth0/keep_addr_on_down")),
        ("1".into(), "1".into())
    );
}

#[test]
fn every_mode_and_key() {
    let ctx = node();
    uplink(&ctx);
    for mode in ["bridge", "private", "vepa", "passthru", ""] {
        let pod = ctx.pod(&format!("pod{mode}"));
        let attachment = pod.attachment("eth0");
        let conf = conf(&json!({"mode": mode, "mtu": 1400, "bcqueuelen": 2000}));
        let result = ctx.add(&attachment, &conf);
        let eth0 = link(&pod, "eth0");
        let expected = if mode.is_empty() { "bridge" } else { mode };
        let data = &eth0["linkinfo"]["info_data"];
        assert_eq!((data["mode"].as_str(), &data["bcqueuelen"]), (Some(expected), &json!(2000)), "{mode}");
        let interface =
            json!([{"name": "eth0", "mac": eth0["address"], "mtu": 1400, "sandbox": attachment.netns}]);
        assert_eq!((&result["interfaces"], &result["ips"][0]["interface"]), (&interface, &json!(0)));
        ctx.check(&attachment, &with_prev(&conf, &result));
        ctx.del(&attachment, &conf);
    }
}

#[test]
fn mac_address_of_three_sources() {
    let ctx = node();
    uplink(&ctx);
    let sources = json!({"mac": "02:00:00:00:00:01"});
    let runtime = overlay(&sources, &json!({"RuntimeConfig": {"mac": "02:00:00:00:00:03"}}));
    for (keys, args, expected) in [
        (&sources, "", "02:00:00:00:00:01"),
        (&sources, "IgnoreUnknown=true;MAC=02:00:00:00:00:02", "02:00:00:00:00:02"),
        (&runtime, "IgnoreUnknown=1;MAC=02:00:00:00:00:02", "02:00:00:00:00:03"),
    ] {
        let mut ctx = ctx.clone();
        ctx.env.push(("CNI_ARGS".to_owned(), args.to_owned()));
        let pod = ctx.pod(&format!("pod{}", expected.replace(':', "")));
        ctx.add(&pod.attachment("eth0"), &conf(keys));
        assert_eq!(mac(&pod, "eth0"), expected);
    }
    let pod = ctx.pod("other");
    let error = ctx.fail("ADD", &pod.attachment("eth0"), &conf(&json!({"mac": "01:00:00:00:00:01"})));
    error.expect(7, "mac: address 01:00:00:00:00:01: not a unicast address");
}

#[test]
fn without_ipam_the_link_is_up_and_has_no_address() {
    let ctx = node();
    uplink(&ctx);
    let pod = ctx.pod("pod1");
    let conf = network_config(
        "macvlan",
        "1.0.0",
        &json!({"master": "uplink0", "dns": {"nameservers": ["192.0.2.53"]}}),
    );
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    assert!(flags(&pod, "eth0").contains(&"UP".to_owned()) && result.get("ips").is_none());
    assert_eq!(result["dns"]["nameservers"][0], "192.0.2.53");
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    let old = overlay(&conf, &json!({"cniVersion": "0.2.0"}));
    let error = ctx.fail("ADD", &ctx.pod("pod2").attachment("eth0"), &old);
    assert_eq!(error.msg, "cannot convert: no valid IP addresses");
}

/// Which link is the master if the configuration names none, for the routes that the scripts add.
#[test]
fn default_master() {
    let ctx = node();
    uplink(&ctx);
    ctx.node
        .sh("ip link add other0 type veth peer name other1 && ip link set other0 up && ip link set other1 up")
        .unwrap();
    ctx.node
        .sh("ip address add 10.1.2.250/24 dev uplink0 && ip address add 192.0.2.5/24 dev other0")
        .unwrap();
    let conf = conf(&json!({"master": ""}));
    for (number, (script, expected)) in [
        ("ip route add blackhole default; ip -6 route add unreachable default", None),
        ("ip -6 route add default dev other0", Some("other0")),
        ("ip route add default via 10.1.2.1", Some("uplink0")),
        ("ip route add default via 192.0.2.1 metric 5; ip route add default via 10.1.2.1 metric 7", Some("other0")),
        ("ip route add default via 192.0.2.1; ip route add 192.0.2.0/30 via 10.1.2.1", Some("other0")),
        ("ip route add blackhole default metric 3; ip route add default via 10.1.2.1 metric 4", Some("uplink0")),
        ("ip route add default nexthop via 192.0.2.1 nexthop via 10.1.2.1", Some("other0")),
        ("ip route add default via 192.0.2.1 table 9; ip rule add lookup 9; ip route add default via 10.1.2.1", Some("uplink0")),
        (
            "ip route add default nexthop via 192.0.2.1 nexthop via 10.1.2.1; ip link set other1 down; \
             for n in $(seq 100); do ip route show default | grep -q linkdown && break; sleep 0.1; done",
            Some("uplink0"),
        ),
    ].into_iter().enumerate() {
        ctx.node.sh(script).unwrap();
        let pod = ctx.pod(&format!("pod{number}"));
        match expected {
            Some(expected) => {
                let result = ctx.add(&pod.attachment("eth0"), &conf);
                let index = link(&pod, "eth0")["link_index"].clone();
                assert_eq!(index, link(&ctx.node, expected)["ifindex"], "{script}");
                // CHECK does not look for the default route again.
                ctx.node.sh("ip route flush 0/0; ip -6 route del default; true").unwrap();
                ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
                ctx.del(&pod.attachment("eth0"), &conf);
            }
            None => {
                let error = ctx.fail("ADD", &pod.attachment("eth0"), &conf);
                error.expect(999, "no default route interface found");
                error.expect(999, "the host's network namespace");
            }
        }
        ctx.node.sh("ip route flush 0/0; ip -6 route flush default; ip rule del lookup 9; true").unwrap();
    }
}

#[test]
fn bad_input_is_explained_and_changes_nothing() {
    let ctx = node();
    uplink(&ctx);
    ctx.node.sh("ip link add br0 type bridge && ip link add port0 type veth peer name port1 && ip link set port0 master br0").unwrap();
    let pod = ctx.pod("pod1");
    let before = ctx.snapshot();
    for (keys, code, msg, details) in [
        (json!({"mode": "source"}), 7, "unknown macvlan mode: \"source\"", "private, vepa, bridge, passthru"),
        (
            json!({"master": "gone0"}),
            999,
            "failed to lookup master \"gone0\": Link not found",
            "the host's network namespace",
        ),
        (
            json!({"master": "gone0", "linkInContainer": true}),
            999,
            "failed to lookup master",
            "in the container",
        ),
        (json!({"mtu": 1501}), 7, "invalid MTU 1501, must be [0, master MTU(1500)]", "master \"uplink0\""),
        (json!({"mtu": -1}), 7, "invalid MTU -1, must be [0, master MTU(1500)]", "uplink0"),
        (json!({"mtu": 20}), 999, "failed to create macvlan: ", "master \"uplink0\""),
        (
            json!({"master": "port0"}),
            999,
            "failed to create macvlan: device or resource busy",
            "master \"port0\" is a port of \"br0\"",
        ),
        (json!({"master": "lo"}), 999, "failed to create macvlan: invalid argument", "master \"lo\""),
        (
            json!({"mode": "passthru", "mac": "02:00:00:00:00:01"}),
            7,
            "a macvlan of mode passthru",
            "remove the MAC address",
        ),
        (json!({"dad": "maybe"}), 7, "unknown dad: \"maybe\"", "wait, nowait and off"),
    ] {
        let error = ctx.fail("ADD", &pod.attachment("eth0"), &conf(&keys));
        assert!(
            error.code == code && error.msg.starts_with(msg) && error.details.contains(details),
            "{keys}: {error:?}"
        );
        assert_eq!(before.diff(&ctx.snapshot()), "", "{keys}");
    }
}

#[test]
fn master_in_the_container() {
    let ctx = node();
    let pod = ctx.pod("pod1");
    pod.sh("ip link add uplink0 type veth peer name uplink1 && ip link set uplink0 up").unwrap();
    let conf = conf(&json!({"linkInContainer": true}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    assert_eq!(link(&pod, "eth0")["link"], "uplink0");
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    let elsewhere = with_prev(&overlay(&conf, &json!({"linkInContainer": false})), &result);
    ctx.fail("CHECK", &pod.attachment("eth0"), &elsewhere)
        .expect(999, "the master of \"eth0\" is not in the host");
    ctx.del(&pod.attachment("eth0"), &conf);
}

/// The kernel probes the LAN for another host with the IPv6 address.
#[test]
fn duplicate_addresses() {
    let ctx = node();
    let lan = uplink(&ctx);
    lan.sh("ip address add fd00:1::2/64 dev lan0 nodad && ip address add fd00:1::3/64 dev lan0 nodad")
        .unwrap();
    let pod = ctx.pod("pod1");
    let wait = conf(&json!({"dad": "wait"}));
    ctx.fail("ADD", &pod.attachment("eth0"), &wait).expect(999, "another host has fd00:1::2");
    assert_eq!(ctx.reservations("net"), Vec::<String>::new());
    ctx.add(&pod.attachment("eth0"), &conf(&json!({"dad": "nowait"})));
    let is_refused = || {
        let eth0 = link(&pod, "eth0");
        eth0["addr_info"].as_array().unwrap().iter().any(|address| address["dadfailed"] == true)
    };
    assert!(eventually(TIMEOUT, is_refused));
    // Without a carrier the kernel cannot probe, and ADD does not wait.
    lan.sh("ip link set lan0 down").unwrap();
    ctx.add(&ctx.pod("pod2").attachment("eth0"), &wait);
}

#[test]
fn status() {
    let ctx = node();
    uplink(&ctx);
    let attachment = Attachment::default();
    ctx.succeed("STATUS", &attachment, &conf(&json!({})));
    ctx.fail("STATUS", &attachment, &conf(&json!({"master": "gone0"})))
        .expect(50, "failed to lookup master \"gone0\"");
    ctx.fail("STATUS", &attachment, &conf(&json!({"mtu": 9000}))).expect(7, "invalid MTU 9000");
    ctx.fail("STATUS", &attachment, &conf(&json!({"ipam": {"type": "no"}})))
        .expect(50, "failed to find plugin");
    ctx.succeed("STATUS", &attachment, &conf(&json!({"master": "gone0", "linkInContainer": true})));
}
