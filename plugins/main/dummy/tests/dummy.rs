//! The keys of dummy, and what all plugins of one link share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::link_plugin::{self, CHANGES, config};
use cni_lab::testing::{addresses, link, with_prev};
use cni_runner::Attachment;
use serde_json::json;

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn life_of_a_dummy() {
    cni_lab::kernel_module("dummy");
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_dummy"));
    let conf = config("dummy", "1.1.0", &json!({"mtu": 1300, "mac": "02:00:00:00:00:07"}));
    let pod = ctx.pod("pod1");
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    let interface = json!([{"name": "eth0", "mac": "02:00:00:00:00:07", "mtu": 1300, "sandbox": pod.path()}]);
    assert_eq!(result["interfaces"], interface);
    assert_eq!(link(&pod, "eth0")["mtu"], 1300);
    assert_eq!(addresses(&pod, "eth0"), ["10.1.2.2/24", "fd00:1::2/64"]);
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    ctx.del(&pod.attachment("eth0"), &conf);
    link_plugin::check_notices(&ctx, &conf, &CHANGES[2..3]);
    link_plugin::del_needs_nothing(&ctx, &conf);
    let other = config("dummy", "1.1.0", &json!({}));
    link_plugin::del_leaves_no_address(&ctx, &conf, &other, false);
    ctx.succeed("STATUS", &Attachment::default(), &conf);
}

/// The reference fails too, before it opens the namespace.
#[test]
fn ipam_is_required() {
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_dummy"));
    let conf = config("dummy", "1.1.0", &json!({"ipam": {}}));
    let attachment = Attachment::new("c1", "/run/netns/gone", "eth0");
    ctx.fail("ADD", &attachment, &conf).expect(7, "dummy interface requires an IPAM configuration");
    ctx.del(&attachment, &conf);
}
