//! Every file in `examples/runtimes/`: its keys and folders, and a pod on the network of containerd's template.
//! `containerd.rs`, `kubelet_nic.rs` and `podman.rs` run with those of containerd 1.x and podman.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cni_lab::{Containerd, Node, Place as _, Snapshot, bin_dir};
use cni_runner::Network;
use serde_json::Value;

use self::host_port::{PORTS, SERVER, answered, closed};
use self::leftovers::assert_nothing_left;

#[path = "common/host_port.rs"]
mod host_port;
#[path = "common/leftovers.rs"]
mod leftovers;

/// The keys of the tables that a file may set, as the documentation of runtimes that are not here has them.
const DOCUMENTED: [(&str, &str, &[&str]); 4] = [
    // docs/cri/config.md and internal/cri/config/config.go of containerd 2.1
    (
        "containerd-2.toml",
        "plugins/io.containerd.cri.v1.runtime/cni",
        &[
            "bin_dirs",
            "conf_dir",
            "max_conf_num",
            "setup_serially",
            "conf_template",
            "ip_pref",
            "use_internal_loopback",
        ],
    ),
    // crio.conf(5) of CRI-O 1.30
    ("crio.conf", "crio/network", &["cni_default_network", "network_dir", "plugin_dirs"]),
    // containers.conf(5) of podman 4.3; an unknown key is only a line in podman's debug log.
    (
        "podman.conf",
        "network",
        &["network_backend", "cni_plugin_dirs", "default_network", "default_subnet", "network_config_dir"],
    ),
    // docs/config.md of nerdctl 2.0
    ("nerdctl.toml", "", &["address", "namespace", "cni_path", "cni_netconfpath", "data_root", "bridge_ip"]),
];
/// The files that containerd 1.x reads.
const CONTAINERD_1: [&str; 3] =
    ["containerd-1.toml", "containerd-1-two-networks.toml", "kubernetes-podcidr.toml"];

fn runtimes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/runtimes")
}

fn read(file: &str) -> String {
    fs::read_to_string(runtimes().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The keys of a configuration, each with its table and its value. The parts of a table's name are separated by `/`.
fn keys(toml: &str) -> Vec<(String, String, Value)> {
    let mut keys = Vec::new();
    let mut tables = vec![(String::new(), basic_toml::from_str::<Value>(toml).unwrap())];
    while let Some((table, content)) = tables.pop() {
        for (key, value) in content.as_object().unwrap() {
            if value.is_object() {
                tables.push((format!("{table}/{key}").trim_start_matches('/').to_owned(), value.clone()));
            } else {
                keys.push((table.clone(), key.clone(), value.clone()));
            }
        }
    }
    keys
}

#[test]
fn every_file_names_our_folders_by_keys_that_its_runtime_has() {
    let template = ["/etc/cni/", TEMPLATE].concat();
    let folders = ["/opt/cni/bin", "/etc/cni/net.d", &template];
    let mut checked = 0;
    for entry in fs::read_dir(runtimes()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if file == TEMPLATE {
            continue;
        }
        let keys = keys(&read(&file));
        let paths =
            keys.iter().flat_map(|(.., value)| value.as_array().cloned().unwrap_or(vec![value.clone()]));
        let paths: Vec<_> =
            paths.filter(|path| path.as_str().is_some_and(|path| path.contains('/'))).collect();
        assert!(
            paths.len() >= 2 && paths.iter().all(|path| folders.contains(&path.as_str().unwrap())),
            "{file}: {paths:?}"
        );
        checked += 1;
        if CONTAINERD_1.contains(&file.as_str()) {
            continue;
        }
        let documented = DOCUMENTED.iter().find(|(name, ..)| *name == file);
        let (_, table, known) = documented.unwrap_or_else(|| panic!("{file}: no documented keys"));
        for (found, key, value) in keys {
            match key.as_str() {
                "version" => assert!(found.is_empty() && value == 3, "{file}: version {value}"),
                _ => assert!(found == *table && known.contains(&key.as_str()), "{file}: [{found}] {key}"),
            }
            if key == "cni_default_network" {
                Network::load(runtimes().join(".."), value.as_str().unwrap()).unwrap();
            }
        }
    }
    assert_eq!(checked, CONTAINERD_1.len() + DOCUMENTED.len());
}

/// containerd prints only keys that it has, with its defaults for all others.
#[test]
fn containerd_takes_every_key_of_its_files() {
    for file in CONTAINERD_1 {
        let path = runtimes().join(file);
        let output =
            Command::new("containerd").arg("--config").arg(path).args(["config", "dump"]).output().unwrap();
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        let effective = keys(&String::from_utf8(output.stdout).unwrap());
        for key in keys(&read(file)) {
            assert!(effective.contains(&key), "{file}: {key:?}");
        }
    }
}

const TEMPLATE: &str = "kubernetes-podcidr.template";

#[test]
fn containerd_makes_the_network_of_the_nodes_pod_cidrs() {
    let node = Node::new().unwrap();
    let client = node.outside_client("192.0.2.0/24").unwrap();
    let before = Snapshot::take(&node).unwrap();
    let config = read("kubernetes-podcidr.toml");
    let containerd = Containerd::start_with(&node, &bin_dir().unwrap(), None, &config).unwrap();
    containerd.import_pause_image().unwrap();
    node.write_file(format!("/etc/cni/{TEMPLATE}"), &read(TEMPLATE)).unwrap();

    assert!(!containerd.is_network_ready().unwrap());
    containerd.set_pod_cidrs("10.85.3.0/24,fd00:85:0:3::/64").unwrap();
    let pod = containerd.run_sandbox("web-0", &[PORTS], &[]).unwrap();
    assert_eq!(containerd.sandbox_ips(&pod).unwrap(), ["10.85.3.2", "fd00:85:0:3::2"]);
    let sh = |script| containerd.sandbox_sh("kubernetes-podcidr", &pod, script).unwrap();
    assert_eq!(sh("ip route show default").trim(), "default via 10.85.3.1 dev eth0");
    sh("ping -c 1 -W 5 10.85.3.1 && ping -c 1 -W 5 fd00:85:0:3::1");
    let server = containerd.sandbox_spawn("kubernetes-podcidr", &pod, &SERVER).unwrap();
    answered(&client, client.node_address()).unwrap();
    drop(server);
    containerd.remove_sandbox(&pod).unwrap();
    closed(&client, client.node_address()).unwrap();
    assert_nothing_left(&node, &before, &["cni0"], &[]).unwrap();
}
