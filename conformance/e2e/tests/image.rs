//! The image that contains only the program, under podman: it installs the plugins on the node whose folder is mounted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use cni_lab::{Node, Place as _, Podman, bin_dir, go_bin_dir};
use serde_json::{Value, json};
use tempfile::TempDir;

const IMAGE: &str = "localhost/ferrule";
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../release");
const MOUNT: &str = "--volume=/opt/cni/bin:/opt/cni/bin";

/// A folder with plugins of the reference.
fn go_plugins() -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in ["bridge", "host-local", "portmap"] {
        fs::copy(go_bin_dir().unwrap().join(name), folder.path().join(name)).unwrap();
    }
    folder
}

/// A podman with these plugins, with a network, and with the image.
fn podman<'n>(node: &'n Node, plugins: &TempDir) -> Podman<'n> {
    let network = json!({
        "name": "pods", "cniVersion": "0.4.0", "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]});
    let podman = Podman::start(node, plugins.path(), Some(&network)).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Containerfile");
    let context = bin_dir().unwrap();
    podman
        .podman(&["build", "--tag", IMAGE, "--file", file.to_str().unwrap(), context.to_str().unwrap()])
        .unwrap();
    podman
}

#[test]
fn the_image_installs_and_goes_back() {
    let folder = go_plugins();
    let node = Node::new().unwrap();
    let podman = podman(&node, &folder);

    // As a DaemonSet may run it: without network and privileges, from a read-only image.
    let few_rights = [MOUNT, "--network", "none", "--read-only", "--cap-drop", "all"];
    let said = podman.run_image(IMAGE, &few_rights, &["install"]).unwrap();
    assert!(said.contains("Installed in /opt/cni/bin: ") && said.contains("bridge: install v"), "{said}");
    let meta = |name: &str| fs::metadata(folder.path().join(name)).unwrap();
    assert!(meta("bridge").ino() == meta("ferrule").ino() && meta("bridge").nlink() > 5);
    assert!(
        fs::read(folder.path().join("bridge")).unwrap()
            == fs::read(bin_dir().unwrap().join("ferrule")).unwrap()
    );
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

/// A manifest, which kubectl reads as YAML.
fn manifest(name: &str) -> Value {
    let program = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let file = format!("{MANIFESTS}/{name}.yaml");
    let output = Command::new("/usr/bin/python3").args(["-c", program, &file]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn texts(list: &Value) -> Vec<&str> {
    items(list).iter().map(|text| text.as_str().unwrap()).collect()
}

/// The options of `podman run` for the rights and the folders that the manifest gives a container.
fn rights(pod: &Value, container: &Value) -> Vec<String> {
    assert_eq!(pod["hostNetwork"], true);
    let context = &container["securityContext"];
    assert!(context["readOnlyRootFilesystem"] == true && context["allowPrivilegeEscalation"] == false);
    let mut options: Vec<String> =
        ["--network=host", "--read-only", "--security-opt=no-new-privileges"].map(str::to_owned).into();
    if pod["hostPID"] == true {
        options.push("--pid=host".to_owned());
    }
    for (key, option) in [("drop", "--cap-drop"), ("add", "--cap-add")] {
        options.extend(texts(&context["capabilities"][key]).iter().map(|right| format!("{option}={right}")));
    }
    for mount in items(&container["volumeMounts"]) {
        let volume = items(&pod["volumes"]).iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
        let follows = if mount["mountPropagation"] == "HostToContainer" { ",rslave" } else { "" };
        let path = |value: &Value| value.as_str().unwrap().to_owned();
        let (from, to) = (path(&volume["hostPath"]["path"]), path(&mount["mountPath"]));
        options.push(format!("--volume={from}:{to}:{mode}{follows}"));
    }
    options
}

/// kubelet's part is played by podman: the containers get exactly the rights and folders of the manifest.
#[test]
fn the_daemon_set_installs_and_checks() {
    let manifest = manifest("daemonset");
    let update = &manifest["spec"]["updateStrategy"];
    assert!(update["type"] == "RollingUpdate" && update["rollingUpdate"]["maxUnavailable"] == 1, "{update}");
    let pod = &manifest["spec"]["template"]["spec"];
    assert_eq!(
        manifest["spec"]["selector"]["matchLabels"],
        manifest["spec"]["template"]["metadata"]["labels"]
    );
    let ([install], [check]) = (items(&pod["initContainers"]), items(&pod["containers"])) else {
        panic!("{pod}")
    };
    assert_eq!(install["image"], check["image"]);

    let folder = go_plugins();
    let node = Node::new().unwrap();
    let podman = podman(&node, &folder);
    for volume in items(&pod["volumes"]) {
        if volume["hostPath"]["type"] == "DirectoryOrCreate" {
            node.sh(&format!("mkdir -p {}", volume["hostPath"]["path"])).unwrap();
        }
    }
    let run = |container: &Value, arguments: &[&str]| {
        let options = rights(pod, container);
        podman.run_image(IMAGE, &options.iter().map(String::as_str).collect::<Vec<_>>(), arguments)
    };
    // The reference's pod, when the first node has its turn.
    podman.run("old", &["--publish", "8081:80"]).unwrap();
    let said = run(install, &texts(&install["args"])).unwrap();
    assert!(said.contains("Installed in /opt/cni/bin: "), "{said}");
    podman.run("new", &["--publish", "8080:80"]).unwrap();

    let probe = texts(&check["readinessProbe"]["exec"]["command"]);
    assert_eq!(probe[0], "/ferrule");
    let said = run(check, &probe[1..]).unwrap();
    assert!(said.contains("2 sound, 0 failed, 0 skipped"), "{said}");
    let arguments = texts(&check["args"]);
    let (once, [watch]) = arguments.split_at(arguments.len() - 1) else { panic!("{arguments:?}") };
    assert!(watch.starts_with("--watch="), "{watch}");
    let said = run(check, once).unwrap();
    assert_eq!(said.matches(" alive ").count(), 2, "{said}");

    // A rollout must not go on.
    node.sh("nft delete table inet cni_portmap").unwrap();
    let refused = format!("{:#}", run(check, &probe[1..]).unwrap_err());
    assert!(refused.contains("portmap"), "{refused}");

    // The housekeeping on the same nodes.
    let manifest = self::manifest("daemonset-housekeeping");
    let pod = &manifest["spec"]["template"]["spec"];
    let [repair, gc] = items(&pod["containers"]) else { panic!("{pod}") };
    for (container, again, outcome) in [
        (repair, "--watch", "1 repaired, 0 failed, 0 skipped, 1 sound"),
        (gc, "--every", "0 of 0 leaks removed"),
    ] {
        let options = rights(pod, container);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (again, once): (Vec<_>, Vec<_>) =
            texts(&container["args"]).into_iter().partition(|argument| argument.starts_with(again));
        let said = podman.run_image(IMAGE, &options, &once).unwrap();
        assert!(again.len() == 1 && said.contains(outcome), "{once:?}: {said}");
    }
    let said = run(check, &probe[1..]).unwrap();
    assert!(said.contains("2 sound, 0 failed, 0 skipped"), "{said}");
    podman.podman(&["rm", "--force", "--time", "0", "old", "new"]).unwrap();
}
