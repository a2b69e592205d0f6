//! From the claim to the pod and back: the driver's record, ADD and DEL of `claims`, and the claim's status.

use cni_lab::testing::dra_manager_state;
use cni_lab::{Place as _, Pod, bin_dir};
use cni_runner::{Attachment, Network};
use ferrule_fake_kubelet::{DraKubelet, DraRelease};
use serde_json::{Value, json};

use crate::cluster::{Cluster, DRIVER, claim_path, nic_config};

/// What a kubelet does with a pod: prepare, ADD, DEL, unprepare.
struct Kubelet<'c> {
    cluster: &'c Cluster,
    plugin: DraKubelet,
    network: Network,
}

impl Kubelet<'_> {
    fn new(cluster: &Cluster) -> Kubelet<'_> {
        let path = |name: &str| cluster.path(name).display().to_string();
        let network = Network::from_value(&json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
            {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "claims", "dataDir": path("data"), "kubeletDir": path("kubelet")}]}));
        Kubelet { cluster, plugin: cluster.dra_kubelet(DraRelease::V1_34), network: network.unwrap() }
    }

    /// Writes the kubelet's state: these claims are for their pods.
    fn knows(&self, uids: &[&str]) {
        let pods: Vec<String> = uids.iter().map(|uid| format!("aa{uid}")).collect();
        let claims: Vec<(&str, &str)> = uids.iter().copied().zip(pods.iter().map(String::as_str)).collect();
        std::fs::write(self.cluster.path("kubelet/dra_manager_state"), dra_manager_state(&claims)).unwrap();
    }

    fn attachment(pod: &Pod, uid: &str) -> Attachment {
        pod.attachment("eth0").with_args(format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-{uid};K8S_POD_UID=aa{uid}"
        ))
    }

    fn add(&self, pod: &Pod, uid: &str) -> Result<Value, cni_runner::Error> {
        let runtime = self.cluster.node.runtime([bin_dir().unwrap()]);
        runtime.add(&self.network, &Kubelet::attachment(pod, uid))
    }

    fn del(&self, pod: &Pod, uid: &str) {
        let runtime = self.cluster.node.runtime([bin_dir().unwrap()]);
        runtime.del(&self.network, &Kubelet::attachment(pod, uid)).unwrap();
    }
}

#[test]
fn a_pod_gets_what_its_claim_asks_for_and_the_status_tells_it() {
    let cluster = Cluster::new();
    let kubelet = Kubelet::new(&cluster);
    let mut daemon = cluster.daemon("");
    cluster.registered(&kubelet.plugin, 1);
    cluster.published("eth1 eth2");
    cluster.sh("ip link set peer1 up");
    let keys = json!({"ifName": "lan", "mtu": 1400, "addresses": ["10.5.0.2/24", "fd05::2/64"],
        "routes": [{"dst": "10.55.0.0/16", "gw": "10.5.0.1"}]});
    cluster.claim("c1", &[("nic", "eth1")], Some(nic_config(keys)));
    kubelet.knows(&["c1"]);
    assert_eq!(cluster.prepare(&kubelet.plugin, &["c1"]), ["nic=eth1"]);
    let pod = cluster.node.pod("one").unwrap();
    kubelet.add(&pod, "c1").unwrap();
    pod.sh("ip link show lan | grep 'mtu 1400' && ip route show | grep '10.55.0.0/16 via 10.5.0.1 dev lan'")
        .unwrap();
    // The device is in the pod, and stays listed; its interface is in the claim's status.
    let status = || cluster.store.get(&claim_path("c1")).unwrap()["status"]["devices"][0].clone();
    cluster.until("reported", || status()["networkData"]["interfaceName"] == "lan");
    assert_eq!(status()["networkData"]["ips"], json!(["10.5.0.2/24", "fd05::2/64"]));
    assert_eq!(
        (&status()["driver"], &status()["pool"], &status()["device"]),
        (&json!(DRIVER), &json!("n1"), &json!("eth1"))
    );
    let text = String::from_utf8(cluster.run("claims").stdout).unwrap();
    assert!(text.contains("request nic: eth1 is lan with 10.5.0.2/24, fd05::2/64"), "{text}");
    // The driver restarts, and the pod ends while it is away.
    daemon.end("KILL");
    daemon = cluster.daemon("");
    cluster.registered(&kubelet.plugin, 1);
    cluster.published("eth1 eth2");
    daemon.end("KILL");
    kubelet.del(&pod, "c1");
    assert!(kubelet.plugin.unprepare(DRIVER, &[("shop", "c1", "c1")]).is_err(), "no driver runs");
    let _daemon = cluster.daemon("");
    cluster.until("unprepared", || kubelet.plugin.unprepare(DRIVER, &[("shop", "c1", "c1")]).is_ok());
    assert_eq!(cluster.record("c1"), None);
    cluster.sh("ip link show eth1");
    cluster.published("eth1 eth2");
    // The next pod has it.
    cluster.claim("c2", &[("nic", "eth1")], None);
    kubelet.knows(&["c2"]);
    assert_eq!(cluster.prepare(&kubelet.plugin, &["c2"]), ["nic=eth1"]);
    let next = cluster.node.pod("two").unwrap();
    kubelet.add(&next, "c2").unwrap();
    next.sh("ip link show net1").unwrap();
    kubelet.del(&next, "c2");
}

/// `CNIConfig` of cni-dra-driver, from the API server to the pod.
#[test]
fn a_network_configuration_makes_its_interface_on_the_device() {
    let cluster = Cluster::new();
    let kubelet = Kubelet::new(&cluster);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet.plugin, 1);
    let config = json!({"apiVersion": "cni.networking.x-k8s.io/v1alpha1", "kind": "CNIConfig", "ifName": "mv0", "config":
        {"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "macvlan", "mode": "bridge",
            "ipam": {"type": "static", "addresses": [{"address": "10.8.0.2/24"}]}}, {"type": "tuning", "mtu": 1400}]}});
    cluster.claim("c1", &[("nic", "eth1")], Some(config));
    kubelet.knows(&["c1"]);
    assert_eq!(cluster.prepare(&kubelet.plugin, &["c1"]), ["nic=eth1"]);
    let pod = cluster.node.pod("one").unwrap();
    let result = kubelet.add(&pod, "c1").unwrap();
    assert!(result.to_string().contains("\"10.8.0.2/24\""), "{result}");
    pod.sh("ip -d link show mv0 | grep 'mtu 1400' && ip -d link show mv0 | grep 'macvlan mode bridge'")
        .unwrap();
    // The device stays on the node, and stays listed. It was down before.
    cluster.sh("ip link show eth1 | grep ',UP'");
    cluster.published("eth1 eth2");
    kubelet.del(&pod, "c1");
    cluster.sh("! ip link show eth1 | grep ',UP'");
}

#[test]
fn no_pod_runs_without_its_nic() {
    let cluster = Cluster::new();
    let kubelet = Kubelet::new(&cluster);
    let pod = cluster.node.pod("one").unwrap();
    // The kubelet knows the claim, and the record is lost.
    kubelet.knows(&["c1"]);
    let error = kubelet.add(&pod, "c1").unwrap_err().to_string();
    assert!(error.contains("c1"), "{error}");
    pod.sh("! ip link show net1").unwrap();
    kubelet.del(&pod, "c1");
    // Another pod is not touched.
    let other = cluster.node.pod("two").unwrap();
    kubelet.add(&other, "c9").unwrap();
    kubelet.del(&other, "c9");
    // The driver makes the record again, and the pod starts.
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet.plugin, 1);
    cluster.claim("c1", &[("nic", "eth1")], None);
    assert_eq!(cluster.prepare(&kubelet.plugin, &["c1"]), ["nic=eth1"]);
    kubelet.add(&pod, "c1").unwrap();
    pod.sh("ip link show net1").unwrap();
    kubelet.del(&pod, "c1");
    cluster.sh("ip link show eth1");
    // The device is gone: the pod does not start, and starts when it is back.
    cluster.sh("ip link set eth1 name away; ip link add other type veth peer name other2");
    let error = kubelet.add(&pod, "c1").unwrap_err().to_string();
    assert!(error.contains("eth1"), "{error}");
    kubelet.del(&pod, "c1");
    cluster.sh("ip link set away name eth1");
    kubelet.add(&pod, "c1").unwrap();
    kubelet.del(&pod, "c1");
}
