//! Devices on the PCI bus, by a tree in place of sysfs and veth ends in place of their links.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use ferrule_fake_kubelet::Knobs;

use crate::lab::{Lab, NIC};

const ADDRESS: &str = "0000:03:00.1";

/// The tree, with one device.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(root: PathBuf) -> Sysfs {
        let sysfs = Sysfs(root);
        let device = sysfs.device();
        for folder in ["bus/pci/devices", "bus/pci/drivers/iavf", "class/net"] {
            fs::create_dir_all(sysfs.0.join(folder)).unwrap();
        }
        fs::create_dir_all(device.join("net")).unwrap();
        fs::write(device.join("class"), "0x020000\n").unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        symlink(sysfs.0.join("bus/pci"), device.join("subsystem")).unwrap();
        symlink(sysfs.0.join("bus/pci/drivers/iavf"), device.join("driver")).unwrap();
        symlink(&device, sysfs.on_bus()).unwrap();
        sysfs
    }

    fn device(&self) -> PathBuf {
        self.0.join("devices").join(ADDRESS)
    }

    fn on_bus(&self) -> PathBuf {
        self.0.join("bus/pci/devices").join(ADDRESS)
    }

    /// The device has this link on the node.
    fn show(&self, link: &str) {
        let folder = self.device().join("net").join(link);
        fs::create_dir(&folder).unwrap();
        symlink(self.device(), folder.join("device")).unwrap();
        symlink(&folder, self.0.join("class/net").join(link)).unwrap();
    }

    /// The device's link is in a pod.
    fn hide(&self, link: &str) {
        fs::remove_file(self.0.join("class/net").join(link)).unwrap();
        fs::remove_dir_all(self.device().join("net").join(link)).unwrap();
    }
}

#[test]
fn a_pci_device_keeps_its_address() {
    let lab = Lab::new();
    let sysfs = Sysfs::new(lab.path("sys"));
    sysfs.show("eth1");
    lab.configure("resourceList: [{resourceName: nic, selectors: [{drivers: [iavf]}, {ifNames: [eth2]}]}]");
    let kubelet = lab.kubelet(Knobs::new());
    let options = format!("--sysfs {}", lab.path("sys").display());
    let mut daemon = lab.daemon(&options);
    lab.lists(&kubelet, &format!("{ADDRESS} eth2"));
    let topology = kubelet.devices(NIC)[0].topology.clone().unwrap();
    assert_eq!(topology.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [1]);
    // In a pod. A process without a record finds the device on the bus.
    let pod = lab.node.pod("one").unwrap();
    lab.sh("ip link set eth1 netns one; ip link del eth2");
    sysfs.hide("eth1");
    lab.lists(&kubelet, &format!("{ADDRESS} !eth2"));
    daemon.end("KILL");
    fs::remove_file(lab.path("state")).unwrap();
    let mut daemon = lab.daemon(&options);
    lab.lists(&kubelet, ADDRESS);
    // It survives the pod's namespace, and returns under another name.
    pod.delete().unwrap();
    lab.until("the namespace is gone", || cni_lab::Place::sh(&lab.node, "ip link show peer1").is_err());
    sysfs.show("net0");
    lab.sh("ip link add net0 type veth peer name peer1; ip link add eth2 type veth peer name peer2");
    lab.lists(&kubelet, &format!("{ADDRESS} eth2"));
    // Unplugged in a pod, while no daemon runs.
    let _pod = lab.node.pod("two").unwrap();
    lab.sh("ip link set net0 netns two");
    sysfs.hide("net0");
    lab.until("recorded", || fs::read_to_string(lab.path("state")).is_ok_and(|text| text.contains(ADDRESS)));
    daemon.end("KILL");
    fs::remove_file(sysfs.on_bus()).unwrap();
    let _daemon = lab.daemon(&options);
    lab.lists(&kubelet, &format!("!{ADDRESS} eth2"));
}
