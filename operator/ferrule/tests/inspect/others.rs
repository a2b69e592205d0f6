//! What the plugins beside the chain of `bridge` leave on the host.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::thread;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, Pod, TIMEOUT, eventually};
use cni_runner::Network;
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn network(plugin: &Value) -> Network {
    Network::from_value(&json!({"name": "other", "cniVersion": "1.0.0", "plugins": [plugin]})).unwrap()
}

fn add(f: &Fixture, name: &str, plugin: &Value) -> Pod {
    let pod = f.node.pod(name).unwrap();
    f.runtime(Origin::Ours).add(&network(plugin), &pod.attachment("eth0")).unwrap();
    pod
}

/// Waits for exactly these leaks, removes them, and looks that none is left.
#[track_caller]
fn remove(f: &Fixture, expected: &[&str]) {
    let is_complete = eventually(TIMEOUT, || f.leaks() == expected);
    assert!(is_complete, "{:#?}", f.json("leaks"));
    let mut said = String::new();
    let is_clean = eventually(TIMEOUT, || {
        said += &f.says("gc --yes");
        f.leaks().is_empty()
    });
    assert!(is_clean && said.contains(&format!("{} of {0} leaks removed", expected.len())), "{said}");
}

/// A virtual device went with the namespace. A physical one has come back under the name that the kernel chose.
#[test]
fn devices_of_host_device() {
    let f = Fixture::new();
    f.node.sh("ip link add hd0 type veth peer name hd1; ip link add hd2 type veth peer name hd3").unwrap();
    let device = |name: &str| json!({"type": "host-device", "device": name});
    let _living = add(&f, "inspect-device-a", &device("hd0"));
    add(&f, "inspect-device-b", &device("hd2")).delete().unwrap();
    f.device("inspect-device-c");
    f.node.sh("ip link add dev7 type veth peer name hd4; ip link set dev7 alias ens1").unwrap();
    let devices = f.says("inspect devices");
    let row = devices.lines().find(|line| line.starts_with("ens1")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells[..7],
        ["ens1", "0000:03:00.1", "ferrule.dev/nic", "other", "shop/web", "inspect-device-c", "eth0"],
        "{devices}"
    );
    assert!(devices.lines().any(|line| line.starts_with("hd0")), "{devices}");
    let leaks = |name: &str| format!("device {name} /run/cni/host-device/{name}:eth0.json");
    let mut found = Vec::new();
    assert!(
        eventually(TIMEOUT, || {
            found = f.leaks();
            found.sort();
            found == ["inspect-device-b", "inspect-device-c"].map(leaks)
        }),
        "{found:#?}"
    );
    let said = f.says("gc --yes");
    assert!(said.contains("2 of 2 leaks removed"), "{said}");
    let ens1 = f.node.sh("ip link show ens1").unwrap();
    assert!(ens1.contains("mtu 1400") && ens1.contains("UP") && !ens1.contains("alias"), "{ens1}");
    assert_eq!(f.node.sh("ls /run/cni/host-device").unwrap().trim(), "inspect-device-a:eth0.json");
    let links = f.says("inspect links");
    assert!(links.contains("hd0") && links.contains("eth0 in the container  host-device"), "{links}");
}

/// With a daemon, which releases the address, and without one.
#[test]
fn leases_of_dhcp() {
    let f = Fixture::new();
    let file = |name: &str| format!("/run/cni/dhcp.leases/{name}:eth0:other");
    let plant = |name: &str, address: &str, netns: &str| {
        let record = json!({"key": {"network": "other", "containerId": name, "ifname": "eth0"},
            "sandbox": {"path": netns}, "lease": {"address": address, "server": "10.0.0.1"}});
        f.node.write_file(file(name), &record.to_string()).unwrap();
    };
    let living = f.node.pod("inspect-lease-a").unwrap();
    plant("inspect-lease-a", "10.0.0.2", &living.path().display().to_string());
    plant("inspect-lease-b", "10.0.0.3", "/run/netns/none");
    f.node.sh("mkdir -p /var/lib/cni/results").unwrap();
    remove(&f, &[&format!("lease inspect-lease-b {}", file("inspect-lease-b"))]);

    plant("inspect-lease-c", "10.0.0.4", "/run/netns/none");
    let daemon = f.node.run(|| UnixListener::bind("/run/cni/dhcp.sock").unwrap()).unwrap();
    let asked = thread::scope(|scope| {
        let daemon = scope.spawn(|| {
            let (mut stream, _) = daemon.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            f.node.sh(&format!("rm {}", file("inspect-lease-c"))).unwrap();
            stream.write_all(b"{\"ferruleDhcp\":1}\n").unwrap();
            serde_json::from_str::<Value>(&line).unwrap()
        });
        remove(&f, &[&format!("lease inspect-lease-c {}", file("inspect-lease-c"))]);
        daemon.join().unwrap()
    });
    assert_eq!(
        (&asked["operation"], &asked["key"]["containerId"]),
        (&"release".into(), &"inspect-lease-c".into())
    );
    let addresses = f.says("inspect addresses");
    assert!(addresses.contains("10.0.0.2  other") && addresses.contains("alive"), "{addresses}");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn users_of_vlan_devices() {
    cni_lab::kernel_module("8021q");
    cni_lab::kernel_module("macvlan");
    let f = Fixture::new();
    f.node.sh("ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up").unwrap();
    let macvlan = json!({"type": "macvlan", "master": "up0", "vlan": 5});
    let [first, second] = ["inspect-vlan-a", "inspect-vlan-b"].map(|name| add(&f, name, &macvlan));
    let users = || f.node.sh("ip -d link show up0.5").unwrap().matches("cni-macvlan-").count();
    first.delete().unwrap();
    let is_named = || matches!(f.leaks().as_slice(), [leak] if leak.starts_with("vlan user inspect-vlan-a"));
    assert!(eventually(TIMEOUT, is_named), "{:#?}", f.leaks());
    assert!(f.says("gc --yes").contains("1 of 1 leaks removed"));
    assert_eq!(users(), 1);

    // Nothing names the second container. As long as it lives, a macvlan is on the device.
    f.node.sh("rm /var/lib/cni/results/*").unwrap();
    assert_eq!(f.leaks(), Vec::<String>::new());
    second.delete().unwrap();
    let is_named =
        || matches!(f.leaks().as_slice(), [leak] if leak.starts_with("vlan user - alternative name"));
    assert!(eventually(TIMEOUT, is_named), "{:#?}", f.leaks());
    assert!(f.says("gc --yes").contains("1 of 1 leaks removed"));
    assert!(f.node.sh("ip link show up0.5").is_err());
}
