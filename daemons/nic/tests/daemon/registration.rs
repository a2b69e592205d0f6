//! Registration: restarts of the kubelet of each kind, lost sockets, slow answers.

use std::fs;
use std::thread;
use std::time::Duration;

use ferrule_fake_kubelet::{Knobs, Kubelet};

use crate::lab::{Lab, NIC};

#[test]
fn each_kind_of_restart() {
    let lab = Lab::new();
    let mut kubelet = lab.kubelet(Knobs::new());
    let _daemon = lab.daemon("");
    lab.allocatable(&kubelet, 2);
    for restart in ["slow", "quick", "twice", "wipe", "folder", "late wipe"] {
        let before = kubelet.registrations(NIC);
        match restart {
            "slow" => {
                kubelet.kill();
                lab.sh("ip link set eth1 up");
                kubelet.start();
            }
            "quick" => kubelet.restart(),
            "twice" => {
                kubelet.restart();
                kubelet.restart();
            }
            "wipe" => kubelet.wipe(),
            "folder" => {
                kubelet.kill();
                fs::remove_dir_all(lab.plugins()).unwrap();
                kubelet.start();
            }
            // The plugin binds just before the wipe.
            _ => {
                kubelet.restart();
                lab.until("registered", || kubelet.registrations(NIC) > before);
                kubelet.wipe();
            }
        }
        lab.until(restart, || kubelet.registrations(NIC) > before);
        lab.until(restart, || kubelet.allocatable(NIC) == 2 && kubelet.endpoint(NIC).exists());
        kubelet.allocate(NIC, &["eth1"]).unwrap();
    }
}

#[test]
fn a_slow_or_broken_register() {
    let delay = Duration::from_secs(1);
    thread::scope(|scope| {
        for (knobs, fails) in
            [(Knobs { delay, ..Knobs::new() }, false), (Knobs { hang_ups: 2, ..Knobs::new() }, true)]
        {
            scope.spawn(move || {
                let lab = Lab::new();
                let kubelet = lab.kubelet(knobs);
                let _daemon = lab.daemon("");
                lab.allocatable(&kubelet, 2);
                assert_eq!(kubelet.registrations(NIC), 1, "{}", lab.log());
                assert_eq!(lab.log().contains("Register: "), fails, "{}", lab.log());
            });
        }
    });
}

#[test]
fn no_kubelet_waits_for_the_failures_of_another() {
    let lab = Lab::new();
    let mut kubelet = lab.kubelet(Knobs { hang_ups: 3, ..Knobs::new() });
    let _daemon = lab.daemon("");
    for _ in 0..4 {
        // If the pauses went on to double, the fourth kubelet would wait for 90 seconds.
        lab.allocatable(&kubelet, 2);
        kubelet.restart();
    }
    lab.allocatable(&kubelet, 2);
}

#[test]
fn the_daemon_starts_first() {
    let lab = Lab::new();
    let mut daemon = lab.daemon("");
    lab.says("ferrule.dev/nic: waits for ");
    let mut kubelet = Kubelet::new(lab.plugins(), Knobs::new());
    kubelet.start();
    lab.allocatable(&kubelet, 2);
    // Between a kill of the kubelet and its wipe.
    kubelet.kill();
    daemon.end("KILL");
    let _daemon = lab.daemon("");
    lab.until("the new daemon is there", || {
        lab.log().matches("cannot").count() + lab.log().matches("Register:").count() > 0
    });
    kubelet.start();
    lab.allocatable(&kubelet, 2);
}

#[test]
fn a_new_configuration() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs::new());
    let mut daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    lab.configure("resourceList: [{resourceName: nic, selector: {}}]");
    daemon.signal("HUP");
    lab.says("keeps the former configuration");
    lab.configure(
        "resourceList: [{resourceName: nic, selectors: {ifNames: [eth1]}}, {resourceName: other, selectors: {ifNames: [eth2]}}]",
    );
    daemon.signal("HUP");
    lab.lists(&kubelet, "eth1");
    lab.until("the other resource", || kubelet.allocatable("ferrule.dev/other") == 1);
    assert!(daemon.is_running());
}
