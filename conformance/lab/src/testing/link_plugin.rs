//! Tests that the plugins of one link in the container share: macvlan, ipvlan, vlan, dummy and tap.

use serde_json::{Value, json};

use super::{
    Origin, PluginDir, StubIpam, TestContext, addresses, host_local, ips_of, link, network_config, overlay,
    try_link, with_prev,
};
use crate::{FailingCall, Node, Place as _, Pod, Snapshot};
use cni_runner::Attachment;

/// The addresses of the machine that [`uplink`] leads to.
pub const LAN: [&str; 2] = ["10.1.2.1", "fd00:1::1"];

/// A node with our plugin and host-local. `built` is `env!("CARGO_BIN_EXE_...")`.
pub fn ours(built: &str) -> TestContext {
    TestContext::new(PluginDir::new(built, Origin::Ours).with(Origin::Ours, &["host-local"]))
}

/// The configuration of network `net` with two families of addresses, merged with `keys`.
pub fn config(plugin: &str, version: &str, keys: &Value) -> Value {
    let routes = json!([{"dst": "10.9.0.0/16", "gw": "10.1.2.1"}, {"dst": "fd09::/64", "gw": "fd00:1::1"}]);
    let ipam = overlay(&host_local(&["10.1.2.0/24", "fd00:1::/64"]), &json!({"routes": routes}));
    network_config(plugin, version, &overlay(&json!({"ipam": ipam}), keys))
}

/// Makes the link `uplink0` of the node, which leads to another machine with the addresses [`LAN`].
pub fn uplink(ctx: &TestContext) -> Pod {
    uplink_of(&ctx.node)
}

/// [`uplink`] of a node without a plugin under test.
pub fn uplink_of(node: &Node) -> Pod {
    let lan = node.pod("lan").unwrap();
    node.sh("ip link add uplink0 type veth peer name lan0 netns lan && ip link set uplink0 up").unwrap();
    let addresses = LAN.map(|ip| {
        let prefix = if ip.contains(':') { "64 nodad" } else { "24" };
        format!("ip address add {ip}/{prefix} dev lan0")
    });
    lan.sh(&format!("{} && ip link set lan0 up", addresses.join(" && "))).unwrap();
    lan
}

/// What outlives an attachment: the folders of host-local.
fn snapshot(ctx: &TestContext) -> Snapshot {
    ctx.snapshot().ignoring(&["/var/lib/cni/networks"])
}

/// Panics if the container still has the link, if the node differs from the snapshot, or if an address is reserved.
fn assert_clean(ctx: &TestContext, pod: &Pod, before: &Snapshot, what: &str) {
    assert!(try_link(pod, "eth0").is_none(), "{what}: the link is left");
    assert_eq!(before.diff(&snapshot(ctx)), "", "{what}");
    assert_eq!(ctx.reservations("net"), Vec::<String>::new(), "{what}");
}

/// Kills ADD and DEL before each system call; the DEL that follows must remove everything.
pub fn del_cleans_up_after_kills(ctx: &TestContext, conf: &Value) {
    let pod = ctx.pod("killed");
    let (attachment, before) = (pod.attachment("eth0"), snapshot(ctx));
    for verb in ["ADD", "DEL"] {
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
            assert_clean(ctx, &pod, &before, &format!("{verb} killed {point}"));
        }
    }
}

/// DEL with a broken configuration, without a namespace, and again; none may fail.
pub fn del_needs_nothing(ctx: &TestContext, conf: &Value) {
    let pod = ctx.pod("deleted");
    let before = snapshot(ctx);
    let attachment = pod.attachment("eth0");
    ctx.add(&attachment, conf);
    let broken = json!({"mode": "x", "mtu": -1, "master": "gone0", "vlanId": 9999, "mac": "x", "dad": 5});
    ctx.del(&attachment, &overlay(conf, &broken));
    ctx.del(&attachment, conf);
    assert_clean(ctx, &pod, &before, "a broken configuration");
    ctx.add(&attachment, conf);
    ctx.del(&Attachment { netns: String::new(), ..attachment.clone() }, conf);
    assert_eq!(ctx.reservations("net"), Vec::<String>::new());
    pod.delete().unwrap();
    ctx.del(&attachment, conf);
}

const RENAME: &str = "ip link set eth0 down; ip link set eth0 name hidden0; ip link set hidden0 up";
/// What a container does with `eth0`, which has the addresses `$IP4` and `$IP6`. `net1` is its other interface.
const HIDE: [&str; 6] = [
    "RENAME",
    "RENAME; ip link add eth0 type veth peer name other0; ip link set eth0 up",
    "RENAME; ip link set lo down; ip link set lo name eth0; ip link set hidden0 address 02:00:00:00:00:66 || true",
    "ip link add other0 type bridge; ip address flush dev eth0; ip address add $IP4/24 dev other0; \
     ip address add $IP6/64 dev other0 nodad",
    "ip address flush dev eth0; ip address add $IP4 peer 192.0.2.9/24 dev lo; ip address add $IP6 peer fd00:2::9 dev lo",
    "ip address flush dev eth0; ip address add $IP4/25 dev net1; ip address add $IP6/120 dev net1 nodad",
];

/// A container that hides its link or gives the addresses to others has no address after DEL, and its other interface stays. If
/// `is_proven`, DEL finds the link without an address too. `other` is the configuration of the other interface.
pub fn del_leaves_no_address(ctx: &TestContext, conf: &Value, other: &Value, is_proven: bool) {
    let pod = ctx.pod("hostile");
    let (attachment, net1) = (pod.attachment("eth0"), pod.attachment("net1"));
    ctx.add(&net1, other);
    let look = || (link(&pod, "net1")["ifindex"].clone(), addresses(&pod, "net1"));
    let bystander = look();
    let proven = "RENAME; ip address flush dev hidden0";
    for script in HIDE.into_iter().chain(is_proven.then_some(proven)) {
        let result = ctx.add(&attachment, conf);
        let (ips, with_result) = (ips_of(&result), with_prev(conf, &result));
        let script = script.replace("RENAME", RENAME);
        pod.sh(&format!("set -e; IP4={} IP6={}; {script}", ips[0], ips[1])).unwrap();
        // The second one finds nothing, also no similar link.
        for _ in 0..2 {
            ctx.del(&attachment, &with_result);
            let left = ips.iter().map(|ip| pod.sh(&format!("ip -o address show to {ip}")).unwrap());
            assert_eq!(left.collect::<String>(), "", "{script}");
            assert!(try_link(&pod, "hidden0").is_none(), "{script}");
            assert_eq!(look(), bystander, "{script}");
        }
        assert_eq!(ctx.reservations("net").len(), bystander.1.len(), "{script}");
        pod.sh("ip link del other0 2>/dev/null || true; ip link set eth0 name lo 2>/dev/null || true; ip link set lo up")
            .unwrap();
    }
    ctx.del(&net1, other);
}

/// A DEL that does not learn what became of the renamed link frees no address. The next one does.
pub fn a_doubtful_del_frees_no_address(ctx: &TestContext, conf: &Value) {
    let pod = ctx.pod("doubtful");
    let attachment = pod.attachment("eth0");
    let add = || {
        let with_result = with_prev(conf, &ctx.add(&attachment, conf));
        pod.sh(RENAME).unwrap();
        with_result
    };
    let mut kept = 0;
    let calls = FailingCall::all(&ctx.node, &ctx.exec("DEL", &attachment, &add())).unwrap();
    for lost in calls.iter().filter(|call| call.name == "recvfrom" && call.error == "EIO") {
        let with_result = add();
        let succeeds = lost.make(&ctx.node, &ctx.exec("DEL", &attachment, &with_result)).unwrap().success();
        if try_link(&pod, "hidden0").is_some() {
            kept += 1;
            assert!(!succeeds, "{lost}");
            assert_eq!(ctx.reservations("net").len(), 2, "{lost}");
        }
        ctx.del(&attachment, &with_result);
        assert!(try_link(&pod, "hidden0").is_none(), "{lost}");
        assert_eq!(ctx.reservations("net"), Vec::<String>::new(), "{lost}");
    }
    assert!(kept > 0, "no DEL has left the link");
}

/// An ADD that fails at IPAM, after IPAM, or because the interface exists, leaves nothing and releases its addresses.
pub fn failed_adds_leave_nothing(ctx: &TestContext, conf: &Value) {
    let (stub, pod) = (StubIpam::new(), ctx.pod("pod1"));
    let ctx = TestContext { path: format!("{}:{}", stub.dir().display(), ctx.path), ..ctx.clone() };
    let conf = overlay(conf, &json!({"cniVersion": "1.1.0", "ipam": {"type": "stub"}}));
    let (attachment, before) = (pod.attachment("eth0"), snapshot(&ctx));
    let fails = |text: &str, calls: &[&str]| {
        let error = ctx.fail("ADD", &attachment, &conf);
        assert!(error.contains(text), "{error}");
        assert_eq!(stub.calls(), calls, "{error}");
        assert_clean(&ctx, &pod, &before, text);
    };
    stub.fail("ADD", 11, "no address is free");
    fails("no address is free", &["ADD", "DEL"]);
    stub.result(&json!({"cniVersion": "1.1.0"}));
    fails("IPAM plugin returned missing IP config", &["ADD", "DEL"]);
    let unreachable = json!([{"dst": "10.9.0.0/16", "gw": "192.0.2.77"}]);
    stub.result(&json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.9/24"}], "routes": unreachable}));
    fails("failed to add route", &["ADD", "DEL"]);
    // A second ADD touches neither the link nor the address of the first one.
    stub.assign("1.1.0", &["10.1.2.9/24"]);
    ctx.add(&attachment, &conf);
    stub.calls();
    let link = try_link(&pod, "eth0");
    let error = ctx.fail("ADD", &attachment, &conf);
    assert!(error.contains("already has an interface \"eth0\""), "{error}");
    assert_eq!(stub.calls(), Vec::<String>::new());
    assert_eq!(try_link(&pod, "eth0"), link);
    ctx.del(&attachment, &conf);
    assert_clean(&ctx, &pod, &before, "DEL");
}

/// An IPAM plugin of the type `dhcp` finds the link at ADD and at DEL, also at the DEL of a failed ADD.
pub fn dhcp_finds_the_link(ctx: &TestContext, conf: &Value) {
    let (stub, pod) = (StubIpam::new(), ctx.pod("leased"));
    let ctx = TestContext { path: format!("{}:{}", stub.dir().display(), ctx.path), ..ctx.clone() };
    let conf = overlay(conf, &json!({"cniVersion": "1.1.0", "ipam": {"type": "dhcp"}}));
    let (attachment, before) = (pod.attachment("eth0"), snapshot(&ctx));
    let note =
        "nsenter --net=$CNI_NETNS ip link show $CNI_IFNAME >/dev/null && echo $CNI_COMMAND >> $dir/notes";
    let assign = |ips: &Value| {
        let result = json!({"cniVersion": "1.1.0", "ips": ips});
        stub.answer("ADD", &format!("{note}; echo '{result}'"));
    };
    stub.answer("DEL", note);
    assign(&json!([{"address": "10.1.2.9/24"}]));
    ctx.add(&attachment, &conf);
    ctx.del(&attachment, &conf);
    assert_eq!(stub.notes(), ["ADD", "DEL"]);
    // The kernel refuses the second one.
    assign(&json!([{"address": "10.1.2.9/24"}, {"address": "10.1.2.9/24"}]));
    ctx.fail("ADD", &attachment, &conf);
    assert_eq!(stub.notes(), ["ADD", "DEL"]);
    assert_clean(&ctx, &pod, &before, "dhcp");
}

/// CHECK passes after ADD, and fails with the text after each shell script. A script runs in the container, or on the
/// node if it begins with `node:`.
pub fn check_notices(ctx: &TestContext, conf: &Value, changes: &[(&str, &str)]) {
    for (number, (script, text)) in changes.iter().enumerate() {
        let pod = ctx.pod(&format!("pod{number}"));
        let attachment = pod.attachment("eth0");
        let result = ctx.add(&attachment, conf);
        let with_result = with_prev(conf, &result);
        ctx.check(&attachment, &with_result);
        match script.strip_prefix("node:") {
            Some(script) => ctx.node.sh(script).unwrap(),
            None => pod.sh(script).unwrap(),
        };
        let error = ctx.fail("CHECK", &attachment, &with_result);
        assert!(error.contains(text), "{script}: {error}");
        ctx.del(&attachment, conf);
    }
}

/// The changes of [`check_notices`] that every plugin notices.
pub const CHANGES: [(&str, &str); 6] = [
    ("ip link del eth0", "interface \"eth0\" not found"),
    ("ip link del eth0; ip link add eth0 type bridge", "is not of type"),
    ("ip link set eth0 down", "is down"),
    (
        "ip address del $(ip -o -4 address show dev eth0 | awk '{print $4}') dev eth0",
        "does not have address 10.1.2.",
    ),
    ("ip route del 10.9.0.0/16", "route 10.9.0.0/16"),
    ("ip link set eth0 mtu 1281", "has MTU 1281"),
];

/// Ferrule's plugin and the reference's check and remove what the other has added.
pub fn takes_turns_with_the_reference(ctx: &TestContext, plugin: &str, conf: &Value) {
    let reference = PluginDir::installed(Origin::Reference, plugin).with(Origin::Reference, &["host-local"]);
    let reference = ctx.with_plugins(reference);
    for (adds, removes) in [(ctx, &reference), (&reference, ctx)] {
        let pod = ctx.pod(if adds.plugin == ctx.plugin { "ours" } else { "theirs" });
        let (attachment, before) = (pod.attachment("eth0"), snapshot(ctx));
        let result = adds.add(&attachment, conf);
        let with_result = with_prev(conf, &result);
        removes.check(&attachment, &with_result);
        removes.del(&attachment, &with_result);
        assert_clean(ctx, &pod, &before, plugin);
    }
}
