//! ADD, CHECK and DEL: the state of both ends, in all versions.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{
    StubIpam, VERSIONS, addresses, assert_layout, fail, has_check, is_per_family, link, network_config,
    overlay, sysctl, with_prev,
};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{assert_nothing_left, config, host_end, ours, snapshot, with_stub};
use serde_json::{Value, json};

#[test]
fn all_versions() {
    for version in VERSIONS {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let before = snapshot(&ctx);
        let conf = config(version, &json!({"ipMasq": true}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_layout(version, &result);
        if !is_per_family(version) {
            assert_eq!(result["interfaces"][1]["sandbox"], "/run/netns/pod1");
            assert_eq!(
                (&result["ips"][0]["interface"], &result["ips"][1]["interface"]),
                (&json!(1), &json!(1))
            );
        }
        pod.sh("ping -c 1 -w 30 10.1.2.1 && ping -6 -c 1 -w 30 fd00:1::1").unwrap();
        if has_check(version) {
            ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        }
        ctx.del(&pod.attachment("eth0"), &conf);
        ctx.del(&pod.attachment("eth0"), &conf);
        assert_nothing_left(&ctx, &before, version);
    }
}

/// The routes that `ip` prints, without the name of the host's link and without defaults.
fn routes(place: &impl cni_lab::Place, family: &str, name: &str) -> Vec<String> {
    let text = place.sh(&format!("ip {family} route show | grep -v -e fe80 -e ff00")).unwrap();
    text.lines()
        .map(|line| line.replace(name, "HOST").replace(" pref medium", "").trim().to_owned())
        .collect()
}

/// The reference's state.
#[test]
fn addresses_and_routes_of_both_ends() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let conf = config("1.1.0", &json!({"mtu": 5000, "dns": {"nameservers": ["192.0.2.53"]}}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    let host = host_end(&result);
    assert_eq!(addresses(&ctx.node, host), ["10.1.2.1/32", "fd00:1::1/128"]);
    assert_eq!(addresses(&pod, "eth0"), ["10.1.2.2/24", "fd00:1::2/64"]);
    assert_eq!(routes(&ctx.node, "-4", host), ["10.1.2.2 dev HOST scope host"]);
    // `ip` also prints the route of the kernel to the host's own address.
    assert!(routes(&ctx.node, "-6", host).contains(&"fd00:1::2 dev HOST metric 1024".to_owned()));
    // Not the kernel's: the release of its anycast address costs DEL a grace period of its own.
    let link_local =
        ctx.node.sh(&format!("ip -6 -o addr show dev {host} scope link | grep -v tentative")).unwrap();
    assert!(link_local.lines().count() == 1 && link_local.contains("/128 "), "{link_local}");
    let v4 = [
        "default via 10.1.2.1 dev eth0",
        "10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.2",
        "10.1.2.1 dev eth0 scope link src 10.1.2.2",
    ];
    assert_eq!(routes(&pod, "-4", host), v4);
    let v6 = [
        "fd00:1::1 dev eth0 src fd00:1::2 metric 1024",
        "fd00:1::/64 via fd00:1::1 dev eth0 src fd00:1::2 metric 1024",
        "default via fd00:1::1 dev eth0 metric 1024",
    ];
    assert_eq!(routes(&pod, "-6", host), v6);
    assert_eq!((&link(&ctx.node, host)["mtu"], &link(&pod, "eth0")["mtu"]), (&json!(5000), &json!(5000)));
    assert_eq!(sysctl(&ctx.node, &format!("ipv6/conf/{host}/accept_ra")), "0");
    assert_eq!(
        (sysctl(&ctx.node, "ipv4/ip_forward"), sysctl(&ctx.node, "ipv6/conf/all/forwarding")),
        ("1".into(), "1".into())
    );
    assert_eq!(result["dns"], json!({"nameservers": ["192.0.2.53"]}));
    assert_eq!(result["interfaces"][0]["mtu"], 5000);
}

#[test]
fn pods_reach_each_other_and_addresses_need_no_subnet() {
    let stub = StubIpam::new();
    let ctx = with_stub(&stub);
    let conf = network_config("ptp", "1.0.0", &json!({"ipam": {"type": "stub"}}));
    let pods = ["one", "two"].map(|name| ctx.pod(name));
    for (pod, number) in pods.iter().zip(2..) {
        // Two addresses in one subnet, and the natural form of a point-to-point address.
        let ips = json!([
            {"address": format!("10.1.2.{number}/24"), "gateway": "10.1.2.1"},
            {"address": format!("10.1.2.1{number}/24"), "gateway": "10.1.2.1"},
            {"address": format!("10.9.0.{number}/32"), "gateway": "169.254.1.1"},
        ]);
        // 10.1.2.77 is in the subnet, but is not its gateway.
        let routes =
            json!([{"dst": "10.9.0.0/24", "gw": "169.254.1.1"}, {"dst": "10.77.0.0/16", "gw": "10.1.2.77"}]);
        stub.result(&json!({"cniVersion": "1.0.0", "ips": ips, "routes": routes}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
    for target in ["10.1.2.3", "10.1.2.13", "10.9.0.3"] {
        pods[0].sh(&format!("ping -c 1 -w 30 {target}")).unwrap();
    }
    pods[0].sh("ping -c 1 -w 30 -I 10.9.0.2 10.9.0.3").unwrap();
}

#[test]
fn a_failed_add_leaves_nothing() {
    let stub = StubIpam::new();
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let stubbed =
        |keys: Value| network_config("ptp", "1.0.0", &overlay(&json!({"ipam": {"type": "stub"}}), &keys));
    let with_gateway = json!([{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}]);
    let before = ctx.snapshot();
    for (ips, keys, code, text, calls) in [
        (json!([]), json!({}), 999, "IPAM plugin returned missing IP config", 2),
        (
            json!([{"address": "10.1.2.3/24"}]),
            json!({}),
            999,
            "IPAM plugin returned no gateway for 10.1.2.3/24",
            2,
        ),
        (with_gateway.clone(), json!({"ipMasqBackend": "foo"}), 7, "unknown ipmasq backend \"foo\"", 0),
        (with_gateway.clone(), json!({"ipam": {}}), 7, "no plugin name provided", 0),
    ] {
        stub.result(&json!({"cniVersion": "1.0.0", "ips": ips}));
        ctx.fail("ADD", &pod.attachment("eth0"), &stubbed(keys)).expect(code, text);
        assert_eq!(stub.calls().len(), calls, "{text}");
        assert_eq!(before.diff(&ctx.snapshot()), "", "{text}");
    }
    stub.result(&json!({"cniVersion": "1.0.0", "ips": with_gateway, "routes": [{"dst": "10.9.0.0/16", "gw": "192.0.2.1"}]}));
    let before = snapshot(&ctx);
    ctx.fail("ADD", &pod.attachment("eth0"), &stubbed(json!({})))
        .expect(999, "failed to add route '10.9.0.0/16");
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    assert_nothing_left(&ctx, &before, "a refused route");
    // No iptables: the last step fails.
    stub.result(&json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}]}));
    let bare = ctx.with_programs(stub.dir());
    let mut exec = bare.exec(
        "ADD",
        &pod.attachment("eth0"),
        &stubbed(json!({"ipMasq": true, "ipMasqBackend": "iptables"})),
    );
    // The stub is a shell script, which needs its programs.
    stub.answer("ADD", "echo '{\"cniVersion\": \"1.0.0\", \"ips\": [{\"address\": \"10.1.2.3/24\", \"gateway\": \"10.1.2.1\"}]}'");
    exec.env.retain(|(key, _)| key != "PATH");
    exec.env.push(("PATH".to_owned(), "/usr/bin:/bin".to_owned()));
    let error = fail(&ctx.node, &exec, 999);
    assert!(
        error.contains("add masquerade rules with iptables") && error.contains("not on the PATH"),
        "{error}"
    );
    assert_nothing_left(&ctx, &before, "no iptables");
}

#[test]
fn a_second_add_fails_and_changes_nothing() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"ipMasq": true}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    let before = ctx.snapshot();
    let error = ctx.fail("ADD", &pod.attachment("eth0"), &conf);
    let text =
        format!("container veth name (\"eth0\") peer provided ({:?}) already exists", host_end(&result));
    assert_eq!(error.msg, text);
    assert_eq!(before.diff(&ctx.snapshot()), "");
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
}

/// This kernel has no netkit; a kernel that has it runs the same steps with another link type.
#[test]
fn a_link_type_that_the_kernel_lacks() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let before = snapshot(&ctx);
    let has_netkit = ctx.node.sh("ip link add probe type netkit && ip link del probe").is_ok();
    let conf = config("1.0.0", &json!({"linkType": "netkit", "ipMasq": true}));
    if has_netkit {
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        pod.sh("ping -c 1 -w 30 10.1.2.1 && ping -6 -c 1 -w 30 fd00:1::1").unwrap();
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        ctx.del(&pod.attachment("eth0"), &conf);
    } else {
        ctx.fail("ADD", &pod.attachment("eth0"), &conf)
            .expect(2, "the kernel has no links of type \"netkit\"");
    }
    assert_nothing_left(&ctx, &before, "netkit");
}

#[test]
fn del_without_a_namespace_or_a_result() {
    for backend in ["nftables", "iptables"] {
        let ctx = ours();
        let before = snapshot(&ctx);
        let pod = ctx.pod("pod1");
        let conf = config("1.0.0", &json!({"ipMasq": true, "ipMasqBackend": backend}));
        ctx.add(&pod.attachment("eth0"), &conf);
        // A process keeps the namespace alive, so the kernel does not remove the pair.
        let mut sleep = std::process::Command::new("sleep");
        sleep.arg("60");
        let holder = pod.spawn(sleep).unwrap();
        let attachment = Attachment { netns: String::new(), ..pod.attachment("eth0") };
        ctx.del(&attachment, &overlay(&conf, &json!({"mtu": "x", "ipMasqBackend": "foo"})));
        assert_nothing_left(&ctx, &before, backend);
        drop(holder);
    }
}

#[test]
fn gc_removes_what_lost_attachments_left() {
    let ctx = ours();
    let before = snapshot(&ctx);
    let conf = config("1.1.0", &json!({"ipMasq": true}));
    let pod = ctx.pod("lost");
    ctx.add(&pod.attachment("eth0"), &conf);
    pod.delete().unwrap();
    assert!(eventually(TIMEOUT, || before.diff(&snapshot(&ctx)).is_empty()));
    ctx.succeed("GC", &Attachment::default(), &overlay(&conf, &json!({"cni.dev/valid-attachments": []})));
    assert_nothing_left(&ctx, &before, "GC");
}

#[test]
fn check_detects_every_change() {
    for (script, text) in [
        ("pod:ip link del eth0", "interface \"eth0\" not found"),
        ("pod:ip address del 10.1.2.2/24 dev eth0", "10.1.2.2/24"),
        ("pod:ip route del default", "0.0.0.0/0"),
        ("ip link set HOST down", "is down"),
        ("ip link set HOST address 02:00:00:00:00:99", "MAC address"),
        (
            "ip link set HOST name other0; ip link set other0 up",
            "prevResult does not have the host interface",
        ),
        ("ip address del 10.1.2.1/32 dev HOST", "does not have address 10.1.2.1/32"),
        ("ip -6 address del fd00:1::1/128 dev HOST", "does not have address fd00:1::1/128"),
        ("ip -6 address flush dev HOST scope link", "has no link-local address"),
        ("ip route del 10.1.2.2", "the host's route to 10.1.2.2 does not lead to"),
        ("ip -6 route del fd00:1::2", "the host's route to fd00:1::2 does not lead to"),
        ("echo 0 > /proc/sys/net/ipv4/ip_forward", "ip_forward"),
        ("nft flush chain inet cni_plugins_masquerade masq_checks", "is not masqueraded"),
    ] {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let conf = config("1.0.0", &json!({"ipMasq": true}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        let conf = with_prev(&conf, &result);
        ctx.check(&pod.attachment("eth0"), &conf);
        match script.strip_prefix("pod:") {
            Some(script) => pod.sh(script).unwrap(),
            None => ctx.node.sh(&script.replace("HOST", host_end(&result))).unwrap(),
        };
        let error = ctx.fail("CHECK", &pod.attachment("eth0"), &conf);
        assert!(error.contains(text), "{script}: {error}");
    }
}

#[test]
fn status() {
    let ctx = ours();
    let attachment = Attachment::default();
    ctx.succeed("STATUS", &attachment, &config("1.1.0", &json!({"ipMasq": true})));
    ctx.fail("STATUS", &attachment, &config("1.1.0", &json!({"ipam": null})))
        .expect(7, "no plugin name provided");
    ctx.fail("STATUS", &attachment, &config("1.1.0", &json!({"ipam": {"type": "no"}})))
        .expect(50, "failed to find plugin");
    let iptables = config("1.1.0", &json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
    ctx.succeed("STATUS", &attachment, &iptables);
    let bare = ctx.with_programs(&ctx.plugins.path().join("none"));
    bare.fail("STATUS", &attachment, &iptables).expect(50, "ipMasqBackend iptables");
}
