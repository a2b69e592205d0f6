//! DEL removes everything that belongs to the attachment, even if other things are missing or broken.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{
    Expect as _, Origin, StubIpam, TestContext, assert_unchanged, host_local, mac, overlay, ports, try_link,
    with_prev,
};
use cni_lab::{Place as _, Pod, Snapshot, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{SHARED, assert_only_shared_changed, config, ours, plugins, with_stub};
use serde_json::{Value, json};

/// A pod with host-local addresses and masquerading, and snapshots from before its ADD.
struct Attached {
    ctx: TestContext,
    pod: Pod,
    conf: Value,
    result: Value,
    before: Snapshot,
    pod_before: Snapshot,
}

impl Attached {
    fn new() -> Attached {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
        let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}));
        // The first ADD leaves the masquerading table for good, so it must exist before the snapshot.
        let other = ctx.pod("other");
        ctx.add(&other.attachment("eth0"), &conf);
        let (before, pod_before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_eq!((ports(&ctx.node, "br0").len(), ctx.reservations("net").len()), (2, 4));
        Attached { ctx, pod, conf, result, before, pod_before }
    }

    fn port(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    /// DEL's configuration with `prevResult` or without it.
    fn conf_of_del(&self, with_result: bool) -> Value {
        if with_result { with_prev(&self.conf, &self.result) } else { self.conf.clone() }
    }

    /// Makes DEL twice. Both must succeed and leave nothing on the node.
    fn del(&self, attachment: &Attachment, conf: &Value, what: &str) {
        self.ctx.del(attachment, conf);
        self.assert_gone(what);
        self.ctx.del(attachment, conf);
        self.assert_gone(what);
    }

    fn assert_gone(&self, what: &str) {
        // The kernel may still be tearing the namespace down.
        eventually(TIMEOUT, || try_link(&self.ctx.node, self.port()).is_none());
        assert_only_shared_changed(&self.ctx, &self.before, what);
        assert_eq!(self.ctx.reservations("net").len(), 2, "{what}");
    }
}

#[test]
fn with_everything_in_place() {
    for with_result in [true, false] {
        let attached = Attached::new();
        let conf = attached.conf_of_del(with_result);
        attached.del(&attached.pod.attachment("eth0"), &conf, "DEL");
        assert_unchanged(&attached.pod, &attached.pod_before, "DEL has left something in the pod");
    }
}

#[test]
fn without_a_namespace_path_the_link_is_found_by_identity() {
    for with_result in [true, false] {
        let attached = Attached::new();
        let conf = attached.conf_of_del(with_result);
        attached.del(&Attachment::new("pod1", "", "eth0"), &conf, "DEL without CNI_NETNS");
        assert_unchanged(&attached.pod, &attached.pod_before, "DEL has left something in the living pod");
    }
}

#[test]
fn with_a_missing_namespace_path() {
    let attached = Attached::new();
    attached.del(
        &Attachment::new("pod1", "/run/netns/nobody", "eth0"),
        &attached.conf,
        "DEL with a wrong path",
    );
    assert!(attached.ctx.node.list_dir("/run/netns").unwrap().iter().all(|name| name != "nobody"));
    let attached = Attached::new();
    attached.del(
        &Attachment::new("pod1", "/run/netns/pod1/x", "eth0"),
        &attached.conf,
        "DEL with a path below a file",
    );
}

#[test]
fn after_the_namespace_has_gone() {
    for with_result in [true, false] {
        let attached = Attached::new();
        let conf = attached.conf_of_del(with_result);
        attached.pod.delete().unwrap();
        attached.del(&attached.pod.attachment("eth0"), &conf, "DEL after the namespace has gone");
        assert!(!attached.ctx.node.list_dir("/run/netns").unwrap().contains(&"pod1".to_owned()));
    }
}

#[test]
fn with_an_ordinary_file_where_the_namespace_was() {
    let attached = Attached::new();
    attached.pod.unmount_only().unwrap();
    attached.del(
        &attached.pod.attachment("eth0"),
        &attached.conf,
        "DEL with a file in place of the namespace",
    );
}

#[test]
fn after_the_interface_was_renamed() {
    let attached = Attached::new();
    attached.pod.sh("ip link set eth0 down && ip link set eth0 name net7").unwrap();
    attached.del(&attached.pod.attachment("eth0"), &attached.conf, "DEL after a rename");
    assert_unchanged(&attached.pod, &attached.pod_before, "DEL has left the renamed interface");
}

#[test]
fn after_the_interface_was_deleted() {
    let attached = Attached::new();
    attached.pod.sh("ip link del eth0").unwrap();
    attached.del(&attached.pod.attachment("eth0"), &attached.conf, "DEL after the link was deleted");
}

#[test]
fn after_the_bridge_was_deleted() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let before = ctx.snapshot();
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    ctx.node.sh("ip link del br0").unwrap();
    ctx.del(&pod.attachment("eth0"), &with_prev(&conf, &result));
    assert_only_shared_changed(&ctx, &before, "DEL without the bridge");
    assert!(ctx.reservations("net").is_empty());
}

/// CNI_NETNS can name the host's namespace if a process ID was reused. DEL must not delete anything of the
/// host then.
#[test]
fn with_the_hosts_namespace() {
    let attached = Attached::new();
    attached.ctx.node.sh("ip link add eth0 type veth peer name uplink").unwrap();
    let attachment = Attachment::new("pod1", "/proc/self/ns/net", "eth0");
    let failure = attached.ctx.fail("DEL", &attachment, &attached.conf);
    failure.expect(8, "plugin's netns and netns from CNI_NETNS should not be the same");
    assert!(
        try_link(&attached.ctx.node, "eth0").is_some() && try_link(&attached.ctx.node, "uplink").is_some()
    );
    attached.ctx.node.sh("ip link del eth0").unwrap();
    attached.assert_gone("DEL with the host's namespace");
}

#[test]
fn without_a_previous_add() {
    let stub = StubIpam::new();
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let before = ctx.snapshot();
    let conf = config("1.0.0", &json!({"ipMasq": true, "isGateway": true, "ipam": {"type": "stub"}}));
    ctx.del(&pod.attachment("eth0"), &conf);
    ctx.del(&Attachment::new("nobody", "", "eth0"), &conf);
    ctx.del(&Attachment::new("nobody", "/run/netns/nobody", "eth0"), &conf);
    assert_unchanged(&ctx.node, &before, "DEL created something");
    assert_eq!(stub.calls(), ["DEL", "DEL", "DEL"]);
    let plain = config("1.0.0", &json!({"ipMasq": true}));
    ctx.del(&pod.attachment("eth0"), &plain);
    assert_unchanged(&ctx.node, &before, "DEL created something");
}

/// A configuration error that makes ADD fail must not stop DEL: there may be no second DEL.
#[test]
fn with_an_invalid_configuration() {
    for keys in [
        json!({"vlan": 100}),
        json!({"vlan": "x", "vlanTrunk": 5, "macspoofchk": true, "ipMasqBackend": "iptables"}),
        json!({"portIsolation": true, "disableContainerInterface": true, "enabledad": true}),
        json!({"mtu": -5}),
        json!({"mtu": "x"}),
        json!({"bridge": "a name that is too long"}),
        json!({"bridge": 5}),
        json!({"hairpinMode": true, "promiscMode": true}),
        json!({"hairpinMode": "yes"}),
        json!({"runtimeConfig": {"mac": "nonsense"}}),
        json!({"runtimeConfig": 5, "args": [], "dns": "x"}),
        json!({"prevResult": {"cniVersion": "0.3.0", "interfaces": 5}}),
        json!({"prevResult": "nonsense"}),
        json!({"prevResult": {"cniVersion": "1.0.0", "interfaces": [null, {}]}}),
    ] {
        let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
        let ctx = with_stub(&stub);
        let pod = ctx.pod("pod1");
        let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
        ctx.add(&ctx.pod("other").attachment("eth0"), &conf);
        let before = ctx.snapshot();
        ctx.add(&pod.attachment("eth0"), &conf);
        stub.calls();
        ctx.del(&pod.attachment("eth0"), &overlay(&conf, &keys));
        assert_unchanged(&ctx.node, &before, &keys.to_string());
        assert_eq!(stub.calls(), ["DEL"], "{keys}");
        assert!(try_link(&pod, "eth0").is_none());
    }
}

#[test]
fn with_invalid_cni_args() {
    for args in ["K8S_POD_NAME=x", "MAC=nonsense", "A=B=C", ";;", "nonsense", "IgnoreUnknown=perhaps"] {
        let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
        let ctx = with_stub(&stub);
        let pod = ctx.pod("pod1");
        let conf = config("1.0.0", &json!({"ipam": {"type": "stub"}}));
        ctx.add(&pod.attachment("eth0"), &conf);
        ctx.del(&pod.attachment("eth0").with_args(args), &conf);
        assert!(try_link(&pod, "eth0").is_none(), "{args}");
        assert_eq!(stub.calls(), ["ADD", "DEL"], "{args}");
    }
    // And with the real host-local.
    let attached = Attached::new();
    attached.del(
        &attached.pod.attachment("eth0").with_args("K8S_POD_NAME=x"),
        &attached.conf,
        "DEL with unknown CNI_ARGS",
    );
}

#[test]
fn missing_ipam_plugin_is_reported_after_all_other_steps() {
    let attached = Attached::new();
    let exec =
        attached.ctx.exec("DEL", &attached.pod.attachment("eth0"), &attached.conf).path("/nonexistent");
    let failure = attached.ctx.node.call(&exec).unwrap().error();
    failure.expect(999, "failed to find plugin \"host-local\" in path [/nonexistent]");
    // containerd reads these words as "nothing to delete".
    for words in ["not found", "no such file or directory"] {
        assert!(!failure.msg.contains(words) && !failure.details.contains(words), "{failure:?}");
    }
    let ignored = [&SHARED[..], &["/var/lib/cni/networks/"]].concat();
    let difference =
        attached.before.clone().ignoring(&ignored).diff(&attached.ctx.snapshot().ignoring(&ignored));
    assert_eq!(difference, "", "DEL without the IPAM plugin");
    assert_unchanged(&attached.pod, &attached.pod_before, "DEL without the IPAM plugin");
    attached.del(&attached.pod.attachment("eth0"), &attached.conf, "DEL with the IPAM plugin again");
}

#[test]
fn ipam_error_is_reported_after_all_other_steps() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    let before = ctx.snapshot();
    ctx.add(&pod.attachment("eth0"), &conf);
    stub.fail("DEL", 123, "I will not");
    let failure = ctx.fail("DEL", &pod.attachment("eth0"), &conf);
    failure.expect(123, "I will not");
    assert_eq!(failure.details, "by the test");
    assert_only_shared_changed(&ctx, &before, "DEL with an error of IPAM");
    assert!(try_link(&pod, "eth0").is_none());
}

/// IPAM may give a released address to another container at once, so the link must be deleted first.
#[test]
fn link_is_deleted_before_the_address_is_released() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    let look =
        "nsenter --net=/run/netns/pod1 ip link show eth0 >/dev/null 2>&1 && echo there >> \"$dir/notes\"
        ip -o link show master br0 | grep -q . && echo port >> \"$dir/notes\"
        nft list ruleset | grep -q pod1 && echo rule >> \"$dir/notes\"
        true";
    stub.answer("DEL", look);
    stub.answer("CHECK", look);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    assert_eq!(
        stub.notes(),
        ["there", "port", "rule"],
        "the stub sees the link, the port and the rule before DEL"
    );
    for netns in ["/run/netns/pod1", ""] {
        ctx.del(&Attachment::new("pod1", netns, "eth0"), &conf);
        assert!(stub.notes().is_empty(), "{netns:?}");
        ctx.add(&pod.attachment("eth0"), &conf);
    }
}

/// Another attachment may have got the name. DEL must not delete its link.
#[test]
fn links_of_others_stay() {
    let attached = Attached::new();
    attached.ctx.del(&attached.pod.attachment("eth0"), &attached.conf);
    // A link with our port's name, and in prevResult a bridge and a veth that this attachment did not make.
    let port = attached.port();
    attached
        .ctx
        .node
        .sh(&format!(
            "ip link add {port} type veth peer name peer0; ip link add uplink type veth peer name peer1"
        ))
        .unwrap();
    let mut result = attached.result.clone();
    let stranger = json!({"name": "uplink", "mac": "02:00:00:00:00:01"});
    result["interfaces"].as_array_mut().unwrap().push(stranger);
    for netns in ["", "/run/netns/nobody", "/run/netns/pod1"] {
        attached.ctx.del(&Attachment::new("pod1", netns, "eth0"), &with_prev(&attached.conf, &result));
        for name in [port, "uplink", "br0"] {
            assert!(try_link(&attached.ctx.node, name).is_some(), "{name} with CNI_NETNS={netns:?}");
        }
    }
}

/// The result of a chain also reports other plugins' interfaces on the host. Those plugins delete them.
#[test]
fn interfaces_that_other_plugins_made_stay() {
    let attached = Attached::new();
    attached.ctx.node.sh("ip link add ifb9 type ifb").unwrap();
    let mut result = attached.result.clone();
    let address = mac(&attached.ctx.node, "ifb9");
    result["interfaces"].as_array_mut().unwrap().push(json!({"name": "ifb9", "mac": address}));
    attached.ctx.del(&Attachment::new("pod1", "", "eth0"), &with_prev(&attached.conf, &result));
    assert!(try_link(&attached.ctx.node, "ifb9").is_some());
}

/// The Go plugin gives the host's end a random name, which only the result reports.
#[test]
fn attachments_of_the_reference_are_removed_by_their_result() {
    for netns in ["/run/netns/pod1", ""] {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
        let before = ctx.snapshot();
        let go = ctx.with_plugins(plugins(Origin::Reference));
        let result = go.add(&pod.attachment("eth0"), &conf);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        ctx.del(&Attachment::new("pod1", netns, "eth0"), &with_prev(&conf, &result));
        assert_only_shared_changed(&ctx, &before, "DEL of the reference's attachment");
        assert!(try_link(&pod, "eth0").is_none() && ctx.reservations("net").is_empty(), "{netns:?}");
    }
}
