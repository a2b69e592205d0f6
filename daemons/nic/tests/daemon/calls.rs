//! Calls of the kubelet.

use std::thread;
use std::time::Duration;

use ferrule_fake_kubelet::{Knobs, pod};

use crate::lab::{Lab, NIC};

#[test]
fn a_pod_gets_a_device() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs::new());
    let mut daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    assert_eq!((kubelet.capacity(NIC), kubelet.allocatable(NIC), kubelet.registrations(NIC)), (2, 2, 1));
    kubelet.pods().set_pods(vec![pod("default", "web", &[(NIC, "eth2")])]);
    let given = kubelet.allocate(NIC, &["eth2"]).unwrap();
    assert_eq!(given.envs["PCIDEVICE_FERRULE_DEV_NIC"], "eth2");
    lab.says("ferrule.dev/nic: device eth2: pod default/web, container main");
    for wrong in [&["eth9"][..], &["eth1", "eth1"]] {
        assert_eq!(kubelet.allocate(NIC, wrong).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
    kubelet.pre_start(NIC, &["eth1"]).unwrap();
    assert_eq!(kubelet.pre_start(NIC, &["eth9"]).unwrap_err().code(), tonic::Code::FailedPrecondition);
    assert!(!kubelet.options(NIC).unwrap().get_preferred_allocation_available);
    assert_eq!(kubelet.preferred(NIC, &["eth1", "eth2"], &["eth2"], 1).unwrap(), ["eth2"]);
    assert_eq!(daemon.end("TERM"), Some(0));
    assert!(!kubelet.endpoint(NIC).exists(), "the socket stays");
    lab.allocatable(&kubelet, 0);
    assert_eq!(kubelet.capacity(NIC), 2);
    kubelet.advance(Duration::from_secs(300));
    assert_eq!(kubelet.capacity(NIC), 0);
}

#[test]
fn parallel_calls_without_a_list() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs { deaf: true, ..Knobs::new() });
    let _daemon = lab.daemon("");
    lab.says("registered");
    thread::scope(|scope| {
        for id in ["eth1", "eth2", "eth1", "eth2"] {
            let kubelet = &kubelet;
            scope.spawn(move || {
                for _ in 0..10 {
                    let given = kubelet.allocate(NIC, &[id]).unwrap();
                    assert_eq!(given.envs["FERRULE_NIC_NIC"], id);
                }
            });
        }
    });
}
