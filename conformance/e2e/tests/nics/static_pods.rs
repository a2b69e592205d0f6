//! Static pods with NICs under a real kubelet without an API server. Debian has no package of it, so this needs one from
//! elsewhere, between 1.20 and 1.23:
//!
//! ```sh
//! FERRULE_KUBELET=/path/to/kubelet cargo test -p ferrule-e2e --test nics -- --ignored
//! ```

use cni_lab::{Containerd, Place as _};

use crate::kubelet::Kubelet;
use crate::lab::{LAN, Lab};

/// The sandbox of a pod that runs.
fn sandbox(containerd: &Containerd<'_>, lab: &Lab, name: &str) -> String {
    let cached = lab.node.list_dir("/var/lib/cni/results").unwrap();
    let mut ids = cached.iter().filter_map(|file| file.strip_prefix("pods-")?.strip_suffix("-eth0"));
    let of_pod = |id: &&str| {
        let info = containerd.ctr(&["--namespace", "k8s.io", "container", "info", id]).unwrap_or_default();
        info.contains(&format!("\"io.kubernetes.pod.name\": \"{name}-node\""))
    };
    ids.find(of_pod).unwrap_or_else(|| panic!("{name} has no sandbox: {cached:?}")).to_owned()
}

fn assert_connected(containerd: &Containerd<'_>, lab: &Lab, name: &str) -> String {
    let id = sandbox(containerd, lab, name);
    let seen = containerd.sandbox_sh("pods", &id, &format!("ip -o address show eth1; ping -c 1 -W 5 {LAN}"));
    println!("{name}: {}", seen.unwrap().lines().next().unwrap_or_default());
    id
}

#[test]
#[ignore = "a kubelet: FERRULE_KUBELET"]
fn static_pods_get_their_nics() {
    let program = std::env::var("FERRULE_KUBELET").expect("FERRULE_KUBELET names the program");
    let lab = Lab::new();
    let containerd = lab.containerd();
    let kubelet = Kubelet::start(&lab.node, &containerd, &program);

    // Before the device plugin: the kubelet admits the pod without a device, and ADD fails.
    kubelet.run("early", 1);
    kubelet.says("pod default/early-node has no device of resource");
    kubelet.remove("early");

    let daemon = lab.daemon();
    lab.registered(1);
    kubelet.run("web", 1);
    kubelet.phase("web", "Running");
    assert_connected(&containerd, &lab, "web");

    kubelet.run("greedy", 2);
    let refused = kubelet.phase("greedy", "Failed");
    println!("greedy: {}", refused["status"]["message"]);
    kubelet.remove("greedy");

    // The next kubelet: the pod keeps its device, and the other device is free.
    kubelet.kill();
    lab.registered(2);
    kubelet.run("second", 1);
    kubelet.phase("second", "Running");
    assert_connected(&containerd, &lab, "second");
    assert_connected(&containerd, &lab, "web");
    assert!(lab.has([false, false]));

    kubelet.remove("web");
    kubelet.until("a NIC is back", || !lab.has([false, false]));
    kubelet.run("third", 1);
    kubelet.phase("third", "Running");
    assert_connected(&containerd, &lab, "third");

    // A sandbox that ends: another one with the same device.
    let old = sandbox(&containerd, &lab, "third");
    containerd.ctr(&["--namespace", "k8s.io", "task", "kill", "--signal", "KILL", &old]).unwrap();
    kubelet.until("another sandbox", || {
        let cached = lab.node.list_dir("/var/lib/cni/results").unwrap();
        let of_nic = |file: &&String| file.starts_with("ferrule-nic-");
        !cached.iter().any(|file| file.contains(&old)) && cached.iter().filter(of_nic).count() == 2
    });
    kubelet.phase("third", "Running");
    assert_connected(&containerd, &lab, "third");

    // Without the daemon nothing is given away, and the pods go on.
    kubelet.remove("second");
    drop(daemon);
    kubelet.run("fourth", 1);
    let refused = kubelet.phase("fourth", "Failed");
    println!("fourth: {}", refused["status"]["message"]);
    kubelet.remove("fourth");
    assert_connected(&containerd, &lab, "third");
    let _daemon = lab.daemon();
    lab.registered(3);
    kubelet.run("fifth", 1);
    kubelet.phase("fifth", "Running");
    assert_connected(&containerd, &lab, "fifth");
    for name in ["third", "fifth"] {
        kubelet.remove(name);
    }
    kubelet.until("both NICs are back", || lab.has([true, true]));
}
