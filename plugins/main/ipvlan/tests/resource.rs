//! The key `resourceName`. macvlan, whose code it shares, has the test that makes a link.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::{link_plugin, network_config, try_link};
use ferrule_fake_kubelet::{PodResourcesSocket, pod};
use serde_json::json;

#[test]
fn the_kubelet_names_the_master() {
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_ipvlan"));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    let _kubelet = PodResourcesSocket::serve(&socket, vec![pod("shop", "web", &[("x/nic", "up7")])]);
    let keys = json!({"resourceName": "x/nic", "podResourcesSocket": socket, "checkpoint": folder.path().join("none")});
    let conf = network_config("ipvlan", "1.0.0", &keys);
    let container = ctx.pod("pod");
    let of = |name: &str| {
        container
            .attachment("eth0")
            .with_args(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}"))
    };
    let error = ctx.fail("ADD", &of("web"), &conf);
    assert_eq!(error.msg, "failed to lookup master \"up7\": Link not found");
    ctx.add(&of("other"), &conf);
    assert!(try_link(&container, "eth0").is_none());
    ctx.del(&of("other"), &conf);
}
