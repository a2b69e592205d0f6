//! `ferrule repair --watch` while pods come and go: their changes start no pass, and a flush of the ruleset is repaired at once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::testing::{serve, silent};
use cni_lab::{Background, Node, Place as _, Pod, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// Three passes at once, and then one in 30 seconds: if the pods that come and go started passes, the flush would have to wait.
const PER_MINUTE: &str = "--per-minute=4";
/// So many pods come and go before the flush.
const PODS: usize = 12;

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("infinity");
    command
}

fn network(name: &str, subnet: &str, others: &[Value]) -> Network {
    let mut plugins = vec![
        json!({"type": "bridge", "bridge": format!("br-{name}"), "isDefaultGateway": true, "hairpinMode": true,
        "ipMasq": !others.is_empty(), "macspoofchk": !others.is_empty(),
        "ipam": {"type": "host-local", "subnet": subnet}}),
    ];
    plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    plugins.extend_from_slice(others);
    Network::from_value(&json!({"name": name, "cniVersion": "1.0.0", "plugins": plugins})).unwrap()
}

fn attachment(pod: &Pod, port: u16) -> Attachment {
    let mappings = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let limits = json!({"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 40_000_000, "egressBurst": 8_000_000});
    pod.attachment("eth0").with_capability("portMappings", mappings).with_capability("bandwidth", limits)
}

/// Lets pods come and go until `is_over`, and counts them. Each call has to succeed.
fn come_and_go(node: &Node, is_over: &AtomicBool, count: &AtomicUsize) {
    let others = [
        json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}),
        json!({"type": "firewall"}),
        json!({"type": "tuning", "mtu": 1400}),
    ];
    let network = network("churn", "10.2.0.0/16", &others);
    let runtime = node.runtime([bin_dir().unwrap()]);
    while !is_over.load(Ordering::Relaxed) {
        let pod = node.pod(&format!("churn-{}", count.load(Ordering::Relaxed))).unwrap();
        let attachment = attachment(&pod, 9000);
        runtime.add(&network, &attachment).unwrap();
        runtime.del(&network, &attachment).unwrap();
        pod.delete().unwrap();
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Starts the watch. Returns when its first pass is over.
fn watch(node: &Node, init: &Background, folder: &std::path::Path, per_minute: &str) -> Background {
    let notify = folder.join("notify");
    let ready = UnixDatagram::bind(&notify).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" >\"$SAID\" 2>&1", "sh"]);
    command.arg(bin_dir().unwrap().join("ferrule")).args([
        "repair",
        "--yes",
        "--watch",
        per_minute,
        "--bin-dir",
    ]);
    command.arg(bin_dir().unwrap()).args(["--init", &init.id().to_string()]);
    command.env("SAID", folder.join("said")).env("NOTIFY_SOCKET", notify);
    let watch = node.spawn(command).unwrap();
    ready.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut word = [0; 16];
    let len = ready
        .recv(&mut word)
        .unwrap_or_else(|error| panic!("{error}: {:?}", fs::read_to_string(folder.join("said"))));
    assert_eq!(&word[..len], b"READY=1");
    watch
}

#[test]
fn a_flush_is_repaired_at_once_while_pods_come_and_go() {
    let node = Node::new().unwrap();
    let init = node.spawn(sleep()).unwrap();
    let outside = node.outside_client("192.0.2.0/24").unwrap();
    let lasting = network("lasting", "10.1.0.0/24", &[]);
    let runtime = node.runtime([bin_dir().unwrap()]);
    let pods: Vec<_> = (0..3)
        .map(|number| {
            let pod = node.pod(&format!("watch-{number}")).unwrap();
            runtime.add(&lasting, &attachment(&pod, 8080 + number)).unwrap();
            serve(&pod, pod.name(), 80);
            let process = pod.spawn(sleep()).unwrap();
            (pod, 8080 + number, process)
        })
        .collect();
    let answers = |port: u16| !silent(&outside, "tcp", (outside.node_address(), port).into());
    assert!(pods.iter().all(|(_, port, _)| answers(*port)));

    let folder = tempfile::tempdir().unwrap();
    let said = || fs::read_to_string(folder.path().join("said")).unwrap();
    let mut watch = watch(&node, &init, folder.path(), PER_MINUTE);
    let (is_over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let took = thread::scope(|scope| {
        let churn = scope.spawn(|| come_and_go(&node, &is_over, &count));
        let has_churned = |more: usize| {
            eventually(2 * TIMEOUT, || churn.is_finished() || count.load(Ordering::Relaxed) >= more)
        };
        assert!(has_churned(PODS));
        let before = Instant::now();
        node.tool("nft", &["flush", "ruleset"]).unwrap();
        let is_repaired = eventually(Duration::from_secs(20), || {
            pods.iter().all(|(pod, port, _)| said().contains(pod.name()) && answers(*port))
        });
        let took = before.elapsed();
        assert!(has_churned(count.load(Ordering::Relaxed) + 2));
        is_over.store(true, Ordering::Relaxed);
        churn.join().unwrap();
        assert!(is_repaired, "{}", said());
        took
    });
    println!(
        "all host ports work again after {took:?}, beside {} pods that came and went",
        count.into_inner()
    );
    for (pod, port, _) in &pods {
        runtime.check(&lasting, &attachment(pod, *port)).unwrap();
    }
    assert!(!said().contains("cannot"), "{}", said());
    let repaired =
        |pod: &Pod| said().matches(&format!("repaired portmap of container {} ", pod.name())).count();
    assert!(pods.iter().all(|(pod, ..)| repaired(pod) == 1), "{}", said());

    node.tool("kill", &["-TERM", &watch.id().to_string()]).unwrap();
    assert!(eventually(TIMEOUT, || watch.child().try_wait().unwrap().is_some()));
    assert!(watch.child().wait().unwrap().success());
    for (pod, port, _) in &pods {
        runtime.del(&lasting, &attachment(pod, *port)).unwrap();
    }
    let rules = node.tool("nft", &["list", "ruleset"]).unwrap();
    assert!(!rules.contains("watch-") && !rules.contains("churn-"), "{rules}");
}

/// What the node may lose of a ptp pod.
#[test]
fn the_nodes_end_of_a_ptp_pod_is_repaired() {
    let node = Node::new().unwrap();
    let init = node.spawn(sleep()).unwrap();
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    let ipam = json!({"type": "host-local", "ranges": ranges});
    let network = Network::from_value(
        &json!({"name": "ptp", "cniVersion": "1.0.0", "plugins": [{"type": "ptp", "ipam": ipam}]}),
    );
    let (network, runtime) = (network.unwrap(), node.runtime([bin_dir().unwrap()]));
    let pod = node.pod("watch-ptp").unwrap();
    let attachment = pod.attachment("eth0");
    let result = runtime.add(&network, &attachment).unwrap();
    let _process = pod.spawn(sleep()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let _watch = watch(&node, &init, folder.path(), "--per-minute=60");
    let end = result["interfaces"][0]["name"].as_str().unwrap();
    for damage in
        ["ip route del 10.1.0.2", "ip -6 route del fd00:1::2", "ip link set END address 02:00:00:00:00:98"]
    {
        node.sh(&damage.replace("END", end)).unwrap();
        runtime.check(&network, &attachment).unwrap_err();
        let began = Instant::now();
        let is_sound = || runtime.check(&network, &attachment).is_ok();
        let said = || fs::read_to_string(folder.path().join("said")).unwrap();
        assert!(eventually(TIMEOUT, is_sound), "{damage}: {}", said());
        println!("{damage}: sound after {:?}", began.elapsed());
    }
    runtime.del(&network, &attachment).unwrap();
}
