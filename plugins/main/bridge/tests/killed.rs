//! A runtime may kill the plugin with SIGKILL at any time. DEL or GC after that must remove everything. These
//! tests kill it before each system call that is visible outside the process, which needs `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{
    StubIpam, TestContext, assert_unchanged, host_local, overlay, ports, try_link, with_prev,
};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{assert_only_shared_changed, config, ours, with_stub};
use serde_json::{Value, json};

fn conf() -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let keys = json!({"isDefaultGateway": true, "ipMasq": true, "hairpinMode": true, "portIsolation": true,
        "macspoofchk": true, "ipam": ipam});
    config("1.0.0", &keys)
}

/// A node with everything shared in place, so that nothing at all may differ afterwards.
fn ctx() -> (TestContext, Snapshot) {
    let ctx = ours();
    ctx.add(&ctx.pod("first").attachment("eth0"), &conf());
    let before = ctx.snapshot();
    (ctx, before)
}

/// Panics unless the pod of [`ctx`] is the only one left and the other one has no masquerading rule.
fn assert_only_first_left(ctx: &TestContext, other: &str, what: &str) {
    assert!(eventually(TIMEOUT, || ports(&ctx.node, "br0").len() == 1), "{what}");
    assert_eq!(ctx.reservations("net").len(), 2, "{what}");
    let rules = ctx.node.sh("nft list ruleset").unwrap();
    assert!(!rules.contains(other), "{what}\n{rules}");
}

#[test]
fn del_cleans_up_after_a_killed_add() {
    let (ctx, before) = ctx();
    let measured = ctx.pod("measured");
    let kill_points = ctx.kill_points("ADD", &measured.attachment("eth0"), &conf());
    ctx.del(&measured.attachment("eth0"), &conf());
    for (kill_point, is_pod_gone) in
        kill_points.iter().flat_map(|kill_point| [(kill_point, false), (kill_point, true)])
    {
        let pod = ctx.pod("killed");
        ctx.kill(kill_point, "ADD", &pod.attachment("eth0"), &conf());
        let attachment = pod.attachment("eth0");
        if is_pod_gone {
            // Deleting the namespace deletes its links too.
            pod.delete().unwrap();
        }
        ctx.del(&attachment, &conf());
        if !is_pod_gone {
            assert!(try_link(&pod, "eth0").is_none(), "killed {kill_point}");
            pod.delete().unwrap();
        }
        assert_only_first_left(&ctx, "killed", &format!("killed {kill_point}"));
    }
    assert_only_shared_changed(&ctx, &before, "killed ADDs");
}

#[test]
fn add_succeeds_after_a_killed_add_and_del() {
    let (ctx, _) = ctx();
    let pod = ctx.pod("again");
    let attachment = pod.attachment("eth0");
    // The first ADD sets sysctls of the pod, which stay.
    ctx.add(&attachment, &conf());
    ctx.del(&attachment, &conf());
    let kill_points = ctx.kill_points("ADD", &attachment, &conf());
    ctx.del(&attachment, &conf());
    for kill_point in kill_points {
        ctx.kill(&kill_point, "ADD", &attachment, &conf());
        ctx.del(&attachment, &conf());
        ctx.add(&attachment, &conf());
        pod.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
        ctx.del(&attachment, &conf());
    }
}

/// The first ADD on a node, which also makes the bridge. The next ADD must succeed from any intermediate
/// state.
#[test]
fn add_succeeds_after_a_killed_first_add() {
    let measured = ours();
    for kill_point in measured.kill_points("ADD", &measured.pod("first").attachment("eth0"), &conf()) {
        let ctx = ours();
        let pod = ctx.pod("first");
        ctx.kill(&kill_point, "ADD", &pod.attachment("eth0"), &conf());
        ctx.del(&pod.attachment("eth0"), &conf());
        let result = ctx.add(&pod.attachment("eth0"), &conf());
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -6 -c 1 -W 2 fd00:1::1").unwrap();
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf(), &result));
    }
}

#[test]
fn del_succeeds_after_a_killed_del() {
    let (ctx, before) = ctx();
    let measured = ctx.pod("measured");
    ctx.add(&measured.attachment("eth0"), &conf());
    for kill_point in ctx.kill_points("DEL", &measured.attachment("eth0"), &conf()) {
        let pod = ctx.pod("killed");
        ctx.add(&pod.attachment("eth0"), &conf());
        ctx.kill(&kill_point, "DEL", &pod.attachment("eth0"), &conf());
        ctx.del(&pod.attachment("eth0"), &conf());
        assert!(try_link(&pod, "eth0").is_none(), "killed {kill_point}");
        assert_eq!(
            (ports(&ctx.node, "br0").len(), ctx.reservations("net").len()),
            (1, 2),
            "killed {kill_point}"
        );
        pod.delete().unwrap();
    }
    assert_only_shared_changed(&ctx, &before, "killed DELs");
}

/// `iptables-restore` runs on after the plugin is killed. DEL, or GC without DEL, removes its rules.
#[test]
fn rules_of_iptables_are_removed_after_a_killed_add() {
    let conf = overlay(&conf(), &json!({"ipMasqBackend": "iptables"}));
    let ctx = ours();
    ctx.add(&ctx.pod("first").attachment("eth0"), &conf);
    let before = ctx.snapshot();
    let measured = ctx.pod("measured").attachment("eth0");
    let kill_points = ctx.kill_points("ADD", &measured, &conf);
    ctx.del(&measured, &conf);
    let valid = json!({"cniVersion": "1.1.0",
        "cni.dev/valid-attachments": [{"containerID": "first", "ifname": "eth0"}]});
    for (number, kill_point) in kill_points.iter().enumerate() {
        let pod = ctx.pod("killed");
        ctx.kill(kill_point, "ADD", &pod.attachment("eth0"), &conf);
        pod.delete().unwrap();
        assert!(eventually(TIMEOUT, || ports(&ctx.node, "br0").len() == 1));
        if number % 2 == 0 {
            ctx.del(&pod.attachment("eth0"), &conf);
        } else {
            ctx.succeed("GC", &Attachment::default(), &overlay(&conf, &valid));
        }
        let saved = ctx.node.sh("iptables-save -t nat; ip6tables-save -t nat").unwrap();
        assert_eq!(saved.matches("-j MASQUERADE").count(), 2, "killed {kill_point}\n{saved}");
    }
    assert_only_shared_changed(&ctx, &before, "killed ADDs with iptables");
}

/// No DEL follows: the pod is deleted, and GC removes what the killed call left.
#[test]
fn gc_cleans_up_after_killed_add_and_del() {
    let (ctx, before) = ctx();
    let valid = json!({"cniVersion": "1.1.0",
        "cni.dev/valid-attachments": [{"containerID": "first", "ifname": "eth0"}]});
    let measured = ctx.pod("measured");
    for (verb, kill_points) in
        ["ADD", "DEL"].map(|verb| (verb, ctx.kill_points(verb, &measured.attachment("eth0"), &conf())))
    {
        for kill_point in kill_points {
            let pod = ctx.pod("lost");
            if verb == "DEL" {
                ctx.add(&pod.attachment("eth0"), &conf());
            }
            ctx.kill(&kill_point, verb, &pod.attachment("eth0"), &conf());
            pod.delete().unwrap();
            // GC keeps the rules of macspoofchk while their port exists.
            assert!(eventually(TIMEOUT, || ports(&ctx.node, "br0").len() == 1));
            ctx.succeed("GC", &Attachment::default(), &overlay(&conf(), &valid));
            assert_only_first_left(&ctx, "lost", &format!("{verb} killed {kill_point}"));
        }
    }
    assert_only_shared_changed(&ctx, &before, "GC after killed calls");
}

/// An external IPAM plugin keeps running after the bridge plugin is killed. The order of ADD's steps lets DEL
/// find all state.
#[test]
fn killed_while_ipam_runs() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    let ctx = with_stub(&stub);
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    ctx.add(&ctx.pod("first").attachment("eth0"), &conf);
    let before = ctx.snapshot();
    // Slow enough that it still runs when the bridge plugin is killed before it reads the answer.
    stub.answer(
        "ADD",
        "sleep 0.1; echo '{\"cniVersion\": \"1.0.0\", \"ips\": [{\"address\": \"10.1.0.3/24\"}]}'",
    );
    let pod = ctx.pod("slow");
    // The first ADD sets sysctls of the pod, which stay.
    ctx.add(&pod.attachment("eth0"), &conf);
    ctx.del(&pod.attachment("eth0"), &conf);
    let kill_points = ctx.kill_points("ADD", &pod.attachment("eth0"), &conf);
    ctx.del(&pod.attachment("eth0"), &conf);
    let mut orphans = 0;
    for kill_point in kill_points {
        stub.calls();
        ctx.kill(&kill_point, "ADD", &pod.attachment("eth0"), &conf);
        orphans += usize::from(stub.calls() == ["ADD"]);
        ctx.del(&pod.attachment("eth0"), &conf);
        assert_eq!(stub.calls(), ["DEL"], "killed {kill_point}");
        assert_unchanged(&ctx.node, &before, &format!("killed {kill_point}"));
    }
    assert!(orphans > 0, "no kill point left an IPAM plugin running");
}
