//! `examples/dra/ferrule-nic.yaml` and `pod.yaml` against the driver: its rights suffice, its options exist, its configuration and
//! the parameters of a claim are accepted.

use std::fs;
use std::path::Path;

use clap::Parser as _;
use ferrule_fake_kubelet::DraRelease;
use ferrule_nic::arguments::Arguments;
use ferrule_nic::config::Config;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::cluster::{Cluster, claim_path};

fn objects(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/dra").join(file);
    let text = fs::read_to_string(path).unwrap();
    yaml_serde::Deserializer::from_str(&text).map(|object| Value::deserialize(object).unwrap()).collect()
}

fn of_kind(objects: &[Value], kind: &str) -> Value {
    objects.iter().find(|object| object["kind"] == kind).expect(kind).clone()
}

#[test]
fn options_and_configuration() {
    let objects = objects("ferrule-nic.yaml");
    let pod = of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"].clone();
    let command: Vec<String> = serde_json::from_value(pod["containers"][0]["command"].clone()).unwrap();
    let Arguments { options, .. } = Arguments::try_parse_from(&command).unwrap();
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let used = [
        options.kubelet.join("plugins"),
        options.kubelet.join("plugins_registry"),
        options.data_dir.clone(),
        options.sysfs.clone(),
        options.state.parent().unwrap().to_owned(),
        options.config.parent().unwrap().to_owned(),
    ];
    let mounted: Vec<_> =
        mounts.iter().map(|mount| Path::new(mount["mountPath"].as_str().unwrap()).to_owned()).collect();
    assert_eq!(mounted, used);
    for (mount, volume) in mounts.iter().zip(pod["volumes"].as_array().unwrap()) {
        assert_eq!(mount["name"], volume["name"]);
    }
    let config = of_kind(&objects, "ConfigMap")["data"]["nic.yaml"].as_str().unwrap().to_owned();
    assert_eq!(Config::parse(&config).unwrap().dra.unwrap().driver(), crate::cluster::DRIVER);
    assert_eq!(pod["serviceAccountName"], of_kind(&objects, "ServiceAccount")["metadata"]["name"]);
    let policy = of_kind(&objects, "ValidatingAdmissionPolicy");
    let binding = of_kind(&objects, "ValidatingAdmissionPolicyBinding");
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
}

#[test]
fn the_rights_suffice() {
    let cluster = Cluster::new();
    let rules = of_kind(&objects("ferrule-nic.yaml"), "ClusterRole")["rules"].as_array().unwrap().clone();
    cluster.api.faults(|faults| faults.rules = Some(rules));
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    cluster.published("eth1 eth2");
    cluster.sh("ip link add eth3 type veth peer name peer3");
    cluster.published("eth1 eth2 eth3");
    cluster.sh("ip link del eth1; ip link del eth2; ip link del eth3");
    cluster.until("all slices deleted", || cluster.slices().is_empty());
    // The example's claim, and what ADD leaves of it.
    let template = of_kind(&objects("pod.yaml"), "ResourceClaimTemplate");
    let parameters = template["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"].clone();
    cluster.sh("ip link add eth1 type veth peer name peer1");
    cluster.published("eth1");
    cluster.claim("c1", &[("nic", "eth1")], Some(parameters));
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    assert_eq!(cluster.record("c1").unwrap()["devices"][0]["ifName"], "net1");
    let claim = json!({"namespace": "shop", "name": "c1", "uid": "c1"});
    let step = json!({"claim": claim, "request": "nic", "pool": "n1", "device": "eth1", "link": "eth1", "ifName": "net1",
        "plugins": [], "outcome": {"mac": "02:00:00:00:00:01", "ips": ["10.10.0.2/24"], "result": {}}});
    let attached = json!({"version": 1, "network": "pods", "containerId": "x", "ifname": "eth0", "netns": "/x",
        "driver": crate::cluster::DRIVER, "pod": {"uid": "aac1", "name": "web"}, "steps": [step]});
    fs::create_dir_all(cluster.path("data/dra-attached")).unwrap();
    // An attachment that is not complete, and one of another driver, are not reported.
    let mut other = attached.clone();
    other["driver"] = json!("other");
    other["steps"][0]["claim"]["name"] = json!("other");
    fs::write(cluster.path("data/dra-attached/y:eth0.json"), other.to_string()).unwrap();
    fs::write(cluster.path("data/dra-attached/z:eth0.json"), "{").unwrap();
    fs::write(cluster.path("pending"), attached.to_string()).unwrap();
    fs::rename(cluster.path("pending"), cluster.path("data/dra-attached/x:eth0.json")).unwrap();
    let status = || cluster.store.get(&claim_path("c1")).unwrap()["status"]["devices"].clone();
    cluster.until("reported", || status().is_array());
    let data =
        json!({"interfaceName": "net1", "hardwareAddress": "02:00:00:00:00:01", "ips": ["10.10.0.2/24"]});
    assert_eq!(status()[0]["networkData"], data);
    let refused = cluster.log().lines().filter(|line| line.contains("(403)")).count();
    assert_eq!(refused, 0, "{}", cluster.log());
    // Without the right for the status all else goes on.
    cluster.api.faults(|faults| {
        faults.rules.as_mut().unwrap().retain(|rule| rule["resources"] != json!(["resourceclaims/status"]));
    });
    let text = fs::read_to_string(cluster.path("data/dra-attached/x:eth0.json")).unwrap();
    fs::write(cluster.path("pending"), text.replace("10.10.0.2", "10.10.0.3")).unwrap();
    fs::rename(cluster.path("pending"), cluster.path("data/dra-attached/x:eth0.json")).unwrap();
    cluster.says("the status of the claim shop/c1: the API server refuses it");
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
}
