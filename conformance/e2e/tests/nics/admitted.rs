//! A kubelet for tests admits pods to sandboxes that the test runs.

use cni_lab::{Snapshot, TIMEOUT, eventually};
use ferrule_fake_kubelet::{Knobs, Kubelet, pod};

use crate::lab::{LAN, Lab, NIC};
use crate::leftovers::assert_nothing_left;

/// The annotation of a pod that may not start without a NIC.
const ASKS: [(&str, &str); 1] = [("ferrule.dev/nic", "true")];

#[test]
fn a_pod_gets_its_nic_and_then_the_next_pod_does() {
    let lab = Lab::new();
    let before = Snapshot::take(&lab.node).unwrap();
    let kubelet = Kubelet::started(lab.kubelet.path().join("device-plugins"), Knobs::new());
    let daemon = lab.daemon();
    assert!(eventually(TIMEOUT, || kubelet.allocatable(NIC) == 2));
    let containerd = lab.containerd();
    let sh = |id: &str, script: &str| containerd.sandbox_sh("pods", id, script);
    let admit = |name: &str| {
        kubelet.allocate(NIC, &["nic1"]).unwrap();
        kubelet.pods().set_pods(vec![pod("default", name, &[(NIC, "nic1")])]);
    };

    admit("web");
    let web = containerd.run_sandbox("web", &[], &ASKS).unwrap();
    assert!(sh(&web, "ip address show eth1").unwrap().contains("inet 10.1.2.20/24 "));
    sh(&web, &format!("ping -c 1 -W 5 -I eth1 {LAN}")).unwrap();
    assert!(lab.has([true, false]));
    assert_eq!(kubelet.allocatable(NIC), 2, "the device in the pod is no longer healthy");
    // Every pod passes the second network; only one that asks for a NIC may not start without it.
    let plain = containerd.run_sandbox("plain", &[], &[]).unwrap();
    assert!(sh(&plain, "ip link show eth0").is_ok() && sh(&plain, "ip link show eth1").is_err());
    let error = format!("{:#}", containerd.run_sandbox("late", &[], &ASKS).unwrap_err());
    assert!(error.contains("pod default/late has no device of resource"), "{error}");

    // The kubelet makes a pod a new sandbox if the old one has died: the same device.
    containerd.remove_sandbox(&web).unwrap();
    let web = containerd.run_sandbox("web", &[], &ASKS).unwrap();
    sh(&web, "ip link show eth1").unwrap();
    containerd.stop_sandbox(&web).unwrap();
    assert!(lab.has([true, true]));
    admit("next");
    let next = containerd.run_sandbox("next", &[], &ASKS).unwrap();
    sh(&next, &format!("ping -c 1 -W 5 -I eth1 {LAN}")).unwrap();
    for id in [web, plain, next] {
        containerd.remove_sandbox(&id).unwrap();
    }
    drop(daemon);
    assert_nothing_left(&lab.node, &before, &["cni0"], &["nic"]).unwrap();
}
