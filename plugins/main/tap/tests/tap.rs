//! The tap device: attributes, bridge, traffic, and the tests that all plugins of one link share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

use cni_lab::testing::link_plugin::{self, CHANGES, config};
use cni_lab::testing::{TestContext, Trace, link, network_config, overlay, ports, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use serde_json::{Value, json};

fn node() -> TestContext {
    link_plugin::ours(env!("CARGO_BIN_EXE_tap"))
}

fn conf(keys: &Value) -> Value {
    config("tap", "1.1.0", keys)
}

#[test]
fn del_cleans_up_after_kills() {
    link_plugin::del_cleans_up_after_kills(&node(), &conf(&json!({"mtu": 1400, "owner": 0})));
}

#[test]
fn del_needs_nothing() {
    link_plugin::del_needs_nothing(&node(), &conf(&json!({})));
}

#[test]
fn del_leaves_no_address() {
    link_plugin::del_leaves_no_address(&node(), &conf(&json!({})), &conf(&json!({})), false);
}

#[test]
fn failed_adds_leave_nothing() {
    link_plugin::failed_adds_leave_nothing(&node(), &conf(&json!({})));
}

#[test]
fn every_attribute() {
    let ctx = node();
    for (name, keys, expected) in [
        (
            "none",
            json!({}),
            json!({"type": "tap", "pi": false, "vnet_hdr": true, "multi_queue": false, "persist": true}),
        ),
        ("owner", json!({"owner": 0, "group": 7}), json!({"user": "root", "group": "lp"})),
        (
            "queues",
            json!({"multiQueue": true, "mtu": 1400, "mac": "02:00:00:00:00:05"}),
            json!({"multi_queue": true}),
        ),
    ] {
        let pod = ctx.pod(name);
        let attachment = pod.attachment("eth0");
        let conf = conf(&keys);
        let result = ctx.add(&attachment, &conf);
        let tap = link(&pod, "eth0");
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(tap["linkinfo"]["info_data"][key], *value, "{name}: {tap}");
        }
        let mtu = keys.get("mtu").unwrap_or(&json!(1500)).clone();
        let mac = keys.get("mac").unwrap_or(&tap["address"]).clone();
        let interface = json!([{"name": "eth0", "mac": mac, "mtu": mtu, "sandbox": attachment.netns}]);
        assert_eq!((&result["interfaces"], &tap["address"], &tap["mtu"]), (&interface, &mac, &mtu));
        ctx.check(&attachment, &with_prev(&conf, &result));
        ctx.del(&attachment, &conf);
    }
}

/// A program opens the device as a virtual machine does, and gets the frame that the kernel sends.
#[test]
fn a_program_receives_what_the_container_sends() {
    let ctx = node();
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &conf(&json!({})));
    let script = "import fcntl, os, struct\n\
        tun = os.open('/dev/net/tun', os.O_RDWR)\n\
        fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', b'eth0', 0x1002))\n\
        while True:\n\
        \x20   frame = os.read(tun, 2000)\n\
        \x20   if frame[12:14] == b'\\x08\\x06': os.write(2, b'arp'); break";
    let mut machine = Command::new("python3");
    machine.args(["-c", script]).stderr(std::process::Stdio::piped());
    let mut machine = pod.spawn(machine).unwrap();
    assert!(eventually(TIMEOUT, || {
        let _ = pod.sh("ping -n -c 1 -W 1 10.1.2.1");
        machine.child().try_wait().unwrap().is_some()
    }));
    assert!(machine.child().wait().unwrap().success());
}

#[test]
fn port_of_a_bridge_in_the_container() {
    let ctx = node();
    let pod = ctx.pod("pod1");
    let attachment = pod.attachment("eth0");
    let conf = network_config("tap", "1.0.0", &json!({"bridge": "br0"}));
    let missing = ctx.fail("ADD", &attachment, &conf);
    missing.expect(999, "failed to get bridge br0: Link not found");
    pod.sh("ip link add br0 type dummy 2>/dev/null || ip link add br0 type veth").unwrap();
    ctx.fail("ADD", &attachment, &conf).expect(999, "\"br0\" is not a bridge");
    pod.sh("ip link del br0 && ip link add br0 type bridge && ip link set br0 up").unwrap();
    let result = ctx.add(&attachment, &conf);
    assert_eq!(ports(&pod, "br0"), ["eth0"]);
    let with_result = with_prev(&conf, &result);
    ctx.check(&attachment, &with_result);
    pod.sh("ip link set eth0 nomaster").unwrap();
    ctx.fail("CHECK", &attachment, &with_result).expect(999, "\"eth0\" is not a port of bridge \"br0\"");
    ctx.del(&attachment, &conf);
}

#[test]
fn check_notices_every_change() {
    let address = ("ip link set eth0 address 02:00:00:00:00:99", "MAC address");
    link_plugin::check_notices(&node(), &conf(&json!({"mtu": 1450})), &[&CHANGES[..], &[address]].concat());
    // Another owner with the same address. A configuration without an owner or a group permits any.
    let ctx = node();
    let pod = ctx.pod("pod1");
    let conf = |keys| network_config("tap", "1.0.0", &overlay(&json!({"mac": "02:00:00:00:00:05"}), &keys));
    let result = ctx.add(&pod.attachment("eth0"), &conf(json!({"owner": 0})));
    let other = "ip tuntap del eth0 mode tap && ip tuntap add eth0 mode tap user 5 group 7 && \
        ip link set eth0 address 02:00:00:00:00:05 up";
    pod.sh(other).unwrap();
    for keys in [json!({}), json!({"owner": 5}), json!({"group": 7})] {
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf(keys), &result));
    }
    let is = "has mode tap, owner 5, group 7, one queue, the configuration says mode tap, owner";
    for (keys, wanted) in [
        (json!({"owner": 0}), "0, group 7, one queue"),
        (json!({"group": 8}), "5, group 8, one queue"),
        (json!({"multiQueue": true}), "5, group 7, several queues"),
    ] {
        let error = ctx.fail("CHECK", &pod.attachment("eth0"), &with_prev(&conf(keys), &result));
        error.expect(999, &format!("{is} {wanted}"));
    }
}

#[test]
fn bad_input_and_missing_selinux_leave_nothing() {
    let ctx = node();
    let pod = ctx.pod("pod1");
    for (keys, code, text) in [
        (json!({"mac": "zz"}), 7, "mac: address zz: invalid MAC address"),
        (json!({"mtu": 20}), 7, "invalid mtu 20"),
        (json!({"owner": -1}), 6, "owner"),
        (
            json!({"selinuxContext": "system_u:system_r:container_t:s0"}),
            999,
            "failed to create tap: failed set socket label: ",
        ),
    ] {
        ctx.fail("ADD", &pod.attachment("eth0"), &conf(&keys)).expect(code, text);
        assert!(cni_lab::testing::try_link(&pod, "eth0").is_none());
        assert_eq!(ctx.reservations("net"), Vec::<String>::new());
    }
    // Without IPAM there is no process at all; the reference runs `ip` twice.
    let exec =
        ctx.exec("ADD", &pod.attachment("eth0"), &network_config("tap", "1.0.0", &json!({"mtu": 1400})));
    assert_eq!(Trace::of(&ctx.node, &exec, "execve").programs(), 0);
}

#[test]
fn status() {
    let ctx = node();
    ctx.succeed("STATUS", &Attachment::default(), &conf(&json!({})));
    let no_ipam = overlay(&conf(&json!({})), &json!({"ipam": {"type": "no"}}));
    ctx.fail("STATUS", &Attachment::default(), &no_ipam).expect(50, "failed to find plugin");
}
