//! DEL removes everything that can be removed, whatever is missing, broken or gone already.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{
    Lab, SHARED, Stub, after, config, host_local, mac, overlay, ports, try_link, unchanged, with_prev,
};
use conformance::fixture::{PATIENCE, Place as _, Pod, Snapshot, eventually};
use conformance::runner::Attachment;
use serde_json::{Value, json};

/// A node, a pod on it with an address of host-local and masquerading, and the node as it was before.
struct Attached {
    lab: Lab,
    pod: Pod,
    conf: Value,
    result: Value,
    before: Snapshot,
    pod_before: Snapshot,
}

impl Attached {
    fn new() -> Attached {
        let lab = Lab::new();
        let pod = lab.pod("pod1");
        let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
        let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}));
        // The masquerading table stays, with its base chains: so it has to be there before.
        let other = lab.pod("other");
        lab.add(&other.attachment("eth0"), &conf);
        let (before, pod_before) = (lab.snapshot(), Snapshot::take(&pod).unwrap());
        let result = lab.add(&pod.attachment("eth0"), &conf);
        assert_eq!((ports(&lab.node, "br0").len(), lab.reservations().len()), (2, 4));
        Attached { lab, pod, conf, result, before, pod_before }
    }

    fn port(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    /// DEL succeeds, twice, and has left nothing on the node.
    fn del(&self, attachment: &Attachment, conf: &Value, what: &str) {
        self.lab.del(attachment, conf);
        self.is_gone(what);
        self.lab.del(attachment, conf);
        self.is_gone(what);
    }

    fn is_gone(&self, what: &str) {
        // The kernel may still be busy with a namespace that is going.
        eventually(PATIENCE, || try_link(&self.lab.node, self.port()).is_none());
        after(&self.lab, &self.before, what);
        assert_eq!(self.lab.reservations().len(), 2, "{what}");
    }
}

#[test]
fn with_everything_in_place() {
    for with_result in [true, false] {
        let it = Attached::new();
        let conf = if with_result { with_prev(&it.conf, &it.result) } else { it.conf.clone() };
        it.del(&it.pod.attachment("eth0"), &conf, "DEL");
        unchanged(&it.pod, &it.pod_before, "DEL has left something in the pod");
    }
}

#[test]
fn without_a_namespace_path_the_link_is_found_by_identity() {
    for with_result in [true, false] {
        let it = Attached::new();
        let conf = if with_result { with_prev(&it.conf, &it.result) } else { it.conf.clone() };
        it.del(&Attachment::new("pod1", "", "eth0"), &conf, "DEL without CNI_NETNS");
        unchanged(&it.pod, &it.pod_before, "DEL has left something in the living pod");
    }
}

#[test]
fn with_a_path_that_leads_nowhere() {
    let it = Attached::new();
    it.del(&Attachment::new("pod1", "/run/netns/nobody", "eth0"), &it.conf, "DEL with a wrong path");
    assert!(it.lab.node.list_dir("/run/netns").unwrap().iter().all(|name| name != "nobody"));
    let it = Attached::new();
    it.del(&Attachment::new("pod1", "/run/netns/pod1/x", "eth0"), &it.conf, "DEL with a path below a file");
}

#[test]
fn after_the_namespace_has_gone() {
    for with_result in [true, false] {
        let it = Attached::new();
        let conf = if with_result { with_prev(&it.conf, &it.result) } else { it.conf.clone() };
        it.pod.delete().unwrap();
        it.del(&it.pod.attachment("eth0"), &conf, "DEL after the namespace has gone");
        assert!(!it.lab.node.list_dir("/run/netns").unwrap().contains(&"pod1".to_owned()));
    }
}

#[test]
fn with_an_ordinary_file_where_the_namespace_was() {
    let it = Attached::new();
    it.pod.unmount_only().unwrap();
    it.del(&it.pod.attachment("eth0"), &it.conf, "DEL with a file in place of the namespace");
}

#[test]
fn after_the_interface_was_renamed() {
    let it = Attached::new();
    it.pod.sh("ip link set eth0 down && ip link set eth0 name net7").unwrap();
    it.del(&it.pod.attachment("eth0"), &it.conf, "DEL after a rename");
    unchanged(&it.pod, &it.pod_before, "DEL has left the renamed interface");
}

#[test]
fn after_the_interface_was_deleted() {
    let it = Attached::new();
    it.pod.sh("ip link del eth0").unwrap();
    it.del(&it.pod.attachment("eth0"), &it.conf, "DEL after the link was deleted");
}

#[test]
fn after_the_bridge_was_deleted() {
    let lab = Lab::new();
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let before = lab.snapshot();
    let result = lab.add(&pod.attachment("eth0"), &conf);
    lab.node.sh("ip link del br0").unwrap();
    lab.del(&pod.attachment("eth0"), &with_prev(&conf, &result));
    after(&lab, &before, "DEL without the bridge");
    assert!(lab.reservations().is_empty());
}

/// CNI_NETNS can lead to the host when a process ID is used again. Then nothing of the host's may go.
#[test]
fn with_the_host_s_own_namespace() {
    let it = Attached::new();
    it.lab.node.sh("ip link add eth0 type veth peer name uplink").unwrap();
    let attachment = Attachment::new("pod1", "/proc/self/ns/net", "eth0");
    let refusal = it.lab.refused("DEL", &attachment, &it.conf);
    refusal.expect(8, "plugin's netns and netns from CNI_NETNS should not be the same");
    assert!(try_link(&it.lab.node, "eth0").is_some() && try_link(&it.lab.node, "uplink").is_some());
    it.lab.node.sh("ip link del eth0").unwrap();
    it.is_gone("DEL with the host's namespace");
}

#[test]
fn of_what_was_never_added() {
    let stub = Stub::new();
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let before = lab.snapshot();
    let conf = config("1.0.0", &json!({"ipMasq": true, "isGateway": true, "ipam": {"type": "stub"}}));
    lab.del(&pod.attachment("eth0"), &conf);
    lab.del(&Attachment::new("nobody", "", "eth0"), &conf);
    lab.del(&Attachment::new("nobody", "/run/netns/nobody", "eth0"), &conf);
    unchanged(&lab.node, &before, "DEL has made something");
    assert_eq!(stub.calls(), ["DEL", "DEL", "DEL"]);
    let plain = config("1.0.0", &json!({"ipMasq": true}));
    lab.del(&pod.attachment("eth0"), &plain);
    unchanged(&lab.node, &before, "DEL has made something");
}

/// There may be no other chance: what ADD would refuse does not keep DEL from its work.
#[test]
fn with_a_configuration_that_has_become_invalid() {
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
        let stub = Stub::assigning("1.0.0", &["10.1.0.2/24"]);
        let lab = Lab::with_stub(&stub);
        let pod = lab.pod("pod1");
        let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
        lab.add(&lab.pod("other").attachment("eth0"), &conf);
        let before = lab.snapshot();
        lab.add(&pod.attachment("eth0"), &conf);
        stub.calls();
        lab.del(&pod.attachment("eth0"), &overlay(&conf, &keys));
        unchanged(&lab.node, &before, &keys.to_string());
        assert_eq!(stub.calls(), ["DEL"], "{keys}");
        assert!(try_link(&pod, "eth0").is_none());
    }
}

#[test]
fn with_arguments_that_add_would_refuse() {
    for args in ["K8S_POD_NAME=x", "MAC=nonsense", "A=B=C", ";;", "nonsense", "IgnoreUnknown=perhaps"] {
        let stub = Stub::assigning("1.0.0", &["10.1.0.2/24"]);
        let lab = Lab::with_stub(&stub);
        let pod = lab.pod("pod1");
        let conf = config("1.0.0", &json!({"ipam": {"type": "stub"}}));
        lab.add(&pod.attachment("eth0"), &conf);
        lab.del(&pod.attachment("eth0").with_args(args), &conf);
        assert!(try_link(&pod, "eth0").is_none(), "{args}");
        assert_eq!(stub.calls(), ["ADD", "DEL"], "{args}");
    }
    // And with the real host-local behind it.
    let it = Attached::new();
    it.del(&it.pod.attachment("eth0").with_args("K8S_POD_NAME=x"), &it.conf, "DEL with unknown CNI_ARGS");
}

#[test]
fn an_ipam_plugin_that_is_missing_is_an_error_after_everything_else() {
    let it = Attached::new();
    let exec = it.lab.exec("DEL", &it.pod.attachment("eth0"), &it.conf).path("/nonexistent");
    let refusal = common::Refusal::of(&it.lab.node.call(&exec).unwrap());
    refusal.expect(999, "failed to find plugin \"host-local\" in path [/nonexistent]");
    // containerd takes these words for "nothing to do".
    for words in ["not found", "no such file or directory"] {
        assert!(!refusal.msg.contains(words) && !refusal.details.contains(words), "{refusal:?}");
    }
    let ignored = [&SHARED[..], &["/var/lib/cni/networks/"]].concat();
    let difference = it.before.clone().ignoring(&ignored).diff(&it.lab.snapshot().ignoring(&ignored));
    assert_eq!(difference, "", "DEL without the IPAM plugin");
    unchanged(&it.pod, &it.pod_before, "DEL without the IPAM plugin");
    it.del(&it.pod.attachment("eth0"), &it.conf, "DEL when the IPAM plugin is back");
}

#[test]
fn an_error_of_ipam_is_passed_on_after_everything_else() {
    let stub = Stub::assigning("1.0.0", &["10.1.0.2/24"]);
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    let before = lab.snapshot();
    lab.add(&pod.attachment("eth0"), &conf);
    stub.fail("DEL", 123, "I will not");
    let refusal = lab.refused("DEL", &pod.attachment("eth0"), &conf);
    refusal.expect(123, "I will not");
    assert_eq!(refusal.details, "by the test");
    after(&lab, &before, "DEL with an error of IPAM");
    assert!(try_link(&pod, "eth0").is_none());
}

/// The address is given back when nobody uses it any more, not before.
#[test]
fn the_link_goes_before_the_address() {
    let stub = Stub::assigning("1.0.0", &["10.1.0.2/24"]);
    let look =
        "nsenter --net=/run/netns/pod1 ip link show eth0 >/dev/null 2>&1 && echo there >> \"$dir/notes\"
        ip -o link show master br0 | grep -q . && echo port >> \"$dir/notes\"
        nft list ruleset | grep -q pod1 && echo rule >> \"$dir/notes\"
        true";
    stub.answer("DEL", look);
    stub.answer("CHECK", look);
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    let result = lab.add(&pod.attachment("eth0"), &conf);
    lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    assert_eq!(stub.notes(), ["there", "port", "rule"], "that the stub can see them");
    for netns in ["/run/netns/pod1", ""] {
        lab.del(&Attachment::new("pod1", netns, "eth0"), &conf);
        assert!(stub.notes().is_empty(), "{netns:?}");
        lab.add(&pod.attachment("eth0"), &conf);
    }
}

/// A name may have passed to somebody else: what is not this attachment's stays.
#[test]
fn strangers_links_stay() {
    let it = Attached::new();
    it.lab.del(&it.pod.attachment("eth0"), &it.conf);
    // The same name, another link; and a bridge and a veth that prevResult names without having made them.
    let port = it.port();
    it.lab
        .node
        .sh(&format!(
            "ip link add {port} type veth peer name peer0; ip link add uplink type veth peer name peer1"
        ))
        .unwrap();
    let mut result = it.result.clone();
    let stranger = json!({"name": "uplink", "mac": "02:00:00:00:00:01"});
    result["interfaces"].as_array_mut().unwrap().push(stranger);
    for netns in ["", "/run/netns/nobody", "/run/netns/pod1"] {
        it.lab.del(&Attachment::new("pod1", netns, "eth0"), &with_prev(&it.conf, &result));
        for name in [port, "uplink", "br0"] {
            assert!(try_link(&it.lab.node, name).is_some(), "{name} with CNI_NETNS={netns:?}");
        }
    }
}

/// In the result of a chain are interfaces of other plugins, on the host as well. They remove theirs themselves.
#[test]
fn interfaces_that_other_plugins_made_stay() {
    let it = Attached::new();
    it.lab.node.sh("ip link add ifb9 type ifb").unwrap();
    let mut result = it.result.clone();
    let address = mac(&it.lab.node, "ifb9");
    result["interfaces"].as_array_mut().unwrap().push(json!({"name": "ifb9", "mac": address}));
    it.lab.del(&Attachment::new("pod1", "", "eth0"), &with_prev(&it.conf, &result));
    assert!(try_link(&it.lab.node, "ifb9").is_some());
}

/// The Go plugin gives the host's end a random name, which only its result tells.
#[test]
fn what_the_reference_attached_is_detached_by_its_result() {
    let go = conformance::fixture::go_bin_dir().unwrap();
    for netns in ["/run/netns/pod1", ""] {
        let lab = Lab::new();
        let pod = lab.pod("pod1");
        let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
        let before = lab.snapshot();
        let mut exec = lab.exec("ADD", &pod.attachment("eth0"), &conf);
        exec.binary = go.join("bridge");
        let output = lab.node.call(&exec).unwrap();
        assert!(output.success(), "{}", output.stdout_text());
        let result = output.document().unwrap();
        lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        lab.del(&Attachment::new("pod1", netns, "eth0"), &with_prev(&conf, &result));
        after(&lab, &before, "DEL of what the reference attached");
        assert!(try_link(&pod, "eth0").is_none() && lab.reservations().is_empty(), "{netns:?}");
    }
}
