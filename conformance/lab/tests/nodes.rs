//! Tests of the fixtures with the Go reference plugins.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use cni_lab::{KillPoint, Node, Place as _, Snapshot, TIMEOUT, bin_dir, eventually, go_bin_dir};
use cni_runner::{Exec, Network};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

fn bridge() -> Value {
    json!({
        "name": "pods", "cniVersion": "1.0.0", "plugins": [{
            "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]})
}

/// Parts of snapshot lines about state that the Go plugins do not remove: the bridge, forwarding,
/// nftables base chains, host-local's last address and lock.
const STAY: [&str; 9] = [
    "link: cni0 ",
    "address: cni0 ",
    "dev=cni0",
    "ip_forward",
    "nft table ip nat",
    "nft chain ip POSTROUTING",
    "/ 0755",
    "last_reserved_ip.0",
    "/lock 0",
];

#[test]
fn a_chain_is_added_and_removed() {
    let node = Node::new().unwrap();
    let (one, two) = (node.pod("one").unwrap(), node.pod("two").unwrap());
    let network = Network::from_value(&bridge()).unwrap();
    let runtime = node.runtime([go_bin_dir().unwrap()]);
    let before = Snapshot::take(&node).unwrap();
    let pod_before = Snapshot::take(&one).unwrap();

    let result = runtime.add(&network, &one.attachment("eth0")).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
    runtime.add(&network, &two.attachment("eth0")).unwrap();
    runtime.check(&network, &one.attachment("eth0")).unwrap();
    one.sh("ping -c 1 -W 5 10.1.0.3").unwrap();
    let names = node.list_dir("/var/lib/cni/networks/pods").unwrap();
    assert_eq!(names, ["10.1.0.2", "10.1.0.3", "last_reserved_ip.0", "lock"]);
    assert!(node.read_file("/var/lib/cni/networks/pods/10.1.0.3").unwrap().starts_with("two"));
    let during = before.diff(&Snapshot::take(&node).unwrap());
    for expected in ["+ link: cni0 kind=bridge", "master=cni0", "+ sysctl: ipv4/ip_forward = 1", "MASQUERADE"]
    {
        assert!(during.contains(expected), "{expected} is not in\n{during}");
    }

    for pod in [&one, &two, &one] {
        runtime.del(&network, &pod.attachment("eth0")).unwrap();
    }
    let after = Snapshot::take(&node).unwrap();
    let ignored = [&STAY[..], &Snapshot::NAT_BASE_CHAINS].concat();
    assert_eq!(before.ignoring(&ignored).diff(&after.ignoring(&ignored)), "");
    assert_eq!(pod_before.diff(&Snapshot::take(&one).unwrap()), "");
    assert!(node.list_dir("/var/lib/cni/results").unwrap().is_empty());
}

#[test]
fn a_snapshot_shows_each_kind_of_state_and_changes_nothing() {
    let node = Node::new().unwrap();
    let tables =
        || node.sh("cat /proc/net/ip_tables_names /proc/net/ip6_tables_names; nft list tables").unwrap();
    let tables_before = tables();
    let before = Snapshot::take(&node).unwrap();
    assert_eq!(before.diff(&Snapshot::take(&node).unwrap()), "");
    assert_eq!(tables(), tables_before);

    node.sh("set -e
        ip link add d0 type bridge
        ip link set d0 up
        tc qdisc add dev d0 root tbf rate 1mbit burst 10kb latency 25ms
        tc qdisc add dev d0 clsact
        tc filter add dev d0 ingress protocol all u32 match u32 0 0 flowid 1:1
        ip rule add fwmark 7 lookup 77
        ip route add unreachable 10.9.0.0/16 table 77
        nft add table inet t
        nft 'add map inet t m { type inet_service : ipv4_addr ; }'
        nft 'add element inet t m { 80 : 10.0.0.1 }'
        echo state > /run/cni/state")
        .unwrap();
    let has_legacy = node.sh("iptables-legacy -t nat -A POSTROUTING -j ACCEPT").is_ok();
    let diff = before.diff(&Snapshot::take(&node).unwrap());
    let mut expected = vec![
        "+ link: d0 kind=bridge",
        "+ qdisc: dev=d0 handle=65535:0 parent=65535:65521 Kind(\"clsact\")",
        "Kind(\"tbf\")",
        "+ filter d0 ingress: filter protocol all",
        "FwMark(7)",
        "+ route: 10.9.0.0/16 Table(77)",
        "+ nft map inet m: ",
        "10.0.0.1",
        "+ file: /run/cni/state 0644 \"state\\n\"",
    ];
    if has_legacy {
        expected.push("+ iptables-legacy-save nat: -A POSTROUTING -j ACCEPT");
    }
    for expected in expected {
        assert!(diff.contains(expected), "{expected} is not in\n{diff}");
    }
}

#[test]
fn cnirun_runs_a_network() {
    let node = Node::new().unwrap();
    let pod = node.pod("one").unwrap();
    node.write_conflist("10-pods.conflist", &bridge()).unwrap();
    let go = go_bin_dir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(bin_dir().unwrap().join("cnirun"));
        command.args(arguments).env("NETCONFPATH", Node::NETCONF_DIR).env("CNI_PATH", &go);
        let output = node.exec(&mut command).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let netns = pod.path().to_str().unwrap();

    let (status, stdout, stderr) = run(&["add", "pods", netns]);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
    assert!(node.list_dir("/var/lib/cni/results").unwrap()[0].starts_with("pods-cnitool-"));

    let (status, _, stderr) = run(&["add", "pods", netns]);
    assert_eq!(status, Some(1), "a second ADD of the same interface name must fail");
    assert!(stderr.starts_with("plugin bridge: ADD failed: "), "{stderr}");
    assert_eq!(run(&["check", "pods", netns]), (Some(0), String::new(), String::new()));
    assert_eq!(run(&["status", "pods"]).0, Some(0));
    assert_eq!(run(&["del", "pods", netns]), (Some(0), String::new(), String::new()));
    assert_eq!(run(&["del", "pods", netns]), (Some(0), String::new(), String::new()));
    assert_eq!(run(&["add", "nowhere", netns]).2, "no network \"nowhere\" in /run/cni/net.d\n");

    assert_eq!(run(&["add", "pods", netns, "-i", "net1", "--container-id", "c1"]).0, Some(0));
    assert_eq!(run(&["gc", "pods", "--valid", "c1/net1"]).0, Some(0));
    pod.sh("ip link show net1").unwrap();
    assert_eq!(run(&["gc", "pods"]).0, Some(0));
    assert!(pod.sh("ip link show net1").is_err(), "without a list no attachment is valid");
    assert!(node.list_dir("/var/lib/cni/results").unwrap().is_empty());
}

#[test]
fn single_calls_and_missing_namespaces() {
    let node = Node::new().unwrap();
    let pod = node.pod("one").unwrap();
    let attachment = pod.attachment("lo");
    let loopback = go_bin_dir().unwrap().join("loopback");
    let stdin = json!({"cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback"}).to_string();
    let call = |verb: &str| {
        let exec = Exec::new(&loopback, verb).attachment(&attachment).stdin(stdin.as_str());
        node.call(&exec.timeout(Duration::from_secs(20))).unwrap()
    };
    let added = call("ADD");
    assert_eq!(added.document().unwrap()["interfaces"][0]["name"], "lo");
    assert!(pod.sh("ip link show lo").unwrap().contains("LOOPBACK,UP"));
    // The same call from a thread in the pod. lo is already up, so the plugin changes nothing.
    assert!(
        pod.call(&Exec::new(&loopback, "ADD").attachment(&attachment).stdin(stdin.as_str()))
            .unwrap()
            .success()
    );
    assert!(call("DEL").success());

    pod.unmount_only().unwrap();
    let failure = call("ADD");
    assert!(!failure.success());
    assert!(
        failure.document().unwrap()["msg"].as_str().unwrap().contains("netns"),
        "{}",
        failure.stdout_text()
    );
    assert_eq!(node.list_dir("/run/netns").unwrap(), ["one"]);
}

#[test]
fn an_outside_client_reaches_the_node() {
    let node = Node::new().unwrap();
    let v4 = node.outside_client("192.0.2.0/24").unwrap();
    let v6 = node.outside_client("2001:db8::/64").unwrap();
    v4.sh("ping -c 1 -W 5 192.0.2.1").unwrap();
    v6.sh("ping -c 1 -W 5 2001:db8::1").unwrap();
    assert!(v4.sh("ip route").unwrap().contains("default via 192.0.2.1"));
    assert_eq!(v4.address().to_string(), "192.0.2.2");
    assert_eq!(v6.node_device(), "out1");
}

#[test]
fn a_deleted_pod_is_gone_and_background_processes_end() {
    let node = Node::new().unwrap();
    let pod = node.pod("one").unwrap();
    node.sh("ip link add v0 type veth peer name v1 netns one").unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000");
    let mut sleeping = pod.spawn(command).unwrap();
    let pid = sleeping.child().id();
    let own = pod.sh("readlink /proc/self/ns/net").unwrap();
    let alive = || fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    assert_eq!(alive().unwrap().to_str().unwrap(), own.trim());
    pod.delete().unwrap();
    node.sh("ip link show v0").unwrap();
    drop(sleeping);
    assert_eq!(alive(), None);
    assert!(eventually(TIMEOUT, || node.sh("ip link show v0").is_err()));
    assert!(node.list_dir("/run/netns").unwrap().is_empty());
}

/// Writes an executable by another process. If this process had it open for writing, a child forked meanwhile
/// would inherit the file descriptor, and starting the executable would fail with ETXTBSY.
fn install(script: &str, path: &Path) -> anyhow::Result<()> {
    let text = path.with_extension("text");
    fs::write(&text, script)?;
    ensure!(Command::new("install").arg(text).arg(path).status()?.success(), "install {}", path.display());
    Ok(())
}

/// Each kill point stops the plugin one step later, and the process that the plugin started runs on.
#[test]
fn a_plugin_is_killed_at_all_of_its_kill_points() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("steps");
    let script =
        "#!/bin/sh\ncd $CNI_PATH\n(sleep 0.1; : > late) &\nfor step in 1 2 3 4 5 6; do : > $step; done\n";
    install(script, &plugin).unwrap();
    let made = folder.path().join("made");
    let exec = Exec::new(plugin, "ADD").path(made.display().to_string());
    let node = Node::new().unwrap();
    let mut seen = BTreeSet::new();
    fs::create_dir(&made).unwrap();
    for kill_point in KillPoint::all(&node, &exec).unwrap() {
        fs::remove_dir_all(&made).unwrap();
        fs::create_dir(&made).unwrap();
        kill_point.kill(&node, &exec).unwrap();
        let names =
            fs::read_dir(&made).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        seen.insert(names);
    }
    let steps = ["1", "2", "3", "4", "5", "6", "late"];
    let mut expected: BTreeSet<Vec<String>> = BTreeSet::from([vec![]]);
    expected.extend(
        (0..=6).map(|n| [&steps[..n], &steps[6..]].concat().into_iter().map(str::to_owned).collect()),
    );
    assert_eq!(seen, expected);
}

/// The kernel removes a mount from all mount namespaces if its folder is removed in one of them.
#[test]
fn a_node_does_not_depend_on_the_machines_folder_for_cni() {
    thread::spawn(|| {
        // Stands for the machine: a mount namespace with a /var/lib of its own.
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        mount(Some("tmpfs"), "/var/lib", Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        fs::create_dir("/var/lib/other").unwrap();
        for exists_at_first in [true, false] {
            if exists_at_first {
                fs::create_dir("/var/lib/cni").unwrap();
            }
            let node = Node::new().unwrap();
            node.write_file("/var/lib/cni/file", "text").unwrap();
            if exists_at_first {
                fs::remove_dir("/var/lib/cni").unwrap();
            }
            assert_eq!(node.read_file("/var/lib/cni/file").unwrap(), "text");
            fs::write("/var/lib/other/file", "the machine's").unwrap();
            assert_eq!(node.read_file("/var/lib/other/file").unwrap(), "the machine's");
            let inner = node.run(Node::new).unwrap().unwrap();
            assert_eq!(inner.read_file("/var/lib/other/file").unwrap(), "the machine's");
            assert!(!fs::exists("/var/lib/cni").unwrap());
        }
    })
    .join()
    .unwrap();
}

#[test]
fn nodes_at_the_same_time_do_not_see_each_other() {
    thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let node = Node::new().unwrap();
                let pod = node.pod("same").unwrap();
                let network = Network::from_value(&bridge()).unwrap();
                let runtime = node.runtime([go_bin_dir().unwrap()]);
                let result = runtime.add(&network, &pod.attachment("eth0")).unwrap();
                assert_eq!(result["ips"][0]["address"], "10.1.0.2/24", "node {number}");
                runtime.del(&network, &pod.attachment("eth0")).unwrap();
            });
        }
    });
}

#[test]
fn the_machine_is_not_changed() {
    let look = || -> anyhow::Result<String> {
        let output = |program: &str, arguments: &[&str]| -> anyhow::Result<String> {
            let output = Command::new(program).args(arguments).output().context("run")?;
            Ok(String::from_utf8(output.stdout)?)
        };
        let mut seen = output("ip", &["-j", "link"])? + &output("nft", &["list", "ruleset"])?;
        seen += &fs::read_to_string("/proc/sys/net/ipv4/ip_forward")?;
        seen += &fs::read_to_string("/proc/mounts")?;
        for path in ["/run/netns", "/run/cni", "/var/lib/cni", "/run/xtables.lock"] {
            seen += &format!("{path} {}\n", fs::exists(path)?);
        }
        Ok(seen)
    };
    let before = look().unwrap();
    {
        let node = Node::new().unwrap();
        let pod = node.pod("one").unwrap();
        let network = Network::from_value(&bridge()).unwrap();
        node.runtime([go_bin_dir().unwrap()]).add(&network, &pod.attachment("eth0")).unwrap();
        assert_eq!(look().unwrap(), before);
    }
    assert_eq!(look().unwrap(), before);
}

/// Makes a veth link between two nodes. The witness's end disappears when the kernel removes the other node's
/// namespace.
fn tie(witness: &Node, node: &Node) -> anyhow::Result<()> {
    let peer = node.netns_path();
    witness.sh(&format!("ip link add tie type veth peer name tied netns {}", peer.display()))?;
    Ok(())
}

fn tie_goes(witness: &Node) -> bool {
    eventually(TIMEOUT, || witness.sh("ip link show tie").is_err())
}

#[test]
fn a_panic_leaves_no_namespace() {
    let witness = Node::new().unwrap();
    let panicked = thread::scope(|scope| {
        let test = scope.spawn(|| {
            let node = Node::new().unwrap();
            let _pod = node.pod("one").unwrap();
            tie(&witness, &node).unwrap();
            node.run(|| panic!("as a failing test does")).unwrap()
        });
        test.join()
    });
    let message = panicked.unwrap_err();
    assert_eq!(message.downcast_ref::<&str>(), Some(&"as a failing test does"));
    assert!(tie_goes(&witness));
}

/// Not a test itself: a_killed_process_leaves_no_namespace runs it in another process and kills that.
#[test]
#[ignore = "run by a_killed_process_leaves_no_namespace"]
fn victim() {
    let node = Node::new().unwrap();
    // This process was started in the witness's namespace, where its main thread still is.
    let peer = node.netns_path();
    let mut link = Command::new("ip");
    link.args(["link", "add", "tie", "type", "veth", "peer", "name", "tied", "netns"]).arg(peer);
    let mut command = Command::new("sleep");
    command.arg("1000");
    let _background = node.spawn(command).unwrap();
    assert!(link.status().unwrap().success());
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_process_leaves_no_namespace() {
    let witness = Node::new().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "victim", "--ignored"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut victim = witness.run(|| victim.spawn()).unwrap().unwrap();
    let tied = eventually(TIMEOUT, || witness.sh("ip link show tie").is_ok());
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(tied, "the victim did not make the link in time");
    assert!(tie_goes(&witness));
}
