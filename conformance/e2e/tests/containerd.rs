//! Debian's containerd as a caller of plugins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use anyhow::Context as _;
use cni_lab::{Containerd, Node, Place as _, Snapshot, TIMEOUT, bin_dir, eventually, go_bin_dir};
use ferrule_kit::fold::{CHAIN, fold};
use serde_json::{Value, json};

use self::host_port::{PORTS, SERVER, answered, closed};
use self::leftovers::assert_nothing_left;
use self::recorder::{calls, held, hold, recording, release};

#[path = "common/host_port.rs"]
mod host_port;
#[path = "common/leftovers.rs"]
mod leftovers;
#[path = "common/recorder.rs"]
mod recorder;

/// What a pod may receive and send, in bits per second.
const LIMITS: [(&str, &str); 2] =
    [("kubernetes.io/ingress-bandwidth", "10M"), ("kubernetes.io/egress-bandwidth", "20M")];

fn network() -> Value {
    json!({
        "name": "pods", "cniVersion": "1.0.0", "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local",
                "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}}]})
}

fn folded() -> Value {
    fold(network().as_object().unwrap()).unwrap().into()
}

/// The addresses of the pod with this number.
fn addresses(number: u8) -> [String; 2] {
    [format!("10.1.0.{number}"), format!("fd00:1::{number}")]
}

/// Expects, in a container or a sandbox: the addresses on eth0, `lo` up, the default routes, and ping replies of
/// the gateways.
fn assert_connected(number: u8, sh: impl Fn(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let seen = sh("ip address show eth0")?;
    let [ipv4, ipv6] = addresses(number);
    assert!(
        seen.contains(&format!("inet {ipv4}/24 ")) && seen.contains(&format!("inet6 {ipv6}/64 ")),
        "{seen}"
    );
    let seen = sh("ip -4 address show lo")?;
    assert!(seen.contains("LOOPBACK,UP") && seen.contains("inet 127.0.0.1/8"), "{seen}");
    assert_eq!(sh("ip route show default")?.trim(), "default via 10.1.0.1 dev eth0");
    let seen = sh("ip -6 route show default")?;
    assert!(seen.starts_with("default via fd00:1::1 dev eth0"), "{seen}");
    sh("ping -c 1 -W 5 10.1.0.1 && ping -c 1 -W 5 fd00:1::1")?;
    Ok(())
}

/// Expects the reservations of these pods and no others.
fn assert_reservations(node: &Node, pods: &[u8]) -> anyhow::Result<()> {
    let mut names = node.list_dir("/var/lib/cni/networks/pods")?;
    names.retain(|name| name != "lock" && !name.starts_with("last_reserved_ip."));
    let mut expected: Vec<_> = pods.iter().copied().flat_map(addresses).collect();
    expected.sort();
    assert_eq!(names, expected);
    Ok(())
}

/// Expects the limits of one pod: the ingress rate at the host's end of its link, the egress rate at an IFB.
fn assert_limited(node: &Node) -> anyhow::Result<()> {
    let qdiscs = node.sh("tc qdisc show | grep '^qdisc tbf'")?;
    let rate = |ifb| {
        let line = qdiscs.lines().find(|line| line.contains(" dev bwp") == ifb);
        line.and_then(|line| line.split(' ').skip_while(|word| *word != "rate").nth(1))
    };
    assert_eq!(
        (rate(false), rate(true), qdiscs.lines().count()),
        (Some("10Mbit"), Some("20Mbit"), 2),
        "{qdiscs}"
    );
    Ok(())
}

fn ctr_adds_and_deletes_containers(plugins: &Path, known: &[&str]) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let containerd = Containerd::start(&node, plugins, &network())?;

    let one = containerd.run("one", &["/bin/sleep", "1000"])?;
    assert_connected(2, |script| containerd.sh("one", script))?;
    let two = containerd.run("two", &["/bin/sleep", "1000"])?;
    assert_connected(3, |script| containerd.sh("two", script))?;
    containerd.sh("two", "ping -c 1 -W 5 10.1.0.2")?;
    assert_reservations(&node, &[2, 3])?;
    let during = before.diff(&Snapshot::take(&node)?).to_lowercase();
    assert!(during.contains("masquerade") && during.contains("10.1.0.3"), "{during}");

    containerd.kill("one", one)?;
    assert_reservations(&node, &[3])?;
    containerd.sh("two", "ping -c 1 -W 5 10.1.0.1")?;
    containerd.kill("two", two)?;
    assert_nothing_left(&node, &before, &["cni0"], known)?;
    assert_eq!(containerd.ctr(&["container", "list", "--quiet"])?, "");
    Ok(())
}

/// `recorded`: the last plugin of the network.
fn cri_adds_and_deletes_sandboxes(
    plugins: &Path,
    network: &Value,
    recorded: &str,
    known: &[&str],
) -> anyhow::Result<()> {
    let node = Node::new()?;
    let client = node.outside_client("192.0.2.0/24")?;
    let before = Snapshot::take(&node)?;
    let plugins = recording(plugins, &[recorded])?;
    let containerd = Containerd::start(&node, plugins.path(), network)?;
    containerd.import_pause_image()?;

    let one = containerd.run_sandbox("web-0", &[PORTS], &LIMITS)?;
    assert_eq!(containerd.sandbox_ips(&one)?, addresses(2));
    assert_connected(2, |script| containerd.sandbox_sh("pods", &one, script))?;
    assert_limited(&node)?;
    let two = containerd.run_sandbox("web-1", &[], &[])?;
    assert_connected(3, |script| containerd.sandbox_sh("pods", &two, script))?;
    containerd.sandbox_sh("pods", &two, "ping -c 1 -W 5 10.1.0.2")?;
    // Only CRI calls the loopback plugin.
    let cached = node.list_dir("/var/lib/cni/results")?;
    assert!(cached.contains(&format!("cni-loopback-{one}-lo")), "{cached:?}");

    let server = containerd.sandbox_spawn("pods", &one, &SERVER)?;
    answered(&client, client.node_address())?;
    drop(server);

    containerd.stop_sandbox(&one)?;
    closed(&client, client.node_address())?;
    assert_reservations(&node, &[3])?;
    containerd.remove_sandbox(&one)?;
    // The namespace of the other sandbox is lost, so DEL has to do without. RemovePodSandbox without StopPodSandbox
    // does both.
    let netns = containerd.sandbox_netns("pods", &two)?;
    node.sh(&format!("umount --lazy {netns} && rm {netns}"))?;
    containerd.remove_sandbox(&two)?;
    assert_nothing_left(&node, &before, &["cni0"], known)?;
    assert_eq!(node.list_dir("/run/netns")?, ["client0"]);

    let calls = calls(&node, recorded)?;
    let of = |id: &str| -> Vec<_> {
        let words = calls.iter().map(|call| call.split(' ').collect::<Vec<_>>());
        words.filter(|call| call[1] == id).map(|call| (call[0], call.len() > 2)).collect()
    };
    assert_eq!(of(&one), [("ADD", true), ("DEL", true), ("DEL", false)]);
    assert_eq!(of(&two), [("ADD", true), ("DEL", false)]);
    Ok(())
}

#[test]
fn the_go_plugins_under_ctr() {
    // ctr calls DEL without a namespace; the Go bridge then leaves its masquerading rules (plugins#810).
    ctr_adds_and_deletes_containers(&go_bin_dir().unwrap(), &["CNI-"]).unwrap();
}

#[test]
fn our_plugins_under_ctr() {
    ctr_adds_and_deletes_containers(&bin_dir().unwrap(), &[]).unwrap();
}

#[test]
fn the_go_plugins_under_cri() {
    // As above, for the sandbox whose namespace is lost.
    cri_adds_and_deletes_sandboxes(&go_bin_dir().unwrap(), &network(), "bandwidth", &["CNI-"]).unwrap();
}

#[test]
fn our_plugins_under_cri() {
    cri_adds_and_deletes_sandboxes(&bin_dir().unwrap(), &network(), "bandwidth", &[]).unwrap();
}

#[test]
fn our_plugins_in_one_chain_under_cri() {
    cri_adds_and_deletes_sandboxes(&bin_dir().unwrap(), &folded(), CHAIN, &[]).unwrap();
}

/// Runs a pod, and kills containerd when this plugin's ADD begins; the plugin ends after that. Returns the ID of the
/// sandbox.
fn crash_during_add(node: &Node, containerd: &Containerd<'_>, plugin: &str) -> anyhow::Result<String> {
    hold(node, plugin)?;
    thread::scope(|scope| {
        let run = scope.spawn(|| containerd.run_sandbox("web-0", &[PORTS], &LIMITS));
        let id = held(node, plugin)?;
        containerd.crash()?;
        assert!(run.join().unwrap().is_err(), "RunPodSandbox has succeeded");
        release(node, plugin)?;
        Ok(id)
    })
}

#[test]
fn a_pod_ends_without_a_trace_if_containerd_is_killed_while_it_starts() -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let plugins = recording(&bin_dir()?, &["bridge", "bandwidth"])?;
    let containerd = Containerd::start(&node, plugins.path(), &network())?;
    containerd.import_pause_image()?;

    // No runtime reads the result, so the plugin takes its steps back.
    let first = crash_during_add(&node, &containerd, "bridge")?;
    assert_nothing_left(&node, &before, &["cni0"], &["/var/lib/cni/results/cni-loopback-"])?;
    containerd.remove_sandbox(&first)?;

    // The plugins before the last one have succeeded. The kubelet removes the sandbox that it does not know.
    let second = crash_during_add(&node, &containerd, "bandwidth")?;
    assert_reservations(&node, &[3])?;
    containerd.remove_sandbox(&second)?;
    assert_nothing_left(&node, &before, &["cni0"], &[])?;

    // The next try gets the same host port.
    let third = containerd.run_sandbox("web-0", &[PORTS], &LIMITS)?;
    assert_limited(&node)?;
    containerd.remove_sandbox(&third)?;
    assert_eq!(node.list_dir("/run/netns")?, [""; 0]);
    assert_nothing_left(&node, &before, &["cni0"], &[])
}

/// Calls a function with the numbers below `count`, in eight threads. Returns its results in any order.
fn eight_at_a_time<T: Send>(
    count: u16,
    work: impl Fn(u16) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let next = AtomicU16::new(0);
    let numbers = || std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
    let worker =
        || numbers().take_while(|number| *number < count).map(&work).collect::<anyhow::Result<Vec<_>>>();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(worker)).collect();
        let done = workers.into_iter().map(|worker| worker.join().unwrap());
        Ok(done.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
    })
}

#[test]
fn forty_pods_start_and_end_eight_at_a_time() -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let containerd = Containerd::start(&node, &bin_dir()?, &network())?;
    containerd.import_pause_image()?;
    // The second and the third round remove by the one form of the network what the other one has attached.
    for (round, now) in [(1, network()), (2, folded()), (3, network())] {
        let pods = eight_at_a_time(40, |number| {
            let id = containerd.run_sandbox(&format!("web-{number}"), &[(8000 + number, 80)], &LIMITS)?;
            Ok((containerd.sandbox_ips(&id)?, id))
        });
        let pods = pods.with_context(|| format!("round {round}"))?;
        let addresses: HashSet<_> = pods.iter().flat_map(|(ips, _)| ips).collect();
        assert_eq!(addresses.len(), 80, "round {round}: {addresses:?}");
        containerd.set_network(&now)?;
        eight_at_a_time(40, |number| {
            let (_, id) = &pods[usize::from(number)];
            containerd.stop_sandbox(id)?;
            containerd.remove_sandbox(id)
        })?;
        assert_eq!(node.list_dir("/run/netns")?, [""; 0]);
        assert_nothing_left(&node, &before, &["cni0"], &[])?;
    }
    Ok(())
}

#[test]
fn nothing_outlives_containerd() {
    let node = Node::new().unwrap();
    let containerd = Containerd::start(&node, &go_bin_dir().unwrap(), &network()).unwrap();
    // A unique argument identifies the container's process among all processes of the machine.
    let seconds = format!("{}.5", std::process::id());
    let _last = containerd.run("last", &["/bin/sleep", &seconds]).unwrap();
    let marker = format!("/bin/sleep\0{seconds}\0");
    let lives = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        lines.any(|line| line == marker)
    };
    // containerd reports a task as running just before the task executes its command.
    assert!(eventually(TIMEOUT, lives));
    let groups = || containerd_groups(&node).unwrap();
    assert_ne!(groups(), 0);
    drop(containerd);
    assert!(!lives());
    assert_eq!(groups(), 0);
}

/// Counts the control groups that this process has made for containers named `last`.
fn containerd_groups(node: &Node) -> anyhow::Result<usize> {
    // Not `find`, which fails if a test beside this one removes its groups.
    let group = format!("ferrule-test-{}-*/last", std::process::id());
    let list = format!("cd /sys/fs/cgroup && ls -d {group} */{group} 2>/dev/null | wc -l");
    Ok(node.sh(&list)?.trim().parse()?)
}
