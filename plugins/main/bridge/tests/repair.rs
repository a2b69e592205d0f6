//! Repair of bridge, port, gateway, masquerading and `macspoofchk` after another program has damaged them. The tests need
//! `nft`, `strace`, both variants of `iptables`, and the reference's plugins.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use cni_lab::testing::iptables::{VARIANTS, variant};
use cni_lab::testing::{
    ErrorObject, Expect as _, Origin, TestContext, host_local, overlay, ports, with_prev,
};
use cni_lab::{Client, Place as _, Pod, Snapshot, TIMEOUT, eventually, kernel_module};
use common::{config, plugins, repairing, wait_for_dad};
use serde_json::{Value, json};

/// Forwarding gives links more IPv6 addresses.
const FORWARDING: &str =
    "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";

fn conf(keys: &Value) -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    config("1.0.0", &overlay(&json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}), keys))
}

/// A pod, and the configuration with its result.
struct Attached {
    pod: Pod,
    config: Value,
}

/// A node with two pods and an outside client per family that has no route to the pods. The second pod has a connection to the
/// node. (The node refuses packets of a masqueraded one while no rule translates them.)
struct Scene {
    ctx: TestContext,
    repair: TestContext,
    pods: [Attached; 2],
    clients: [Client; 2],
    connection: [TcpStream; 2],
    /// The node before the ADDs.
    before: Snapshot,
}

impl Scene {
    fn new(ctx: &TestContext, origin: Origin, keys: &Value) -> Scene {
        let clients = [("192.0.2.0/24", "-4"), ("2001:db8::/64", "-6")].map(|(subnet, family)| {
            let client = ctx.node.outside_client(subnet).unwrap();
            client.sh(&format!("ip {family} route del default")).unwrap();
            wait_for_dad(ctx, &client);
            client
        });
        ctx.node.sh(FORWARDING).unwrap();
        let before = ctx.snapshot();
        let adder = ctx.with_plugins(plugins(origin));
        let pods = ["hurt", "other"].map(|name| {
            let pod = ctx.pod(name);
            let result = adder.add(&pod.attachment("eth0"), &conf(keys));
            Attached { config: with_prev(&conf(keys), &result), pod }
        });
        let server: SocketAddr = "10.1.0.1:7000".parse().unwrap();
        let listener = ctx.node.run(|| TcpListener::bind(server)).unwrap().unwrap();
        let near = pods[1].pod.run(|| TcpStream::connect_timeout(&server, TIMEOUT)).unwrap().unwrap();
        let connection = [near, listener.accept().unwrap().0];
        let repair = repairing(ctx);
        let scene = Scene { ctx: ctx.clone(), repair, pods, clients, connection, before };
        scene.assert_sound("ADD");
        scene
    }

    fn check(&self, attached: &Attached) -> Result<(), ErrorObject> {
        let output = self.ctx.call("CHECK", &attached.pod.attachment("eth0"), &attached.config);
        if output.success() { Ok(()) } else { Err(output.error()) }
    }

    fn port(&self) -> &str {
        self.pods[0].config["prevResult"]["interfaces"][1]["name"].as_str().unwrap()
    }

    /// Runs a script on the node, or in the first pod if it begins with `pod:`.
    fn damage(&self, script: &str) {
        let script = script.replace("PORT", self.port());
        match script.strip_prefix("pod:") {
            Some(inside) => self.pods[0].pod.sh(inside),
            None => self.ctx.node.sh(&script),
        }
        .unwrap();
    }

    /// What `ferrule repair` does.
    fn repair_what_check_refuses(&self, pods: &[Attached], what: &str) {
        for attached in pods {
            if self.check(attached).is_err() {
                self.repair.add(&attached.pod.attachment("eth0"), &attached.config);
                assert_eq!(self.check(attached).err().map(|error| error.msg), None, "{what}");
            }
        }
    }

    /// Whether each pod reaches the clients. They can only answer to the node's address.
    fn reaches_clients(&self, wait: f64) -> bool {
        let ping = |to: &Client| format!("ping -c 1 -W {wait} {}", to.address());
        let script = self.clients.each_ref().map(ping).join(" && ");
        self.pods.iter().all(|attached| attached.pod.sh(&script).is_ok())
    }

    /// Panics unless CHECK agrees, traffic passes, and the connection is still open.
    fn assert_sound(&self, what: &str) {
        for attached in &self.pods {
            assert_eq!(self.check(attached).err().map(|error| error.msg), None, "{what}");
        }
        assert!(eventually(TIMEOUT, || self.reaches_clients(1.0)), "{what}");
        let [near, far] = &self.connection;
        for [mut from, mut to] in [[near, far], [far, near]] {
            to.set_read_timeout(Some(TIMEOUT)).unwrap();
            from.write_all(b"!").unwrap();
            to.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{what}: the connection ended: {error}"));
        }
    }

    /// Damages, and repairs what CHECK then refuses with these texts.
    fn mend(&self, script: &str, text: &str, is_cut: bool) {
        println!("{script}");
        self.damage(script);
        let error = self.check(&self.pods[0]).expect_err(script);
        assert!(error.msg.contains(text), "{script}: {}", error.msg);
        assert!(!is_cut || !self.reaches_clients(0.3), "{script}");
        self.repair_what_check_refuses(&self.pods, script);
        self.assert_sound(script);
    }

    fn del_leaves_nothing(&self, what: &str) {
        for attached in &self.pods {
            self.ctx.del(&attached.pod.attachment("eth0"), &attached.config);
        }
        let rules = self.ctx.node.sh("nft list ruleset; iptables-legacy-save -t nat 2>/dev/null || true");
        let rules = rules.unwrap();
        assert!(
            !["masquerade comment", "cni-br-iface-", "CNI-"].iter().any(|own| rules.contains(own)),
            "{what}\n{rules}"
        );
        let ignored = ["nft ", "-save nat: table", "-save nat: :", "/.ferrule"];
        let before = self.before.clone().ignoring(&ignored);
        let after = self.ctx.snapshot().ignoring(&ignored).ignoring(&common::SHARED);
        assert_eq!(before.ignoring(&common::SHARED).diff(&after), "", "{what}");
    }
}

/// The state of the node with the handles of all rules.
fn state(scene: &Scene) -> (Snapshot, String) {
    (scene.ctx.snapshot(), scene.ctx.node.sh("nft -a -s list ruleset; bridge -d link").unwrap())
}

#[test]
fn what_check_refuses_is_made_again() {
    let ctx = common::ours();
    let keys = json!({"hairpinMode": true, "portIsolation": true, "macspoofchk": true});
    let scene = Scene::new(&ctx, Origin::Ours, &keys);
    for (script, text, is_cut) in [
        ("ip link set br0 down", "\"br0\" is down", true),
        ("ip address del 10.1.0.1/24 dev br0", "10.1.0.1/24", false),
        ("ip address flush dev br0 scope global", "10.1.0.1/24", true),
        ("ip link set PORT nomaster", "not a port of bridge", true),
        (
            "ip link add br9 type bridge; ip link set PORT master br9; ip link set PORT type bridge_slave hairpin off",
            "not a port of bridge",
            true,
        ),
        ("ip link del br9; ip link set PORT type bridge_slave hairpin off", "hairpin", false),
        ("bridge link set dev PORT isolated off", "not isolated", false),
        ("ip link set PORT down", "is down", true),
        ("ip link set PORT address 02:00:00:00:00:98", "MAC address", false),
        ("ip link del br0", "br0", true),
        ("ip link del br0; ip link add br0 type bridge", "MAC address", true),
        (
            "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding",
            "ip_forward",
            true,
        ),
        ("nft flush ruleset", "macspoofchk", true),
        ("nft delete table inet cni_plugins_masquerade", "not masqueraded", true),
        ("nft flush chain inet cni_plugins_masquerade masq_checks", "not masqueraded", true),
        ("nft flush chain inet cni_plugins_masquerade postrouting", "not masqueraded", true),
        ("nft delete table bridge nat", "macspoofchk", false),
        ("pod:ip link set eth0 down", "is down", true),
        ("pod:ip address flush dev eth0 scope global", "does not have address", true),
        ("pod:ip route del default; ip -6 route del default", "not found in the container", true),
        ("pod:echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6", "fd00:1::2/64", true),
        ("ip link del br0; nft flush ruleset; echo 0 > /proc/sys/net/ipv4/ip_forward", "br0", true),
    ] {
        scene.mend(script, text, is_cut);
    }
    // A repair of sound attachments changes nothing.
    let before = state(&scene);
    for attached in &scene.pods {
        scene.repair.add(&attached.pod.attachment("eth0"), &attached.config);
    }
    let after = state(&scene);
    assert_eq!((before.0.diff(&after.0), before.1), (String::new(), after.1));
    scene.del_leaves_nothing("repairs");
}

#[test]
fn a_lost_or_foreign_interface_is_not_made_again() {
    let ctx = common::ours();
    let scene = Scene::new(&ctx, Origin::Ours, &json!({}));
    let other = "ip link add x0 type veth peer name x1 && ip link set x0 address $(ip -j link show eth0 | jq -r '.[0].address')";
    let text = "the container has no interface \"eth0\", start the container again";
    for (script, text) in [
        (
            format!(
                "{other} && ip link set eth0 down && ip link set eth0 name y0 && ip link set x0 name eth0"
            ),
            "interface \"eth0\" has no other end on the host",
        ),
        ("ip link set eth0 down; ip link set eth0 name z0".to_owned(), text),
        ("ip link del y0; ip link del z0".to_owned(), text),
    ] {
        scene.damage(&format!("pod:{script}"));
        scene.damage("ip link set br0 down");
        let before = scene.ctx.snapshot();
        let hurt = &scene.pods[0];
        scene.repair.fail("ADD", &hurt.pod.attachment("eth0"), &hurt.config).expect(999, text);
        assert_eq!(before.diff(&scene.ctx.snapshot()), "", "{script}");
    }
    // An ADD has made the bridge again, and its container knows the new MAC address: that stays.
    ctx.node.sh("ip link del br0").unwrap();
    let new = ctx.pod("new").attachment("eth0");
    let new_conf = with_prev(&conf(&json!({})), &ctx.add(&new, &conf(&json!({}))));
    let other = &scene.pods[1];
    scene.repair.add(&other.pod.attachment("eth0"), &other.config);
    assert!(scene.check(other).unwrap_err().contains("\"br0\" has MAC address"));
    assert_eq!(ports(&ctx.node, "br0").len(), 2);
    ctx.check(&new, &new_conf);
    // The address belongs to another container.
    scene.ctx.node.sh("cd /var/lib/cni/networks/net && echo x > 10.1.0.3 && echo x > fd00:1::3").unwrap();
    let failure = scene.repair.fail("ADD", &other.pod.attachment("eth0"), &other.config);
    failure.expect(999, "Failed to find address");
}

/// Clears `IFF_UP` again and again (`SIOCGIFFLAGS`, `SIOCSIFFLAGS`).
const HOLDS_DOWN: &str = "import fcntl, socket, struct
s = socket.socket()
flags = struct.unpack('16sh22x', fcntl.ioctl(s, 0x8913, struct.pack('16s24x', b'eth0')))[1] & ~1
while True:
    fcntl.ioctl(s, 0x8914, struct.pack('16sh22x', b'eth0', flags))";

/// A repair of each such container would take 2.5 seconds.
#[test]
fn an_interface_that_the_container_holds_down_is_not_waited_for() {
    let ctx = common::ours();
    let scene = Scene::new(&ctx, Origin::Ours, &json!({}));
    let (pod, conf) = (&scene.pods[0].pod, &scene.pods[0].config);
    let mut holder = Command::new("python3");
    holder.args(["-c", HOLDS_DOWN]);
    let holder = pod.spawn(holder).unwrap();
    assert!(eventually(TIMEOUT, || scene.check(&scene.pods[0]).is_err()));
    // The port may be up for a moment, and the machine busy.
    let is_refused_soon = || {
        let start = Instant::now();
        let output = scene.repair.call("ADD", &pod.attachment("eth0"), conf);
        let is_soon = start.elapsed().as_secs() < 2;
        is_soon && !output.success() && output.error().msg.contains("bridge port in error state: down")
    };
    assert!((0..100).any(|_| is_refused_soon()));
    drop(holder);
    scene.repair_what_check_refuses(&scene.pods, "held down");
    scene.assert_sound("held down");
}

#[test]
fn a_second_repair_completes_a_killed_one() {
    let ctx = common::ours();
    let scene = Scene::new(&ctx, Origin::Ours, &json!({"hairpinMode": true, "macspoofchk": true}));
    let damage = "ip link del br0; nft flush ruleset; echo 0 > /proc/sys/net/ipv4/ip_forward";
    let (attachment, conf) = (scene.pods[0].pod.attachment("eth0"), &scene.pods[0].config);
    let inside = "pod:ip address flush dev eth0 scope global; ip link set eth0 down";
    scene.damage(damage);
    scene.damage(inside);
    for kill_point in scene.repair.kill_points("ADD", &attachment, conf) {
        scene.damage(damage);
        scene.damage(inside);
        scene.repair.kill(&kill_point, "ADD", &attachment, conf);
        scene.repair_what_check_refuses(&scene.pods[..1], &format!("killed {kill_point}"));
    }
    scene.repair_what_check_refuses(&scene.pods, "killed repairs");
    scene.assert_sound("killed repairs");
    scene.del_leaves_nothing("killed repairs");
}

#[test]
fn by_iptables() {
    for name in VARIANTS {
        let programs = variant(name);
        let ctx = common::ours().with_programs(programs.path());
        let scene = Scene::new(&ctx, Origin::Ours, &json!({"ipMasqBackend": "iptables"}));
        for chain in ["", "POSTROUTING"] {
            let flush = format!("iptables-{name} -t nat -F {chain}; ip6tables-{name} -t nat -F {chain}");
            scene.mend(&flush, "not masqueraded", true);
        }
        let rules = ctx.node.sh(&format!("iptables-{name} -t nat -S; ip6tables-{name} -t nat -S")).unwrap();
        assert_eq!(rules.matches("-j MASQUERADE").count(), 4, "{rules}");
        scene.del_leaves_nothing(name);
    }
}

/// The reference's attachments get the objects of our ADD.
#[test]
fn attachments_of_the_reference() {
    let ctx = common::ours();
    let scene = Scene::new(&ctx, Origin::Reference, &json!({"hairpinMode": true}));
    for (script, text) in [
        ("ip link set PORT nomaster; ip link set PORT type bridge_slave hairpin off || true", "not a port"),
        ("ip address flush dev br0 scope global; ip link set br0 down", "down"),
        ("iptables -t nat -F; ip6tables -t nat -F; nft flush ruleset", "not masqueraded"),
        ("ip link del br0", "br0"),
    ] {
        scene.mend(script, text, true);
    }
    scene.del_leaves_nothing("the reference");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn vlans() {
    kernel_module("8021q");
    let ctx = common::ours();
    let scene =
        Scene::new(&ctx, Origin::Ours, &json!({"vlan": 100, "vlanTrunk": [{"minID": 5, "maxID": 9}]}));
    let gateway_port = "$(ip -j link show br0.100 | jq -r '.[0].link')";
    for (script, text, is_cut) in [
        ("bridge vlan del vid 7 dev PORT", "is not in VLAN 7, tagged", false),
        ("bridge vlan add vid 7 untagged dev PORT", "is not in VLAN 7, tagged", false),
        ("bridge vlan del vid 100 dev PORT", "is not in VLAN 100, untagged", true),
        ("bridge vlan add vid 100 dev PORT", "is not in VLAN 100, untagged", true),
        ("bridge vlan add vid 44 pvid untagged dev PORT", "VLAN", true),
        ("ip link set PORT nomaster", "not a port of bridge", true),
        ("bridge vlan del vid 100 dev GATEWAY", "is not in VLAN 100, untagged", true),
        ("ip link set GATEWAY nomaster", "not a port of bridge", true),
        ("ip link set br0.100 down", "is down", true),
        ("ip link del br0.100", "\"br0.100\" of the VLAN not found", true),
        ("ip link del br0", "br0", true),
    ] {
        scene.mend(&script.replace("GATEWAY", gateway_port), text, is_cut);
    }
}
