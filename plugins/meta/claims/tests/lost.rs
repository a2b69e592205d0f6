//! When things go wrong: kills, a lost namespace, a lost DEL, a reboot, a hostile container.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{TestContext, link, overlay, try_link, with_prev};
use cni_runner::Attachment;
use serde_json::{Value, json};

use self::common::{
    ATTACHED, RECORDS, UID, assert_as, attached, attachment, chained, claims_node, device, kubelet_has,
    prepare, write_record,
};

/// Two devices: one moves with addresses and an MTU, on the other, which is down, a macvlan is made with an address of host-local.
fn two(ctx: &TestContext) {
    ctx.node.sh("ip link add hd2 type veth peer name hd3").unwrap();
    let local = json!({"type": "macvlan", "ipam": {"type": "host-local", "subnet": "10.6.0.0/24"}});
    prepare(
        ctx,
        "c1",
        &[
            device(ctx, "hd0", &json!({"mtu": 1400, "addresses": ["10.5.0.2/24"]})),
            device(ctx, "hd2", &json!({"cni": {"ifName": "m0", "config": local}})),
        ],
    );
}

fn reservations(ctx: &TestContext) -> Vec<String> {
    let mut files = ctx.node.list_dir("/var/lib/cni/networks/net.claims").unwrap_or_default();
    files.retain(|name| name.starts_with("10."));
    files
}

fn assert_nothing_left(ctx: &TestContext, what: &str) {
    assert!(attached(ctx).is_empty() && reservations(ctx).is_empty(), "{what}");
    assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new(), "{what}");
}

#[test]
fn del_after_a_kill_gives_all_devices_back() {
    let ctx = claims_node();
    two(&ctx);
    let (pod, net) = {
        let pod = ctx.pod("pod");
        let net = attachment(&pod);
        (pod, net)
    };
    let conf = chained(&pod, &json!({}));
    // The folders of the stores stay.
    ctx.add(&net, &conf);
    ctx.del(&net, &conf);
    ctx.node.sh("rm -r /var/lib/cni/networks").unwrap();
    let before = ctx.snapshot();
    for verb in ["ADD", "DEL"] {
        if verb == "DEL" {
            ctx.add(&net, &conf);
        }
        let points = ctx.kill_points(verb, &net, &conf);
        ctx.del(&net, &conf);
        assert!(points.len() > 20, "{}", points.len());
        for point in points {
            if verb == "DEL" {
                ctx.add(&net, &conf);
            }
            ctx.kill(&point, verb, &net, &conf);
            ctx.del(&net, &conf);
            assert_nothing_left(&ctx, &format!("{verb} killed {point}"));
            ctx.node.sh("rm -rf /var/lib/cni/networks").unwrap();
            assert_as(&before, &ctx, &format!("{verb} killed {point}"));
        }
    }
}

/// The namespace is gone, `/run` is new after a reboot, and the driver has removed its record.
#[test]
fn del_without_the_namespace_releases_everything() {
    for damage in ["true", "rm -r /run/cni; mkdir -p /run/cni/host-device"] {
        let ctx = claims_node();
        two(&ctx);
        let pod = ctx.pod("pod");
        let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
        ctx.add(&net, &conf);
        assert_eq!(reservations(&ctx), ["10.6.0.2"]);
        pod.delete().unwrap();
        ctx.node.sh(damage).unwrap();
        ctx.node.sh("rm -r /run/ferrule/dra").unwrap();
        for netns in [net.netns.clone(), String::new()] {
            ctx.del(&Attachment { netns, args: String::new(), ..net.clone() }, &conf);
            assert_nothing_left(&ctx, damage);
        }
    }
}

#[test]
fn gc_takes_what_no_valid_attachment_has() {
    let ctx = claims_node();
    two(&ctx);
    let (pod, other) = (ctx.pod("pod"), ctx.pod("other"));
    let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
    let result = ctx.add(&net, &conf);
    let gc = |name: &str, valid: &Value| {
        let keys = json!({"name": name, "prevResult": null, "cni.dev/valid-attachments": valid});
        ctx.succeed("GC", &Attachment::default(), &overlay(&chained(&other, &json!({})), &keys));
    };
    // As the runtime names it; the interfaces of the claims are not in its list.
    gc("net", &json!([{"containerID": "pod", "ifname": "eth0"}]));
    gc("other", &json!([]));
    ctx.check(&net, &with_prev(&conf, &result));
    for _ in 0..2 {
        gc("net", &json!([]));
        assert_nothing_left(&ctx, "GC");
        assert!(try_link(&ctx.node, "hd0").is_some() && try_link(&pod, "m0").is_none());
    }
    ctx.node.write_file(format!("{}/x:eth0.json", ATTACHED), "{").unwrap();
    gc("net", &json!([]));
    assert_eq!(attached(&ctx), ["x:eth0.json"], "nobody knows whose it is");
}

/// The container takes the device's name and alias away, and puts another link in its place.
#[test]
fn a_hostile_container_cannot_keep_the_device() {
    let ctx = claims_node();
    let (pod, before) = (ctx.pod("pod"), ctx.snapshot());
    let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
    prepare(&ctx, "c1", &[device(&ctx, "hd0", &json!({"addresses": ["10.5.0.2/24"]}))]);
    for attack in [
        "ip link set net1 down; ip link set net1 name gone alias ''; ip link set gone address 02:00:00:00:66:66
         ip link add net1 type veth peer name peer; ip link set net1 alias hd0",
        "ip link property add dev net1 altname hd1; ip link add hd0 type bridge; ip link set hd0 alias hd0",
    ] {
        let result = ctx.add(&net, &conf);
        pod.sh(&format!("set -e; {attack}")).unwrap();
        ctx.del(&net, &with_prev(&conf, &result));
        assert_nothing_left(&ctx, attack);
        assert_as(&before, &ctx, attack);
        pod.sh("ip link del net1 2>&1; ip link del hd0 2>&1; true").unwrap();
    }
}

/// CHECK tells each loss. A lost file does not look like a pod without claims.
#[test]
fn check_notices_what_is_missing() {
    let ctx = claims_node();
    two(&ctx);
    let pod = ctx.pod("pod");
    let (net, conf) = (attachment(&pod), chained(&pod, &json!({})));
    let result = ctx.add(&net, &conf);
    let checked = with_prev(&conf, &result);
    let path = format!("{}/pod:eth0.json", ATTACHED);
    for (damage, mend, text) in [
        ("ip link set net1 down", "ip link set net1 up", "\"net1\" of the container is down"),
        ("ip address del 10.5.0.2/24 dev net1", "ip address add 10.5.0.2/24 dev net1", "10.5.0.2/24"),
        ("ip link set net1 mtu 1300", "ip link set net1 mtu 1400", "1300"),
        ("ip link set m0 down", "ip link set m0 up", "\"m0\" of the container is down"),
    ] {
        pod.sh(damage).unwrap();
        ctx.fail("CHECK", &net, &checked).expect(999, text);
        pod.sh(mend).unwrap();
        ctx.check(&net, &checked);
    }
    ctx.fail("CHECK", &net, &conf).expect(999, "prevResult has no interface \"net1\" of a claim");
    ctx.node.sh(&format!("mv {path} /run/saved; cp /run/saved {path}; sed -i s/outcome/x/ {path}")).unwrap();
    ctx.fail("CHECK", &net, &checked).expect(5, "read what ADD has made of the claims: unknown field `x`");
    ctx.node.sh(&format!("truncate -s 100 {path}")).unwrap();
    ctx.fail("CHECK", &net, &checked).expect(999, "the claims of the container are not attached");
    ctx.node.sh(&format!("rm {path}")).unwrap();
    ctx.fail("CHECK", &net, &checked).expect(999, "the claims of the container are not attached");
    ctx.node.sh(&format!("mv /run/saved {path}")).unwrap();
    ctx.check(&net, &checked);
    assert_eq!(link(&pod, "net1")["ifalias"], "hd0");
    ctx.del(&net, &checked);
    assert_nothing_left(&ctx, "DEL");
}

/// A force-deleted pod's DEL comes after the next pod has asked for the device.
#[test]
fn a_late_del_leaves_the_next_pod_alone() {
    let ctx = claims_node();
    let (first, next) = (ctx.pod("first"), ctx.pod("next"));
    prepare(&ctx, "c1", &[device(&ctx, "hd0", &json!({}))]);
    let conf = |pod| chained(pod, &json!({}));
    ctx.add(&attachment(&first), &conf(&first));
    ctx.fail("ADD", &attachment(&next), &conf(&next)).expect(999, "\"hd0\" is in container first");
    ctx.del(&attachment(&first), &conf(&first));
    let result = ctx.add(&attachment(&next), &conf(&next));
    ctx.del(&attachment(&first), &conf(&first));
    ctx.check(&attachment(&next), &with_prev(&conf(&next), &result));
    kubelet_has(&ctx, &[("c1", UID)]);
    write_record(&ctx, "c1", &[device(&ctx, "hd1", &json!({}))]);
    ctx.del(&attachment(&next), &conf(&next));
    assert!(try_link(&ctx.node, "hd0").is_some());
    assert_nothing_left(&ctx, "DEL");
}
