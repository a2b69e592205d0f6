//! Compares the manifest with the program.

use clap::Parser as _;
use ferrule_blocks::plan::SLOTS;
use ferrule_node::arguments::{Arguments, Command};
use serde_json::Value;

use crate::lab::object;

#[test]
fn the_daemon_knows_its_options_and_has_its_folders() {
    let pod = object("DaemonSet")["spec"]["template"]["spec"].take();
    let container = &pod["containers"][0];
    assert_eq!(container["image"], concat!("registry.example/ferrule:", env!("CARGO_PKG_VERSION")));
    let texts = |list: &Value, key: &str| -> Vec<String> {
        let items = list.as_array().unwrap().iter();
        items
            .map(|item| if key.is_empty() { item } else { &item[key] }.as_str().unwrap().to_owned())
            .collect()
    };
    let arguments = Arguments::try_parse_from(texts(&container["command"], "")).unwrap();
    let Some(Command::Blocks(blocks)) = arguments.command else { panic!("another command") };
    let mounts = texts(&container["volumeMounts"], "mountPath");
    for path in [&*blocks.ledgers, blocks.socket.parent().unwrap(), &arguments.options.machine_id] {
        assert!(mounts.contains(&path.display().to_string()), "{}", path.display());
    }
    // The plugin names its folder by the node's path.
    assert!(mounts.contains(&"/var/lib/cni/networks".to_owned()));
    for mount in container["volumeMounts"].as_array().unwrap().iter().filter(|mount| mount["name"] != "token")
    {
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        assert_eq!(volume["hostPath"]["path"], mount["mountPath"], "the path of the node");
    }
}

#[test]
fn the_daemon_knows_its_quota() {
    let text = include_str!("../../../../examples/shared/ferrule-blocks.yaml");
    assert!(text.contains(&format!("object.spec.slot < {SLOTS}\n")));
}
