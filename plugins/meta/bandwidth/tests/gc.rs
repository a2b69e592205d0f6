//! GC after a lost DEL, and STATUS.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Origin, TestContext, assert_unchanged};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use cni_runner::ValidAttachment;
use common::{
    CONTAINERD, CRIO, NETWORK, add_bridge, both, config, context, ifbs, network, owner, reference, shaped,
};
use ferrule_bandwidth::owner::shared_name;
use serde_json::Value;
use serde_json::json;

fn gc(ctx: &TestContext, network: &str, valid: &[(&str, &str)]) {
    let list: Vec<Value> =
        valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
    let config = json!({"cniVersion": "1.1.0", "name": network, "type": "bandwidth",
        "cni.dev/valid-attachments": list, "cni.dev/attachments": list});
    ctx.succeed("GC", &Attachment::default(), &config);
}

#[test]
fn gc_removes_ifbs_after_a_lost_del() {
    let ctx = context(Origin::Reference);
    let go = reference(&ctx);
    let add = |name: &str, by: &TestContext| {
        let pod = ctx.pod(name);
        let result = add_bridge(&ctx, &pod, "eth0");
        by.add(&pod.attachment("eth0"), &config("1.0.0", both(10_000_000, CRIO), Some(&result)));
        pod
    };
    let alive = add("alive", &ctx);
    let alive_by_go = add("alive-go", &go);
    let unlisted_by_go = add("unlisted-go", &go);
    let lost = [add("lost", &ctx), add("lost-go", &go)];
    for pod in &lost {
        pod.delete().unwrap();
    }
    // GC must not touch another plugin's IFB, nor one whose name has our form but whose alias does not.
    ctx.node.sh("ip link add ifb7 type ifb; ip link add bwp0123456789ab type ifb; ip link set bwp0123456789ab alias mine").unwrap();
    assert_eq!(ifbs(&ctx).len(), 7);
    // GC of another network removes an unused IFB without an alias, and keeps IFBs whose alias names another
    // network.
    let with_alias = shared_name(&owner("lost", "eth0"));
    let wait = || {
        eventually(TIMEOUT, || {
            !ctx.node.sh("ip -o link show type veth").unwrap().contains("nobody")
                && ctx.node.sh("ip -o link show type veth").unwrap().lines().count() == 3
        })
    };
    assert!(wait());
    gc(&ctx, "other-network", &[]);
    assert_eq!(ifbs(&ctx).len(), 6);
    assert!(ifbs(&ctx).contains(&with_alias));
    gc(&ctx, NETWORK, &[("alive", "eth0"), ("alive-go", "eth0"), ("lost", "net1")]);
    let remaining = ifbs(&ctx);
    assert!(!remaining.contains(&with_alias), "{remaining:?}");
    assert_eq!(remaining.len(), 5, "{remaining:?}");
    for pod in [&alive, &alive_by_go, &unlisted_by_go] {
        assert!(remaining.contains(&shared_name(&owner(pod.name(), "eth0"))));
        pod.sh("ping -c 1 -W 5 10.1.0.1").unwrap();
    }
    // Without valid attachments, GC removes our IFBs. It keeps an IFB of the reference that a running
    // container uses.
    gc(&ctx, NETWORK, &[]);
    assert!(!ifbs(&ctx).contains(&shared_name(&owner("alive", "eth0"))));
    assert!(ifbs(&ctx).contains(&shared_name(&owner("unlisted-go", "eth0"))));
}

#[test]
fn gc_through_a_runtime() {
    let ctx = context(Origin::Ours);
    let pod = ctx.pod("one");
    let runtime = ctx.runtime();
    let network = network("1.1.0", json!({}));
    runtime.status(&network).unwrap();
    runtime.add(&network, &shaped(&pod, "eth0", both(10_000_000, CONTAINERD))).unwrap();
    runtime.gc(&network, Some(&[ValidAttachment::new("one", "eth0")])).unwrap();
    runtime.check(&network, &shaped(&pod, "eth0", both(10_000_000, CONTAINERD))).unwrap();
    ctx.node.sh("rm -r /var/lib/cni/results").unwrap();
    pod.delete().unwrap();
    runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(ifbs(&ctx), Vec::<String>::new());
}

#[test]
fn status_names_what_the_kernel_lacks() {
    let ctx = context(Origin::Ours);
    let before = ctx.snapshot();
    let config = json!({"cniVersion": "1.1.0", "name": NETWORK, "type": "bandwidth"});
    ctx.succeed("STATUS", &Attachment::default(), &config);
    assert_unchanged(&ctx.node, &before, "STATUS");

    // Stands for a kernel that lacks a kind: no kernel has these.
    use ferrule_bandwidth::status::{KINDS, missing};
    use ferrule_kernel::netlink::Socket;
    let lacks = |kinds: [&'static str; 4]| {
        ctx.node.run(move || missing(&mut Socket::route().unwrap(), kinds)).unwrap()
    };
    assert_eq!(lacks(KINDS), Vec::<String>::new());
    for (index, option) in ["IFB", "NET_SCH_TBF", "NET_SCH_INGRESS", "NET_ACT_MIRRED"].into_iter().enumerate()
    {
        let mut kinds = KINDS;
        kinds[index] = "ferrule";
        assert_eq!(lacks(kinds), [format!("ferrule (CONFIG_{option})")]);
    }
    assert_unchanged(&ctx.node, &before, "STATUS");
}
