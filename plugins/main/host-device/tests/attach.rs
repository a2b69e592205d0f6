//! ADD, CHECK and DEL of a device, which is a veth end here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{
    Origin, PluginDir, StubIpam, addresses, is_up, link, link_plugin, network_config, routes, try_link,
    with_prev,
};
use cni_runner::Attachment;
use serde_json::{Value, json};

use self::common::{RECORDS, assert_as, config, node};

#[test]
fn the_device_comes_back_as_it_was() {
    let mut ctx = node();
    let stub = StubIpam::assigning("1.0.0", &["10.1.2.9/24"]);
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    for ipam in [json!({}), json!({"ipam": {"type": "stub"}})] {
        let (pod, conf) = (ctx.pod("pod"), config(&ipam));
        let before = ctx.snapshot();
        let result = ctx.add(&pod.attachment("net1"), &conf);
        assert!(try_link(&ctx.node, "hd0").is_none());
        assert_eq!(link(&pod, "net1")["ifalias"], "hd0");
        assert!(is_up(&pod, "net1"));
        ctx.check(&pod.attachment("net1"), &with_prev(&conf, &result));
        ctx.fail("ADD", &pod.attachment("net1"), &conf);
        for _ in 0..2 {
            ctx.del(&pod.attachment("net1"), &conf);
            assert_as(&before, &ctx, "");
        }
        assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new());
        pod.delete().unwrap();
    }
}

#[test]
fn dhcp_finds_the_device() {
    let ctx = node();
    // Without IPv6 addresses, whose local routes the kernel adds later.
    ctx.node.sh("ip link add hd2 type veth peer name hd3").unwrap();
    link_plugin::dhcp_finds_the_link(&ctx, &config(&json!({"device": "hd2"})));
}

/// A veth end goes with its namespace, so a peer of it is left on the node and DEL finds nothing.
#[test]
fn del_without_the_namespace_removes_the_record() {
    let ctx = node();
    let (pod, conf) = (ctx.pod("pod"), config(&json!({})));
    let attachment = pod.attachment("net1");
    ctx.add(&attachment, &conf);
    pod.delete().unwrap();
    for netns in [attachment.netns.clone(), String::new()] {
        ctx.del(
            &Attachment { netns, ..attachment.clone() },
            &network_config("host-device", "1.0.0", &json!({"device": 7})),
        );
        assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new());
    }
}

/// The kernel refuses the second address, after the move.
#[test]
fn a_failed_add_gives_the_device_back() {
    let mut ctx = node();
    let stub = StubIpam::assigning("1.0.0", &["10.1.2.9/24", "10.1.2.9/24"]);
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    let (pod, before) = (ctx.pod("pod"), ctx.snapshot());
    ctx.fail("ADD", &pod.attachment("net1"), &config(&json!({"ipam": {"type": "stub"}})));
    assert_as(&before, &ctx, "");
    assert_eq!(addresses(&ctx.node, "hd0"), ["10.9.0.1/24", "fd00:9::1/64"]);
}

/// The reference restores neither addresses nor state, so only the name counts.
#[test]
fn ours_and_the_reference_take_over_from_each_other() {
    for (first, second) in [(Origin::Ours, Origin::Reference), (Origin::Reference, Origin::Ours)] {
        let ctx = node();
        let [first, second] = [first, second]
            .map(|origin| ctx.with_plugins(PluginDir::new(env!("CARGO_BIN_EXE_host-device"), origin)));
        let (pod, conf) = (ctx.pod("pod"), config(&json!({})));
        let attachment = pod.attachment("net1");
        let result = first.add(&attachment, &conf);
        second.check(&attachment, &with_prev(&conf, &result));
        second.del(&attachment, &conf);
        assert!(try_link(&ctx.node, "hd0").is_some() && try_link(&pod, "net1").is_none());
    }
}

#[test]
fn a_name_conflict_on_the_host_fails_del_until_it_is_gone() {
    let ctx = node();
    let (pod, conf) = (ctx.pod("pod"), config(&json!({})));
    ctx.add(&pod.attachment("net1"), &conf);
    ctx.node.sh("ip link add hd0 type veth peer name other").unwrap();
    assert_eq!(
        ctx.fail("DEL", &pod.attachment("net1"), &conf).msg,
        "failed to move \"hd0\" to hostNS: file exists"
    );
    assert!(is_up(&pod, "net1"));
    ctx.node.sh("ip link delete hd0").unwrap();
    ctx.del(&pod.attachment("net1"), &conf);
    assert_eq!(addresses(&ctx.node, "hd0"), ["10.9.0.1/24", "fd00:9::1/64"]);
}

/// The texts of these members of the routes, in the order of their texts.
fn texts(routes: &[Value], keys: [&str; 2]) -> Vec<String> {
    let mut texts: Vec<String> = { routes.iter() }
        .map(|route| keys.map(|key| route[key].as_str().unwrap_or("-").to_owned()).join(" "))
        .collect();
    texts.sort();
    texts
}

#[test]
fn the_container_gets_the_devices_network() {
    let mut ctx = node();
    let stub = StubIpam::assigning("1.0.0", &["10.1.2.9/24"]);
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    ctx.node
        .sh("ip route add 10.9.9.9 dev hd0 table 70; ip route add default via 10.9.9.9 dev hd0 table 70
             ip route add 10.98.0.0/16 nexthop via 10.9.0.7 nexthop via 10.9.0.8
             ip rule add from 10.9.0.1 lookup 70 priority 100; ip rule add from 10.9.0.0/24 lookup 71
             ip rule add from 10.8.0.1 lookup 70; ip -6 rule add from fd00:9::1 lookup main priority 200")
        .unwrap();
    let (pod, before) = (ctx.pod("pod"), ctx.snapshot());
    let rules = pod.sh("ip rule; ip -6 rule").unwrap();
    let keys = json!({"useInterfaceNetwork": true, "dad": "off", "ipam": {"type": "stub"}});
    let (attachment, conf) = (pod.attachment("net1"), config(&keys));
    let result = ctx.add(&attachment, &conf);
    assert_eq!(addresses(&pod, "net1"), ["10.1.2.9/24", "10.9.0.1/24", "fd00:9::1/64"]);
    assert_eq!(
        texts(result["ips"].as_array().unwrap(), ["address", "gateway"]),
        ["10.1.2.9/24 -", "10.9.0.1/24 -", "fd00:9::1/64 -"]
    );
    let keys = ["dst", "gateway"];
    assert_eq!(texts(&routes(&pod, "proto boot"), keys), ["10.99.0.0/16 10.9.0.7"]);
    assert_eq!(texts(&routes(&pod, "table 70"), keys), ["10.9.9.9 -", "default 10.9.9.9"]);
    assert_eq!(texts(&routes(&pod, "-6 proto boot"), keys), ["fd00:99::/64 fd00:9::7"]);
    assert_eq!(
        texts(result["routes"].as_array().unwrap(), ["dst", "gw"]),
        ["0.0.0.0/0 10.9.9.9", "10.9.9.9/32 -", "10.99.0.0/16 10.9.0.7", "fd00:99::/64 fd00:9::7"]
    );
    let copied = pod.sh("ip rule; ip -6 rule").unwrap();
    let copied: Vec<&str> = copied.lines().filter(|line| !rules.contains(line)).collect();
    assert_eq!(
        copied,
        ["100:\tfrom 10.9.0.1 lookup 70 proto 69", "200:\tfrom fd00:9::1 lookup main proto 69"]
    );
    ctx.check(&attachment, &with_prev(&conf, &result));
    ctx.del(&attachment, &conf);
    assert_as(&before, &ctx, "");
    assert_eq!(pod.sh("ip rule; ip -6 rule").unwrap(), rules);
}

/// The device is not moved, so nothing in the kernel tells that there is one.
#[test]
fn a_device_that_belongs_to_a_program_is_only_reported() {
    let mut ctx = node();
    let stub = StubIpam::assigning("1.1.0", &["10.1.2.9/24"]);
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    ctx.node
        .sh("mount -t tmpfs tmpfs /sys/bus/pci/devices && cd /sys/bus/pci/devices && mkdir -p 0000:00:1f.6
             ln -s ../../../bus/pci/drivers/vfio-pci 0000:00:1f.6/driver")
        .unwrap();
    let pod = ctx.pod("pod");
    let (attachment, before) = (pod.attachment("net1"), ctx.snapshot());
    for (version, pci_id) in [("1.0.0", Value::Null), ("1.1.0", json!("0000:00:1f.6"))] {
        let keys = json!({"pciBusID": "0000:00:1f.6", "ipam": {"type": "stub"}});
        let conf = network_config("host-device", version, &keys);
        let result = ctx.add(&attachment, &conf);
        let mut interface = json!({"name": "net1", "sandbox": attachment.netns});
        if !pci_id.is_null() {
            interface["pciID"] = pci_id;
        }
        assert_eq!(result["interfaces"], json!([interface]));
        assert_eq!(result["ips"][0]["address"], "10.1.2.9/24");
        ctx.check(&attachment, &with_prev(&conf, &result));
        for netns in [&attachment.netns, ""] {
            let attachment = Attachment { netns: netns.to_owned(), ..attachment.clone() };
            ctx.del(&attachment, &with_prev(&conf, &result));
        }
        assert_eq!(stub.calls(), ["ADD", "CHECK", "DEL", "DEL"]);
        assert_as(&before, &ctx, "");
    }
    let conf = config(&json!({"device": "", "pciBusID": "0000:00:1f.6", "useInterfaceNetwork": true}));
    ctx.fail("ADD", &attachment, &conf)
        .expect(7, "useInterfaceNetwork: device 0000:00:1f.6 belongs to a program");
}

/// State, addresses and routes of the device are made again. Another link does not become the device.
#[test]
fn repair_completes_the_device() {
    let ctx = node();
    let repair = ctx.repairing(env!("CARGO_BIN_EXE_host-device-repair"));
    let pod = ctx.pod("pod");
    let attachment = pod.attachment("net1");
    let conf = config(&json!({"useInterfaceNetwork": true}));
    let conf = with_prev(&conf, &ctx.add(&attachment, &conf));
    for damage in [
        "ip link set net1 down; ip link set net1 up; ip route flush dev net1 scope global",
        "ip address flush dev net1 scope global",
        "ip address flush dev net1; ip link set net1 down",
    ] {
        pod.sh(damage).unwrap();
        ctx.fail("CHECK", &attachment, &conf);
        repair.add(&attachment, &conf);
        ctx.check(&attachment, &conf);
    }
    pod.sh("ip link set net1 alias other").unwrap();
    repair.fail("ADD", &attachment, &conf).expect(999, "\"net1\" of the container is not device \"hd0\"");
    pod.sh("ip link set net1 name gone").unwrap();
    let text = "the container has no interface \"net1\", start the container again";
    repair.fail("ADD", &attachment, &conf).expect(999, text);
    ctx.del(&attachment, &conf);
    assert!(try_link(&ctx.node, "hd0").is_some());
}
