//! `ipMasq` with both backends, the calls' processes, and 16 calls at once.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::iptables::{VARIANTS, saved, variant};
use cni_lab::testing::{Expect as _, Trace, at_once, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use common::{assert_nothing_left, config, ours, snapshot};
use serde_json::json;

/// The rules are those that the reference makes, in both variants of iptables.
#[test]
fn iptables_rules_equal_the_references() {
    for name in VARIANTS {
        let (ctx, programs) = (ours(), variant(name));
        let ctx = ctx.with_programs(programs.path());
        let pod = ctx.pod("c1");
        let before = snapshot(&ctx);
        let conf = config("1.0.0", &json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
        let result = ctx.add(&pod.attachment("eth0"), &conf);
        // printf netc1 | sha512sum
        let chain = "CNI-623e1c388032b20529218ecc";
        let comment = r#"-m comment --comment "name: \"net\" id: \"c1\"""#;
        let all = saved(&ctx.node, name);
        let ours = |line: &&str| line.contains("CNI-");
        let expected = [
            ("iptables", "10.1.2", ".0/24", ".2/32", "224.0.0.0/4"),
            ("ip6tables", "fd00:1", "::/64", "::2/128", "ff00::/8"),
        ]
        .map(|(program, prefix, subnet, ip, multicast)| {
            format!(
                "{program} :{chain} -\n{program} -A POSTROUTING -s {prefix}{ip} {comment} -j {chain}\n\
                     {program} -A {chain} -d {prefix}{subnet} {comment} -j ACCEPT\n\
                     {program} -A {chain} ! -d {multicast} {comment} -j MASQUERADE\n"
            )
        });
        let lines: Vec<&str> = all.lines().filter(ours).collect();
        assert_eq!(lines.join("\n") + "\n", expected.concat(), "{name}");
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        // A second interface of the container shares the chain.
        ctx.add(&pod.attachment("eth1"), &conf);
        let all = saved(&ctx.node, name);
        assert_eq!(all.matches(&format!("-j {chain}")).count(), 4, "{all}");
        assert_eq!(all.matches("-j MASQUERADE").count(), 2, "{all}");
        for ifname in ["eth0", "eth1"] {
            ctx.del(&pod.attachment(ifname), &conf);
        }
        assert_nothing_left(&ctx, &before, name);
    }
}

#[test]
fn outside_sees_the_nodes_address() {
    for backend in ["nftables", "iptables"] {
        let ctx = ours();
        let clients = [("192.0.2.0/24", "-4"), ("2001:db8::/64", "-6")].map(|(subnet, family)| {
            let client = ctx.node.outside_client(subnet).unwrap();
            client.sh(&format!("ip {family} route del default")).unwrap();
            client
        });
        let (pod, plain) = (ctx.pod("pod1"), ctx.pod("plain"));
        ctx.add(
            &pod.attachment("eth0"),
            &config("1.0.0", &json!({"ipMasq": true, "ipMasqBackend": backend})),
        );
        ctx.add(&plain.attachment("eth0"), &config("1.0.0", &json!({})));
        for client in &clients {
            let ping = format!("ping -c 1 -W 1 {}", client.address());
            assert!(eventually(TIMEOUT, || pod.sh(&ping).is_ok()), "{backend}: {ping}");
            // Without masquerading the client cannot answer.
            assert!(plain.sh(&ping).is_err());
        }
    }
}

/// The keys are those of bridge, whose tests have all of them.
#[test]
fn excluded_networks_and_families() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let keys = json!({"ipMasq": true, "ipMasqExclude": ["192.0.2.0/24"], "ipMasqFamilies": ["ipv4"]});
    let conf = config("1.0.0", &keys);
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    let rules = ctx.node.sh("nft list chain inet cni_plugins_masquerade masq_checks").unwrap();
    let rules: Vec<&str> = rules.lines().filter(|line| line.contains("masquerade comment")).collect();
    let expected = "ip saddr 10.1.2.2 ip daddr != 10.1.2.0/24 ip daddr != 192.0.2.0/24 masquerade";
    assert!(rules.len() == 1 && rules[0].contains(expected), "{rules:?}");
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    let more = config("1.0.0", &json!({"ipMasq": true}));
    let failure = ctx.fail("CHECK", &pod.attachment("eth0"), &with_prev(&more, &result));
    failure.expect(999, "address 10.1.2.2/24 is not masqueraded");
}

/// nftables needs no process, iptables one for each family.
#[test]
fn processes() {
    for (backend, programs) in [("nftables", 0), ("iptables", 2)] {
        let ctx = ours();
        ctx.add(
            &ctx.pod("first").attachment("eth0"),
            &config("1.0.0", &json!({"ipMasq": true, "ipMasqBackend": backend})),
        );
        let conf = config("1.0.0", &json!({"ipMasq": true, "ipMasqBackend": backend}));
        let exec = ctx.exec("ADD", &ctx.pod("pod1").attachment("eth0"), &conf);
        // The test's ptp is a program of its own, so host-local is a process.
        assert_eq!(Trace::of(&ctx.node, &exec, "execve").programs(), programs + 1, "{backend}");
    }
}

#[test]
fn sixteen_calls_at_once() {
    let ctx = ours();
    let pods: Vec<_> = (0..16).map(|n| ctx.pod(&format!("pod{n}"))).collect();
    let before = snapshot(&ctx);
    let conf = config("1.0.0", &json!({"ipMasq": true}));
    for verb in ["ADD", "DEL"] {
        let calls: Vec<_> = pods.iter().map(|pod| ctx.exec(verb, &pod.attachment("eth0"), &conf)).collect();
        for output in at_once(&ctx.node, &calls) {
            if verb == "ADD" { drop(output.result()) } else { output.ok() }
        }
        if verb == "ADD" {
            // Without `loopback` in the chain a pod does not reach its own address.
            let others = "for n in 3 9 17; do ip addr | grep -q 10.1.2.$n/ || ping -c 1 -w 30 10.1.2.$n || exit 1; done";
            pods[0].sh(others).unwrap();
        }
    }
    assert_nothing_left(&ctx, &before, "16 calls");
}
