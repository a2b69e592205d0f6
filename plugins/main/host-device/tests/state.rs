//! What finds a device again whose container is gone: DEL, GC and the next ADD. STATUS. Kills.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
#[path = "common/kubelet.rs"]
mod kubelet;

use cni_lab::testing::{
    Origin, PluginDir, StubIpam, TestContext, mac, network_config, overlay, succeed, succeed_silently,
    try_link, with_prev,
};
use cni_lab::{Machine, Place as _, Pod, TIMEOUT, eventually, kernel_module};
use cni_runner::{Attachment, Exec};
use serde_json::{Value, json};

use self::common::{RECORDS, assert_as, config, node};
use self::kubelet::{Folder, args, attachment};

/// What the kernel does with a physical device when the last user of its namespace is gone: the device gets a name such as
/// `net1`. A DEL that was killed has given it its own name already.
fn lose(name: &str, ctx: &TestContext, pod: &Pod) {
    return_as(name, ctx, pod);
    pod.delete().unwrap();
}

fn return_as(name: &str, ctx: &TestContext, pod: &Pod) {
    pod.sh(&format!("ip link set net1 name {name} netns {}", ctx.node.netns_path().display())).unwrap();
}

#[test]
fn a_lost_device_gets_its_name_back() {
    let (ctx, folder) = (node(), Folder::new());
    let by_mac = config(&json!({"device": "", "hwaddr": mac(&ctx.node, "hd0")}));
    // The pod keeps its device if the runtime makes it a new sandbox, with another container ID.
    let _kubelet = folder.serve("web", &["hd0"]);
    let before = ctx.snapshot();
    let selectors = [config(&json!({})), by_mac, folder.config(&json!({}))];
    let ways = [("net1", false), ("net1", true), ("hd0", false), ("hd0", true)];
    for (conf, (name, is_added_next)) in selectors.iter().flat_map(|conf| ways.map(|way| (conf, way))) {
        let (lost, next) = (ctx.pod("lost"), ctx.pod("next"));
        ctx.add(&attachment(&lost, "web"), conf);
        lose(name, &ctx, &lost);
        if is_added_next {
            ctx.add(&attachment(&next, "web"), conf);
            ctx.del(&attachment(&next, "web"), conf);
        } else {
            ctx.del(&attachment(&lost, "web"), conf);
        }
        assert_as(&before, &ctx, &format!("{name} {is_added_next} {conf}"));
        next.delete().unwrap();
    }
}

/// The reference writes no record, so DEL has only the alias, the configuration and the result.
#[test]
fn a_lost_device_of_the_reference_gets_its_name_back() {
    let ctx = node();
    let reference = ctx.with_plugins(PluginDir::new(env!("CARGO_BIN_EXE_host-device"), Origin::Reference));
    let by_mac = json!({"device": "", "hwaddr": mac(&ctx.node, "hd0")});
    for (keys, name) in [(&json!({}), "net1"), (&json!({}), "dev7"), (&by_mac, "net1"), (&by_mac, "dev7")] {
        let (pod, conf) = (ctx.pod("lost"), config(keys));
        let result = reference.add(&pod.attachment("net1"), &conf);
        return_as(name, &ctx, &pod);
        pod.delete().unwrap();
        ctx.del(&pod.attachment("net1"), &with_prev(&conf, &result));
        assert!(try_link(&ctx.node, name).is_none() && try_link(&ctx.node, "hd0").is_some(), "{keys} {name}");
    }
}

/// The device stays elsewhere while DEL and ADD look for it. Its record says that it is physical.
#[test]
fn a_physical_device_may_come_back_late() {
    let (ctx, conf) = (node(), config(&json!({})));
    let (lost, elsewhere, before) = (ctx.pod("lost"), ctx.pod("elsewhere"), ctx.snapshot());
    ctx.add(&lost.attachment("net1"), &conf);
    ctx.node.sh("sed -i s/veth// /run/cni/host-device/lost:net1.json").unwrap();
    lost.sh("ip link set net1 netns /run/netns/elsewhere").unwrap();
    lost.delete().unwrap();
    ctx.fail("ADD", &elsewhere.attachment("net1"), &conf);
    ctx.del(&lost.attachment("net1"), &conf);
    gc(&ctx, &json!([]));
    // The name that the kernel gives a device whose name the host has already.
    return_as("dev7", &ctx, &elsewhere);
    gc(&ctx, &json!([]));
    assert_as(&before, &ctx, "");
}

/// The kernel moves a physical device to the root namespace and to no other. The guest has one: tests/guest.sh.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn a_physical_device_comes_back_from_a_lost_namespace() {
    kernel_module("virtio_net");
    // On another machine this may be the link to the world.
    assert_eq!(mac(&Machine, "eth0"), "02:00:00:00:00:99");
    let pci = "basename $(dirname $(readlink -f /sys/class/net/eth0/device))";
    let pci = Machine.sh(pci).unwrap().trim().to_owned();
    Machine
        .sh("ip link set eth0 up; ip address replace 10.9.0.1/24 dev eth0; ip route replace 10.99.0.0/16 via 10.9.0.7")
        .unwrap();
    let plugins = PluginDir::new(env!("CARGO_BIN_EXE_host-device"), Origin::Ours);
    let exec = |verb: &str, id: &str, conf: &Value| {
        let attachment = Attachment::new(id, format!("/run/netns/{id}"), "net1").with_args(args("web"));
        Exec::new(plugins.plugin(), verb).attachment(&attachment).stdin(conf.to_string())
    };
    let state = || {
        let state =
            "ip -o link show eth0 | grep -o '<.*>'; ip -o -4 address show eth0; ip route show dev eth0";
        Machine.sh(state).unwrap()
    };
    let before = state();
    let folder = Folder::new();
    let _kubelet = folder.serve("web", &[&pci]);
    let name = config(&json!({"cniVersion": "1.1.0", "device": "eth0"}));
    let id = config(&json!({"cniVersion": "1.1.0", "device": "", "pciBusID": pci}));
    let resource = folder.config(&json!({"cniVersion": "1.1.0"}));
    for (conf, next) in [(name, None), (id, Some("next")), (resource, Some("next"))] {
        Machine.sh("ip netns add lost; ip netns add next").unwrap();
        let result = succeed(&Machine, &exec("ADD", "lost", &conf));
        let reported = result["interfaces"][0].get("pciID");
        assert_eq!(reported, next.map(|_| Value::from(pci.as_str())).as_ref());
        if next.is_none() {
            Machine.sh("ip link add net1 type bridge").unwrap();
        }
        Machine.sh("ip netns delete lost").unwrap();
        let is_back = || Machine.sh("ip -o link show").unwrap().contains("02:00:00:00:00:99");
        assert!(eventually(TIMEOUT, is_back));
        if let Some(next) = next {
            succeed(&Machine, &exec("ADD", next, &conf));
        }
        succeed_silently(&Machine, &exec("DEL", next.unwrap_or("lost"), &conf));
        let _ = Machine.sh("ip netns delete next; ip link delete net1");
        assert_eq!(before, state(), "{conf}");
    }
}

fn gc(ctx: &TestContext, valid: &Value) {
    let keys = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": valid});
    ctx.succeed("GC", &Attachment::default(), &config(&keys));
}

#[test]
fn gc_gives_back_what_no_valid_attachment_has() {
    let ctx = node();
    ctx.node.sh("for n in 2 3 4; do ip link add hd$n type veth peer name peer$n; done").unwrap();
    let before = ctx.snapshot();
    let add = |name: &str, device: &str, network: &str| {
        let pod = ctx.pod(name);
        let conf = config(&json!({"name": network, "device": device}));
        ctx.add(&pod.attachment("net1"), &conf);
        pod
    };
    let lost = add("lost", "hd0", "net");
    let left = add("left", "hd2", "net");
    let kept = [("valid", "hd3", "net"), ("foreign", "hd4", "other")];
    let kept = kept.map(|(name, device, network)| (add(name, device, network), device, network));
    lose("net1", &ctx, &lost);
    for _ in 0..2 {
        gc(&ctx, &json!([{"containerID": "valid", "ifname": "net1"}]));
        assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), ["foreign:net1.json", "valid:net1.json"]);
        assert!(try_link(&left, "net1").is_none());
        for (pod, device, _) in &kept {
            assert!(try_link(pod, "net1").is_some() && try_link(&ctx.node, device).is_none());
        }
    }
    for (pod, device, network) in &kept {
        ctx.del(&pod.attachment("net1"), &config(&json!({"name": network, "device": device})));
    }
    assert_as(&before, &ctx, "");
}

#[test]
fn status_knows_a_device_that_a_container_has() {
    let mut ctx = node();
    let stub = StubIpam::new();
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    let mac = mac(&ctx.node, "hd0");
    let pod = ctx.pod("pod");
    let attachment = pod.attachment("net1");
    let conf = |keys: &Value| {
        let conf = network_config("host-device", "1.1.0", &json!({"ipam": {"type": "stub"}}));
        overlay(&conf, keys)
    };
    let call = |keys: &Value| ctx.call("STATUS", &Attachment::default(), &conf(keys));
    let selectors = [json!({"device": "hd0"}), json!({"hwaddr": mac}), json!({})];
    for place in ["host", "container"] {
        for keys in &selectors {
            assert!(call(keys).success(), "{place}: {keys}");
        }
        assert_eq!(stub.calls(), ["STATUS"; 3]);
        if place == "host" {
            ctx.add(&attachment, &config(&json!({})));
        }
    }
    let fail = |keys: &Value| ctx.fail("STATUS", &Attachment::default(), &conf(keys));
    for (keys, code, text) in [
        (json!({"device": "hd7"}), 50, "failed to find host device: Link not found"),
        (json!({"hwaddr": "02:00:00:00:77:77"}), 50, "failed to find physical interface"),
        (json!({"kernelpath": "/sys/devices/none"}), 50, "failed to read directory /sys/devices/none/net"),
        (json!({"pciBusID": "0000:99:1f.6"}), 50, "error with host device: lstat"),
        (json!({"runtimeConfig": {"deviceID": "none.sf.9"}}), 50, "DeviceID none.sf.9 not found"),
        (json!({"pciBusID": "../net"}), 7, "invalid device ID"),
        (json!({"device": "hd0", "ipam": {"type": "missing"}}), 50, "failed to find plugin \"missing\""),
    ] {
        fail(&keys).expect(code, text);
    }
    assert_eq!(stub.calls(), Vec::<String>::new());
    stub.fail("STATUS", 51, "full up");
    fail(&json!({"device": "hd0"})).expect(51, "full up");
}

#[test]
fn del_after_a_kill_gives_the_device_back() {
    let (ctx, folder) = (node(), Folder::new());
    let (pod, _kubelet) = (ctx.pod("pod"), folder.serve("web", &["hd0"]));
    let before = ctx.snapshot();
    let attachment = attachment(&pod, "web");
    let by_name = config(&json!({}));
    for (verb, conf) in [("ADD", &by_name), ("ADD", &folder.config(&json!({}))), ("DEL", &by_name)] {
        if verb == "DEL" {
            ctx.add(&attachment, conf);
        }
        let points = ctx.kill_points(verb, &attachment, conf);
        ctx.del(&attachment, conf);
        for point in points {
            if verb == "DEL" {
                ctx.add(&attachment, conf);
            }
            ctx.kill(&point, verb, &attachment, conf);
            ctx.del(&attachment, conf);
            assert_as(&before, &ctx, &format!("{verb} killed {point}: {conf}"));
        }
    }
}

/// The kernel refuses to remove a file there before it looks for it.
#[test]
fn del_of_nothing_succeeds_if_the_folder_is_read_only() {
    let (ctx, conf) = (node(), config(&json!({})));
    let pod = ctx.pod("pod");
    let script = "mkdir -p /run/cni/host-device && mount -t tmpfs -o ro none /run/cni/host-device";
    ctx.node.sh(script).unwrap();
    ctx.del(&pod.attachment("net1"), &conf);
}
