//! The image that contains only the program, under podman: it installs the plugins on the node whose folder is mounted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cni_lab::{Node, Place as _, Podman, bin_dir, go_bin_dir};
use serde_json::json;
use tempfile::TempDir;

const IMAGE: &str = "localhost/ferrule";
const MOUNT: &str = "--volume=/opt/cni/bin:/opt/cni/bin";

#[test]
fn the_image_installs_and_goes_back() {
    let folder = TempDir::new().unwrap();
    for name in ["bridge", "host-local", "portmap"] {
        fs::copy(go_bin_dir().unwrap().join(name), folder.path().join(name)).unwrap();
    }
    let network = json!({
        "name": "pods", "cniVersion": "0.4.0", "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]});
    let node = Node::new().unwrap();
    let podman = Podman::start(&node, folder.path(), Some(&network)).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Containerfile");
    let context = bin_dir().unwrap();
    podman
        .podman(&["build", "--tag", IMAGE, "--file", file.to_str().unwrap(), context.to_str().unwrap()])
        .unwrap();

    // As a DaemonSet may run it: without network and privileges, from a read-only image.
    let few_rights = [MOUNT, "--network", "none", "--read-only", "--cap-drop", "all"];
    let said = podman.run_image(IMAGE, &few_rights, &["install"]).unwrap();
    assert!(said.contains("Installed in /opt/cni/bin: ") && said.contains("bridge: install v"), "{said}");
    let meta = |name: &str| fs::metadata(folder.path().join(name)).unwrap();
    assert!(meta("bridge").ino() == meta("ferrule").ino() && meta("bridge").nlink() > 5);
    assert!(fs::read(folder.path().join("bridge")).unwrap() == fs::read(context.join("ferrule")).unwrap());
    let said = podman.run_image(IMAGE, &few_rights, &["install"]).unwrap();
    assert!(said.ends_with("Nothing to do in /opt/cni/bin.\n"), "{said}");
    let said = podman.run_image(IMAGE, &few_rights, &["status"]).unwrap();
    let is_installed = |line: &str| line.split_whitespace().take(2).eq(["bridge", "installed"]);
    assert!(said.lines().any(is_installed), "{said}");

    podman.run("one", &["--publish", "8080:80"]).unwrap();
    podman.sh("one", "ping -c 1 -W 5 10.1.0.1").unwrap();
    let ruleset = || node.sh("nft list ruleset").unwrap();
    assert!(ruleset().contains("table inet cni_portmap"));
    // The image may have another network than the node, and has no iptables programs.
    let refused = podman.run_image(IMAGE, &few_rights, &["uninstall"]).unwrap_err();
    let refused = format!("{refused:#}");
    assert!(refused.contains("say --host-ports"), "{refused}");
    let on_the_node = [MOUNT, "--network", "host", "--cap-add", "NET_ADMIN"];
    let said = podman.run_image(IMAGE, &on_the_node, &["uninstall", "--host-ports", "nftables"]).unwrap();
    assert!(said.contains("portmap: hand over container "), "{said}");
    assert!(!ruleset().contains("cni_portmap") && ruleset().contains("cni_hostport"), "{}", ruleset());
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    podman.podman(&["rm", "--force", "--time", "0", "one"]).unwrap();
}
