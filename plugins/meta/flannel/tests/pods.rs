//! Pods on a node where flannel's daemon runs: their traffic, CHECK, DEL and GC, and the state file. The delegate is bridge with
//! host-local, in process.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Trace, addresses, ips_of, link, overlay, routes, try_link, with_prev};
use cni_lab::{Place as _, Pod, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{config, ours, states};
use serde_json::{Value, json};

/// The file of pod `c1` that flannel-io/cni-plugin writes for [`config`] and the file of [`ours`].
const REFERENCE: &str = r#"{"cniVersion":"1.1.0","forceAddress":true,"hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.1.9.0/24"}],[{"subnet":"fd00:1:0:9::/64"}]],"routes":[{"dst":"10.1.0.0/16"},{"dst":"fd00:1::/48"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"net","type":"bridge"}"#;

/// What the bridge and the network keep.
const SHARED: [&str; 6] =
    ["last_reserved_ip.", "link: cni0 ", "address: cni0 ", "/.ferrule/", "/networks/net/", "cni0"];

fn reaches(from: &Pod, to: &str) {
    let ping = format!("ping -n -c 1 -W 1 {to}");
    assert!(eventually(TIMEOUT, || from.sh(&ping).is_ok()), "{ping}");
}

#[test]
fn two_pods_reach_each_other() {
    let ctx = ours();
    let (one, two) = (ctx.pod("c1"), ctx.pod("c2"));
    let conf = config(&json!({}));
    let result = ctx.add(&one.attachment("eth0"), &conf);
    ctx.add(&two.attachment("eth0"), &conf);
    assert_eq!(ips_of(&result), ["10.1.9.2", "fd00:1:0:9::2"]);
    assert_eq!(link(&one, "eth0")["mtu"], 1450);
    let to: Vec<Value> = routes(&one, "").into_iter().map(|route| route["dst"].clone()).collect();
    assert!(to.contains(&json!("default")) && to.contains(&json!("10.1.0.0/16")), "{to:?}");
    for address in ["10.1.9.3", "fd00:1:0:9::3", "10.1.9.1", "fd00:1:0:9::1"] {
        reaches(&one, address);
    }
    // flannel's daemon masquerades, so the delegate does not.
    assert_eq!(ctx.node.sh("nft list tables").unwrap(), "");
    let file = "/var/lib/cni/flannel/c1";
    let ours = REFERENCE.replace("\"forceAddress", "\"ferrule.dev/ifname\":\"eth0\",\"forceAddress");
    assert_eq!(ctx.node.read_file(file).unwrap(), ours);
    let modes = ctx.node.sh(&format!("stat -c %a {file} /var/lib/cni/flannel")).unwrap();
    assert_eq!(modes.split_whitespace().collect::<Vec<_>>(), ["600", "700"]);

    let checked = with_prev(&conf, &result);
    ctx.check(&one.attachment("eth0"), &checked);
    // The daemon has got another subnet since. The pod is as ADD has made it.
    common::write_env(&ctx, &common::SUBNET_ENV.replace("10.1.9.", "10.1.77."));
    ctx.check(&one.attachment("eth0"), &checked);
    one.sh("ip address del 10.1.9.2/24 dev eth0").unwrap();
    ctx.fail("CHECK", &one.attachment("eth0"), &checked).expect(999, "10.1.9.2");
    let del = Trace::of(&ctx.node, &ctx.exec("DEL", &two.attachment("eth0"), &conf), "execve");
    assert_eq!((del.programs(), states(&ctx)), (0, vec!["c1".to_owned()]), "a delegate was a process");
    ctx.del(&one.attachment("eth0"), &checked);
    assert!(states(&ctx).is_empty() && ctx.reservations("net").is_empty());
    assert!(try_link(&one, "eth0").is_none() && addresses(&ctx.node, "cni0").len() > 1);
}

/// Each way to lose what ADD has written: DEL finds everything all the same.
#[test]
fn del_by_the_file_and_without_it() {
    let ctx = ours();
    let conf = config(&json!({}));
    // Makes what stays.
    ctx.add(&ctx.pod("first").attachment("eth0"), &conf);
    let before = ctx.snapshot().ignoring(&SHARED);
    for (what, change) in [
        ("nothing", "true"),
        ("a file of the reference", &format!("printf %s '{REFERENCE}' >/var/lib/cni/flannel/c1")),
        ("no subnet.env", "rm /run/flannel/subnet.env"),
        ("no file", "rm /var/lib/cni/flannel/c1"),
        ("half a file", "truncate -s 40 /var/lib/cni/flannel/c1"),
        ("neither file", "rm /var/lib/cni/flannel/c1 /run/flannel/subnet.env"),
        (
            "the namespace and both files",
            "rm -r /var/lib/cni/flannel /run/flannel/subnet.env; ip netns del c1",
        ),
    ] {
        common::write_env(&ctx, common::SUBNET_ENV);
        let pod = ctx.pod("c1");
        let attachment = pod.attachment("eth0");
        let result = ctx.add(&attachment, &conf);
        if change.ends_with("ip netns del c1") {
            pod.delete().unwrap();
        }
        ctx.node.sh(change.trim_end_matches("; ip netns del c1")).unwrap();
        let call = if what == "nothing" { with_prev(&conf, &result) } else { conf.clone() };
        ctx.del(&attachment, &call);
        ctx.del(&attachment, &call);
        let left = || ctx.node.sh("ip -o link show master cni0 | wc -l").unwrap();
        assert!(eventually(TIMEOUT, || left().trim() == "1"), "{what}");
        assert_eq!(ctx.reservations("net").len(), 2, "{what}");
        if what != "the namespace and both files" {
            common::write_env(&ctx, common::SUBNET_ENV);
            assert_eq!(before.diff(&ctx.snapshot().ignoring(&SHARED)), "", "{what}");
            pod.delete().unwrap();
        }
    }
}

/// The file's name has no network: a file of another network stays, and the attachment without a file is removed.
#[test]
fn two_networks_of_one_container() {
    let ctx = ours();
    let pod = ctx.pod("c1");
    let delegate = json!({"bridge": "cni1", "isDefaultGateway": false});
    let other = overlay(&config(&json!({"delegate": delegate})), &json!({"name": "other"}));
    common::write_env(&ctx, common::SUBNET_ENV);
    ctx.add(&pod.attachment("eth0"), &config(&json!({})));
    common::write_env(&ctx, &common::SUBNET_ENV.replace("9.1/24", "8.1/24").replace(":9::", ":8::"));
    ctx.add(&pod.attachment("net1"), &other);
    ctx.del(&pod.attachment("eth0"), &config(&json!({})));
    assert!(try_link(&pod, "eth0").is_none() && ctx.reservations("net").is_empty());
    assert_eq!((states(&ctx).len(), ctx.reservations("other").len()), (1, 2));
    ctx.del(&pod.attachment("net1"), &other);
    assert!(states(&ctx).is_empty() && ctx.reservations("other").is_empty());
}

#[test]
fn gc_removes_lost_pods_with_and_without_the_daemons_file() {
    for has_env in [true, false] {
        let ctx = ours();
        let conf = config(&json!({}));
        let (lives, lost) = (ctx.pod("lives"), ctx.pod("lost"));
        for pod in [&lives, &lost] {
            ctx.add(&pod.attachment("eth0"), &conf);
        }
        lost.delete().unwrap();
        ctx.node
            .sh("printf '{\"name\":\"other\",\"type\":\"bridge\"}' >/var/lib/cni/flannel/foreign")
            .unwrap();
        if !has_env {
            ctx.node.sh("rm /run/flannel/subnet.env").unwrap();
        }
        let valid = json!([{"containerID": "lives", "ifname": "eth0"}]);
        let call = overlay(&conf, &json!({"cni.dev/valid-attachments": valid}));
        ctx.succeed("GC", &Attachment::default(), &call);
        let mut left = states(&ctx);
        left.sort();
        assert_eq!(
            (left.as_slice(), ctx.reservations("net").len()),
            (&["foreign", "lives"].map(str::to_owned)[..], 2)
        );
    }
}
