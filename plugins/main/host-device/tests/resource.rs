//! The key `resourceName`: a device that the kubelet has given to the pod.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
#[path = "common/kubelet.rs"]
mod kubelet;

use std::thread;
use std::time::{Duration, Instant};

use cni_lab::Place as _;
use cni_lab::testing::{TestContext, link, overlay, try_link, with_prev};
use cni_runner::Attachment;
use ferrule_fake_kubelet::pod;
use serde_json::{Value, json};

use self::common::{RECORDS, assert_as, node};
use self::kubelet::{Folder, NIC, attachment};

fn record(ctx: &TestContext) -> Value {
    let names = ctx.node.list_dir(RECORDS).unwrap();
    let path = format!("{RECORDS}/{}", names[0]);
    serde_json::from_str(&ctx.node.sh(&format!("cat {path}")).unwrap()).unwrap()
}

#[test]
fn the_pod_gets_its_device() {
    let (ctx, folder) = (node(), Folder::new());
    let kubelet = folder.serve("web", &["hd0", "zz"]);
    let (pod, conf, before) = (ctx.pod("pod"), folder.config(&json!({})), ctx.snapshot());
    let attachment = attachment(&pod, "web");
    let result = ctx.add(&attachment, &conf);
    assert_eq!(link(&pod, "net1")["ifalias"], "hd0");
    let record = record(&ctx);
    let known = ["pod", "resource", "deviceId"].map(|key| record[key].as_str().unwrap().to_owned());
    assert_eq!(known, ["shop/web", NIC, "hd0"]);
    // Only ADD asks.
    let newest = overlay(&conf, &json!({"cniVersion": "1.1.0"}));
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "pod", "ifname": "net1"}]});
    ctx.check(&attachment, &with_prev(&conf, &result));
    ctx.succeed("STATUS", &attachment, &newest);
    ctx.succeed("GC", &Attachment::default(), &overlay(&newest, &valid));
    assert!(try_link(&pod, "net1").is_some());
    ctx.del(&attachment, &conf);
    ctx.del(&attachment, &conf);
    assert_eq!(kubelet.calls(), 1);
    assert_as(&before, &ctx, "");
    ctx.add(&attachment, &conf);
    drop(kubelet);
    ctx.check(&attachment, &with_prev(&conf, &result));
    ctx.del(&attachment, &conf);
    assert_as(&before, &ctx, "");
}

/// Every pod of the node passes here if the network is a second one.
#[test]
fn a_pod_without_a_device_is_an_error_only_if_it_needs_one() {
    let (ctx, folder) = (node(), Folder::new());
    let _kubelet = folder.serve("web", &[]);
    let (pod, before) = (ctx.pod("pod"), ctx.snapshot());
    let attachment = attachment(&pod, "web");
    let asks = json!({"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"ferrule.dev/nic": NIC}}});
    for keys in [json!({}), json!({"required": false}), overlay(&asks, &json!({"required": false}))] {
        let conf = folder.config(&keys);
        let result = ctx.add(&attachment, &conf);
        assert!(result.get("interfaces").is_none_or(|interfaces| interfaces == &json!([])), "{result}");
        ctx.check(&attachment, &with_prev(&conf, &result));
        ctx.del(&attachment, &conf);
    }
    for keys in [json!({"required": true}), asks] {
        let error = ctx.fail("ADD", &attachment, &folder.config(&keys));
        assert_eq!(error.msg, r#"pod shop/web has no device of resource "ferrule.dev/nic""#);
    }
    assert_as(&before, &ctx, "");
}

#[test]
fn devices_that_do_not_exist_and_kubelets_that_do_not_answer() {
    let (ctx, folder) = (node(), Folder::new());
    let kubelet = folder.serve("web", &["none", "x/.."]);
    let (pod, before) = (ctx.pod("pod"), ctx.snapshot());
    let attachment = attachment(&pod, "web");
    let fail = |keys: Value| ctx.fail("ADD", &attachment, &folder.config(&keys));
    assert_eq!(fail(json!({})).msg, "runtime config DeviceID none not found or unsupported");
    let error = fail(json!({"index": 1}));
    assert_eq!((error.code, error.msg.as_str()), (7, r#"invalid device ID "x/..""#));
    assert_eq!(kubelet.calls(), 2);
    for keys in [json!({"resourceName": "nic"}), json!({"index": -1}), json!({"required": "yes"})] {
        assert_eq!(fail(keys).code, 7);
    }
    assert_eq!(kubelet.calls(), 2);
    drop(kubelet);
    let error = fail(json!({}));
    assert_eq!(error.code, 11);
    assert!(error.msg.starts_with("ask the kubelet for the devices of pod shop/web at /"), "{}", error.msg);
    let error = ctx.fail("ADD", &pod.attachment("net1"), &folder.config(&json!({})));
    assert_eq!(error.code, 4);
    assert_as(&before, &ctx, "");
}

/// With Multus the kubelet is not asked.
#[test]
fn the_device_of_multus() {
    let (ctx, folder) = (node(), Folder::new());
    let (pod, conf) = (ctx.pod("pod"), folder.config(&json!({"runtimeConfig": {"deviceID": "hd0"}})));
    let result = ctx.add(&attachment(&pod, "web"), &conf);
    assert_eq!(link(&pod, "net1")["ifalias"], "hd0");
    ctx.check(&attachment(&pod, "web"), &with_prev(&conf, &result));
    ctx.del(&attachment(&pod, "web"), &conf);
    assert!(try_link(&ctx.node, "hd0").is_some());
}

/// The kubelet gives a device to the next pod before the runtime calls DEL for a pod that was deleted by force.
#[test]
fn add_waits_for_a_device_that_another_pod_still_has() {
    let (ctx, folder) = (node(), Folder::new());
    let kubelet = folder.serve("old", &["hd0"]);
    let (old, new, conf) = (ctx.pod("old"), ctx.pod("new"), folder.config(&json!({})));
    ctx.add(&attachment(&old, "old"), &conf);
    kubelet.set_pods(vec![pod("shop", "new", &[(NIC, "hd0")])]);
    thread::scope(|scope| {
        let add = scope.spawn(|| ctx.add(&attachment(&new, "new"), &conf));
        let before = Instant::now();
        while kubelet.calls() < 2 {
            assert!(before.elapsed() < cni_lab::TIMEOUT);
            thread::sleep(Duration::from_millis(5));
        }
        ctx.del(&attachment(&old, "old"), &conf);
        add.join().unwrap();
    });
    assert!(try_link(&new, "net1").is_some() && try_link(&old, "net1").is_none());
    // A second DEL of the old pod leaves the device where it is.
    ctx.del(&attachment(&old, "old"), &conf);
    assert!(try_link(&new, "net1").is_some());
    ctx.del(&attachment(&new, "new"), &conf);
    assert!(try_link(&ctx.node, "hd0").is_some());
}

/// A veth end goes with its namespace, and its record goes then. So ADD waits only for a device that exists.
#[test]
fn add_does_not_wait_without_limit() {
    let (ctx, folder) = (node(), Folder::new());
    let _kubelet = folder.serve("web", &["hd0"]);
    let (old, new, conf) = (ctx.pod("old"), ctx.pod("new"), folder.config(&json!({})));
    ctx.add(&attachment(&old, "web"), &conf);
    let error = ctx.fail("ADD", &attachment(&new, "web"), &conf);
    assert_eq!(error.msg, "failed to find host device: Link not found");
    assert_eq!(error.details, r#""hd0" is in container old (interface net1 on network net)"#);
    assert!(try_link(&old, "net1").is_some());
    old.delete().unwrap();
    let error = ctx.fail("ADD", &attachment(&new, "web"), &conf);
    assert_eq!(error.msg, "runtime config DeviceID hd0 not found or unsupported");
    assert_eq!(ctx.node.list_dir(RECORDS).unwrap(), Vec::<String>::new());
    ctx.del(&attachment(&old, "web"), &conf);
}
