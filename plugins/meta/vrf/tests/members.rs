//! Interfaces enter and leave VRFs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{addresses, assert_unchanged, link, network_config, overlay, ports, routes, try_link};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{attached, config, net};
use serde_json::{Value, json};

fn destinations(pod: &cni_lab::Pod, table: &str) -> String {
    let list = |family| {
        format!("ip {family} route show table {table} | awk '/^1|^f[^ef]|^fd|^default/ {{print $1}}'")
    };
    pod.sh(&format!("{}; {}", list("-4"), list("-6")))
        .unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

const MOVED: &str = "10.1.0.0/24 10.7.0.0/16 10.9.0.0/16 fd01::/64 fd09::/64";

/// Each VRF leads to its own router, although both have the same addresses.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn overlapping_networks_are_separate() {
    let (ctx, pod, _routers) = attached();
    for (ifname, vrf) in [("net1", "red"), ("net2", "blue")] {
        ctx.add(&pod.attachment(ifname), &config("1.1.0", ifname, &json!({"vrfname": vrf})));
    }
    assert_eq!((destinations(&pod, "1"), destinations(&pod, "2")), (MOVED.to_owned(), MOVED.to_owned()));
    let reaches = |vrf: &str, ip: &str| pod.sh(&format!("ping -c 1 -W 1 -I {vrf} {ip}")).is_ok();
    for (vrf, own, other) in [("red", "1", "2"), ("blue", "2", "1")] {
        for network in ["10.9.0.", "fd09::"] {
            assert!(eventually(TIMEOUT, || reaches(vrf, &format!("{network}{own}"))), "{vrf} {network}{own}");
            assert!(!reaches(vrf, &format!("{network}{other}")), "{vrf} {network}{other}");
        }
    }
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn addresses_and_routes_enter_the_vrf() {
    let (ctx, pod, routers) = attached();
    let [one, two] = ["net1", "net2"].map(|ifname| pod.attachment(ifname));
    let before = Snapshot::take(&pod).unwrap();
    for version in ["0.3.0", "1.1.0"] {
        let conf = |ifname| config(version, ifname, &json!({"vrfName": "red", "table": 77}));
        let mut expected = conf("net1")["prevResult"].clone();
        if version < "1.0.0" {
            expected["dns"] = json!({});
        }
        // The second call finds everything done.
        for _ in 0..2 {
            assert_eq!(ctx.add(&one, &conf("net1")), expected);
            assert_eq!(destinations(&pod, "77"), MOVED);
            assert_eq!(destinations(&pod, "main"), MOVED, "of net2");
        }
        assert_eq!(addresses(&pod, "net1"), ["10.1.0.2/24", "fd01::2/64"]);
        let multipath =
            |family: &str, dst: &str| routes(&pod, &format!("{family} table 77 {dst}"))[0].clone();
        for route in [multipath("", "10.9.0.0/16"), multipath("-6", "fd09::/64")] {
            assert_eq!(
                (route["nexthops"].as_array().unwrap().len(), &route["metric"]),
                (2, &json!(51)),
                "{route}"
            );
        }
        if version == "1.1.0" {
            ctx.check(&one, &conf("net1"));
            ctx.succeed(
                "STATUS",
                &Attachment::default(),
                &network_config("vrf", "1.1.0", &json!({"vrfname": "red"})),
            );
        }
        // Link-local addresses and routes of both interfaces are there.
        assert!(pod.sh("ip -6 route show table 77").unwrap().contains("fe80::/64 dev net1"));
        assert!(pod.sh("ip -6 route show fe80::/64").unwrap().contains("dev net2"));

        // The kernel keeps an IPv6 route whose next hops it could no longer reach in another table.
        pod.sh("ip addr flush dev net2 && ip addr add 10.2.0.2/24 dev net2 && ip -6 route del fd09::/64 metric 52")
            .unwrap();
        ctx.add(&two, &conf("net2"));
        assert_eq!(ports(&pod, "red"), ["net1", "net2"]);
        // The configuration does not matter.
        ctx.del(&one, &network_config("vrf", version, &json!({"vrfname": 5, "table": "x"})));
        assert_eq!(ports(&pod, "red"), ["net2"]);
        ctx.del(&two, &conf("net2"));
        assert_eq!(try_link(&pod, "red"), None);
        pod.sh("ip link del net1; ip link del net2").unwrap();
        ["1", "2"].iter().zip(&routers).for_each(|(number, router)| net(&pod, router, number));
        assert_unchanged(&pod, &before, version);
    }
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn refused_additions_change_nothing() {
    let (ctx, pod, _routers) = attached();
    pod.sh("ip link add red type vrf table 9 && ip link add br0 type bridge && ip link set net2 master br0")
        .unwrap();
    pod.sh("ip link add link net1 name sub0 type macvlan").unwrap();
    let before = Snapshot::take(&pod).unwrap();
    let refused = |ifname: &str, keys: Value, code: u64, text: &str| {
        ctx.fail("ADD", &pod.attachment(ifname), &config("1.0.0", ifname, &keys)).expect(code, text);
        assert_unchanged(&pod, &before, text);
    };
    let invalid = "configuration is expected to have a valid vrf name";
    refused("net1", json!({}), 7, invalid);
    refused("net1", json!({"vrfname": "a/b"}), 7, invalid);
    refused("net1", json!({"vrfname": "x", "prevResult": null}), 7, "missing prevResult from earlier plugin");
    refused("net1", json!({"vrfname": "br0"}), 999, "Netlink br0 is not a VRF");
    refused(
        "net1",
        json!({"vrfname": "red", "table": 8}),
        999,
        "VRF red already exist with different routing table 9",
    );
    refused("net2", json!({"vrfname": "red"}), 999, "interface net2 has already a master set: br0");
    refused("net9", json!({"vrfname": "blue"}), 999, "could not get link by name net9: Link not found");
    // The kernel accepts the new VRF, but refuses the master: the interface leads nowhere.
    refused("lo", json!({"vrfname": "blue"}), 999, "could not set the master of lo");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn check_finds_what_is_wrong() {
    let (ctx, pod, _routers) = attached();
    let (one, conf) =
        (pod.attachment("net1"), config("1.0.0", "net1", &json!({"vrfname": "red", "table": 77})));
    ctx.add(&one, &conf);
    let wrong = overlay(&conf, &json!({"table": 78}));
    ctx.fail("CHECK", &one, &wrong).expect(999, "VRF red already exist with different routing table 77");
    // As with the reference. The plugin that made the interface says so.
    pod.sh("ip link set net1 down").unwrap();
    ctx.check(&one, &conf);
    pod.sh("ip link set net1 up && ip route replace 10.9.0.0/16 via 10.1.0.1 vrf red").unwrap();
    for (harm, text, repair) in [
        (
            "ip route del 10.9.0.0/16 vrf red",
            "route 10.9.0.0/16 not found in table 77 of vrf red",
            "ip route add 10.9.0.0/16 via 10.1.0.1 vrf red",
        ),
        ("ip link set red down", "interface \"red\" of the container is down", "ip link set red up"),
        ("ip link set net1 nomaster", "failed to find net1 associated to vrf red", "true"),
        ("ip link del red", "VRF red: Link not found", "true"),
    ] {
        pod.sh(harm).unwrap();
        ctx.fail("CHECK", &one, &conf).expect(999, text);
        pod.sh(repair).unwrap();
    }
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn del_without_an_interface_or_a_namespace() {
    let (ctx, pod, _routers) = attached();
    let (one, conf) = (pod.attachment("net1"), config("1.0.0", "net1", &json!({"vrfname": "red"})));
    ctx.add(&one, &conf);
    pod.sh("ip link del net1").unwrap();
    ctx.del(&one, &conf);
    assert_eq!(try_link(&pod, "red"), None);
    // A link of this name that is no VRF stays.
    ctx.del(&one, &overlay(&conf, &json!({"vrfname": "net2"})));
    assert_eq!(link(&pod, "net2")["ifname"], "net2");
    pod.delete().unwrap();
    ctx.del(&one, &conf);
    ctx.del(&Attachment { netns: String::new(), ..one.clone() }, &conf);
    assert!(ctx.node.sh(&format!("test -e {}", one.netns)).is_err(), "DEL has made a file at CNI_NETNS");
}
