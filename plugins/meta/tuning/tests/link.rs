//! Link attributes: ADD sets them, CHECK compares them, DEL restores them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::Command;

use cni_lab::testing::{
    VERSIONS, assert_unchanged, has_check, is_per_family, link, network_config, overlay, sysctl,
};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{BACKUP, attached, config, eth0, state, veth};
use serde_json::{Value, json};

fn all() -> Value {
    json!({"mac": "C2:00:00:00:00:0A", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77})
}

const TUNED: (&str, u64, u64, bool, bool) = ("c2:00:00:00:00:0a", 1400, 77, true, true);

fn assert_state(pod: &cni_lab::Pod, expected: (&str, u64, u64, bool, bool)) {
    let (mac, mtu, len, promiscuous, all_multicast) = state(pod);
    assert_eq!((mac.as_str(), mtu, len, promiscuous, all_multicast), expected);
}

#[test]
fn every_attribute_is_set_and_restored() {
    for version in VERSIONS.into_iter().filter(|version| !is_per_family(version)) {
        let (ctx, pod) = attached();
        let (node, before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
        let conf = config(version, &all());
        let mut expected = conf["prevResult"].clone();
        expected["interfaces"][1]["mac"] = json!("c2:00:00:00:00:0a");
        if version == "1.1.0" {
            (expected["interfaces"][0]["mtu"], expected["interfaces"][1]["mtu"]) = (json!(1400), json!(1400));
        }
        if version < "1.0.0" {
            expected["dns"] = json!({});
        }
        assert_eq!(ctx.add(&eth0(&pod), &conf), expected);
        assert_state(&pod, TUNED);
        assert_eq!(link(&ctx.node, "host0")["mtu"], 1400);
        let content = "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \
                       \"txQLen\": 1000,\n \"hostMtu\": 1500,\n \"network\": \"net\"\n}";
        assert_eq!(ctx.node.read_file(BACKUP).unwrap(), content);
        if has_check(version) {
            ctx.check(&eth0(&pod), &overlay(&conf, &json!({"prevResult": expected})));
        }
        // DEL restores the values of the file. It ignores the keys of the configuration.
        ctx.del(&eth0(&pod), &network_config("tuning", version, &json!({"mtu": "x"})));
        assert_unchanged(&pod, &before, version);
        let ignored = ["/run/cni/tuning/"];
        assert_eq!(node.ignoring(&ignored).diff(&ctx.snapshot().ignoring(&ignored)), "", "{version}");
        ctx.del(&eth0(&pod), &conf);
    }
}

#[test]
fn without_keys_the_result_passes_through() {
    let (ctx, pod) = attached();
    let (node, before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
    let conf = config("1.1.0", &json!({"mtu": 0, "promisc": false}));
    assert_eq!(ctx.add(&eth0(&pod), &conf), conf["prevResult"]);
    // The interface need not exist, and the container ID may be too long for a file name.
    ctx.del(&Attachment { container_id: "x".repeat(300), ..eth0(&pod) }, &conf);
    let attachment = Attachment { ifname: "eth9".to_owned(), ..eth0(&pod) };
    ctx.add(&attachment, &conf);
    ctx.check(&attachment, &conf);
    ctx.del(&attachment, &conf);
    assert_unchanged(&ctx.node, &node, "without keys");
    assert_unchanged(&pod, &before, "without keys");
    for verb in ["ADD", "CHECK"] {
        let alone = network_config("tuning", "1.0.0", &json!({"prevResult": null}));
        ctx.fail(verb, &eth0(&pod), &alone).expect(7, "Required prevResult missing");
    }
}

#[test]
fn the_first_backup_stays() {
    let (ctx, pod) = attached();
    ctx.add(&eth0(&pod), &config("1.0.0", &json!({"mtu": 1400})));
    ctx.add(&eth0(&pod), &config("1.0.0", &json!({"mtu": 1300, "txQLen": 5})));
    assert_eq!((state(&pod).1, state(&pod).2), (1300, 5));
    ctx.del(&eth0(&pod), &config("1.0.0", &json!({})));
    assert_eq!((state(&pod).1, state(&pod).2, &link(&ctx.node, "host0")["mtu"]), (1500, 1000, &json!(1500)));
}

#[test]
fn a_failed_add_changes_nothing() {
    let (ctx, pod) = attached();
    // The folder exists already.
    ctx.add(&eth0(&pod), &config("1.0.0", &json!({"txQLen": 5})));
    let (node, before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
    let arp_filter = json!({"net.ipv4.conf.IFNAME.arp_filter": "1"});
    for (keys, text) in [
        (json!({"mac": "02:00:00:00:00:09", "mtu": 70000}), "set the MTU 70000 of \"eth0\""),
        (json!({"promisc": true, "allmulti": true, "mtu": 1}), "set the MTU 1 of \"eth0\""),
        (json!({"mtu": 1400, "dataDir": "/proc/no"}), "failed to save file /proc/no/pod1_eth0.json"),
    ] {
        let conf = config("1.0.0", &overlay(&keys, &json!({"sysctl": arp_filter})));
        let error = ctx.fail("ADD", &eth0(&pod), &conf);
        assert!(error.contains(text), "{error}");
        assert_unchanged(&ctx.node, &node, text);
        assert_unchanged(&pod, &before, text);
        assert_eq!(sysctl(&pod, "ipv4/conf/eth0/arp_filter"), "0", "{text}");
    }
    let somaxconn = sysctl(&pod, "core/somaxconn");
    let conf = config("1.0.0", &json!({"mtu": 1400, "sysctl": arp_filter}));
    let other = Attachment { ifname: "lo9".to_owned(), ..eth0(&pod) };
    let error = ctx.fail("ADD", &other, &overlay(&conf, &json!({"sysctl": {"net.core.somaxconn": "7"}})));
    assert!(error.contains("failed to get \"lo9\": Link not found"), "{error}");
    assert_unchanged(&pod, &before, "without the link");
    assert_eq!(sysctl(&pod, "core/somaxconn"), somaxconn);
}

#[test]
fn check_tolerates_a_packet_capture() {
    let (ctx, pod) = attached();
    let conf = config("1.0.0", &json!({"mtu": 1400}));
    ctx.add(&eth0(&pod), &conf);
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-i", "eth0", "-w", "/dev/null"]);
    let _capture = pod.spawn(tcpdump).unwrap();
    let is_capturing = || pod.sh("ip -d link show eth0").unwrap().contains("promiscuity 1");
    assert!(eventually(TIMEOUT, is_capturing));
    ctx.check(&eth0(&pod), &conf);
    // A second ADD does not take the capture for a setting.
    ctx.add(&eth0(&pod), &config("1.0.0", &json!({"promisc": true})));
    assert!(ctx.node.read_file(BACKUP).unwrap().contains("\"promisc\": false"));
}

#[test]
fn check_detects_every_change() {
    let (ctx, pod) = attached();
    let conf = config("1.0.0", &all());
    ctx.add(&eth0(&pod), &conf);
    for (script, undo, text) in [
        (
            "address 02:00:00:00:00:99",
            "address c2:00:00:00:00:0a",
            "Ethernet of eth0 is c2:00:00:00:00:0a, current",
        ),
        ("promisc off", "promisc on", "link eth0 configured promisc is true, current value is false"),
        ("mtu 1300", "mtu 1400", "MTU of eth0 is 1400, current value is 1300"),
        ("allmulticast off", "allmulticast on", "all-multicast mode of eth0 is true, current value is false"),
        ("txqueuelen 5", "txqueuelen 77", "Transmit Queue Length of eth0 is 77, current value is 5"),
    ] {
        pod.sh(&format!("ip link set eth0 {script}")).unwrap();
        ctx.fail("CHECK", &eth0(&pod), &conf).expect(999, text);
        pod.sh(&format!("ip link set eth0 {undo}")).unwrap();
        ctx.check(&eth0(&pod), &conf);
    }
    pod.sh("ip link set eth0 down; ip link set eth0 name eth5").unwrap();
    ctx.fail("CHECK", &eth0(&pod), &conf).expect(999, "Cannot find container link eth0");
}

#[test]
fn del_removes_the_file_if_namespace_or_link_are_gone() {
    for gone in ["link", "namespace", "content"] {
        let (ctx, pod) = attached();
        ctx.add(&eth0(&pod), &config("1.0.0", &json!({"mtu": 1400})));
        let attachment = eth0(&pod);
        match gone {
            "link" => drop(pod.sh("ip link del eth0").unwrap()),
            "namespace" => pod.delete().unwrap(),
            _ => ctx.node.write_file(BACKUP, "{").unwrap(),
        }
        ctx.del(&attachment, &config("1.0.0", &json!({})));
        assert_eq!(ctx.node.list_dir("/run/cni/tuning").unwrap(), Vec::<String>::new(), "{gone}");
    }
}

#[test]
fn gc_removes_the_files_of_lost_attachments() {
    let (ctx, pod) = attached();
    let lost = veth(&ctx, "lost", "host1");
    for pod in [&pod, &lost] {
        ctx.add(&eth0(pod), &config("1.1.0", &json!({"mtu": 1400})));
    }
    let valid = json!([{"containerID": "pod1", "ifname": "eth0"}]);
    let gc = network_config("tuning", "1.1.0", &json!({"cni.dev/valid-attachments": valid}));
    ctx.succeed("GC", &Attachment::default(), &gc);
    assert_eq!(ctx.node.list_dir("/run/cni/tuning").unwrap(), ["pod1_eth0.json"]);
}

/// Other links than a veth have no end on the host.
#[test]
fn a_link_without_a_host_end() {
    let (ctx, pod) = attached();
    pod.sh("ip link del eth0; ip link add eth0 type bridge").unwrap();
    let conf = config("1.0.0", &json!({"mtu": 1400}));
    ctx.add(&eth0(&pod), &conf);
    assert_eq!(state(&pod).1, 1400);
    assert!(!ctx.node.read_file(BACKUP).unwrap().contains("hostMtu"));
    ctx.del(&eth0(&pod), &conf);
    assert_eq!(state(&pod).1, 1500);
}
