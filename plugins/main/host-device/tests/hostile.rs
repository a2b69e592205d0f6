//! A container with `CAP_NET_ADMIN` that wants to keep its device, or to put a link of its own in its place.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::Command;

use cni_lab::testing::{Origin, PluginDir, link, mac, succeed, succeed_silently, try_link, with_prev};
use cni_lab::{Machine, Place as _, Pod, TIMEOUT, eventually, kernel_module};
use cni_runner::{Attachment, Exec};
use serde_json::{Value, json};

use self::common::{RECORDS, assert_as, config, node};

/// What the container does with its device `net1`, which is `HOME` on the node. `OTHER` is another link of the node.
const ATTACKS: [&str; 7] = [
    "ip link set net1 down; ip link set net1 name gone
     ip link add net1 address $(ip -o link show gone | grep -o 'ether [^ ]*' | cut -c 7-) type veth peer name peer
     ip link set net1 up alias HOME",
    "ip link set net1 down; ip link set net1 name gone; ip link add net1 type bridge; ip link set net1 alias HOME",
    "ip link set net1 down; ip link set net1 name gone; ip link set gone alias ''
     ip link set gone address 02:00:00:00:66:66 mtu 1300; ip link add bridge0 type bridge; ip link set gone master bridge0 up
     ip link add HOME type veth peer name peer; ip link set HOME alias HOME",
    "ip link property add dev net1 altname OTHER altname foreign; ip link add HOME type bridge",
    "ip link set net1 down; ip link set net1 name gone; ip link set gone alias OTHER
     ip link add fake address $(ip -o link show gone | grep -o 'ether [^ ]*' | cut -c 7-) type veth peer name peer
     ip link set fake alias HOME; ip link property add dev fake altname net1",
    // In the meantime in the namespace `hidden`, so the device gets another index.
    "index=$(ip -o link show net1 | cut -d: -f1); ip link set net1 netns hidden alias ''
     ip link add net1 index $index type veth peer name peer index 4711; ip link set net1 alias HOME
     ip -n hidden link set net1 name gone; ip -n hidden link set gone netns $$",
    "ip link add net2 type veth peer name peer; ip link set net2 alias HOME; ip link set net1 alias net1",
];

fn attack(attack: &str, [home, other]: [&str; 2]) -> String {
    format!("set -e; {}", attack.replace("HOME", home).replace("OTHER", other))
}

/// The container's links with their indexes, which tell whether one of them has left.
fn links(pod: &Pod) -> Vec<String> {
    let links = pod.sh("ip -o link show | cut -d: -f1,2").unwrap();
    links.lines().map(str::to_owned).collect()
}

#[test]
fn only_the_device_comes_to_the_node() {
    let (ctx, conf) = (node(), config(&json!({})));
    let _hidden = ctx.pod("hidden");
    let before = ctx.snapshot();
    for (number, text) in ATTACKS.iter().enumerate() {
        let pod = ctx.pod(&format!("pod{number}"));
        let attachment = pod.attachment("net1");
        ctx.add(&attachment, &conf);
        pod.sh(&attack(text, ["hd0", "hd1"])).unwrap();
        let inside = links(&pod);
        for _ in 0..2 {
            ctx.del(&attachment, &conf);
            assert_as(&before, &ctx, text);
            assert_eq!(links(&pod).len(), inside.len() - 1, "{text}");
        }
        assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new());
        pod.delete().unwrap();
    }
}

/// A veth whose peer is not on the node is another one. DEL has nothing to give back.
#[test]
fn a_device_that_the_container_has_removed_is_not_replaced() {
    let inside = "ip link add net1 index $index address $mac type veth peer name peer";
    let hidden = "ip link add net1 index $index address $mac type veth peer name peer netns hidden";
    // After an ADD of the reference, nothing tells the second one from a device whose peer someone has moved.
    for (origin, decoy) in [(Origin::Ours, inside), (Origin::Ours, hidden), (Origin::Reference, inside)] {
        let (ctx, conf) = (node(), config(&json!({})));
        let first = ctx.with_plugins(PluginDir::new(env!("CARGO_BIN_EXE_host-device"), origin));
        let (pod, _hidden) = (ctx.pod("pod"), ctx.pod("hidden"));
        let attachment = pod.attachment("net1");
        let result = first.add(&attachment, &conf);
        pod.sh(&format!(
            "set -e; index=$(ip -o link show net1 | cut -d: -f1)
             mac=$(ip -o link show net1 | grep -o 'ether [^ ]*' | cut -c 7-)
             ip link delete net1; {decoy}; ip link set net1 up alias hd0"
        ))
        .unwrap();
        let inside = links(&pod);
        ctx.del(&attachment, &with_prev(&conf, &result));
        assert!(try_link(&ctx.node, "hd0").is_none(), "{decoy}");
        assert_eq!(links(&pod), inside, "{decoy}");
        assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new());
    }
}

/// The reference leaves no record, so the device's alias must remain. The rest is the kernel's proof.
#[test]
fn only_the_device_of_the_reference_comes_to_the_node() {
    for number in [0, 1, 3, 6] {
        let (ctx, conf) = (node(), config(&json!({})));
        let reference =
            ctx.with_plugins(PluginDir::new(env!("CARGO_BIN_EXE_host-device"), Origin::Reference));
        let pod = ctx.pod("pod");
        let attachment = pod.attachment("net1");
        let before = link(&ctx.node, "hd0");
        let result = reference.add(&attachment, &conf);
        let text = attack(ATTACKS[number], ["hd0", "hd1"]).replace("; ip link set net1 alias net1", "");
        pod.sh(&text).unwrap();
        let inside = links(&pod);
        for _ in 0..2 {
            ctx.del(&attachment, &with_prev(&conf, &result));
            let home = link(&ctx.node, "hd0");
            assert_eq!((&home["ifindex"], home.get("ifalias")), (&before["ifindex"], None), "{text}");
            assert_eq!(links(&pod).len(), inside.len() - 1, "{text}");
        }
    }
}

/// Both ends of a pair are devices, or the other end is in a foreign namespace.
#[test]
fn a_pair_whose_other_end_is_not_on_the_node() {
    let ctx = node();
    let before = ctx.snapshot();
    let conf = |device: &str| config(&json!({"name": device, "device": device}));
    let (a, b) = (ctx.pod("a"), ctx.pod("b"));
    let own = a.attachment("net1");
    for (other, order) in [(b.attachment("net1"), 0), (b.attachment("net1"), 1), (a.attachment("net2"), 0)] {
        ctx.add(&own, &conf("hd0"));
        ctx.add(&other, &conf("hd1"));
        for position in [order, 1 - order] {
            let (attachment, device) = [(&own, "hd0"), (&other, "hd1")][position];
            ctx.del(attachment, &conf(device));
            assert!(try_link(&ctx.node, device).is_some(), "{device}");
        }
        assert_as(&before, &ctx, "pair");
    }
    ctx.node.sh("ip netns add router; ip link set hd1 netns router").unwrap();
    let before = ctx.snapshot();
    // The second one has not had a link that leads to the node.
    let fresh = ctx.pod("fresh");
    for attachment in [own, fresh.attachment("net1")] {
        ctx.add(&attachment, &conf("hd0"));
        ctx.del(&attachment, &conf("hd0"));
        assert_as(&before, &ctx, attachment.container_id.as_str());
    }
}

/// The guest has a physical link, `eth0`: tests/guest.sh.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn only_the_physical_device_comes_to_the_node() {
    kernel_module("virtio_net");
    // On another machine this may be the link to the world.
    assert_eq!(mac(&Machine, "eth0"), "02:00:00:00:00:99");
    let conf = config(&json!({"device": "eth0"}));
    let [ours, reference] = [Origin::Ours, Origin::Reference]
        .map(|origin| PluginDir::new(env!("CARGO_BIN_EXE_host-device"), origin));
    let call = |plugins: &PluginDir, verb: &str, conf: &Value| {
        let attachment = Attachment::new("pod", "/run/netns/pod".to_owned(), "net1");
        Exec::new(plugins.plugin(), verb).attachment(&attachment).stdin(conf.to_string())
    };
    // The carrier comes a moment after the link is up.
    let state = || {
        let show = "ip -o link show eth0 | grep -o '<.*> mtu [0-9]*\\|master .*\\|link/.*' | sed s/NO-CARRIER,//; ip -o -4 address show eth0 | grep -o inet.*
                    ip route show dev eth0; ip -o link | wc -l; ls /run/cni/host-device";
        Machine.sh(show).unwrap()
    };
    let in_pod = |script: &str| {
        let output =
            Machine.exec(Command::new("ip").args(["netns", "exec", "pod", "sh", "-c", script])).unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let configure = "ip link set eth0 address 02:00:00:00:00:99 mtu 1500; ip link set eth0 up
                     ip address add 10.9.0.1/24 dev eth0; ip route add 10.99.0.0/16 via 10.9.0.7";
    Machine
        .sh(&format!("{configure}; ip link add other type bridge; ip netns add hidden; mkdir -p -m 700 /run/cni/host-device"))
        .unwrap();
    let before = state();
    for (text, plugins) in ATTACKS.iter().flat_map(|text| [(text, &ours), (text, &reference)]) {
        Machine.sh("ip netns add pod").unwrap();
        let result = succeed(&Machine, &call(plugins, "ADD", &conf));
        in_pod(&attack(text, ["eth0", "other"]));
        succeed_silently(&Machine, &call(&ours, "DEL", &with_prev(&conf, &result)));
        if std::ptr::eq(plugins, &reference) {
            Machine.sh(configure).unwrap();
        }
        assert_eq!(before, state(), "{text}");
        Machine.sh("ip netns delete pod").unwrap();
    }
    // Hidden in another namespace, it comes back when that is gone, under a name that the container has chosen.
    Machine.sh("ip netns add pod").unwrap();
    succeed(&Machine, &call(&ours, "ADD", &conf));
    in_pod(
        "ip link set net1 down; ip link set net1 alias '' address 02:00:00:00:66:66; ip link set net1 name mine
         ip link set mine netns hidden",
    );
    succeed_silently(&Machine, &call(&ours, "DEL", &conf));
    Machine.sh("ip netns delete hidden").unwrap();
    assert!(eventually(TIMEOUT, || Machine.sh("ip -o link show mine").is_ok()));
    succeed_silently(&Machine, &call(&ours, "DEL", &conf));
    assert_eq!(before, state());
    Machine.sh("ip netns delete pod; ip link delete other").unwrap();
}
