//! Ferrule as one program with several names. Installed as links or as copies, bridge runs its IPAM plugin within
//! its own process. Any other file named host-local is started as a process.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;

use cni_lab::testing::{Origin, PluginDir, TestContext, Trace, host_local, network_config, with_prev};
use cni_lab::{Pod, bin_dir};
use serde_json::{Value, json};
use tempfile::TempDir;

/// For each verb, how many programs the plugin of this folder starts, and the result of ADD.
fn started(ctx: &TestContext, pod: &Pod, folder: &Path, ipam: &Value) -> (Vec<usize>, Value) {
    let mut ctx = ctx.clone();
    (ctx.plugin, ctx.path) = (folder.join("bridge"), folder.display().to_string());
    let attachment = pod.attachment("eth0");
    let keys = json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam});
    let conf = network_config("bridge", "1.1.0", &keys);
    let result = ctx.add(&attachment, &conf);
    let conf = with_prev(&conf, &result);
    let programs = |verb| Trace::of(&ctx.node, &ctx.exec(verb, &attachment, &conf), "execve").programs();
    (["CHECK", "STATUS", "DEL", "ADD", "DEL", "GC"].map(programs).to_vec(), result)
}

#[test]
fn links_and_copies_start_no_process() {
    let copies = TempDir::new().unwrap();
    for name in ["bridge", "host-local"] {
        fs::copy(bin_dir().unwrap().join(name), copies.path().join(name)).unwrap();
    }
    let ctx = TestContext::new(PluginDir::installed(Origin::Ours, "bridge"));
    let pod = ctx.pod("pod1");
    let ipam = host_local(&["10.1.2.0/24"]);
    let (processes, mut linked) = started(&ctx, &pod, &bin_dir().unwrap(), &ipam);
    assert_eq!(processes, [0; 6]);
    let (processes, mut copied) = started(&ctx, &pod, copies.path(), &ipam);
    assert_eq!(processes, [0; 6]);

    // A host-local with the same size and another build ID is another program.
    let file = copies.path().join("host-local");
    let mut other_build = fs::read(&file).unwrap();
    let note = other_build.windows(4).position(|bytes| bytes == b"GNU\0").unwrap();
    other_build[note + 4] ^= 1;
    fs::write(&file, other_build).unwrap();
    let (processes, mut other) = started(&ctx, &pod, copies.path(), &ipam);
    assert_eq!(processes, [1; 6]);

    // Round robin changes the address, and the kernel chooses the hardware address.
    for result in [&mut linked, &mut copied, &mut other] {
        result["ips"][0]["address"] = Value::Null;
        result["interfaces"][2]["mac"] = Value::Null;
    }
    assert_eq!(linked, copied);
    assert_eq!(linked, other);
}

#[test]
fn static_needs_no_process_either() {
    let ctx = TestContext::new(PluginDir::installed(Origin::Ours, "bridge"));
    let ipam = json!({"type": "static", "addresses": [{"address": "10.1.2.7/24"}]});
    let (processes, result) = started(&ctx, &ctx.pod("pod1"), &bin_dir().unwrap(), &ipam);
    assert_eq!(processes, [0; 6]);
    assert_eq!(result["ips"][0]["address"], "10.1.2.7/24");
}
