//! ADD: in a chain, with one or both limits, repeated, refused, and failing at each step.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{Origin, succeed};
use common::{
    CONTAINERD, CRIO, attached, both, config, context, filters, host_veth, ifbs, limits, network, owner,
    qdiscs, shaped, snapshot,
};
use ferrule_bandwidth::add::execute;
use ferrule_bandwidth::owner::{alias, shared_name};
use ferrule_bandwidth::plan::Egress;
use ferrule_bandwidth::plan::Plan;
use ferrule_bandwidth::plan::Root;
use ferrule_kernel::netlink::LinkId;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::filter::AT_INGRESS;
use ferrule_kernel::netlink::qdisc::Tbf;
use serde_json::Value;
use serde_json::json;

#[test]
fn chain_limits_both_directions_and_leaves_nothing() {
    for bridge in [Origin::Ours, Origin::Reference] {
        for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            if (bridge, version) == (Origin::Reference, "1.1.0") {
                continue; // Debian's bridge does not support 1.1.0
            }
            let ctx = context(bridge);
            let pod = ctx.pod("one");
            let before = snapshot(&ctx);
            let network = network(version, json!({}));
            let attachment = shaped(&pod, "eth0", both(100_000_000, CONTAINERD));
            let runtime = ctx.runtime();
            let result = runtime.add(&network, &attachment).unwrap();

            let name = shared_name(&owner("one", "eth0"));
            let last = result["interfaces"].as_array().unwrap().last().unwrap();
            assert_eq!(last["name"], name.as_str());
            assert!(last.get("sandbox").is_none_or(|sandbox| sandbox == ""), "{last}");
            let veth = host_veth(&result);
            let link: Value =
                serde_json::from_str(&ctx.node.sh(&format!("ip -j -d link show {name}")).unwrap()).unwrap();
            assert_eq!(
                (&link[0]["linkinfo"]["info_kind"], &link[0]["address"]),
                (&json!("ifb"), &last["mac"])
            );
            assert_eq!((&link[0]["mtu"], &link[0]["txqlen"]), (&json!(1500), &json!(null)));
            let alias = link[0]["ifalias"].as_str().unwrap();
            assert!(alias.starts_with("bandwidth network=pods container=one ifname=eth0 veth="), "{alias}");
            for link in [&veth, &name] {
                let root = &qdiscs(&ctx, link)[0];
                assert_eq!(
                    (&root["kind"], &root["handle"], &root["root"]),
                    (&json!("tbf"), &json!("1:"), &json!(true))
                );
                assert_eq!(root["options"]["rate"], 12_500_000, "{root}");
            }
            assert_eq!(qdiscs(&ctx, &veth)[1]["kind"], "ingress");
            let filter = filters(&ctx, &veth);
            for part in [
                "pref 1 u32",
                "fh 800::800",
                "match 00000000/00000000",
                &format!("Egress Redirect to device {name}) stolen"),
            ] {
                assert!(filter.contains(part), "{part} is not in\n{filter}");
            }
            pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
            if version != "0.3.0" && version != "0.3.1" {
                runtime.check(&network, &attachment).unwrap();
            }
            runtime.del(&network, &attachment).unwrap();
            runtime.del(&network, &attachment).unwrap();
            assert_eq!(before.diff(&snapshot(&ctx)), "", "{bridge:?} {version}");
        }
    }
}

#[test]
fn only_requested_limits_are_set() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let veth = host_veth(&result);
    let before = snapshot(&ctx);
    for (limits, expected) in [
        (limits((0, 0), (0, 0)), ""),
        (json!(null), ""),
        (limits((8_000_000, CRIO), (0, 0)), "tbf"),
        (limits((0, 0), (8_000_000, CRIO)), "ingress"),
    ] {
        let config = config("1.0.0", limits, Some(&result));
        let output = ctx.add(&attachment, &config);
        let added =
            output["interfaces"].as_array().unwrap().len() - result["interfaces"].as_array().unwrap().len();
        assert_eq!(added, usize::from(expected == "ingress"));
        let kinds =
            ctx.node.sh(&format!("tc qdisc show dev {veth} | grep -v noqueue | cut -d' ' -f2")).unwrap();
        assert_eq!(kinds.trim(), expected);
        assert_eq!(ifbs(&ctx).len(), added);
        ctx.del(&attachment, &config);
        assert_eq!(before.diff(&snapshot(&ctx)), "", "{config}");
    }
}

#[test]
fn second_add_leads_to_the_same_state() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let add = ctx.exec("ADD", &attachment, &config("1.0.0", both(10_000_000, CRIO), Some(&result)));
    let first = succeed(&ctx.node, &add);
    let state = snapshot(&ctx);
    assert_eq!(succeed(&ctx.node, &add), first);
    assert_eq!(state.diff(&snapshot(&ctx)), "");

    // Other limits replace the first ones.
    let other = ctx.exec("ADD", &attachment, &config("1.0.0", both(80_000_000, CRIO), Some(&result)));
    assert_eq!(succeed(&ctx.node, &other), first);
    for link in [host_veth(&result), shared_name(&owner("one", "eth0"))] {
        assert_eq!(qdiscs(&ctx, &link)[0]["options"]["rate"], 10_000_000);
    }

    // ADD repairs: it replaces a filter that redirects to a deleted link, and sets up an IFB that is down.
    let veth = host_veth(&result);
    ctx.node.sh(&format!("ip link del {}", shared_name(&owner("one", "eth0")))).unwrap();
    assert!(pod.sh("ping -c 1 -W 1 10.1.0.1").is_err(), "without its IFB the filter drops all packets");
    succeed(&ctx.node, &add);
    assert_eq!(state.diff(&snapshot(&ctx)), "");
    ctx.node
        .sh(&format!(
            "tc filter del dev {veth} ingress; ip link set {} down",
            shared_name(&owner("one", "eth0"))
        ))
        .unwrap();
    succeed(&ctx.node, &add);
    assert_eq!(state.diff(&snapshot(&ctx)), "");
    pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
}

/// Each step of ADD is made to fail in the kernel. Every earlier step must be undone.
#[test]
fn failure_at_any_step_leaves_nothing() {
    let (ctx, _pod, result) = attached("one");
    let veth = host_veth(&result);
    let before = snapshot(&ctx);
    let found =
        ctx.node.run(|| Socket::route().unwrap().link(LinkId::Name(&veth)).unwrap().unwrap()).unwrap();
    let tbf = Tbf { rate: 125_000, limit: 100_000, buffer: 1_000_000, burst: None };
    let broken = Tbf { buffer: 0, ..tbf };
    let egress = Egress {
        name: shared_name(&owner("one", "eth0")),
        existing: None,
        mtu: 1500,
        alias: alias(&owner("one", "eth0"), found.index, true),
        former_alias: String::new(),
        mac: None,
        tbf: Some(tbf),
        creates_ingress_qdisc: true,
        parent: AT_INGRESS,
        stale: Vec::new(),
        preference: Some(1),
    };
    let plan = Plan { host: found.index, ingress: Some(Root::Create(tbf)), egress: Some(egress.clone()) };
    let with = |egress: Egress| Plan { egress: Some(egress), ..plan.clone() };
    let execute = |plan: &Plan| ctx.node.run(|| execute(&mut Socket::route().unwrap(), plan)).unwrap();

    for (what, plan) in [
        ("create qdisc", Plan { ingress: Some(Root::Create(broken)), ..plan.clone() }),
        ("adding link", with(Egress { name: veth.clone(), ..egress.clone() })),
        ("adding link", with(Egress { name: "a/b".to_owned(), ..egress.clone() })),
        ("set up the ifb device", with(Egress { existing: Some(9999), ..egress.clone() })),
        ("create ifb qdisc", with(Egress { tbf: Some(broken), ..egress.clone() })),
        ("add filter", with(Egress { parent: 0x0005_0000, ..egress.clone() })),
        ("remove a filter", with(Egress { stale: vec![(3, 0x8000_0800)], ..egress.clone() })),
    ] {
        let error = execute(&plan).unwrap_err().error;
        assert!(error.msg.starts_with(what), "{what}: {error}");
        assert_eq!(before.diff(&snapshot(&ctx)), "", "{what}");
    }

    // The alias of an IFB that existed before is restored.
    let name = &egress.name;
    ctx.node.sh(&format!("ip link add {name} type ifb && ip link set {name} up alias mine")).unwrap();
    let ifb = ctx.node.run(|| Socket::route().unwrap().link(LinkId::Name(name)).unwrap().unwrap()).unwrap();
    let taken =
        Egress { existing: Some(ifb.index), former_alias: ifb.alias, tbf: Some(broken), ..egress.clone() };
    execute(&with(taken)).unwrap_err();
    assert!(ctx.node.sh(&format!("ip link show {name}")).unwrap().contains("alias mine"));
    ctx.node.sh(&format!("ip link del {name}")).unwrap();
    assert_eq!(before.diff(&snapshot(&ctx)), "");

    // An ingress qdisc that another program created in the meantime is a race, and stays.
    ctx.node.sh(&format!("tc qdisc add dev {veth} clsact")).unwrap();
    let with_hook = snapshot(&ctx);
    let failed = execute(&plan).unwrap_err();
    assert!(failed.is_race && failed.error.msg.starts_with("create ingress qdisc"), "{failed:?}");
    assert_eq!(with_hook.diff(&snapshot(&ctx)), "");
    ctx.node.sh(&format!("tc qdisc del dev {veth} clsact")).unwrap();

    // The former parameters are restored.
    execute(&Plan { egress: None, ..plan.clone() }).unwrap();
    let shaped = snapshot(&ctx);
    let to = Tbf { rate: 250_000, ..tbf };
    let change = Plan {
        ingress: Some(Root::Change { to, from: tbf }),
        ..with(Egress { tbf: Some(broken), ..egress })
    };
    execute(&change).unwrap_err();
    assert_eq!(shaped.diff(&snapshot(&ctx)), "");
}

#[test]
fn invalid_requests() {
    let (ctx, pod, result) = attached("one");
    let attachment = pod.attachment("eth0");
    let before = snapshot(&ctx);
    let error_of = |verb: &str, limits: Value, previous: Option<&Value>| {
        ctx.fail(verb, &attachment, &config("1.0.0", limits, previous))
    };
    let some = || both(10_000_000, CRIO);
    assert!(error_of("ADD", some(), None).contains("must be called as chained plugin"));
    assert!(error_of("ADD", json!(null), None).contains("must be called as chained plugin"));
    assert!(error_of("CHECK", some(), None).contains("must be called as a chained plugin"));
    assert!(
        error_of("ADD", limits((8, 0), (0, 0)), Some(&result))
            .contains("if rate is set, burst must also be set")
    );
    assert!(error_of("ADD", limits((7, 8), (0, 0)), Some(&result)).contains("7 bit/s"));
    for version in ["0.1.0", "0.2.0", "2.0.0"] {
        let error = ctx.fail("ADD", &attachment, &config(version, some(), None));
        assert!(error.contains("incompatible CNI versions"), "{error}");
    }
    assert_eq!(before.diff(&snapshot(&ctx)), "");
}

/// 1 kbit/s is the minimum that Kubernetes allows. A frame takes twelve seconds, but the bucket holds one.
#[test]
fn slowest_container_can_still_send() {
    let (ctx, pod, result) = attached("one");
    let config = config("1.0.0", both(1_000, CONTAINERD), Some(&result));
    ctx.add(&pod.attachment("eth0"), &config);
    pod.sh("ping -c 1 -s 1400 -W 5 10.1.0.1").unwrap();
}
