//! The key `resourceName`: the master is a device that the kubelet has given to the pod.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::link_plugin::{config, ours, uplink};
use cni_lab::testing::{link, overlay, try_link, with_prev};
use cni_runner::Attachment;
use ferrule_fake_kubelet::{PodResourcesSocket, pod};
use serde_json::json;

#[test]
fn the_kubelet_names_the_master() {
    let ctx = ours(env!("CARGO_BIN_EXE_macvlan"));
    uplink(&ctx);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    let kubelet = PodResourcesSocket::serve(&socket, vec![pod("shop", "web", &[("x/nic", "uplink0")])]);
    let keys = json!({"resourceName": "x/nic", "dad": "off", "podResourcesSocket": socket, "checkpoint": folder.path().join("none")});
    let conf = config("macvlan", "1.1.0", &keys);
    let (web, other) = (ctx.pod("web"), ctx.pod("other"));
    let attachment =
        web.attachment("eth0").with_args("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web");
    let result = ctx.add(&attachment, &conf);
    let master = link(&ctx.node, "uplink0")["ifindex"].clone();
    assert_eq!(link(&web, "eth0")["link_index"], master);
    // A pod of the same network that has no device.
    let without =
        other.attachment("eth0").with_args("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=other");
    let skipped = ctx.add(&without, &conf);
    assert!(try_link(&other, "eth0").is_none());
    let error = ctx.fail("ADD", &without, &overlay(&conf, &json!({"required": true})));
    assert_eq!(error.msg, r#"pod shop/other has no device of resource "x/nic""#);
    // A pool of tokens that the device plugin counts, on a link of the configuration.
    kubelet.set_pods(vec![
        pod("shop", "web", &[("x/nic", "uplink0")]),
        pod("shop", "other", &[("x/nic", "lan-3")]),
    ]);
    let pool = overlay(&conf, &json!({"master": "uplink0"}));
    ctx.add(&without, &pool);
    assert_eq!(link(&other, "eth0")["link_index"], master);
    ctx.del(&without, &pool);
    drop(kubelet);
    ctx.check(&attachment, &with_prev(&conf, &result));
    ctx.check(&without, &with_prev(&conf, &skipped));
    ctx.succeed("STATUS", &Attachment::default(), &conf);
    for attachment in [attachment, without] {
        ctx.del(&attachment, &conf);
        assert!(ctx.reservations("net").is_empty());
    }
}
