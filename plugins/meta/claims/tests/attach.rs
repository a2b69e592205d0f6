//! The devices of a pod's claims, with addresses, routes and the plugins of a claim's configuration.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Trace, addresses, link, mac, overlay, ports, try_link, with_prev};
use cni_lab::{Place as _, kernel_module};
use cni_runner::Attachment;
use serde_json::{Value, json};

use self::common::{
    ATTACHED, RECORDS, UID, assert_as, attached, attachment, chained, claims_node, device, eth0, kubelet_has,
    of_uid, prepare, write_record,
};

const OTHER_POD: &str = "ffff";

#[test]
fn a_pod_without_a_claim_costs_two_opens() {
    let ctx = claims_node();
    let pod = ctx.pod("pod");
    let before = ctx.snapshot();
    prepare(&ctx, "c1", &[device(&ctx, "hd0", &json!({}))]);
    let (attachment, conf) = (of_uid(&pod, OTHER_POD), chained(&pod, &json!({})));
    assert_eq!(ctx.add(&attachment, &conf), eth0(&pod));
    ctx.check(&attachment, &conf);
    let trace = Trace::of(&ctx.node, &ctx.exec("ADD", &attachment, &conf), "all");
    let opens = |path: &str| trace.naming(path);
    assert_eq!((opens("/run/ferrule"), opens("/run/kubelet")), (1, 1), "{trace:?}");
    assert_eq!(trace.count(&["socket", "setns"]), 0, "{trace:?}");
    ctx.del(&attachment, &conf);
    assert_as(&before, &ctx, "");
    assert!(attached(&ctx).is_empty());
    // A kubelet without claims, and one that has not written its state yet.
    for state in ["", "rm /run/kubelet/dra_manager_state"] {
        ctx.node.sh(state).unwrap();
        assert_eq!(ctx.add(&attachment, &conf), eth0(&pod));
        kubelet_has(&ctx, &[]);
    }
}

/// Addresses, routes, rules, MTU and name, as a claim asks for them; the device is in the pod, and comes back.
#[test]
fn each_kind_of_claim_attaches_its_device() {
    let ctx = claims_node();
    ctx.node.sh("ip link add hd2 type veth peer name hd3; ip link set hd3 up").unwrap();
    let before = ctx.snapshot();
    let local = json!({"type": "host-local", "subnet": "10.6.0.0/24", "routes": [{"dst": "10.66.0.0/16", "gw": "10.6.0.9"}]});
    let sbr = json!({"ifName": "s0", "config": {"plugins": [
        {"type": "host-device", "ipam": {"type": "static", "addresses": [{"address": "10.7.0.2/24", "gateway": "10.7.0.1"}],
            "routes": [{"dst": "0.0.0.0/0"}]}}, {"type": "sbr"}]}});
    for (keys, name, address, seen) in [
        (json!({}), "net1", None, "ip -o link show net1"),
        (
            json!({"ifName": "fast", "mtu": 1400, "addresses": ["10.5.0.2/24", "fd05::2/64"],
                "routes": [{"dst": "10.55.0.0/16", "gw": "10.5.0.1"}, {"dst": "10.56.0.0/16", "gw": "10.5.0.1", "table": 500}]}),
            "fast",
            Some("10.5.0.2/24"),
            "ip link show fast | grep 'mtu 1400' && ip route show | grep '10.55.0.0/16 via 10.5.0.1 dev fast' &&
             ip route show table 500 | grep 10.56 && ip -6 address show fast | grep fd05::2",
        ),
        (json!({"ipam": local}), "net1", Some("10.6.0.2/24"), "ip route show | grep '10.66.0.0/16 via 10.6.0.9'"),
        (json!({"cni": sbr}), "s0", Some("10.7.0.2/24"), "ip rule show | grep 'from 10.7.0.2 lookup 100' && ip route show table 100 | grep 10.7.0.1"),
    ] {
        let pod = ctx.pod("pod");
        prepare(&ctx, "c1", &[device(&ctx, "hd2", &keys)]);
        let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
        let device_mac = mac(&ctx.node, "hd2");
        let result = ctx.add(&net, &conf);
        assert!(try_link(&ctx.node, "hd2").is_none());
        pod.sh(seen).unwrap();
        let interfaces = result["interfaces"].as_array().unwrap();
        assert_eq!((&interfaces[0], &interfaces[1]["name"]), (&eth0(&pod)["interfaces"][0], &json!(name)), "{result}");
        assert_eq!(result["ips"][0]["address"], "10.244.0.2/24");
        if let Some(address) = address {
            assert!(addresses(&pod, name).iter().any(|one| one == address), "{keys}");
            assert_eq!((&result["ips"][1]["address"], &result["ips"][1]["interface"]), (&json!(address), &json!(1)));
        }
        // What the driver reports in the claim's status.
        let file: Value = serde_json::from_str(&ctx.node.sh(&format!("cat {ATTACHED}/pod:eth0.json")).unwrap()).unwrap();
        let step = &file["steps"][0];
        assert_eq!((&file["pod"]["uid"], &step["claim"]["uid"], &step["ifName"]), (&json!(UID), &json!("c1"), &json!(name)));
        assert_eq!(step["outcome"]["mac"], device_mac);
        assert_eq!(step["outcome"]["ips"].get(0).cloned(), address.map(Value::from));
        ctx.check(&net, &with_prev(&conf, &result));
        // ADD again is an error, and takes nothing away.
        ctx.fail("ADD", &net, &conf).expect(999, "the claims of container pod are attached already");
        ctx.check(&net, &with_prev(&conf, &result));
        // The driver has removed the record by now.
        ctx.node.sh("rm -r /run/ferrule/dra").unwrap();
        for _ in 0..2 {
            ctx.del(&net, &conf);
            assert!(attached(&ctx).is_empty() && ctx.node.list_dir(RECORDS).unwrap().is_empty());
            ctx.node.sh("rm -rf /var/lib/cni/networks").unwrap();
            assert_as(&before, &ctx, &keys.to_string());
        }
        pod.delete().unwrap();
    }
}

#[test]
fn links_on_a_claimed_parent() {
    let ctx = claims_node();
    on_claimed_parents(&ctx, &["macvlan"]);
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn other_links_on_a_claimed_parent() {
    for module in ["ipvlan", "8021q"] {
        kernel_module(module);
    }
    on_claimed_parents(&claims_node(), &["ipvlan", "vlan"]);
}

fn on_claimed_parents(ctx: &cni_lab::testing::TestContext, kinds: &[&str]) {
    // An unused NIC is down.
    ctx.node.sh("ip link set hd0 down").unwrap();
    let before = ctx.snapshot();
    let is_up = || link(&ctx.node, "hd0")["flags"].as_array().unwrap().contains(&json!("UP"));
    for kind in kinds {
        let pod = ctx.pod(kind);
        let config = json!({"type": kind, "vlanId": 7, "ipam": {"type": "static", "addresses": [{"address": "10.8.0.2/24"}]}});
        prepare(ctx, "c1", &[device(ctx, "hd0", &json!({"cni": {"ifName": "m0", "config": config}}))]);
        let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
        let result = ctx.add(&net, &conf);
        assert!(is_up() && addresses(&pod, "m0").contains(&"10.8.0.2/24".to_owned()));
        ctx.check(&net, &with_prev(&conf, &result));
        ctx.node.sh("ip link set hd0 down").unwrap();
        ctx.fail("CHECK", &net, &with_prev(&conf, &result)).expect(999, "the claimed device \"hd0\" is down");
        ctx.node.sh("ip link set hd0 up").unwrap();
        pod.sh("ip link set m0 down").unwrap();
        ctx.fail("CHECK", &net, &with_prev(&conf, &result)).expect(999, "\"m0\" of the container is down");
        ctx.del(&net, &conf);
        assert!(try_link(&pod, "m0").is_none());
        assert_as(&before, ctx, kind);
    }
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn a_claimed_dummy_in_a_vrf() {
    for module in ["dummy", "vrf"] {
        kernel_module(module);
    }
    let ctx = claims_node();
    ctx.node.sh("ip link add claimed0 type dummy").unwrap();
    let before = ctx.snapshot();
    let pod = ctx.pod("pod");
    let ipam = json!({"type": "static", "addresses": [{"address": "10.8.0.2/24"}], "routes": [{"dst": "10.88.0.0/16", "gw": "10.8.0.1"}]});
    let config = json!({"name": "red", "plugins": [{"type": "host-device", "ipam": ipam}, {"type": "vrf", "vrfname": "red", "table": 77}]});
    prepare(&ctx, "c1", &[device(&ctx, "claimed0", &json!({"cni": {"ifName": "d0", "config": config}}))]);
    let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
    let result = ctx.add(&net, &conf);
    assert_eq!(ports(&pod, "red"), ["d0"]);
    pod.sh("ip route show table 77 | grep 10.88.0.0/16").unwrap();
    ctx.check(&net, &with_prev(&conf, &result));
    ctx.del(&net, &conf);
    assert_as(&before, &ctx, "");
}

/// Two claims with three devices. If the last one fails, nothing is left.
#[test]
fn all_devices_or_none() {
    let ctx = claims_node();
    ctx.node.sh("for n in 2 4; do ip link add hd$n type veth peer name peer$n; done").unwrap();
    let before = ctx.snapshot();
    let (pod, other) = (ctx.pod("pod"), ctx.pod("other"));
    let static_ip = |ip: &str| json!({"addresses": [ip]});
    let first =
        [device(&ctx, "hd0", &static_ip("10.5.0.2/24")), device(&ctx, "hd2", &json!({"ifName": "net9"}))];
    write_record(&ctx, "c1", &first);
    write_record(&ctx, "c2", &[device(&ctx, "hd4", &json!({"mtu": 1300}))]);
    kubelet_has(&ctx, &[("c1", UID), ("c2", UID)]);
    let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
    let result = ctx.add(&net, &conf);
    let names: Vec<_> =
        result["interfaces"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["eth0", "net1", "net9", "net2"]);
    // The pod's next sandbox does not get the devices, and takes nothing away.
    let next = of_uid(&other, UID);
    ctx.fail("ADD", &next, &chained(&other, &json!({})))
        .expect(999, "claim shop/nic-c1: host-device for device");
    ctx.del(&next, &chained(&other, &json!({})));
    ctx.check(&net, &with_prev(&conf, &result));
    ctx.del(&net, &conf);
    assert_as(&before, &ctx, "DEL");

    // The names of interfaces, the last device and its plugin: each fails at another step.
    let untouched = |what: &str| {
        assert!(attached(&ctx).is_empty() && ctx.node.list_dir(RECORDS).unwrap().is_empty(), "{what}");
        assert_as(&before, &ctx, what);
    };
    for (keys, text) in [
        (json!({"ifName": "net9"}), "claim shop/nic-c2: the pod has an interface \"net9\" already"),
        (json!({"ifName": "lo"}), "ifName \"lo\""),
        (json!({"link": {"name": "hd4", "mac": "02:00:00:00:77:77"}}), "link \"hd4\" has the MAC address"),
        (json!({"link": {"name": "hd7", "mac": ""}}), "failed to find host device: Link not found"),
        (
            json!({"link": {"name": "hd4", "bus": {"subsystem": "pci", "address": "0000:99:1f.6"}}}),
            "0000:99:1f.6 not found",
        ),
        (json!({"addresses": ["10.5.0.2/24"], "mtu": 66000}), "mtu 66000"),
        (json!({"routes": [{"dst": "10.99.0.0/16"}]}), "routes: 10.99.0.0/16: the device has"),
        (
            json!({"addresses": ["10.5.0.2/24"], "routes": [{"dst": "10.99.0.0/16", "gw": "10.98.0.1"}]}),
            "claim shop/nic-c2: host-device for device \"hd4\"",
        ),
        (
            json!({"cni": {"ifName": "t0", "config": {"plugins": [{"type": "host-device"},
                {"type": "tuning", "sysctl": {"net.ipv4.none": "1"}}]}}}),
            "claim shop/nic-c2: tuning for device \"hd4\" as \"t0\"",
        ),
    ] {
        let mut last = device(&ctx, "hd4", &json!({}));
        last.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        write_record(&ctx, "c2", &[last]);
        let error = ctx.fail("ADD", &net, &conf);
        assert!(error.msg.contains(text), "{keys}: {error:?}");
        untouched(text);
    }

    // A device that has become the node's uplink since the claim was prepared.
    write_record(&ctx, "c2", &[device(&ctx, "hd4", &json!({}))]);
    ctx.node
        .sh("ip link set hd4 up && ip link set peer4 up && ip address add 10.5.9.1/24 dev hd4 && ip route add default via 10.5.9.2")
        .unwrap();
    let uplink = ctx.snapshot();
    let error = ctx.fail("ADD", &net, &conf);
    let text = "the claimed device \"hd4\" carries the node's default route";
    assert!(error.msg.contains(text) && error.details.contains("give the claim another device"), "{error:?}");
    assert_as(&uplink, &ctx, text);
    // With another uplink the device moves.
    ctx.node.sh("ip route del default").unwrap();
    ctx.add(&net, &conf);
    ctx.del(&net, &conf);
}

#[test]
fn a_claim_without_a_record_fails_add() {
    let ctx = claims_node();
    let pod = ctx.pod("pod");
    let before = ctx.snapshot();
    let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
    let fail = |net: &Attachment, keys: &Value, code: u64, text: &str| {
        let error = ctx.fail("ADD", net, &overlay(&conf, keys));
        assert!(error.code == code && error.msg.contains(text), "{text}: {error:?}");
        assert_as(&before, &ctx, text);
        assert!(attached(&ctx).is_empty());
    };
    kubelet_has(&ctx, &[("c1", UID)]);
    fail(
        &net,
        &json!({}),
        11,
        "claim shop/nic-c1 of pod shop/web has no record of driver \"nic.ferrule.dev\"",
    );
    // One of two has a record.
    prepare(&ctx, "c1", &[device(&ctx, "hd0", &json!({}))]);
    kubelet_has(&ctx, &[("c1", UID), ("c2", UID)]);
    fail(&net, &json!({}), 11, "claim shop/nic-c2 of pod shop/web has no record");
    fail(&pod.attachment("eth0"), &json!({}), 4, "claims needs K8S_POD_UID in CNI_ARGS");
    fail(&of_uid(&pod, "../x"), &json!({}), 4, "K8S_POD_UID=../x in CNI_ARGS is no UID");
    fail(&net, &json!({"driverName": "x", "dataDir": "x"}), 7, "invalid dataDir");
    fail(&net, &json!({"prevResult": null}), 7, "must be called as chained plugin");
    fail(
        &of_uid(&pod, OTHER_POD),
        &json!({"kubeletDir": "/run/none"}),
        7,
        "look for the kubelet's folder /run/none",
    );
    // Of another driver.
    assert_eq!(ctx.add(&net, &overlay(&conf, &json!({"driverName": "x"}))), eth0(&pod));
    ctx.node.sh(&format!("echo '{{' >/run/ferrule/dra/{UID}/c2.json")).unwrap();
    fail(&net, &json!({}), 11, "read the claims' records: /run/ferrule/dra/");
    let error = ctx.fail("ADD", &net, &conf);
    assert!(error.details.contains("remove the named file, then delete the pod"), "{error:?}");
    ctx.node
        .sh(&format!(
            "rm /run/ferrule/dra/{UID}/c2.json; echo '{{\"version\":\"v1\"}}' >/run/kubelet/dra_manager_state"
        ))
        .unwrap();
    fail(&net, &json!({}), 11, "read the kubelet's state of claims: /run/kubelet/dra_manager_state");
    ctx.fail("STATUS", &Attachment::default(), &conf).expect(50, "read the kubelet's state of claims");
    ctx.node.sh("truncate -s 5M /run/kubelet/dra_manager_state").unwrap();
    fail(&of_uid(&pod, OTHER_POD), &json!({}), 11, "more than 4194304 bytes");
    // The record comes: the kubelet's next ADD succeeds.
    kubelet_has(&ctx, &[("c1", UID)]);
    ctx.succeed("STATUS", &Attachment::default(), &conf);
    ctx.add(&net, &conf);
    assert_eq!(link(&pod, "net1")["ifalias"], "hd0");
    // Only the version that wrote the file can undo the ADD.
    let file = format!("{ATTACHED}/pod:eth0.json");
    ctx.node.sh(&format!("sed -i 's/\"version\":1/\"version\":2/' {file}")).unwrap();
    ctx.fail("DEL", &net, &conf).expect(5, "read what ADD has made of the claims: version 2 is not 1");
    ctx.node.sh(&format!("sed -i 's/\"version\":2/\"version\":1/' {file}")).unwrap();
    ctx.del(&net, &conf);
    assert_as(&before, &ctx, "DEL");
}
