//! ADD, and the whole sequence from ADD to DEL, in every specification version and mix of address families.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::Command;

use cni_lab::testing::{
    StubIpam, TestContext, VERSIONS, addresses, assert_layout, assert_unchanged, flags, has_check,
    host_local, is_per_family, link, mac, overlay, ports, routes, sysctl, try_link, with_prev,
};
use cni_lab::{Place, Pod, Snapshot};
use cni_runner::{Attachment, Exec};
use common::{assert_only_shared_changed, config, ours, wait_for_dad, with_stub};
use serde_json::{Value, json};

/// Makes ADD, CHECK and two DELs. The stub IPAM plugin assigns these addresses.
fn add_check_del(version: &str, assigned: &[&str]) {
    let stub = StubIpam::assigning(version, assigned);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let attachment = pod.attachment("eth0");
    let (before, pod_before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
    let keys = if assigned.is_empty() {
        json!({})
    } else {
        json!({"isGateway": true, "isDefaultGateway": true, "ipam": {"type": "stub"}})
    };
    let conf = config(version, &keys);

    let result = ctx.add(&attachment, &conf);
    assert_layout(version, &result);
    let mut expected: Vec<&str> = assigned.to_vec();
    expected.sort_unstable();
    assert_eq!(addresses(&pod, "eth0"), expected, "{version}");
    assert_eq!(reported_addresses(version, &result), expected, "{version}");
    assert_eq!(ports(&ctx.node, "br0").len(), 1);
    assert!(flags(&pod, "eth0").contains(&"UP".to_owned()), "{version}");
    if !is_per_family(version) {
        assert_interfaces(&ctx, &pod, &attachment, &result);
    }
    if assigned.iter().any(|address| address.contains('.')) {
        assert_eq!(routes(&pod, "default")[0]["gateway"], "10.1.0.1", "{version}");
    }
    if assigned.iter().any(|address| address.contains(':')) {
        assert_eq!(routes(&pod, "-6 default")[0]["gateway"], "fd00:1::1", "{version}");
    }

    if has_check(version) {
        let checked = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
        ctx.check(&attachment, &with_prev(&conf, &result));
        assert_unchanged(&ctx.node, &checked.0, "CHECK has changed the node");
        assert_unchanged(&pod, &checked.1, "CHECK has changed the pod");
    } else {
        let failure = ctx.fail("CHECK", &attachment, &with_prev(&conf, &result));
        failure.expect(1, "config version does not allow CHECK");
    }
    // Since 0.4.0 runtimes pass the result to DEL.
    let conf = if has_check(version) { with_prev(&conf, &result) } else { conf };
    ctx.del(&attachment, &conf);
    assert_unchanged(&pod, &pod_before, "DEL has left something in the pod");
    assert_only_shared_changed(&ctx, &before, "DEL has left something on the node");
    ctx.del(&attachment, &conf);
    if !assigned.is_empty() {
        let checks: &[&str] = if has_check(version) { &["CHECK"] } else { &[] };
        assert_eq!(stub.calls(), [&["ADD"], checks, &["DEL", "DEL"]].concat(), "{version}");
    }
}

fn reported_addresses(version: &str, result: &Value) -> Vec<String> {
    let text = |address: &Value| address.as_str().unwrap().to_owned();
    let mut reported: Vec<String> = if is_per_family(version) {
        ["ip4", "ip6"].iter().filter_map(|key| Some(text(&result.get(key)?["ip"]))).collect()
    } else {
        let ips = result.get("ips").map(|ips| ips.as_array().unwrap().clone()).unwrap_or_default();
        assert!(ips.iter().all(|ip| ip["interface"] == 2), "{result}");
        ips.iter().map(|ip| text(&ip["address"])).collect()
    };
    reported.sort();
    reported
}

/// Checks that the result reports the bridge, the host's end and the container's end as they are in the
/// kernel.
fn assert_interfaces(ctx: &TestContext, pod: &Pod, attachment: &Attachment, result: &Value) {
    let is_newest = result["cniVersion"] == "1.1.0";
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 3, "{result}");
    let port = interfaces[1]["name"].as_str().unwrap();
    assert_eq!(interfaces[0]["name"], "br0");
    assert_eq!(interfaces[2]["name"], "eth0");
    assert_eq!(ports(&ctx.node, "br0"), [port]);
    let real = [link(&ctx.node, "br0"), link(&ctx.node, port), link(pod, "eth0")];
    for (reported, real) in interfaces.iter().zip(&real) {
        assert_eq!(reported["mac"], real["address"], "{result}");
        assert_eq!(reported.get("mtu"), is_newest.then_some(&real["mtu"]), "{result}");
        assert!(real["flags"].as_array().unwrap().contains(&json!("UP")), "{real}");
    }
    for (reported, real) in interfaces[1..].iter().zip(&real[1..]) {
        assert_eq!(real["linkinfo"]["info_kind"], "veth", "{reported}");
    }
    for host in &interfaces[..2] {
        assert!(host.get("sandbox").is_none(), "{result}");
    }
    assert_eq!(interfaces[2]["sandbox"], attachment.netns, "{result}");
}

#[test]
fn ipv4_in_every_version() {
    VERSIONS.iter().for_each(|version| add_check_del(version, &["10.1.0.2/24"]));
}

#[test]
fn ipv6_in_every_version() {
    VERSIONS.iter().for_each(|version| add_check_del(version, &["fd00:1::2/64"]));
}

#[test]
fn dual_stack_in_every_version() {
    VERSIONS.iter().for_each(|version| add_check_del(version, &["10.1.0.2/24", "fd00:1::2/64"]));
}

#[test]
fn without_ipam_since_0_3_0() {
    VERSIONS.iter().filter(|version| !is_per_family(version)).for_each(|version| add_check_del(version, &[]));
}

#[test]
fn without_ipam_before_0_3_0_is_refused_before_anything_is_created() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let (before, pod_before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
    for version in ["", "0.1.0", "0.2.0"] {
        let failure = ctx.fail("ADD", &pod.attachment("eth0"), &config(version, &json!({})));
        failure.expect(7, "cannot convert: no valid IP addresses");
    }
    assert_unchanged(&ctx.node, &before, "the node after a refusal");
    assert_unchanged(&pod, &pod_before, "the pod after a refusal");
}

/// With our host-local, in every version that it supports.
#[test]
fn host_local_in_its_versions() {
    let ctx = ours();
    let answer = ctx.node.call(&Exec::new(ctx.plugins.path().join("host-local"), "VERSION")).unwrap();
    let versions = answer.document().unwrap()["supportedVersions"].as_array().unwrap().clone();
    assert!(versions.contains(&json!("1.0.0")));
    for version in versions.iter().map(|version| version.as_str().unwrap()) {
        let pod = ctx.pod(&format!("pod-{version}"));
        let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
        let conf = config(version, &json!({"isDefaultGateway": true, "ipam": ipam}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_layout(version, &result);
        assert_eq!(addresses(&pod, "eth0"), reported_addresses(version, &result));
        assert_eq!(ctx.reservations("net").len(), 2);
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -c 1 -W 2 fd00:1::1").unwrap();
        let prev = with_prev(&conf, &result);
        if has_check(version) {
            ctx.check(&pod.attachment("eth0"), &prev);
        }
        ctx.del(&pod.attachment("eth0"), &conf);
        assert!(ctx.reservations("net").is_empty(), "{version}");
    }
}

/// A missing, empty or null `cniVersion` means 0.1.0.
#[test]
fn empty_version_means_0_1_0() {
    let stub = StubIpam::assigning("0.1.0", &["10.1.0.2/24"]);
    let ctx = with_stub(&stub);
    for (name, version) in [("empty", json!("")), ("null", json!(null))] {
        let pod = ctx.pod(name);
        let conf = config("", &json!({"cniVersion": version, "ipam": {"type": "stub"}}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_layout("0.1.0", &result);
        ctx.del(&pod.attachment("eth0"), &conf);
    }
}

#[test]
fn pods_reach_gateways_other_pods_and_outside() {
    let ctx = ours();
    let client = ctx.node.outside_client("192.0.2.0/24").unwrap();
    let client6 = ctx.node.outside_client("2001:db8::/64").unwrap();
    wait_for_dad(&ctx, &client6);
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": ipam}));
    let pods: Vec<Pod> = (0..3).map(|n| ctx.pod(&format!("pod{n}"))).collect();
    let results: Vec<Value> = pods.iter().map(|pod| ctx.add(&pod.attachment("eth0"), &conf)).collect();
    for pod in &pods {
        let outside = [client.address().to_string(), client6.address().to_string()];
        let gateways = ["10.1.0.1".to_owned(), "fd00:1::1".to_owned()];
        let others = results.iter().flat_map(|result| reported_addresses("1.0.0", result));
        let others = others.map(|address| address.split('/').next().unwrap().to_owned());
        for target in outside.into_iter().chain(gateways).chain(others) {
            // Skip the pod's own address: lo is down, because the loopback plugin was not called.
            let own = addresses(pod, "eth0").iter().any(|own| own.split('/').next() == Some(&target));
            if !own {
                pod.sh(&format!("ping -c 1 -W 2 {target}")).unwrap();
            }
        }
    }
}

#[test]
fn sandbox_equals_cni_netns() {
    let ctx = ours();
    let conf = config("1.0.0", &json!({}));
    ctx.node.sh("ln -s /run/netns /run/elsewhere").unwrap();
    let pod = ctx.pod("pod1");
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let mut process = pod.spawn(sleep).unwrap();
    let of_process = format!("/proc/{}/ns/net", process.child().id());
    // `spawn` starts setpriv, which becomes sleep; both run in the pod's namespace from the start.
    for netns in ["/run/netns/../netns/pod1", "/run/elsewhere/pod1", "//run/netns/pod1", &of_process] {
        let attachment = Attachment::new("pod1", netns, "eth0");
        let result = ctx.add(&attachment, &conf);
        assert_eq!(result["interfaces"][2]["sandbox"], netns);
        assert!(try_link(&pod, "eth0").is_some(), "{netns}");
        ctx.check(&attachment, &with_prev(&conf, &result));
        ctx.del(&attachment, &with_prev(&conf, &result));
        assert!(try_link(&pod, "eth0").is_none(), "{netns}");
    }
}

/// The result begins with what earlier plugins of the chain made.
#[test]
fn prev_result_is_passed_on() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let stub = StubIpam::assigning(version, &["10.1.0.2/24"]);
        let ctx = with_stub(&stub);
        let pod = ctx.pod("pod1");
        let mut earlier = json!({
            "cniVersion": version,
            "interfaces": [{"name": "first0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/pod1"}],
            "ips": [{"address": "192.0.2.9/24", "gateway": "192.0.2.1", "interface": 0}],
            "routes": [{"dst": "198.51.100.0/24", "gw": "192.0.2.1"}],
            "dns": {"nameservers": ["192.0.2.53"]}});
        if version < "1.0.0" {
            earlier["ips"][0]["version"] = json!("4");
        }
        let conf = config(version, &json!({"isDefaultGateway": true, "ipam": {"type": "stub"}}));
        let conf = with_prev(&conf, &earlier);
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_layout(version, &result);
        let names: Vec<&Value> =
            result["interfaces"].as_array().unwrap().iter().map(|interface| &interface["name"]).collect();
        assert_eq!([names[0], names[1], names[3]], ["first0", "br0", "eth0"]);
        assert_eq!(result["ips"][0], earlier["ips"][0]);
        assert_eq!(result["ips"][1]["address"], "10.1.0.2/24");
        assert_eq!(result["ips"][1]["interface"], 3);
        assert_eq!(result["routes"], json!([earlier["routes"][0], {"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]));
        assert_eq!(result["dns"], earlier["dns"]);
        // The plugin configures only its own interface.
        assert_eq!(addresses(&pod, "eth0"), ["10.1.0.2/24"]);
        assert!(routes(&pod, "198.51.100.0/24").is_empty());
        if has_check(version) {
            // Another plugin's route is not in this namespace; it must not make this CHECK fail.
            let tolerant = overlay(&result, &json!({"routes": [result["routes"][1]]}));
            ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &tolerant));
        }
        ctx.del(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
}

#[test]
fn ipam_gets_the_unchanged_input() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    let ctx = with_stub(&stub);
    let attachment = ctx.pod("pod1").attachment("eth0").with_args("IgnoreUnknown=1;K8S_POD_NAME=x");
    // Key order, white space and unknown keys must not change.
    let conf = r#" {"zzz": [1e3, "é<&>"], "type":"bridge","name":"net",  "ipam":{"type":"stub","x":{}},
        "cniVersion":"1.0.0","bridge":"br0"}"#;
    for verb in ["ADD", "DEL"] {
        let output = ctx.node.call(&ctx.exec(verb, &attachment, &json!({})).stdin(conf)).unwrap();
        assert!(output.success(), "{}", output.stdout_text());
        assert_eq!(stub.stdin(verb), conf);
        let expected = [
            "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=x",
            &format!("CNI_COMMAND={verb}"),
            "CNI_CONTAINERID=pod1",
            "CNI_IFNAME=eth0",
            "CNI_NETNS=/run/netns/pod1",
            &format!("CNI_PATH={}", ctx.path),
        ];
        assert_eq!(stub.env(verb), expected);
    }
}

#[test]
fn two_interfaces_of_a_container_on_one_network() {
    let ctx = ours();
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &conf);
    let second = ctx.add(&pod.attachment("eth1"), &conf);
    assert_eq!(addresses(&pod, "eth1"), ["10.1.0.3/24"]);
    assert_eq!(ports(&ctx.node, "br0").len(), 2);
    ctx.del(&pod.attachment("eth0"), &conf);
    assert_eq!(addresses(&pod, "eth1"), ["10.1.0.3/24"]);
    assert_eq!(ctx.reservations("net"), ["10.1.0.3"]);
    ctx.check(&pod.attachment("eth1"), &with_prev(&conf, &second));
    ctx.del(&pod.attachment("eth1"), &conf);
    assert!(ports(&ctx.node, "br0").is_empty());
}

/// The bridge keeps its MAC address while ports are added and removed: neighbours have cached it.
#[test]
fn bridge_keeps_its_mac_address() {
    let ctx = ours();
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let pods: Vec<Pod> = (0..4).map(|n| ctx.pod(&format!("pod{n}"))).collect();
    ctx.add(&pods[0].attachment("eth0"), &conf);
    let address = mac(&ctx.node, "br0");
    for pod in &pods[1..] {
        let with_lowest = overlay(&conf, &json!({"runtimeConfig": {"mac": "02:00:00:00:00:01"}}));
        ctx.add(&pod.attachment("eth0"), &with_lowest);
        assert_eq!(mac(&ctx.node, "br0"), address);
        ctx.del(&pod.attachment("eth0"), &conf);
        assert_eq!(mac(&ctx.node, "br0"), address);
    }
    ctx.del(&pods[0].attachment("eth0"), &conf);
    assert_eq!(mac(&ctx.node, "br0"), address);
}

#[test]
fn routers_in_containers_do_not_configure_the_host() {
    for prepare in ["true", "ip link add br0 type bridge && ip link set br0 up"] {
        let ctx = ours();
        ctx.node.sh(prepare).unwrap();
        let result = ctx.add(&ctx.pod("pod1").attachment("eth0"), &config("1.0.0", &json!({})));
        for interface in &result["interfaces"].as_array().unwrap()[..2] {
            let name = interface["name"].as_str().unwrap();
            assert_eq!(sysctl(&ctx.node, &format!("ipv6/conf/{name}/accept_ra")), "0", "{prepare}: {name}");
        }
    }
}

/// With `arp_notify` the kernel announces an address when the link comes up, so neighbours learn the new MAC
/// at once.
#[test]
fn addresses_are_announced() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &config("1.0.0", &json!({"ipam": host_local(&["10.1.0.0/24"])})));
    assert_eq!(sysctl(&pod, "ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(link(&pod, "eth0")["addr_info"][0]["broadcast"], "10.1.0.255");
}
