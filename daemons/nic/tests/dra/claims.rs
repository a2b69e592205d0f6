//! Prepare and unprepare, in both versions: records, batches, repetitions, and claims that cannot be prepared.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use ferrule_fake_kubelet::DraRelease;
use serde_json::{Value, json};

use crate::cluster::{Cluster, DRIVER, claim_path, nic_config};

#[test]
fn claims_come_and_go_in_each_release() {
    for release in [DraRelease::V1_32, DraRelease::V1_34, DraRelease::V1_37] {
        let cluster = Cluster::new();
        let kubelet = cluster.dra_kubelet(release);
        let mut daemon = cluster.daemon("");
        cluster.registered(&kubelet, 1);
        let chosen = if release == DraRelease::V1_32 { "v1beta1.DRAPlugin" } else { "v1.DRAPlugin" };
        assert_eq!(kubelet.plugins(DRIVER)[0].service, chosen);
        cluster.claim(
            "c1",
            &[("nic", "eth1"), ("other/big", "eth2")],
            Some(nic_config(json!({"mtu": 1400}))),
        );
        // The call is idempotent.
        for _ in 0..2 {
            assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1 other=eth2"]);
        }
        let record = cluster.record("c1").unwrap();
        assert_eq!(record["claim"], json!({"namespace": "shop", "name": "c1", "uid": "c1"}));
        assert_eq!(record["pod"], json!({"uid": "aac1", "name": "web-c1"}));
        let devices = record["devices"].as_array().unwrap();
        assert_eq!((&devices[0]["device"], &devices[0]["mtu"]), (&json!("eth1"), &json!(1400)));
        assert_eq!(
            (&devices[1]["request"], &devices[1]["link"]["name"]),
            (&json!("other/big"), &json!("eth2"))
        );
        let mode = fs::metadata(cluster.path("data/dra/aac1/c1.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = String::from_utf8(cluster.run("claims").stdout).unwrap();
        assert!(text.contains("shop/c1  pod web-c1  request nic: eth1 prepared, not attached"), "{text}");
        let json: Value = serde_json::from_slice(&cluster.run("claims --json").stdout).unwrap();
        assert_eq!((&json[1]["device"], &json[1]["attached"]), (&json!("eth2"), &json!(false)));
        let health = kubelet.health(DRIVER).unwrap();
        let device = |one: &ferrule_fake_kubelet::DeviceHealth| one.device.clone().unwrap().device_name;
        assert_eq!(health.iter().map(device).collect::<Vec<_>>(), ["eth1", "eth2"]);
        assert!(health.iter().all(|one| one.health == 1 && one.last_updated_time > 0));
        // The claim is gone before the pod.
        cluster.store.delete(&claim_path("c1"));
        for _ in 0..2 {
            cluster.unprepare(&kubelet, &["c1"]);
        }
        assert_eq!(cluster.record("c1"), None);
        assert_eq!(daemon.end("TERM"), Some(0));
        cluster.registered(&kubelet, 0);
        let left = fs::read_dir(cluster.path("kubelet/plugins_registry")).unwrap().count();
        assert_eq!(left, 0, "a socket stays");
    }
}

#[test]
fn a_claim_passes_from_pod_to_pod() {
    let cluster = Cluster::new();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    cluster.claim("c1", &[("nic", "eth1")], None);
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    let next = json!([{"resource": "pods", "name": "next", "uid": "bb"}]);
    cluster.store.patch(&claim_path("c1"), &json!({"status": {"reservedFor": next}}));
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    assert_eq!(cluster.record("c1"), None, "the former pod has a record still");
    assert!(cluster.path("data/dra/bb/c1.json").exists());
}

#[test]
fn strays_in_the_folder_of_the_records_are_named_and_passed_over() {
    let cluster = Cluster::new();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    fs::create_dir_all(cluster.path("data/dra")).unwrap();
    // The first one has the name of a pod.
    for stray in ["abc", "notes.txt"] {
        fs::write(cluster.path(&format!("data/dra/{stray}")), "").unwrap();
    }
    cluster.claim("c1", &[("nic", "eth1")], None);
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    cluster.says("dra/abc, which is no folder of a pod: remove it");
    cluster.unprepare(&kubelet, &["c1"]);
    assert_eq!(cluster.record("c1"), None);
}

#[test]
fn fifty_claims_at_once() {
    let cluster = Cluster::new();
    let links = (1..=50).map(|n| format!("link add ethx{n} type veth peer name px{n}\n"));
    fs::write(cluster.path("links"), links.collect::<String>()).unwrap();
    cluster.sh(&format!("ip -batch {}", cluster.path("links").display()));
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    let uids: Vec<String> = (1..=50).map(|n| format!("c{n}")).collect();
    for (n, uid) in uids.iter().enumerate() {
        // One of them cannot be prepared.
        let device = if n == 20 { "eth9".to_owned() } else { format!("ethx{}", n + 1) };
        cluster.claim(uid, &[("nic", &device)], None);
    }
    let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
    for (n, outcome) in cluster.prepare(&kubelet, &uids).iter().enumerate() {
        match n {
            20 => assert_eq!(outcome, "request \"nic\": the node has no device \"eth9\""),
            _ => assert_eq!(*outcome, format!("nic=ethx{}", n + 1)),
        }
        assert_eq!(cluster.record(uids[n]).is_some(), n != 20);
    }
    cluster.unprepare(&kubelet, &uids);
    assert_eq!(fs::read_dir(cluster.path("data/dra")).unwrap().count(), 0);
}

#[test]
fn claims_that_cannot_be_prepared_leave_nothing() {
    let cluster = Cluster::new();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    for (uid, device, parameters, why) in [
        (
            "c1",
            "eth1",
            nic_config(json!({"mtu": 9})),
            "request \"nic\": mtu 9 (must be between 68 and 65535)",
        ),
        (
            "c2",
            "eth1",
            nic_config(json!({"vlan": 5})),
            "request \"nic\": the parameters: vlan: unknown field `vlan`",
        ),
        (
            "c7",
            "eth1",
            nic_config(json!({"addresses": ["0.0.0.0/0"]})),
            "request \"nic\": addresses: \"0.0.0.0/0\" is no address of an interface",
        ),
        (
            "c3",
            "eth1",
            json!({"kind": "Other"}),
            "request \"nic\": the parameters are \"\" \"Other\", not nic.ferrule.dev/v1alpha1",
        ),
        ("c4", "eth9", nic_config(json!({})), "request \"nic\": the node has no device \"eth9\""),
    ] {
        cluster.claim(uid, &[("nic", device)], Some(parameters));
        let outcome = cluster.prepare(&kubelet, &[uid]).remove(0);
        assert!(outcome.starts_with(why), "{outcome}");
        cluster.says(&format!("claim shop/{uid}: cannot prepare it: {outcome}"));
        assert!(!cluster.path("data/dra").exists(), "{uid}");
    }
    let outcomes =
        kubelet.prepare(DRIVER, &[("shop", "absent", "c5"), ("shop", "c4", "../x"), ("shop", "c4", "c6")]);
    let outcomes = outcomes.unwrap();
    let error = |uid: &str| outcomes[uid].as_ref().unwrap_err().clone();
    assert!(error("c5").contains("not found (404)"), "{outcomes:?}");
    assert_eq!(error("../x"), "\"../x\" is no UID");
    assert_eq!(error("c6"), "another claim has its name now, with the UID \"c4\"");
    assert!(kubelet.unprepare(DRIVER, &[("shop", "x", "../x")]).unwrap()["../x"].is_err());
}
