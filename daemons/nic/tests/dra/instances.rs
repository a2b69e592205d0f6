//! Two instances of the daemon while one replaces the other, and the driver beside the device plugin.

use ferrule_fake_kubelet::{DraRelease, Knobs};

use crate::cluster::{Cluster, DRIVER};
use crate::lab::NIC;

const BOTH: &str = "{resourceList: [{resourceName: nic, selectors: {ifNames: [eth1]}}], dra: {selectors: {ifNames: ['eth*']}}}";

#[test]
fn a_rolling_update_has_no_gap() {
    let cluster = Cluster::new();
    cluster.configure(BOTH);
    let plugins = cluster.kubelet(Knobs::new());
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let mut old = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    cluster.published("eth2");
    cluster.lists(&plugins, "eth1");
    cluster.claim("c1", &[("nic", "eth2")], None);
    let registrations = plugins.registrations(NIC);
    let mut new = cluster.daemon("");
    cluster.registered(&kubelet, 2);
    cluster.says("another instance leads");
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth2"]);
    assert_eq!(plugins.registrations(NIC), registrations, "both instances serve the device plugin");
    let generation = |cluster: &Cluster| cluster.slices()[0]["spec"]["pool"]["generation"].clone();
    let before = generation(&cluster);
    // From the first call after its end on, the kubelet has an instance.
    old.signal("TERM");
    let mut calls = 0;
    cluster.until("the old one has ended", || {
        assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth2"]);
        calls += 1;
        !old.is_running()
    });
    assert!(calls > 0);
    cluster.registered(&kubelet, 1);
    cluster.lists(&plugins, "eth1");
    cluster.until("leads", || plugins.registrations(NIC) > registrations);
    assert_eq!(generation(&cluster), before, "the slices changed");
    cluster.sh("ip link add eth3 type veth peer name peer3");
    cluster.published("eth2 eth3");
    // A leader that is killed is replaced too.
    let _next = cluster.daemon("");
    cluster.registered(&kubelet, 2);
    new.end("KILL");
    cluster.sh("ip link del eth3");
    cluster.published("eth2");
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth2"]);
}

#[test]
fn a_device_belongs_to_the_resource_or_to_the_driver() {
    let cluster = Cluster::new();
    cluster.configure(BOTH);
    let plugins = cluster.kubelet(Knobs::new());
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.lists(&plugins, "eth1");
    cluster.published("eth2");
    cluster.registered(&kubelet, 1);
    cluster
        .says(&format!("warning: device eth1 belongs to ferrule.dev/nic, although {DRIVER} selects it too"));
    cluster.claim("c1", &[("nic", "eth2")], None);
    cluster.prepare(&kubelet, &["c1"]);
    let text = String::from_utf8(cluster.run("devices").stdout).unwrap();
    for line in [
        "nic.ferrule.dev: 1 devices, 1 healthy",
        "  eth2  healthy, pod shop/web-c1, claim c1  (veth link eth2)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}
