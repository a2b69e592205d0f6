//! ResourceSlices: attributes, many devices, taints, devices in pods, and slices that others have deleted or changed.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use ferrule_fake_kubelet::{DeviceHealth, DraRelease};
use ferrule_nic_proto::health::v1::HealthStatus;
use serde_json::json;

use crate::cluster::{Cluster, DRIVER};

#[test]
fn devices_are_published_and_follow_the_node() {
    let cluster = Cluster::new();
    cluster.sh("ip link add veth9 type veth peer name Eth.9; ip addr add 10.0.9.1/24 dev peer1");
    cluster.configure("dra: {selectors: {ifNames: ['eth*', 'Eth*', 'peer1']}}");
    let _daemon = cluster.daemon("");
    let strange = "link-";
    cluster.until("published", || cluster.devices().contains("eth1 eth2"));
    assert!(
        cluster.devices().starts_with(strange) && !cluster.devices().contains("peer1"),
        "{}",
        cluster.devices()
    );
    let slice = &cluster.slices()[0];
    let owner =
        json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1-uid", "controller": true});
    assert_eq!(slice["metadata"]["ownerReferences"], json!([owner]));
    assert_eq!(slice["spec"]["pool"], json!({"name": "n1", "generation": 1, "resourceSliceCount": 1}));
    assert_eq!((&slice["spec"]["driver"], &slice["spec"]["nodeName"]), (&json!(DRIVER), &json!("n1")));
    let attributes = &slice["spec"]["devices"][1]["attributes"];
    for (name, value) in [
        ("ifName", json!({"string": "eth1"})),
        ("kind", json!({"string": "veth"})),
        ("mtu", json!({"int": 1500})),
        ("carrier", json!({"bool": true})),
        ("linkType", json!({"string": "ether"})),
        ("k8s.cni.cncf.io/deviceID", json!({"string": "eth1"})),
        ("k8s.cni.cncf.io/resourceName", json!({"string": "nic.ferrule.dev/nic"})),
    ] {
        assert_eq!(attributes[name], value, "{name}: {attributes}");
    }
    cluster.sh("ip link del eth2; ip link set eth1 mtu 1400");
    cluster.until("one less", || cluster.devices().ends_with(" eth1"));
    cluster.until("the MTU", || {
        cluster.slices()[0]["spec"]["devices"][1]["attributes"]["mtu"] == json!({"int": 1400})
    });
    // Nothing is asked at rest.
    cluster.until("at rest", || {
        let before = cluster.api.requests().len();
        sleep(Duration::from_secs(2));
        cluster.api.requests().len() == before
    });
}

#[test]
fn an_allocated_device_stays_listed_while_it_is_in_a_pod() {
    let cluster = Cluster::new();
    let mut daemon = cluster.daemon("");
    cluster.published("eth1 eth2");
    let pod = cluster.node.pod("one").unwrap();
    cluster.sh("ip link set eth1 netns one; ip link add eth3 type veth peer name peer3");
    cluster.published("eth1 eth2 eth3");
    daemon.end("KILL");
    let _daemon = cluster.daemon("");
    cluster.sh("ip link del eth3");
    cluster.published("eth1 eth2");
    pod.delete().unwrap();
    cluster.published("eth2");
}

/// ADD needs no daemon.
#[test]
fn a_device_that_went_into_its_pod_while_no_driver_ran_stays_listed() {
    let cluster = Cluster::new();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    cluster.configure("dra: {selectors: {ifNames: ['eth*'], kinds: [veth]}}");
    let mut daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    cluster.published("eth1 eth2");
    cluster.claim("c1", &[("nic", "eth1")], None);
    cluster.prepare(&kubelet, &["c1"]);
    daemon.end("KILL");
    let _pod = cluster.node.pod("one").unwrap();
    cluster.sh("ip link set eth1 netns one; ip link add eth3 type veth peer name peer3; ip link del eth2");
    let _daemon = cluster.daemon("");
    cluster.published("eth1 eth3");
    // The kubelet still knows the killed instance.
    cluster.until("called", || kubelet.prepare(DRIVER, &[("shop", "c1", "c1")]).is_ok());
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"], "the kubelet may have started anew too");
    // Its claim is gone, and so is the link.
    cluster.unprepare(&kubelet, &["c1"]);
    cluster.sh("ip -n one link del eth1; ip link set eth3 down");
    cluster.published("eth3");
}

const CARRIER: &str =
    "{unhealthyAfterMs: 100, healthyAfterMs: 100, dra: {health: carrier, selectors: {ifNames: ['eth*']}}}";

#[test]
fn an_unhealthy_device_gets_a_taint_and_the_kubelet_knows() {
    let cluster = Cluster::new();
    cluster.configure(CARRIER);
    cluster.sh("for n in 1 2; do ip link set eth$n up; ip link set peer$n up; done");
    let _daemon = cluster.daemon("");
    cluster.published("eth1 eth2");
    cluster.sh("ip link set peer1 down");
    cluster.published("!eth1 eth2");
    let taint = &cluster.slices()[0]["spec"]["devices"][0]["taints"][0];
    assert_eq!(*taint, json!({"key": "nic.ferrule.dev/unhealthy", "effect": "NoSchedule"}));
    for release in [DraRelease::V1_34, DraRelease::V1_37] {
        let kubelet = cluster.dra_kubelet(release);
        cluster.registered(&kubelet, 1);
        let health = kubelet.health(DRIVER).unwrap();
        let text = |one: &DeviceHealth| (HealthStatus::try_from(one.health).unwrap(), one.message.clone());
        assert_eq!(
            health.iter().map(text).collect::<Vec<_>>(),
            [(HealthStatus::Unhealthy, "no carrier".to_owned()), (HealthStatus::Healthy, String::new())],
            "{release:?}"
        );
    }
    cluster.sh("ip link set peer1 up");
    cluster.published("eth1 eth2");
}

#[test]
fn without_taints_an_unhealthy_device_is_left_out() {
    let cluster = Cluster::new();
    cluster.api.faults(|faults| faults.unknown = vec!["taints".to_owned()]);
    cluster.configure(CARRIER);
    cluster.sh("for n in 1 2; do ip link set eth$n up; ip link set peer$n up; done");
    let _daemon = cluster.daemon("");
    cluster.published("eth1 eth2");
    cluster.sh("ip link set peer1 down");
    cluster.published("eth2");
    cluster.says("the API server drops taints of devices: leaves unhealthy ones out");
    cluster.sh("ip link set peer1 up");
    cluster.published("eth1 eth2");
}

#[test]
fn slices_that_are_wiped_or_changed_come_back() {
    let cluster = Cluster::new();
    let _daemon = cluster.daemon("");
    cluster.published("eth1 eth2");
    for round in 0..3 {
        cluster.wipe();
        cluster.until(&format!("published after the wipe {round}"), || cluster.devices() == "eth1 eth2");
    }
    let name = cluster.slices()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let path = format!("/apis/resource.k8s.io/v1/resourceslices/{name}");
    cluster.store.patch(&path, &json!({"spec": {"devices": [{"name": "gpu"}]}}));
    cluster.published("eth1 eth2");
    // A slice of ours that is too many.
    let mut other = cluster.slices()[0].clone();
    other["metadata"] = json!({});
    cluster.store.put("/apis/resource.k8s.io/v1/resourceslices/other", other);
    cluster.until("deleted", || cluster.slices().len() == 1);
    // History is forgotten: the watch ends with 410.
    cluster.store.forget();
    cluster.wipe();
    cluster.published("eth1 eth2");
}

#[test]
fn a_thousand_devices() {
    let cluster = Cluster::new();
    cluster.configure("dra: {selectors: {ifNames: ['d*']}}");
    let pair = |n| format!("link add d{n} type veth peer name d{}\n", n + 500);
    fs::write(cluster.path("links"), (0..500).map(pair).collect::<String>()).unwrap();
    cluster.sh(&format!("ip -batch {}", cluster.path("links").display()));
    let mut daemon = cluster.daemon("");
    let count = || cluster.devices().split_whitespace().count();
    cluster.until("1,000 devices", || count() == 1000);
    assert_eq!(cluster.slices().len(), 8);
    assert!(cluster.slices().iter().all(|slice| slice["spec"]["devices"].as_array().unwrap().len() <= 128));
    cluster.sh("ip link del d7");
    cluster.until("998 devices", || count() == 998);
    let memory = daemon.status("VmHWM");
    assert!(memory < 60_000, "{memory} kB");
}
