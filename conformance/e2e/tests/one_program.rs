//! Ferrule as one program with several names: installed as links, bridge runs host-local within its own
//! process; installed as copies, it starts one process, with the same result.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;

use cni_lab::{Node, Pod, bin_dir};
use cni_runner::Network;
use serde_json::{Value, json};
use tempfile::TempDir;

/// For each verb, how many programs the plugin executes (by strace), and the result of ADD.
fn executed(node: &Node, pod: &Pod, folder: &Path) -> (Vec<usize>, Value) {
    let tmp = TempDir::new().unwrap();
    // A wrapper that starts the plugin under strace.
    let wrapped = tmp.path().join("bin");
    fs::create_dir(&wrapped).unwrap();
    let trace = tmp.path().join("trace");
    let script = format!(
        "#!/bin/sh\nCNI_PATH={} exec strace -f -qq -e trace=execve -o {}.$CNI_COMMAND {}/bridge\n",
        folder.display(),
        trace.display(),
        folder.display()
    );
    fs::write(wrapped.join("bridge"), script).unwrap();
    fs::set_permissions(wrapped.join("bridge"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let network = Network::from_value(&json!({"name": "one", "cniVersion": "1.1.0", "plugins": [{
        "type": "bridge", "isDefaultGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24"}]]}}]}))
    .unwrap();
    let runtime = node.runtime([&wrapped]);
    let attachment = pod.attachment("eth0");
    let result = runtime.add(&network, &attachment).unwrap();
    runtime.check(&network, &attachment).unwrap();
    runtime.status(&network).unwrap();
    runtime.del(&network, &attachment).unwrap();
    runtime.gc(&network, Some(&[])).unwrap();
    let count = |verb: &str| {
        let trace = fs::read_to_string(format!("{}.{verb}", trace.display())).unwrap();
        trace.lines().filter(|line| line.contains("execve(") && line.ends_with("= 0")).count() - 1
    };
    (["ADD", "CHECK", "STATUS", "DEL", "GC"].map(count).to_vec(), result)
}

#[test]
fn links_start_no_process_and_copies_start_one() {
    let copies = TempDir::new().unwrap();
    for name in ["bridge", "host-local"] {
        fs::copy(bin_dir().unwrap().join(name), copies.path().join(name)).unwrap();
    }
    let node = Node::new().unwrap();
    let pod = node.pod("pod1").unwrap();
    let (processes, mut linked) = executed(&node, &pod, &bin_dir().unwrap());
    assert_eq!(processes, [0; 5]);
    let (processes, mut copied) = executed(&node, &pod, copies.path());
    assert_eq!(processes, [1; 5]);
    // Round robin changes the address, and the kernel chooses the hardware address.
    for result in [&mut linked, &mut copied] {
        result["ips"][0]["address"] = Value::Null;
        result["interfaces"][2]["mac"] = Value::Null;
    }
    assert_eq!(linked, copied);
}
