//! Every configuration key takes effect in the kernel and in the result.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{
    StubIpam, addresses, assert_layout, flags, host_local, link, mac, overlay, ports, routes, sysctl,
    try_link, with_prev,
};
use common::{config, ours, with_stub};
use serde_json::{Value, json};

const FORWARDING: [&str; 2] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];

fn port_of(result: &Value) -> &str {
    result["interfaces"][1]["name"].as_str().unwrap()
}

#[test]
fn bridge_name_defaults_to_cni0() {
    let ctx = ours();
    for (number, name) in [json!(null), json!("")].iter().enumerate() {
        let pod = ctx.pod(&format!("pod{number}"));
        let result = ctx.add(&pod.attachment("eth0"), &config("1.0.0", &json!({"bridge": name})));
        assert_eq!(result["interfaces"][0]["name"], "cni0");
    }
    assert_eq!(ports(&ctx.node, "cni0").len(), 2);
    let named = ctx.add(&ctx.pod("pod9").attachment("eth0"), &config("1.0.0", &json!({"bridge": "a.b-c_d"})));
    assert_eq!(ports(&ctx.node, "a.b-c_d"), [port_of(&named)]);
}

/// People and Go programs write configurations. Go's JSON decoder ignores the case of keys.
#[test]
fn keys_are_case_insensitive() {
    let ctx = ours();
    let conf = json!({"CNIVersion": "1.0.0", "Name": "net", "Type": "bridge", "BRIDGE": "br7", "isgateway": true,
        "IPAM": {"Type": "host-local", "SubNet": "10.1.0.0/24"}, "HairPinMode": true});
    let result = ctx.add(&ctx.pod("pod1").attachment("eth0"), &conf);
    assert_layout("1.0.0", &result);
    assert_eq!(addresses(&ctx.node, "br7"), ["10.1.0.1/24"]);
    assert_eq!(link(&ctx.node, port_of(&result))["linkinfo"]["info_slave_data"]["hairpin"], true);
}

#[test]
fn mtu_applies_to_both_ends_and_a_new_bridge() {
    for mtu in [1280, 9000, 65535] {
        let ctx = ours();
        let pod = ctx.pod("pod1");
        let result = ctx.add(&pod.attachment("eth0"), &config("1.1.0", &json!({"mtu": mtu})));
        for (number, real) in
            [link(&ctx.node, "br0"), link(&ctx.node, port_of(&result)), link(&pod, "eth0")].iter().enumerate()
        {
            assert_eq!(real["mtu"], mtu, "{real}");
            assert_eq!(result["interfaces"][number]["mtu"], mtu, "{result}");
        }
    }
    let ctx = ours();
    ctx.node.sh("ip link add br0 type bridge").unwrap();
    ctx.node.sh("ip link set br0 mtu 4000 up").unwrap();
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &config("1.0.0", &json!({"mtu": 1300})));
    assert_eq!(link(&pod, "eth0")["mtu"], 1300);
    assert_eq!(link(&ctx.node, "br0")["mtu"], 4000, "an existing bridge keeps its MTU");
}

#[test]
fn mtu_defaults_to_the_kernels() {
    let ctx = ours();
    for (name, keys) in [("one", json!({})), ("two", json!({"mtu": 0})), ("three", json!({"mtu": null}))] {
        let pod = ctx.pod(name);
        ctx.add(&pod.attachment("eth0"), &config("1.0.0", &keys));
        assert_eq!(link(&pod, "eth0")["mtu"], 1500);
    }
}

/// A pod needs hairpin mode to reach itself through an address that is translated back to it, such as a
/// service's.
#[test]
fn hairpin_mode_applies_to_the_port() {
    for mode in [true, false] {
        let ctx = ours();
        let result =
            ctx.add(&ctx.pod("pod1").attachment("eth0"), &config("1.0.0", &json!({"hairpinMode": mode})));
        assert_eq!(link(&ctx.node, port_of(&result))["linkinfo"]["info_slave_data"]["hairpin"], mode);
    }
}

#[test]
fn promiscuous_mode_applies_to_new_and_existing_bridges() {
    let ctx = ours();
    let promiscuous = config("1.0.0", &json!({"promiscMode": true}));
    let plain = config("1.0.0", &json!({}));
    let is_promiscuous = || flags(&ctx.node, "br0").contains(&"PROMISC".to_owned());
    ctx.add(&ctx.pod("pod1").attachment("eth0"), &plain);
    assert!(!is_promiscuous());
    ctx.add(&ctx.pod("pod2").attachment("eth0"), &promiscuous);
    assert!(is_promiscuous(), "on an existing bridge");
    // Another network on the bridge may still need promiscuous mode.
    ctx.add(&ctx.pod("pod3").attachment("eth0"), &plain);
    assert!(is_promiscuous());

    let ctx = ours();
    ctx.add(&ctx.pod("pod1").attachment("eth0"), &promiscuous);
    assert!(flags(&ctx.node, "br0").contains(&"PROMISC".to_owned()), "on a new bridge");
}

#[test]
fn mac_precedence() {
    let ctx = ours();
    let args = "IgnoreUnknown=1;MAC=02:00:00:00:00:01";
    let cni = json!({"args": {"cni": {"mac": "02:00:00:00:00:02"}}});
    let capability = json!({"runtimeConfig": {"mac": "02:00:00:00:00:03"}});
    // The spelling of the reference's own tests.
    let capitalized = json!({"RuntimeConfig": {"Mac": "02:00:00:00:00:04"}});
    let inputs = [
        ("", json!({}), None),
        (args, json!({}), Some("02:00:00:00:00:01")),
        ("MAC=02:00:00:00:00:09", json!({}), Some("02:00:00:00:00:09")),
        (args, cni.clone(), Some("02:00:00:00:00:02")),
        (args, overlay(&cni, &capability), Some("02:00:00:00:00:03")),
        ("", capability.clone(), Some("02:00:00:00:00:03")),
        (args, overlay(&cni, &capitalized), Some("02:00:00:00:00:04")),
        (
            args,
            json!({"runtimeConfig": {"mac": ""}, "args": {"cni": {"mac": null}}}),
            Some("02:00:00:00:00:01"),
        ),
        ("", json!({"runtimeConfig": {"mac": "02-AB-00-00-00-05"}}), Some("02:ab:00:00:00:05")),
    ];
    for (number, (args, keys, expected)) in inputs.into_iter().enumerate() {
        let pod = ctx.pod(&format!("pod{number}"));
        let attachment = pod.attachment("eth0").with_args(args);
        let result = ctx.add(&attachment, &config("1.0.0", &keys));
        let real = mac(&pod, "eth0");
        assert_eq!(result["interfaces"][2]["mac"], real, "{keys}");
        if let Some(expected) = expected {
            assert_eq!(real, expected, "{args} {keys}");
        }
        assert_ne!(mac(&ctx.node, port_of(&result)), real, "both ends of the pair have the same MAC address");
        ctx.check(&attachment, &with_prev(&config("1.0.0", &keys), &result));
    }
}

#[test]
fn dns_of_the_configuration_replaces_ipams() {
    let ipam_dns =
        json!({"nameservers": ["192.0.2.53"], "domain": "ipam", "search": ["a.ipam"], "options": ["x"]});
    let none = json!({});
    for (dns, expected) in [
        (json!(null), &ipam_dns),
        (json!({}), &ipam_dns),
        (json!({"nameservers": null, "Search": null, "domain": ""}), &ipam_dns),
        (json!({"nameservers": []}), &none),
        (json!({"options": []}), &none),
        (json!({"domain": "conf"}), &json!({"domain": "conf"})),
        // The keys that go-cni writes.
        (
            json!({"Servers": ["192.0.2.1"], "Nameservers": ["192.0.2.54"], "Search": ["b"], "Options": ["y"]}),
            &json!({"nameservers": ["192.0.2.54"], "search": ["b"], "options": ["y"]}),
        ),
    ] {
        for version in ["0.2.0", "0.4.0", "1.0.0", "1.1.0"] {
            let stub = StubIpam::new();
            let ips = match version {
                "0.2.0" => json!({"ip4": {"ip": "10.1.0.2/24"}}),
                "0.4.0" => json!({"ips": [{"version": "4", "address": "10.1.0.2/24"}]}),
                _ => json!({"ips": [{"address": "10.1.0.2/24"}]}),
            };
            stub.result(&overlay(&ips, &json!({"cniVersion": version, "dns": ipam_dns})));
            let ctx = with_stub(&stub);
            let conf = config(version, &json!({"dns": dns, "ipam": {"type": "stub"}}));
            let result = ctx.add(&ctx.pod("pod1").attachment("eth0"), &conf);
            assert_layout(version, &result);
            assert_eq!(result.get("dns").unwrap_or(&none), expected, "{version} {dns}");
        }
    }
}

#[test]
fn no_ipam_in_all_spellings() {
    let ctx = ours();
    for (number, ipam) in
        [json!(null), json!({}), json!({"type": ""}), json!({"type": null})].iter().enumerate()
    {
        let pod = ctx.pod(&format!("pod{number}"));
        // CNI_PATH is not needed then and may be empty.
        let conf = config("1.0.0", &json!({"isGateway": true, "isDefaultGateway": true, "ipam": ipam}));
        let exec = ctx.exec("ADD", &pod.attachment("eth0"), &conf).path("");
        let output = ctx.node.call(&exec).unwrap();
        assert!(output.success(), "{ipam}: {}", output.stdout_text());
        let result = output.document().unwrap();
        assert_layout("1.0.0", &result);
        assert!(result.get("ips").is_none() && result.get("routes").is_none(), "{result}");
        assert!(addresses(&pod, "eth0").is_empty() && addresses(&ctx.node, "br0").is_empty());
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
    assert_eq!(sysctl(&ctx.node, FORWARDING[0]), "0");
}

/// Routes in the kernel have every attribute of specification 1.1.0, also in older versions.
#[test]
fn route_attributes_reach_the_kernel_in_every_version() {
    let configured = json!([
        {"dst": "10.50.0.0/16", "mtu": 1400, "advmss": 1300, "priority": 77},
        {"dst": "10.51.0.0/16", "gw": "10.1.0.5", "table": 123},
        {"dst": "10.52.0.0/16", "scope": 253},
        {"dst": "fd00:50::/32", "gw": "fd00:1::5", "priority": 78, "mtu": 1401, "table": 124},
        {"dst": "0.0.0.0/0", "priority": 300}]);
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let stub = StubIpam::new();
        let four = if version < "1.0.0" { json!({"version": "4"}) } else { json!({}) };
        let six = if version < "1.0.0" { json!({"version": "6"}) } else { json!({}) };
        let mut result = json!({"cniVersion": version, "routes": configured, "ips": [
            overlay(&json!({"address": "10.1.0.2/24"}), &four),
            overlay(&json!({"address": "fd00:1::2/64"}), &six)]});
        if version != "1.1.0" {
            // A result of an older version can carry only dst and gw.
            let bare = |route: &Value| match route.get("gw") {
                Some(gw) => json!({"dst": route["dst"], "gw": gw}),
                None => json!({"dst": route["dst"]}),
            };
            result["routes"] = configured.as_array().unwrap().iter().map(bare).collect();
        }
        stub.result(&result);
        let ctx = with_stub(&stub);
        let pod = ctx.pod("pod1");
        let conf =
            config(version, &json!({"isGateway": true, "ipam": {"type": "stub", "routes": configured}}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        assert_layout(version, &result);
        assert_eq!(result["routes"].as_array().unwrap().len(), 5, "{version}");

        let one = |arguments: &str| {
            let found = routes(&pod, arguments);
            assert_eq!(found.len(), 1, "{version}, {arguments}: {found:?}");
            found[0].clone()
        };
        let first = one("10.50.0.0/16");
        assert_eq!((&first["gateway"], &first["metric"]), (&json!("10.1.0.1"), &json!(77)), "{version}");
        assert_eq!(first["metrics"], json!([{"mtu": 1400, "advmss": 1300}]), "{version}");
        assert!(routes(&pod, "10.51.0.0/16").is_empty(), "{version}");
        assert_eq!(one("table 123")["gateway"], "10.1.0.5");
        let on_link = one("10.52.0.0/16");
        assert_eq!((on_link.get("gateway"), &on_link["scope"]), (None, &json!("link")), "{version}");
        let six = one("-6 table 124");
        assert_eq!((&six["gateway"], &six["metric"]), (&json!("fd00:1::5"), &json!(78)), "{version}");
        assert_eq!(six["metrics"], json!([{"mtu": 1401}]), "{version}");
        assert_eq!(one("default")["metric"], 300, "{version}");

        if version >= "0.4.0" {
            ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
            pod.sh("ip route flush table 123").unwrap();
            let failure = ctx.fail("CHECK", &pod.attachment("eth0"), &with_prev(&conf, &result));
            failure.expect(999, "10.51.0.0/16");
        }
    }
}

#[test]
fn values_that_disable_a_feature_are_accepted() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let conf = config(
        "1.0.0",
        &json!({"vlan": 0, "vlanTrunk": [], "preserveDefaultVlan": true, "macspoofchk": false, "enabledad": false,
            "disableContainerInterface": false, "portIsolation": null, "ipMasqBackend": "", "zzz": {"a": [1]},
            "capabilities": {"mac": true}, "cni.dev/zzz": 1, "args": {"labels": {"a": "b"}, "cni": {"zzz": 1}},
            "runtimeConfig": null, "dns": null, "prevResult": null}),
    );
    ctx.add(&pod.attachment("eth0"), &conf);
    assert!(try_link(&pod, "eth0").is_some());
    ctx.del(&pod.attachment("eth0"), &conf);
}

#[test]
fn two_networks_share_a_bridge() {
    let ctx = ours();
    let conf = |name: &str, subnet: &str| {
        config(
            "1.0.0",
            &json!({"name": name, "isGateway": true, "forceAddress": true, "ipam": host_local(&[subnet])}),
        )
    };
    let (one, two) = (conf("net", "10.1.0.0/24"), conf("other", "10.2.0.0/24"));
    let pod = ctx.pod("pod1");
    ctx.add(&pod.attachment("eth0"), &one);
    ctx.add(&pod.attachment("eth1"), &two);
    assert_eq!(addresses(&ctx.node, "br0"), ["10.1.0.1/24", "10.2.0.1/24"]);
    // The same container and ifname on another network is another attachment; deleting one must not affect
    // the other.
    ctx.del(&pod.attachment("eth9"), &two);
    ctx.del(&pod.attachment("eth0"), &one);
    assert_eq!(addresses(&pod, "eth1"), ["10.2.0.2/24"]);
}
