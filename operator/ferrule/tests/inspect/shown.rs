//! What the views show, on terminals of two widths, and what `ferrule check` finds.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Network;
use serde_json::{Value, json};

use crate::fixture::{Fixture, PROGRAM};

#[test]
fn views_fit_the_terminal_and_name_the_pod() {
    let f = Fixture::new();
    let ours = f.add(Origin::Ours, "inspect-shown-with-a-rather-long-name-a", 18301);
    let theirs = f.add(Origin::Reference, "inspect-shown-with-a-rather-long-name-b", 18302);
    theirs.pod.delete().unwrap();
    f.device("inspect-shown-with-a-rather-long-name-a");
    for view in ["pods", "addresses", "ports", "shaping", "links", "devices", "leaks", "why 18301"] {
        for columns in [80, 200] {
            let text = f.on_terminal(
                columns,
                &format!("NO_COLOR=1 {PROGRAM} {}", f.words(&format!("inspect {view}"))),
            );
            assert!(!text.contains('\x1b') && text.lines().count() > 1, "{view}: {text}");
            for line in text.lines() {
                assert!(line.chars().count() <= columns as usize, "{view} at {columns}: {line:?}");
            }
        }
    }
    let wide = f.on_terminal(200, &format!("TERM=xterm {PROGRAM} {}", f.words("inspect")));
    assert!(wide.contains("shop/pod-inspect-shown-with-a-rather-long-name-a"), "{wide}");
    assert!(wide.contains("\x1b[32malive\x1b[39m") && wide.contains("80M/40M"), "{wide}");

    for what in [
        "18301",
        "18301/tcp",
        &ours.address,
        "inspect-shown-with-a-rather-long-name-a",
        "shop/pod-inspect-shown-with-a-rather-long-name-a",
    ] {
        let why = f.says(&format!("inspect why {what}"));
        for fact in [
            "network ours, interface eth0",
            "state: alive",
            "namespace /run/netns/inspect-shown",
            "plugins bridge, tuning, portmap",
            "table inet cni_portmap, made by ferrule",
            "/var/lib/cni/networks/ours/10.212.0.",
            "rate 40000000 bit/s",
            "table inet cni_firewall",
        ] {
            assert!(why.contains(fact), "{what} lacks {fact}: {why}");
        }
    }
    assert_eq!(f.run("inspect why nobody").status.code(), Some(3));
    let document = f.json("pods");
    assert_eq!((&document["schema"], document["attachments"].as_array().unwrap().len()), (&1.into(), 3));
    assert_eq!(document["attachments"][0]["pod"], "shop/pod-inspect-shown-with-a-rather-long-name-a");
}

#[test]
fn check_finds_what_is_broken() {
    let f = Fixture::new();
    let first = f.add(Origin::Ours, "inspect-check-a", 18401);
    f.add(Origin::Ours, "inspect-check-b", 18402).pod.delete().unwrap();
    f.add(Origin::Ours, "inspect-check-c", 18403);
    let check = format!("check --bin-dir {}", f.bin_dir(Origin::Ours).display());
    let said = f.says(&check);
    assert!(said.contains("2 sound, 0 failed, 1 skipped") && said.contains("inspect-check-b"), "{said}");
    first.pod.sh(&format!("ip address del {}/16 dev eth0", first.address)).unwrap();
    let output = f.run(&check);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("1 sound, 1 failed, 1 skipped"), "{said}");
    assert!(
        said.starts_with("failed: container inspect-check-a (interface eth0 on network ours): bridge:"),
        "{said}"
    );
    f.node.sh("echo > /var/lib/cni/results/bad").unwrap();
    let said: Value = serde_json::from_slice(&f.run(&format!("{check} --json")).stdout).unwrap();
    assert_eq!(said["failures"][0], "cannot decode the cached result bad", "{said}");
}

/// containerd attaches each container to `cni-loopback` too.
#[test]
fn the_attachments_of_lo_are_shown_on_demand() {
    let f = Fixture::new();
    let container = f.add(Origin::Ours, "inspect-lo", 18421);
    let lo = Network::from_value(
        &json!({"name": "cni-loopback", "cniVersion": "1.0.0", "plugins": [{"type": "loopback"}]}),
    );
    f.runtime(Origin::Ours).add(&lo.unwrap(), &container.pod.attachment("lo")).unwrap();
    let check = format!("check --bin-dir {}", f.bin_dir(Origin::Ours).display());
    for (option, count) in [("", 1), (" --all", 2)] {
        assert_eq!(f.says(&format!("inspect pods{option}")).lines().count(), 1 + count);
        assert_eq!(f.json(&format!("pods{option}"))["attachments"].as_array().unwrap().len(), count);
        assert_eq!(f.says(&format!("{check}{option}")), format!("{count} sound, 0 failed, 0 skipped\n"));
    }
}

/// The plugin of one container hangs, and so does the program that it has started.
#[test]
fn check_stops_a_plugin_that_hangs() {
    let f = Fixture::new();
    f.add(Origin::Ours, "inspect-hang-a", 18411);
    f.add(Origin::Ours, "inspect-hang-b", 18412);
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("tuning");
    let script =
        "#!/bin/sh\n[ $CNI_CONTAINERID = inspect-hang-b ] || { sleep 1000 & echo $! >$0.pid; wait; }\n";
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let folders =
        [folder.path(), &f.bin_dir(Origin::Ours)].map(|folder| format!("--bin-dir {}", folder.display()));
    let output = f.run(&format!("check --timeout 1 {}", folders.join(" ")));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("1 sound, 1 failed, 0 skipped"), "{said}");
    assert!(
        said.contains("container inspect-hang-a (interface eth0 on network ours): tuning: no answer"),
        "{said}"
    );
    let pid = fs::read_to_string(folder.path().join("tuning.pid")).unwrap();
    assert!(eventually(TIMEOUT, || !Path::new("/proc").join(pid.trim()).exists()));
}
