//! The example of a plugin: built outside of this repository with the packaged crate, tried on packets, judged by the
//! suite.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cni_lab::{Node, Place as _, bin_dir};
use cni_runner::Network;
use serde_json::{Value, json};
use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const COMMAND: &str = env!("CARGO_BIN_EXE_cni-conformance");
/// The folder of programs that cargo has built. What the example shares with this workspace is not compiled again.
const TARGET: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/..");

/// Runs a command of cargo in a folder, which must succeed.
fn cargo(folder: &Path, words: &[&str]) {
    let output = Command::new("cargo")
        .args(words)
        .args(["--target-dir", TARGET])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A folder with the plugin.
fn built(work: &Path) -> PathBuf {
    cargo(
        Path::new(ROOT),
        &["package", "--package", "cni-common", "--no-verify", "--allow-dirty", "--locked"],
    );
    let version = env!("CARGO_PKG_VERSION");
    let unpack = |command: &mut Command| assert!(command.current_dir(work).status().unwrap().success());
    unpack(Command::new("tar").arg("-xf").arg(format!("{TARGET}/package/cni-common-{version}.crate")));
    unpack(Command::new("cp").arg("-r").arg(format!("{ROOT}/examples/plugin")).arg("."));
    let plugin = work.join("plugin");
    let manifest = fs::read_to_string(plugin.join("Cargo.toml")).unwrap();
    assert!(manifest.contains("path = \"../../cni-common\""), "{manifest}");
    let manifest = manifest.replace("../../cni-common", &format!("../cni-common-{version}"));
    fs::write(plugin.join("Cargo.toml"), manifest).unwrap();
    cargo(&plugin, &["build", "--locked"]);
    let bin = work.join("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy(format!("{TARGET}/debug/dscp"), bin.join("dscp")).unwrap();
    bin
}

#[test]
fn a_plugin_of_somebody_else() {
    let work = TempDir::new().unwrap();
    let bin = built(work.path());
    marks_packets(&bin);
    let described = format!("{ROOT}/examples/plugin/describe.json");
    let mut suite = Command::new(COMMAND);
    suite.arg("run").arg("--bin-dir").arg(&bin).args([
        "--plugin",
        "dscp",
        "--describe",
        &described,
        "--format",
        "json",
    ]);
    let output = suite.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report:#}");
    assert!(report["summary"]["pass"].as_u64().unwrap() > 40, "{}", report["summary"]);
    // The command that repeats a test case of a plugin that the suite does not know.
    let file = fs::canonicalize(&described).unwrap();
    assert!(
        report.to_string().contains(&format!("--plugin dscp --describe {} --cni-version", file.display()))
    );
}

fn marks_packets(bin: &Path) {
    let node = Node::new().unwrap();
    let network = json!({"name": "pods", "cniVersion": "1.1.0", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
        {"type": "dscp", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}]});
    let network = Network::from_value(&network).unwrap();
    let runtime = node.runtime([bin.to_owned(), bin_dir().unwrap()]);
    let annotated = |value: &str| json!({"example.org/dscp": value});
    let pod = node.pod("marked").unwrap();
    let attachment = |value: &str| {
        pod.attachment("eth0").with_capability("io.kubernetes.cri.pod-annotations", annotated(value))
    };
    let refused = runtime.add(&network, &attachment("64")).unwrap_err().to_string();
    assert!(refused.contains("example.org/dscp: \"64\" is not 0 to 63"), "{refused}");
    runtime.del(&network, &attachment("64")).unwrap();

    let marked = attachment("8");
    runtime.add(&network, &marked).unwrap();
    runtime.check(&network, &marked).unwrap();
    node.sh("nft 'table ip count { chain in { type filter hook input priority 0; ip dscp cs1 icmp type echo-request counter; }; }'").unwrap();
    pod.sh("ping -q -c 3 -i 0.01 10.1.0.1").unwrap();
    let counted = node.sh("nft list table ip count").unwrap();
    assert!(counted.contains("counter packets 3"), "{counted}");
    node.sh("nft 'flush chain netdev dscp/pods/marked/65746830 marks'").unwrap();
    assert!(runtime.check(&network, &marked).is_err());
    pod.delete().unwrap();
    runtime.del(&network, &marked).unwrap();
    assert_eq!(node.sh("nft list tables netdev").unwrap(), "");
}
