//! The keys of a virtual function (SR-IOV). `tests/guest.sh --sriov` has a NIC with such functions; its driver igb knows neither
//! `link_state` nor `min_tx_rate`, and of VLANs only 802.1q.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;

use cni_lab::testing::{Origin, PluginDir, fail, overlay, succeed, succeed_silently, with_prev};
use cni_lab::{KillPoint, Machine, Place as _, TIMEOUT, eventually, kernel_module};
use cni_runner::{Attachment, Exec};
use serde_json::{Value, json};

use self::common::{RECORDS, assert_as, config, node};

#[test]
fn a_device_that_is_no_virtual_function_stays() {
    let ctx = node();
    let (pod, before) = (ctx.pod("pod"), ctx.snapshot());
    for key in [json!({"vlan": 5}), json!({"trust": "on"}), json!({"max_tx_rate": 0})] {
        let error = ctx.fail("ADD", &pod.attachment("net1"), &config(&key));
        error.expect(7, "need a virtual function of SR-IOV, the device is none");
        assert_as(&before, &ctx, &key.to_string());
    }
    ctx.fail("ADD", &pod.attachment("net1"), &config(&json!({"vlan": 5000}))).expect(7, "invalid vlan 5000");
}

/// The NIC with its virtual functions. The first one has settings already.
struct Nic {
    /// The link of the physical function.
    physical: String,
    /// The PCI address and the link of the first virtual function.
    pci: String,
    link: String,
    plugin: PluginDir,
}

impl Nic {
    fn new() -> Nic {
        // The other tests expect it to be eth0.
        kernel_module("virtio_net");
        kernel_module("igbvf");
        kernel_module("igb");
        let name =
            |place: &str| Machine.sh(&format!("cd /sys/bus/pci/drivers/igb/0*/{place} && ls")).unwrap();
        let physical = name("net").trim().to_owned();
        Machine
            .sh(&format!(
                "ip netns delete pod 2>/dev/null; mkdir -p -m 700 {RECORDS}; ip link set {physical} up; cd /sys/bus/pci/drivers/igb/0*
                 [ $(cat sriov_numvfs) = 2 ] || echo 2 >sriov_numvfs"
            ))
            .unwrap();
        let is_ready = || {
            Machine
                .sh("ls /sys/bus/pci/drivers/igb/0*/virtfn0/net /sys/bus/pci/drivers/igb/0*/virtfn1/net")
                .is_ok()
        };
        assert!(eventually(TIMEOUT, is_ready));
        let pci =
            Machine.sh("basename $(readlink /sys/bus/pci/drivers/igb/0*/virtfn0)").unwrap().trim().to_owned();
        let link = name("virtfn0/net").trim().to_owned();
        let has_carrier = || Machine.sh(&format!("ip link show {physical}")).unwrap().contains("LOWER_UP");
        assert!(eventually(TIMEOUT, has_carrier));
        Machine
            .sh(&format!(
                "ip link set {physical} vf 0 vlan 7 qos 1; ip link set {physical} vf 0 max_tx_rate 900"
            ))
            .unwrap();
        let plugin = PluginDir::new(env!("CARGO_BIN_EXE_host-device"), Origin::Ours);
        Nic { physical, pci, link, plugin }
    }

    fn exec(&self, verb: &str, id: &str, conf: &Value) -> Exec {
        Self::exec_of(self.plugin.plugin(), verb, id, conf)
    }

    fn repair(&self, id: &str, conf: &Value) -> Exec {
        Self::exec_of(Path::new(env!("CARGO_BIN_EXE_host-device-repair")), "ADD", id, conf)
    }

    fn exec_of(program: &Path, verb: &str, id: &str, conf: &Value) -> Exec {
        let attachment = Attachment::new(id, format!("/run/netns/{id}"), "net1");
        Exec::new(program, verb).attachment(&attachment).stdin(conf.to_string())
    }

    /// The settings of the virtual functions, where the link of the first one is, and the state files.
    fn state(&self) -> String {
        format!(
            "{}{}",
            self.settings(),
            Machine.sh(&format!("ip -o link show {} | cut -d, -f1", self.link)).unwrap()
        )
    }

    /// The settings of the virtual functions, without the MAC addresses that their driver registers, and the state files.
    fn settings(&self) -> String {
        let settings =
            format!("ip link show {} | grep vf | sed 's|link/ether [^ ]*||'; ls {RECORDS}", self.physical);
        Machine.sh(&settings).unwrap()
    }

    fn of_first(&self) -> String {
        self.settings().lines().next().unwrap().to_owned()
    }

    /// A configuration for the first virtual function.
    fn config(&self, keys: &Value) -> Value {
        overlay(&config(&json!({"cniVersion": "1.1.0", "device": "", "pciBusID": self.pci})), keys)
    }
}

const ALL: &str =
    "vlan 100, qos 3, tx rate 200 (Mbps), max_tx_rate 200Mbps, spoof checking off, link-state auto, trust on";

fn all() -> Value {
    json!({"vlan": 100, "vlanQoS": 3, "vlanProto": "802.1Q", "max_tx_rate": 200, "spoofchk": "off", "trust": "on", "link_state": "auto"})
}

#[test]
#[ignore = "SR-IOV: ./test.sh kernel"]
fn a_virtual_function_has_its_settings_until_del() {
    let nic = Nic::new();
    let before = nic.state();
    let some = json!({"spoofchk": "off"});
    let has_some = "vlan 7, qos 1, tx rate 900 (Mbps), max_tx_rate 900Mbps, spoof checking off";
    for (keys, text) in
        [(all(), ALL), (some, has_some), (json!({"vlan": 0}), "ff:ff:ff:ff:ff:ff, tx rate 900")]
    {
        for way in ["DEL", "DEL without namespace", "GC", "the next ADD"] {
            Machine.sh("ip netns add pod").unwrap();
            let conf = nic.config(&keys);
            let result = succeed(&Machine, &nic.exec("ADD", "pod", &conf));
            let now = nic.of_first();
            assert!(now.contains(text), "{now}");
            let with_result = with_prev(&conf, &result);
            succeed_silently(&Machine, &nic.exec("CHECK", "pod", &with_result));
            if way != "DEL" {
                Machine.sh("ip netns delete pod").unwrap();
                let is_back = || {
                    Machine
                        .sh("ls /sys/bus/pci/drivers/igb/0*/virtfn0/net")
                        .is_ok_and(|names| !names.is_empty())
                };
                assert!(eventually(TIMEOUT, is_back));
            }
            match way {
                "GC" => {
                    let keys = json!({"cni.dev/valid-attachments": []});
                    let exec = Exec::new(nic.plugin.plugin(), "GC").stdin(overlay(&conf, &keys).to_string());
                    succeed_silently(&Machine, &exec);
                }
                "the next ADD" => {
                    Machine.sh("ip netns add next").unwrap();
                    succeed(&Machine, &nic.exec("ADD", "next", &nic.config(&json!({}))));
                    let now = nic.of_first();
                    assert!(before.contains(&now), "{now}");
                    succeed_silently(&Machine, &nic.exec("DEL", "next", &conf));
                    Machine.sh("ip netns delete next").unwrap();
                }
                _ => succeed_silently(&Machine, &nic.exec("DEL", "pod", &with_result)),
            }
            assert_eq!(before, nic.state(), "{way}: {keys}");
            let _ = Machine.sh("ip netns delete pod");
        }
    }
}

#[test]
#[ignore = "SR-IOV: ./test.sh kernel"]
fn check_names_the_setting_that_differs_and_repair_sets_it() {
    let nic = Nic::new();
    let (before, conf) = (nic.state(), nic.config(&all()));
    Machine.sh("ip netns add pod").unwrap();
    let result = succeed(&Machine, &nic.exec("ADD", "pod", &conf));
    let conf = with_prev(&conf, &result);
    for (change, text) in [
        ("vlan 9", "vlan: virtual function 0 of \"PF\" has VLAN 9, priority 0, not VLAN 100, priority 3"),
        ("max_tx_rate 0", "has minimum 0, maximum 0 Mbit/s, not minimum 0, maximum 200 Mbit/s"),
        ("spoofchk on", "spoofchk: virtual function 0 of \"PF\" has spoof check on, not spoof check off"),
        ("trust off", "trust: virtual function 0 of \"PF\" has trust off, not trust on"),
    ] {
        Machine.sh(&format!("ip link set {} vf 0 {change}", nic.physical)).unwrap();
        let error = fail(&Machine, &nic.exec("CHECK", "pod", &conf), 999);
        error.expect(999, &text.replace("PF", &nic.physical));
        succeed(&Machine, &nic.repair("pod", &conf));
        succeed_silently(&Machine, &nic.exec("CHECK", "pod", &conf));
    }
    succeed_silently(&Machine, &nic.exec("DEL", "pod", &conf));
    Machine.sh("ip netns delete pod").unwrap();
    assert_eq!(before, nic.state());
}

#[test]
#[ignore = "SR-IOV: ./test.sh kernel"]
fn a_setting_that_the_driver_refuses_changes_nothing() {
    let nic = Nic::new();
    let before = nic.state();
    Machine.sh("ip netns add pod").unwrap();
    for (keys, text) in [
        (
            json!({"link_state": "disable"}),
            "link_state: failed to give virtual function 0 of \"PF\" link state disable: operation not supported",
        ),
        (
            json!({"min_tx_rate": 10}),
            "max_tx_rate: failed to give virtual function 0 of \"PF\" minimum 10, maximum 200 Mbit/s: invalid argument",
        ),
        (
            json!({"vlanProto": "802.1ad"}),
            "vlan: failed to give virtual function 0 of \"PF\" VLAN 100 of 802.1ad, priority 3: protocol not supported",
        ),
    ] {
        let conf = nic.config(&overlay(&all(), &keys));
        fail(&Machine, &nic.exec("ADD", "pod", &conf), 999).expect(999, &text.replace("PF", &nic.physical));
        assert_eq!(before, nic.state(), "{keys}");
    }
    let physical = config(&json!({"device": nic.physical, "vlan": 5}));
    fail(&Machine, &nic.exec("ADD", "pod", &physical), 7).expect(7, "the device is none");
    Machine.sh("ip netns delete pod").unwrap();
    assert_eq!(before, nic.state());
}

/// The program that has the device sets its addresses, but not its VLAN.
#[test]
#[ignore = "SR-IOV: ./test.sh kernel"]
fn a_virtual_function_of_a_program_has_its_settings_too() {
    let nic = Nic::new();
    kernel_module("uio_pci_generic");
    let bind = |from: &str, to: &str| {
        let pci = &nic.pci;
        Machine
            .sh(&format!(
                "cd /sys/bus/pci && echo {pci} >drivers/{from}/unbind && echo {to} >devices/{pci}/driver_override &&
                 echo {pci} >drivers_probe"
            ))
            .unwrap();
    };
    bind("igbvf", "uio_pci_generic");
    let (before, conf) = (nic.settings(), nic.config(&all()));
    Machine.sh("ip netns add pod").unwrap();
    for way in ["DEL", "GC"] {
        let result = succeed(&Machine, &nic.exec("ADD", "pod", &conf));
        assert!(nic.of_first().contains(ALL), "{}", nic.of_first());
        let conf = with_prev(&conf, &result);
        succeed_silently(&Machine, &nic.exec("CHECK", "pod", &conf));
        Machine.sh(&format!("ip link set {} vf 0 trust off", nic.physical)).unwrap();
        fail(&Machine, &nic.exec("CHECK", "pod", &conf), 999).expect(999, "trust: ");
        succeed(&Machine, &nic.repair("pod", &conf));
        succeed_silently(&Machine, &nic.exec("CHECK", "pod", &conf));
        let keys = json!({"cni.dev/valid-attachments": []});
        let gc = Exec::new(nic.plugin.plugin(), "GC").stdin(overlay(&conf, &keys).to_string());
        succeed_silently(&Machine, &if way == "GC" { gc } else { nic.exec("DEL", "pod", &conf) });
        assert_eq!(before, nic.settings(), "{way}");
    }
    fail(&Machine, &nic.exec("ADD", "pod", &nic.config(&json!({"waitForRA": 5}))), 7)
        .expect(7, "hears no router");
    let refused = nic.config(&overlay(&all(), &json!({"link_state": "disable"})));
    fail(&Machine, &nic.exec("ADD", "pod", &refused), 999).expect(999, "link_state: ");
    assert_eq!(before, nic.settings());
    Machine.sh("ip netns delete pod").unwrap();
    bind("uio_pci_generic", "igbvf");
}

#[test]
#[ignore = "SR-IOV: ./test.sh kernel"]
fn del_after_a_kill_restores_the_settings() {
    let nic = Nic::new();
    let (before, conf) = (nic.state(), nic.config(&json!({"vlan": 100, "trust": "on"})));
    Machine.sh("ip netns add pod").unwrap();
    let (add, del) = (nic.exec("ADD", "pod", &conf), nic.exec("DEL", "pod", &conf));
    for exec in [&add, &del] {
        let prepare = || {
            if std::ptr::eq(exec, &del) {
                drop(succeed(&Machine, &add))
            }
        };
        prepare();
        let points = KillPoint::all(&Machine, exec).unwrap();
        succeed_silently(&Machine, &del);
        for point in points {
            prepare();
            point.kill(&Machine, exec).unwrap();
            succeed_silently(&Machine, &del);
            assert_eq!(before, nic.state(), "killed {point}");
        }
    }
    Machine.sh("ip netns delete pod").unwrap();
}
