//! `vlan`, `vlanTrunk` and `preserveDefaultVlan` in the kernel. A kernel without VLAN filtering of bridges refuses
//! them; all other tests need a stock kernel.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{
    Origin, StubIpam, TestContext, addresses, host_local, link, mac, overlay, try_link, with_prev,
};
use cni_lab::{Place as _, Pod, kernel_module};
use cni_runner::Attachment;
use common::{assert_only_shared_changed, config, ours, plugins, with_stub};
use serde_json::{Value, json};

fn conf(keys: &Value) -> Value {
    config("1.0.0", &overlay(&json!({"ipam": host_local(&["10.1.0.0/24", "fd00:1::/64"])}), keys))
}

fn port_of(result: &Value) -> &str {
    result["interfaces"][1]["name"].as_str().unwrap()
}

/// The VLANs of a port as `bridge` shows them: `5-9 100+` for tagged ones and a native one.
fn vlans(ctx: &TestContext, port: &str) -> String {
    let shown = ctx.node.sh(&format!("bridge -j -compressvlans vlan show dev {port}")).unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
    let text = |vlan: &Value| {
        let end = vlan.get("vlanEnd").map_or(String::new(), |end| format!("-{end}"));
        let flags = vlan["flags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let flags = flags.map(|flag| if flag == "PVID" { "+" } else { "u" }).collect::<String>();
        format!("{}{end}{}", vlan["vlan"], flags.replace("+u", "+"))
    };
    shown[0]["vlans"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" ")
}

fn can_ping(pod: &Pod, to: &str) -> bool {
    pod.sh(&format!("ping -c 1 -W 1 {to}")).is_ok()
}

/// The kernel either has the feature, or ADD names it and leaves nothing.
#[test]
fn a_kernel_without_vlan_filtering_is_a_clear_error() {
    for (keys, field) in [
        (json!({"vlan": 100}), "\"vlan\" with value 100"),
        (json!({"vlanTrunk": [{"minID": 5, "maxID": 7}]}), "\"vlanTrunk\" with value 1,5-7"),
    ] {
        for has_bridge in [false, true] {
            let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
            let ctx = with_stub(&stub);
            let has_feature = ctx.node.sh("ip link add probe type bridge vlan_filtering 1").is_ok();
            if has_bridge {
                ctx.node.sh("ip link add br0 type bridge").unwrap();
            }
            let before = ctx.snapshot();
            let pod = ctx.pod("pod1");
            let conf = conf(&overlay(&keys, &json!({"ipam": {"type": "stub"}})));
            let status = overlay(&conf, &json!({"cniVersion": "1.1.0", "ipam": {"type": ""}}));
            if has_feature && !has_bridge {
                ctx.succeed("STATUS", &Attachment::default(), &status);
                assert_eq!(before.diff(&ctx.snapshot()), "");
                ctx.add(&pod.attachment("eth0"), &conf);
                continue;
            }
            let failure = ctx.fail("ADD", &pod.attachment("eth0"), &conf);
            if has_feature {
                failure.expect(999, "bridge \"br0\" does not filter VLANs");
            } else {
                failure.expect(2, &format!("unsupported field {field}: the kernel has no VLAN filtering"));
            }
            let unready = ctx.fail("STATUS", &Attachment::default(), &status);
            assert_eq!((unready.code, &unready.msg), (50, &failure.msg));
            assert_eq!(before.diff(&ctx.snapshot()), "");
            assert!(try_link(&pod, "eth0").is_none());
            assert_eq!(stub.calls(), ["ADD", "DEL"]);
            ctx.del(&pod.attachment("eth0"), &conf);
        }
    }
}

/// The kernel that the machine lacks, where STATUS succeeds.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn a_stock_kernel_filters_vlans() {
    a_kernel_without_vlan_filtering_is_a_clear_error();
    assert!(ours().node.sh("ip link add probe type bridge vlan_filtering 1").is_ok());
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn pods_reach_each_other_within_a_vlan_only() {
    kernel_module("8021q");
    let ctx = ours();
    let before = ctx.snapshot();
    let pods = ["one", "two", "other", "trunk"].map(|name| ctx.pod(name));
    let [one, two, other, trunk] = &pods;
    for (pod, keys) in [
        (one, json!({"vlan": 100})),
        (two, json!({"vlan": 100})),
        (other, json!({"vlan": 200})),
        (trunk, json!({"vlanTrunk": [{"id": 100}, {"minID": 300, "maxID": 310}]})),
    ] {
        let result = with_prev(&conf(&keys), &ctx.add(&pod.attachment("eth0"), &conf(&keys)));
        ctx.check(&pod.attachment("eth0"), &result);
    }
    assert!(can_ping(one, "10.1.0.3") && can_ping(two, "fd00:1::2"));
    assert!(!can_ping(one, "10.1.0.4") && !can_ping(other, "10.1.0.2"));
    // A port with a trunk alone is in VLAN 1 with its untagged frames.
    assert!(!can_ping(trunk, "10.1.0.2"));
    trunk.sh("ip link add link eth0 name eth0.100 type vlan id 100 && ip link set eth0.100 up").unwrap();
    trunk.sh("ip address add 10.1.0.99/24 dev eth0.100 && ip address del 10.1.0.5/24 dev eth0").unwrap();
    assert!(can_ping(trunk, "10.1.0.2") && can_ping(two, "10.1.0.99"));
    assert!(!can_ping(trunk, "10.1.0.4"));
    for pod in &pods {
        ctx.del(&pod.attachment("eth0"), &conf(&json!({"vlan": -1})));
    }
    assert_only_shared_changed(&ctx, &before, "ADDs and DELs");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn ports_have_the_configured_vlans() {
    for (keys, expected) in [
        (json!({"vlan": 100}), "100+"),
        (json!({"vlan": 1}), "1+"),
        (json!({"vlan": 100, "preserveDefaultVlan": true}), "1u 100+"),
        (json!({"vlanTrunk": [{"minID": 5, "maxID": 9}, {"id": 11}]}), "1+ 5-9 11"),
        (json!({"vlan": 7, "vlanTrunk": [{"minID": 5, "maxID": 9}]}), "5-6 7+ 8-9"),
        (json!({"vlanTrunk": [{"minID": 1, "maxID": 4094}]}), "1+ 2-4094"),
        (json!({"vlanTrunk": []}), "1+"),
    ] {
        let ctx = ours();
        let attachment = ctx.pod("pod1").attachment("eth0");
        let result = ctx.add(&attachment, &conf(&keys));
        assert_eq!(vlans(&ctx, port_of(&result)), expected, "{keys}");
        assert_eq!(link(&ctx.node, "br0")["linkinfo"]["info_data"]["vlan_filtering"], 1);
        ctx.check(&attachment, &with_prev(&conf(&keys), &result));
    }
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn check_finds_each_changed_vlan() {
    let ctx = ours();
    let attachment = ctx.pod("pod1").attachment("eth0");
    let conf = conf(&json!({"vlan": 100, "vlanTrunk": [{"minID": 5, "maxID": 9}], "isGateway": true}));
    let result = ctx.add(&attachment, &conf);
    let check = with_prev(&conf, &result);
    let port = port_of(&result);
    let gateway_port = "$(ip -j link show br0.100 | jq -r '.[0].link')";
    for (damage, repair, text) in [
        ("del vid 7 dev PORT", "add vid 7 dev PORT", "is not in VLAN 7, tagged"),
        ("add vid 7 untagged dev PORT", "add vid 7 dev PORT", "is not in VLAN 7, tagged"),
        ("del vid 100 dev PORT", "add vid 100 pvid untagged dev PORT", "is not in VLAN 100, untagged"),
        ("add vid 100 dev PORT", "add vid 100 pvid untagged dev PORT", "is not in VLAN 100, untagged"),
        ("add vid 44 untagged dev PORT", "del vid 44 dev PORT", "is in VLAN 44 too, untagged"),
        ("del vid 100 dev GATEWAY", "add vid 100 pvid untagged dev GATEWAY", "is not in VLAN 100, untagged"),
    ] {
        let run = |command: &str| {
            let command = command.replace("PORT", port).replace("GATEWAY", gateway_port);
            ctx.node.sh(&format!("bridge vlan {command}")).unwrap();
        };
        ctx.check(&attachment, &check);
        run(damage);
        ctx.fail("CHECK", &attachment, &check).expect(999, text);
        run(repair);
    }
    // Another program's tagged VLAN.
    ctx.node.sh(&format!("bridge vlan add vid 45 dev {port}")).unwrap();
    ctx.check(&attachment, &check);
    ctx.node.sh("ip link set br0 type bridge vlan_filtering 0").unwrap();
    ctx.fail("CHECK", &attachment, &check).expect(999, "does not filter VLANs");
    ctx.node.sh("ip link set br0 type bridge vlan_filtering 1 && ip link del br0.100").unwrap();
    ctx.fail("CHECK", &attachment, &check).expect(999, "\"br0.100\" of the VLAN not found");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn each_vlan_has_a_gateway() {
    let ctx = ours();
    let add = |name: &str, vlan: u16, subnet: &str| {
        let conf = conf(
            &json!({"name": format!("net{vlan}"), "vlan": vlan, "isDefaultGateway": true, "ipMasq": true,
            "ipam": host_local(&[subnet])}),
        );
        let pod = ctx.pod(name);
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        (pod, conf, result)
    };
    let (one, conf, result) = add("one", 100, "10.1.0.0/24");
    let gateway = link(&ctx.node, "br0.100");
    assert_eq!(result["interfaces"][3], json!({"name": "br0.100", "mac": mac(&ctx.node, "br0.100")}));
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 4);
    assert_eq!(result["ips"][0]["interface"], 2);
    // The reference's tests expect this order.
    let links: Vec<Value> = serde_json::from_str(&ctx.node.sh("ip -j link show").unwrap()).unwrap();
    let index = |name: &Value| links.iter().find(|link| link["ifname"] == *name).unwrap()["ifindex"].as_u64();
    assert_eq!(index(&gateway["link"]).map(|index| index + 1), gateway["ifindex"].as_u64());
    assert_eq!(addresses(&ctx.node, "br0.100"), ["10.1.0.1/24"]);
    assert!(addresses(&ctx.node, "br0").is_empty());
    let (two, _, _) = add("two", 200, "10.2.0.0/24");
    assert!(can_ping(&one, "10.1.0.1") && can_ping(&two, "10.2.0.1"));

    // A killed ADD may have left the pair without its port.
    let port = gateway["link"].as_str().unwrap();
    ctx.node.sh(&format!("ip link set {port} nomaster")).unwrap();
    assert!(!can_ping(&one, "10.1.0.1"));
    let (three, ..) = add("three", 100, "10.1.0.0/24");
    assert!(can_ping(&one, "10.1.0.1") && can_ping(&three, "10.1.0.1"));

    // The gateway is shared, like the bridge.
    ctx.del(&one.attachment("eth0"), &conf);
    assert!(can_ping(&three, "10.1.0.1"));
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn a_foreign_link_with_the_gateways_name_is_refused() {
    let ctx = ours();
    ctx.node.sh("ip link add br0 type bridge vlan_filtering 1 && ip link add br0.100 type bridge").unwrap();
    let before = ctx.snapshot();
    let conf = conf(&json!({"vlan": 100, "isGateway": true}));
    let failure = ctx.fail("ADD", &ctx.pod("pod1").attachment("eth0"), &conf);
    failure.expect(999, "\"br0.100\" already exists but is not the gateway of a VLAN");
    assert_only_shared_changed(&ctx, &before, "a refused ADD");
}

/// Debian's reference, 1.1.1, keeps the default VLAN, as the reference did before 1.8.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn either_implementation_continues_the_others_attachment() {
    for keys in [json!({"vlan": 100}), json!({"vlan": 100, "isGateway": true})] {
        for (first, second) in [(Origin::Ours, Origin::Reference), (Origin::Reference, Origin::Ours)] {
            let one = TestContext::new(plugins(first));
            let two = one.with_plugins(plugins(second));
            // Each uses the bridge and the gateway that the other has made.
            let stays = one.pod("stays").attachment("eth0");
            let stays_result = with_prev(&conf(&keys), &two.add(&stays, &conf(&keys)));
            let before = one.snapshot().ignoring(&["/.ferrule/"]);
            let attachment = one.pod("pod1").attachment("eth0");
            let result = with_prev(&conf(&keys), &one.add(&attachment, &conf(&keys)));
            two.check(&attachment, &result);
            two.del(&attachment, &result);
            one.check(&stays, &stays_result);
            let after = one.snapshot().ignoring(&["/.ferrule/"]);
            let difference = before.ignoring(&common::SHARED).diff(&after.ignoring(&common::SHARED));
            assert_eq!(difference, "", "{first:?}, then {second:?}");
        }
    }
}
