//! DRA claims: their devices, records without claims, and claims without records.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use cni_lab::testing::{Origin, PLANTED, dra_manager_state, mac, plant, plant_all, try_link};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Network;
use serde_json::{Value, json};

use crate::fixture::{Container, Fixture, PROGRAM};

const UID: &str = "0d3c1f2a-7d0b-4e21-8599-62581e335ed6";
const ENDED: &str = "ffff1f2a-7d0b-4e21-8599-62581e335ed6";

/// The example, in folders of the test: `/var/lib` has the machine's.
fn network() -> Value {
    let example = include_str!("../../../../examples/dra/10-ferrule-claims.conflist");
    let mut network: Value = serde_json::from_str(example).unwrap();
    network["name"] = json!("pods");
    network["plugins"][3]["dataDir"] = json!("/run/ferrule");
    network["plugins"][3]["kubeletDir"] = json!("/run/kubelet");
    network
}

fn write_record(f: &Fixture, pod: &str, claim: &str) {
    let link = |name: &str| json!({"name": name, "mac": mac(&f.node, name)});
    let device = |name: &str| json!({"request": "nic", "pool": "node1", "device": format!("dev-{name}"), "link": link(name)});
    let (mut moved, mut parent) = (device("hd0"), device("hd2"));
    moved["ipam"] = json!({"type": "host-local", "subnet": "10.215.0.0/24"});
    parent["cni"] = json!({"ifName": "m0", "config": {"type": "macvlan"}});
    let record = json!({"version": 1, "driver": "nic.ferrule.dev", "claim": {"namespace": "shop", "name": "nic", "uid": claim},
        "pod": {"uid": pod, "name": "web"}, "devices": [moved, parent]});
    f.node.sh(&format!("mkdir -p /run/ferrule/dra/{pod} /run/kubelet")).unwrap();
    f.node.write_file(format!("/run/ferrule/dra/{pod}/{claim}.json"), &record.to_string()).unwrap();
}

/// The kubelet's state: pairs of claim and pod.
fn kubelet_has(f: &Fixture, claims: &[(&str, &str)]) {
    f.node.write_file("/run/kubelet/dra_manager_state", &dra_manager_state(claims)).unwrap();
}

/// A node with a pod that has two devices by a claim.
fn attached() -> (Fixture, Container) {
    let f = Fixture::new();
    symlink(PROGRAM, f.bin_dir(Origin::Ours).join("claims")).unwrap();
    f.node.sh("for n in 0 2; do ip link add hd$n type veth peer name peer$n; ip link set hd$n up; ip link set peer$n up; done").unwrap();
    write_record(&f, UID, "c1");
    kubelet_has(&f, &[("c1", UID)]);
    let of_runtime = Network::from_value(&network()).unwrap();
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID={UID}");
    let added =
        f.add_to(Origin::Ours, &of_runtime, "inspect-claims-a", |pod| pod.attachment("eth0").with_args(args));
    (f, added)
}

#[test]
fn devices_show_their_claim_and_repair_mends_them() {
    let (f, added) = attached();
    let devices = f.says("inspect devices");
    let mut rows: Vec<Vec<&str>> =
        devices.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    rows.sort();
    let row = |link, id, ifname| {
        vec![link, id, "shop/nic", "pods.claims", "shop/web", "inspect-claims-a", ifname, "alive"]
    };
    assert_eq!(rows, [row("hd0", "dev-hd0", "net1"), row("hd2", "dev-hd2", "m0")], "{devices}");
    let claim = |link: &str| format!("claim {link}: in /run/ferrule/dra-attached/inspect-claims-a:eth0.json");
    for (what, link) in
        [("shop/nic", "hd0"), ("shop/nic", "hd2"), ("shop/web", "hd2"), ("10.215.0.2", "hd0"), ("hd2", "hd2")]
    {
        let why = f.says(&format!("inspect why {what}"));
        assert!(why.contains(&claim(link)), "{what}: {why}");
    }
    let mut sleep = Command::new("sleep");
    sleep.arg("infinity");
    let _process = added.pod.spawn(sleep).unwrap();
    added.pod.sh("ip link set m0 down; ip address flush dev net1 scope global").unwrap();
    let bin_dir = format!("--bin-dir {}", f.bin_dir(Origin::Ours).display());
    assert!(!f.run(&format!("check {bin_dir}")).status.success());
    let said = f.says(&format!("repair --yes {bin_dir}"));
    added.pod.sh("ip -o link show m0 | grep -q UP && ip address show net1 | grep -q 10.215.0.2/24").unwrap();
    assert!(said.contains("repaired claims"), "{said}");
    f.says(&format!("check {bin_dir}"));
}

#[test]
fn doctor_compares_claims_and_records() {
    let (f, _added) = attached();
    let conf = tempfile::tempdir().unwrap();
    let file = conf.path().join("pods.conflist");
    fs::write(&file, network().to_string()).unwrap();
    let words = format!(
        "doctor --conf-dir {} --bin-dir {}",
        conf.path().display(),
        f.bin_dir(Origin::Ours).display()
    );
    let doctor = || String::from_utf8(f.run(&words).stdout).unwrap();
    assert!(doctor().contains("ok: claims: 1 claims of pods, each with its record"), "{}", doctor());
    kubelet_has(&f, &[("c2", UID)]);
    let subject = format!("network pods ({})", file.display());
    for line in [
        format!(
            "error: {subject}: claim c2 of pod {UID} is in /run/kubelet/dra_manager_state and has no record in /run/ferrule/dra"
        ),
        format!(
            "warning: {subject}: /run/ferrule/dra/{UID}/c1.json is a record of a claim that is not in /run/kubelet/dra_manager_state"
        ),
        "remedy: ferrule gc --yes".to_owned(),
    ] {
        assert!(doctor().contains(&line), "{line}\n{}", doctor());
    }
    f.node.write_file("/run/kubelet/dra_manager_state", "{").unwrap();
    assert!(
        doctor().contains(&format!("error: {subject}: read the kubelet's state of claims")),
        "{}",
        doctor()
    );
}

#[test]
fn gc_removes_records_without_a_claim_and_what_a_dead_pod_had() {
    let (f, added) = attached();
    write_record_of_the_ended(&f);
    let record = format!("claim record - /run/ferrule/dra/{ENDED}/c9.json");
    // The kubelet names the claim, or its state cannot be read.
    kubelet_has(&f, &[("c1", UID), ("c9", ENDED)]);
    assert_eq!(f.leaks(), Vec::<String>::new());
    f.node.write_file("/run/kubelet/dra_manager_state", "{").unwrap();
    assert_eq!(f.leaks(), Vec::<String>::new());
    // That of the pod with a sandbox stays, though the kubelet has forgotten it.
    kubelet_has(&f, &[]);
    assert!(eventually(TIMEOUT, || f.leaks() == [record.as_str()]), "{:?}", f.json("leaks"));
    assert!(
        eventually(TIMEOUT, || f.says("gc --yes").contains("1 of 1 leaks removed") || f.leaks().is_empty())
    );
    f.node
        .sh(&format!("test ! -e /run/ferrule/dra/{ENDED} && test -e /run/ferrule/dra/{UID}/c1.json"))
        .unwrap();

    // The sandbox is lost without a DEL.
    added.pod.delete().unwrap();
    let is_clean = || {
        f.run("gc --yes");
        f.leaks().is_empty() && f.node.list_dir("/run/ferrule/dra-attached").unwrap().is_empty()
    };
    assert!(eventually(TIMEOUT, is_clean), "{}", f.says("inspect leaks"));
    assert!(f.node.list_dir("/run/cni/host-device").unwrap().is_empty());
    f.node.sh("test ! -e /var/lib/cni/networks/pods.claims/10.215.0.2").unwrap();
    assert!(try_link(&f.node, "hd2").is_some());
}

fn write_record_of_the_ended(f: &Fixture) {
    f.node.sh(&format!(
        "mkdir -p /run/ferrule/dra/{ENDED}; sed 's/{UID}/{ENDED}/; s/\"c1\"/\"c9\"/' /run/ferrule/dra/{UID}/c1.json \
         >/run/ferrule/dra/{ENDED}/c9.json"
    ))
    .unwrap();
}

/// A foreign object in each folder, and then in the place of the kubelet's file.
#[test]
fn foreign_objects_beside_claims_stop_nothing() {
    let (f, _added) = attached();
    write_record_of_the_ended(&f);
    let folder = format!("/run/ferrule/dra/{ENDED}");
    for place in ["/run/ferrule/dra/%", "/run/ferrule/dra-attached/%.json"] {
        plant_all(&f.node, place);
    }
    for (number, (_, make)) in PLANTED.iter().enumerate() {
        plant(&f.node, &format!("{folder}/f{number}.json"), make);
    }
    let run = |words: &str| {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "20", PROGRAM]).args(f.words(words).split(' ')).env_remove("CNI_COMMAND");
        let output = f.node.exec(&mut command).unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{words}: {said}");
        said
    };
    let record = format!("{folder}/c9.json");
    for (kind, make) in PLANTED {
        plant(&f.node, "/run/kubelet/dra_manager_state", make);
        let said = run("gc --yes");
        assert!(said.contains("0 of 0 leaks removed"), "{kind}: {said}");
        run("inspect leaks");
    }
    f.node.sh("rm -rf /run/kubelet/dra_manager_state").unwrap();
    kubelet_has(&f, &[("c1", UID)]);
    let is_removed = || {
        run("gc --yes");
        f.node.sh(&format!("test -e {record} && echo yes || echo no")).unwrap().trim() == "no"
    };
    assert!(eventually(TIMEOUT, is_removed), "{}", run("inspect leaks"));
    let devices = run("inspect devices");
    assert!(devices.contains("inspect-claims-a"), "{devices}");
    let left = f.node.sh(&format!("ls {folder} | wc -l; ls /run/ferrule/dra-attached | wc -l")).unwrap();
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["9", "10"], "foreign objects stay");
}

/// Prints a figure that operator/inspect/README.md has. Measures the static program.
#[test]
#[ignore = "benchmark: cargo test -p ferrule --test inspect speed_of_each_kind -- --ignored --nocapture"]
fn speed_of_each_kind_claim_record() {
    let (f, _added) = attached();
    f.node
        .sh(&format!(
            "for n in $(seq 5000); do mkdir /run/ferrule/dra/dead-$n
             sed \"s/{UID}/dead-$n/; s/\\\"c1\\\"/\\\"c-$n\\\"/\" /run/ferrule/dra/{UID}/c1.json >/run/ferrule/dra/dead-$n/c-$n.json
             done"
        ))
        .unwrap();
    crate::budget::time_gc(&f, "claim record");
}
