//! A failed ADD leaves nothing of its own, regardless of the step that failed, and DEL after it succeeds.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{
    Origin, PluginDir, StubIpam, TestContext, addresses, assert_unchanged, host_local, overlay, ports,
    try_link, with_prev,
};
use cni_lab::{Place as _, Snapshot};
use common::{SHARED, config, with_stub};
use serde_json::{Value, json};

/// A way to make ADD fail.
struct Failing {
    name: &'static str,
    /// Shell code of the stub IPAM plugin's ADD.
    ipam: String,
    /// Keys added to the configuration.
    keys: Value,
    /// Shell commands run before ADD on the node and in the pod.
    node: &'static str,
    pod: &'static str,
    /// The expected error.
    code: u64,
    text: &'static str,
    /// The expected calls of the IPAM plugin.
    calls: &'static [&'static str],
}

impl Default for Failing {
    fn default() -> Self {
        Failing {
            name: "",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9/24"}]})),
            keys: json!({}),
            node: "true",
            pod: "true",
            code: 999,
            text: "",
            calls: &["ADD", "DEL"],
        }
    }
}

fn result(result: &Value) -> String {
    format!("cat <<'END'\n{}\nEND", overlay(result, &json!({"cniVersion": "1.0.0"})))
}

fn ways_to_fail() -> Vec<Failing> {
    let one = json!({"address": "10.1.0.9/24"});
    vec![
        Failing {
            name: "IPAM fails",
            ipam: r#"echo '{"code": 11, "msg": "full up", "details": "x"}'; exit 1"#.to_owned(),
            code: 11,
            text: "full up",
            ..Failing::default()
        },
        Failing {
            name: "IPAM dies",
            ipam: "echo oh >&2; kill -9 $$".to_owned(),
            text: "oh",
            ..Failing::default()
        },
        Failing {
            name: "no addresses",
            ipam: result(&json!({"dns": {"domain": "x"}})),
            text: "IPAM plugin returned missing IP config",
            ..Failing::default()
        },
        Failing {
            name: "null",
            ipam: "echo null".to_owned(),
            text: "IPAM plugin returned missing IP config",
            ..Failing::default()
        },
        Failing { name: "junk", ipam: "echo hello".to_owned(), text: "stub", ..Failing::default() },
        Failing { name: "nothing", ipam: "true".to_owned(), text: "stub", ..Failing::default() },
        Failing {
            name: "an invalid address",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9"}]})),
            text: "10.1.0.9",
            ..Failing::default()
        },
        Failing {
            name: "a result of an unknown version",
            ipam: r#"echo '{"cniVersion": "9.0.0", "ips": [{"address": "10.1.0.9/24"}]}'"#.to_owned(),
            text: "9.0.0",
            ..Failing::default()
        },
        Failing {
            name: "the same address twice",
            ipam: result(&json!({"ips": [one, one]})),
            text: "failed to add IP addr 10.1.0.9/24",
            ..Failing::default()
        },
        Failing {
            name: "an address that the kernel refuses",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9/24"}, {"address": "ff02::9/64"}]})),
            text: "failed to add IP addr ff02::9/64",
            ..Failing::default()
        },
        Failing {
            name: "a route with an unreachable next hop",
            ipam: result(&json!({"ips": [one], "routes": [{"dst": "10.9.0.0/16", "gw": "10.77.0.1"}]})),
            text: "failed to add route '10.9.0.0/16 via 10.77.0.1",
            ..Failing::default()
        },
        Failing {
            name: "a conflicting gateway",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9/20"}]})),
            keys: json!({"isGateway": true}),
            text: "already has an IP address different from 10.1.0.1/20",
            ..Failing::default()
        },
        Failing {
            name: "a gateway that the kernel refuses",
            ipam: result(&json!({"ips": [{"address": "fd00:9::9/64", "gateway": "ff02::1"}]})),
            keys: json!({"isGateway": true}),
            text: "add address ff02::1/64",
            ..Failing::default()
        },
        Failing {
            name: "masquerading rules that the kernel refuses",
            keys: json!({"ipMasq": true}),
            // A chain of the base chain's name, but of another type and hook.
            node: "nft 'add table inet cni_plugins_masquerade { chain postrouting { type filter hook input priority 0 ; } ; }'",
            text: "masquerade",
            ..Failing::default()
        },
        Failing {
            name: "the interface name exists in the container",
            pod: "ip link add eth0 type veth peer name other0",
            text: "container veth name (\"eth0\") peer provided (",
            calls: &[],
            ..Failing::default()
        },
        Failing {
            name: "the bridge is not a bridge",
            keys: json!({"bridge": "notbr"}),
            node: "ip link add notbr type veth peer name notbr-peer",
            text: "\"notbr\" already exists but is not a bridge",
            ..Failing::default()
        },
        Failing {
            name: "the bridge's name is lo",
            keys: json!({"bridge": "lo"}),
            text: "\"lo\" already exists but is not a bridge",
            ..Failing::default()
        },
        Failing {
            name: "a bridge name that the kernel refuses",
            keys: json!({"bridge": "all"}),
            text: "\"all\"",
            ..Failing::default()
        },
        Failing {
            name: "a missing IPAM plugin",
            keys: json!({"ipam": {"type": "missing"}}),
            text: "failed to find plugin \"missing\" in path [",
            calls: &[],
            ..Failing::default()
        },
        Failing {
            name: "an invalid configuration",
            keys: json!({"mtu": -1}),
            code: 7,
            text: "invalid mtu -1",
            calls: &[],
            ..Failing::default()
        },
    ]
}

/// A working attachment has already made everything shared, so the failed ADD must not change anything at
/// all.
#[test]
fn every_failure_leaves_everything_as_it_was() {
    for way in ways_to_fail() {
        let name = way.name;
        println!("{name}");
        let stub = StubIpam::assigning("1.0.0", &["10.1.0.8/24"]);
        let ctx = with_stub(&stub);
        let (first, second) = (ctx.pod("first"), ctx.pod("second"));
        let base = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
        let result = ctx.add(&first.attachment("eth0"), &base);
        ctx.node.sh(way.node).unwrap();
        second.sh(way.pod).unwrap();
        stub.calls();

        stub.answer("ADD", &way.ipam);
        let conf = overlay(&overlay(&base, &json!({"isGateway": false})), &way.keys);
        let (before, pod_before) = (ctx.snapshot(), Snapshot::take(&second).unwrap());
        ctx.fail("ADD", &second.attachment("eth0"), &conf).expect(way.code, way.text);

        assert_unchanged(&ctx.node, &before, name);
        assert_unchanged(&second, &pod_before, name);
        assert_eq!(stub.calls(), way.calls, "{name}");
        ctx.check(&first.attachment("eth0"), &with_prev(&base, &result));

        // A runtime answers a failed ADD with DEL or with another ADD.
        if !way.keys.to_string().contains("missing") && way.pod == "true" {
            ctx.del(&second.attachment("eth0"), &conf);
            assert_unchanged(&ctx.node, &before, name);
        }
        if way.pod == "true" {
            stub.assign("1.0.0", &["10.1.0.9/24"]);
            ctx.add(&second.attachment("eth0"), &base);
            second.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
        }
    }
}

/// On an empty node, a failed first ADD may leave only shared objects.
#[test]
fn failed_first_add_leaves_only_shared_objects() {
    for way in ways_to_fail() {
        println!("{}", way.name);
        let stub = StubIpam::new();
        stub.answer("ADD", &way.ipam);
        let ctx = with_stub(&stub);
        let pod = ctx.pod("first");
        if way.name.contains("conflict") {
            ctx.node.sh("ip link add br0 type bridge && ip address add 10.1.0.1/24 dev br0").unwrap();
        }
        ctx.node.sh(way.node).unwrap();
        pod.sh(way.pod).unwrap();
        let base = config("1.0.0", &json!({"ipam": {"type": "stub"}}));
        let conf = overlay(&base, &way.keys);
        let (before, pod_before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
        ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(way.code, way.text);
        let leftover = before.ignoring(&SHARED).diff(&ctx.snapshot().ignoring(&SHARED));
        assert_eq!(leftover, "", "{}", way.name);
        assert_unchanged(&pod, &pod_before, way.name);
        assert!(try_link(&ctx.node, "br0").is_none() || ports(&ctx.node, "br0").is_empty(), "{}", way.name);
        assert_eq!(stub.calls(), way.calls, "{}", way.name);
    }
}

/// A runtime may repeat an ADD. IPAM must not get a DEL then: the first ADD's address is in use.
#[test]
fn second_add_changes_nothing() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.8/24"]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    let (before, pod_before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
    assert_eq!(stub.calls(), ["ADD"]);
    for _ in 0..2 {
        let failure = ctx.fail("ADD", &pod.attachment("eth0"), &conf);
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        failure.expect(
            999,
            &format!("container veth name (\"eth0\") peer provided (\"{port}\") already exists"),
        );
    }
    assert!(stub.calls().is_empty());
    assert_unchanged(&ctx.node, &before, "the node after a second ADD");
    assert_unchanged(&pod, &pod_before, "the pod after a second ADD");
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
}

/// The container has renamed its interface, so that only IPAM notices a second ADD. The address stays reserved.
#[test]
fn second_add_after_a_rename_releases_nothing() {
    for origin in [Origin::Ours, Origin::Reference] {
        let plugins = PluginDir::new(env!("CARGO_BIN_EXE_bridge"), Origin::Ours);
        let ctx = TestContext::new(plugins.with(origin, &["host-local"]));
        let pod = ctx.pod("pod1");
        let conf = config("1.0.0", &json!({"ipam": host_local(&["10.1.0.0/24"])}));
        ctx.add(&pod.attachment("eth0"), &conf);
        pod.sh("ip link set eth0 down && ip link set eth0 name hidden").unwrap();
        ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(999, "duplicate allocation is not allowed");
        assert_eq!(ctx.reservations("net"), ["10.1.0.2"], "{origin:?}");
    }
}

/// Another process may create an interface of that name after ADD has checked it. The stub IPAM plugin does
/// it here.
#[test]
fn name_taken_between_check_and_creation() {
    let stub = StubIpam::new();
    let answer = result(&json!({"ips": [{"address": "10.1.0.9/24"}]}));
    let take = "nsenter --net=\"$CNI_NETNS\" ip link add eth0 type veth peer name other0 >/dev/null";
    stub.answer("ADD", &format!("{take}\n{answer}"));
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(999, "container veth name (\"eth0\")");
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    assert!(ports(&ctx.node, "br0").is_empty());
    assert!(try_link(&pod, "other0").is_some(), "another process's link stays");
}

/// If the result cannot be written, no runtime knows of the attachment, so ADD must undo it.
#[test]
fn unwritable_result_undoes_add() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.8/24"]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    ctx.add(&ctx.pod("first").attachment("eth0"), &conf);
    stub.calls();
    let before = ctx.snapshot();
    let script = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=pod1 CNI_IFNAME=eth0 CNI_NETNS=/run/netns/pod1 CNI_PATH={} \
         {} >/dev/full <<'END'\n{conf}\nEND",
        ctx.path,
        ctx.plugin.display()
    );
    assert!(ctx.node.sh(&script).is_err());
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    assert_unchanged(&ctx.node, &before, "the node after a result that could not be written");
    assert!(try_link(&pod, "eth0").is_none());
}

/// A 0.2.0 result has one address for each family. IPAM's empty result must be an error, not an attachment
/// without address.
#[test]
fn empty_ipam_result_in_0_2_0() {
    let stub = StubIpam::assigning("0.2.0", &[]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let conf = config("0.2.0", &json!({"ipam": {"type": "stub"}}));
    ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(999, "missing IP config");
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    assert!(try_link(&pod, "eth0").is_none());
}

/// The error names the address and interface that failed, and the kernel's reason.
#[test]
fn error_names_the_step_and_the_reason() {
    let stub = StubIpam::new();
    stub.answer("ADD", &result(&json!({"ips": [{"address": "10.1.0.9/24"}, {"address": "10.1.0.9/24"}]})));
    let ctx = with_stub(&stub);
    let conf = config("1.0.0", &json!({"ipam": {"type": "stub"}}));
    let failure = ctx.fail("ADD", &ctx.pod("pod1").attachment("eth0"), &conf);
    failure.expect(999, "failed to add IP addr 10.1.0.9/24 to \"eth0\"");
    assert!(format!("{failure:?}").contains("exists"), "{failure:?}");
    assert!(addresses(&ctx.node, "br0").is_empty());
}
