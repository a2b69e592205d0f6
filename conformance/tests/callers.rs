//! The calls that runtimes make, one after another, as recorded from their libraries: each is a caller that the
//! plugins have to serve, and each has to leave a node as it was.

use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use anyhow::Context as _;
use conformance::fixture::{Node, NodeRuntime, Place as _, Pod, Snapshot, bin_dir, go_bin_dir};
use conformance::runner::{Attachment, Error, Extra, Network, plugin_input};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use self::leftovers::assert_nothing_left;

#[path = "common/leftovers.rs"]
mod leftovers;

const CID: &str = "11906f9e015749184955de4cde4f7926200778490596ebf9748c37f8573e46ee";
const UID: &str = "28ce45bc-63f8-48a3-a99b-cfb9e63c856c";

const CONTAINERD_LOOPBACK: &str = r#"{"cniVersion":"0.3.1","name":"cni-loopback","type":"loopback"}"#;
const CONTAINERD_BRIDGE: &str = concat!(
    r#"{"bridge":"cni0","capabilities":{"cgroupPath":true,"dns":true,"io.kubernetes.cri.pod-annotations":true},"#,
    r#""cniVersion":"1.0.0","ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.88.0.0/16"}]],"#,
    r#""routes":[{"dst":"0.0.0.0/0"}],"type":"host-local"},"isGateway":true,"name":"containerd-net","#,
    r#""promiscMode":true,"runtimeConfig":{"#,
    r#""cgroupPath":"/kubepods/burstable/pod28ce45bc-63f8-48a3-a99b-cfb9e63c856c","#,
    r#""dns":{"Servers":["10.96.0.10"],"#,
    r#""Searches":["default.svc.cluster.local","svc.cluster.local","cluster.local"],"Options":["ndots:5"]},"#,
    r#""io.kubernetes.cri.pod-annotations":{"kubernetes.io/config.source":"api","#,
    r#""kubernetes.io/ingress-bandwidth":"10M"}},"type":"bridge"}"#
);
const PODMAN_BRIDGE: &str = concat!(
    r#"{"bridge":"cni-podman0","cniVersion":"0.4.0","hairpinMode":true,"ipMasq":true,"#,
    r#""ipam":{"ranges":[[{"gateway":"10.88.0.1","subnet":"10.88.0.0/16"}]],"#,
    r#""routes":[{"dst":"0.0.0.0/0"}],"type":"host-local"},"isGateway":true,"name":"podman","type":"bridge"}"#
);

/// A folder of plugins.
struct Plugins {
    dir: PathBuf,
    /// The newest version that they know.
    version: &'static str,
    /// What they leave if DEL comes without a namespace, though they should not.
    known: &'static [&'static str],
}

impl Plugins {
    fn ours() -> anyhow::Result<Plugins> {
        Ok(Plugins { dir: bin_dir()?, version: "1.1.0", known: &[] })
    }

    /// Debian's 1.1.1, whose bridge forgets its masquerading when the namespace is gone (plugins#810).
    fn go() -> anyhow::Result<Plugins> {
        Ok(Plugins { dir: go_bin_dir()?, version: "1.0.0", known: &["CNI-"] })
    }
}

/// Makes a test for each folder of each sequence, which is a function of the same name.
macro_rules! for_both {
    ($($name:ident),*) => {
        mod the_go_plugins {
            $(#[test] fn $name() { super::$name(&super::Plugins::go().unwrap()).unwrap() })*
        }
        mod our_plugins {
            $(#[test] fn $name() { super::$name(&super::Plugins::ours().unwrap()).unwrap() })*
        }
    };
}

for_both!(
    containerd_pod,
    containerd_failed_add,
    containerd_after_a_reboot,
    crio_pod,
    nerdctl_restart,
    podman_static_addresses,
    two_networks_at_once,
    cnitool
);

/// A network with one plugin, from what the plugin gets to read.
fn network_of(stdin: &str) -> anyhow::Result<Network> {
    let mut plugin: Value = serde_json::from_str(stdin)?;
    let keys = plugin.as_object_mut().context("not an object")?;
    keys.remove("runtimeConfig");
    let (name, version) = (keys.remove("name"), keys.remove("cniVersion"));
    Ok(Network::from_value(&json!({"name": name, "cniVersion": version, "plugins": [plugin]}))?)
}

/// Fails unless the first plugin will read what was recorded. The order of keys within capabilities is go-cni's own.
fn assert_recorded(network: &Network, attachment: &Attachment, recorded: &str) -> anyhow::Result<()> {
    let input = plugin_input(network, &network.plugins[0], Extra::Attachment(attachment, None));
    let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes);
    assert_eq!(parse(&input)?, parse(recorded.as_bytes())?);
    Ok(())
}

/// A network with one bridge plugin.
fn bridge(name: &str, version: &str, device: &str, subnet: &str) -> Value {
    json!({
        "name": name, "cniVersion": version, "plugins": [{
            "type": "bridge", "bridge": device, "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}}]})
}

/// containerd's attachments to its two networks, with the arguments in one of their many orders.
fn containerd_attachments(netns: &str, args: [&str; 5]) -> anyhow::Result<(Attachment, Attachment)> {
    let args = args.join(";").replace("<CID>", CID).replace("<UID>", UID);
    let loopback = Attachment::new(CID, netns, "lo").with_args(&args);
    let config: Value = serde_json::from_str(CONTAINERD_BRIDGE)?;
    let mut pods = Attachment::new(CID, netns, "eth0").with_args(args);
    pods.capabilities = config["runtimeConfig"].as_object().cloned().unwrap_or_default();
    Ok((loopback, pods))
}

const ADD_ARGS: [&str; 5] = [
    "K8S_POD_UID=<UID>",
    "IgnoreUnknown=1",
    "K8S_POD_INFRA_CONTAINER_ID=<CID>",
    "K8S_POD_NAMESPACE=default",
    "K8S_POD_NAME=web-0",
];
const DEL_ARGS: [&str; 5] = [
    "IgnoreUnknown=1",
    "K8S_POD_INFRA_CONTAINER_ID=<CID>",
    "K8S_POD_NAMESPACE=default",
    "K8S_POD_NAME=web-0",
    "K8S_POD_UID=<UID>",
];

fn reservations(node: &Node, network: &str) -> anyhow::Result<Vec<String>> {
    let mut names = node.list_dir(format!("/var/lib/cni/networks/{network}"))?;
    names.retain(|name| name != "lock" && !name.starts_with("last_reserved_ip."));
    Ok(names)
}

fn path(pod: &Pod) -> &str {
    pod.path().to_str().unwrap_or_default()
}

/// What a thread has come to, its panic included.
fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Loopback and chain at the same time, DEL of both in order, and once more when the namespace is gone.
fn containerd_pod(plugins: &Plugins) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let pod = node.pod("cni-3f0c0a4e-6d2b-7c1d-9a55-0b1c2d3e4f50")?;
    let runtime = node.runtime([&plugins.dir]);
    let (lo, net) = (network_of(CONTAINERD_LOOPBACK)?, network_of(CONTAINERD_BRIDGE)?);
    let (on_lo, on_net) = containerd_attachments(path(&pod), ADD_ARGS)?;
    assert_recorded(&lo, &on_lo, CONTAINERD_LOOPBACK)?;
    assert_recorded(&net, &on_net, CONTAINERD_BRIDGE)?;

    thread::scope(|scope| {
        let on_lo = scope.spawn(|| runtime.add(&lo, &on_lo));
        let result = runtime.add(&net, &on_net)?;
        assert_eq!(result["ips"][0]["address"], "10.88.0.2/16");
        assert_eq!(joined(on_lo)?["interfaces"][0]["name"], "lo");
        anyhow::Ok(())
    })?;
    assert!(pod.sh("ip address show lo")?.contains("LOOPBACK,UP"));
    pod.sh("ping -c 1 -W 5 10.88.0.1")?;

    let (on_lo, on_net) = containerd_attachments(path(&pod), DEL_ARGS)?;
    runtime.del(&lo, &on_lo)?;
    runtime.del(&net, &on_net)?;
    assert!(pod.sh("ip link show eth0").is_err());
    assert!(reservations(&node, "containerd-net")?.is_empty());
    pod.delete()?;
    let (on_lo, on_net) = containerd_attachments("", DEL_ARGS)?;
    runtime.del(&lo, &on_lo)?;
    runtime.del(&net, &on_net)?;
    assert_nothing_left(&node, &before, &["cni0"], &[])
}

/// The second of three plugins fails, so DEL comes for all of them, with a namespace and without a result.
fn containerd_failed_add(plugins: &Plugins) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let pod = node.pod("one")?;
    let extra = TempDir::new()?;
    let refusal = r#"#!/bin/sh
cat > /dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo '{"cniVersion": "1.0.0", "code": 100, "msg": "not today"}'
    exit 1
fi
"#;
    node.write_file(extra.path().join("refuse"), refusal)?;
    node.sh(&format!("chmod 755 {}/refuse", extra.path().display()))?;
    let runtime = node.runtime([plugins.dir.as_path(), extra.path()]);
    let mut net = network_of(CONTAINERD_BRIDGE)?;
    for _ in 0..2 {
        net.plugins.push(Map::from_iter([("type".to_owned(), "refuse".into())]));
    }
    let lo = network_of(CONTAINERD_LOOPBACK)?;

    let (on_lo, on_net) = containerd_attachments(path(&pod), ADD_ARGS)?;
    runtime.add(&lo, &on_lo)?;
    let error = runtime.add(&net, &on_net).err().context("ADD succeeds")?;
    assert_eq!(error.code(), Some(100), "{error}");
    assert_eq!(reservations(&node, "containerd-net")?, ["10.88.0.2"]);
    let (on_lo, on_net) = containerd_attachments(path(&pod), DEL_ARGS)?;
    runtime.del(&lo, &on_lo)?;
    runtime.del(&net, &on_net)?;
    assert!(pod.sh("ip link show eth0").is_err());
    assert_nothing_left(&node, &before, &["cni0"], &[])
}

/// Files have survived, namespaces, links and rules have not.
fn containerd_after_a_reboot(plugins: &Plugins) -> anyhow::Result<()> {
    let last_time = Node::new()?;
    let pod = last_time.pod("one")?;
    let (lo, net) = (network_of(CONTAINERD_LOOPBACK)?, network_of(CONTAINERD_BRIDGE)?);
    let (on_lo, on_net) = containerd_attachments(path(&pod), ADD_ARGS)?;
    let runtime = last_time.runtime([&plugins.dir]);
    runtime.add(&lo, &on_lo)?;
    runtime.add(&net, &on_net)?;

    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    for dir in ["/var/lib/cni/results", "/var/lib/cni/networks/containerd-net"] {
        for name in last_time.list_dir(dir)? {
            let file = format!("{dir}/{name}");
            node.write_file(&file, &last_time.read_file(&file)?)?;
        }
    }
    assert_eq!(reservations(&node, "containerd-net")?, ["10.88.0.2"]);
    let runtime = node.runtime([&plugins.dir]);
    let (on_lo, on_net) = containerd_attachments("", DEL_ARGS)?;
    assert!(runtime.runtime.cache.file("containerd-net", &on_net).starts_with("/var/lib/cni/results"));
    runtime.del(&lo, &on_lo)?;
    runtime.del(&net, &on_net)?;
    assert_nothing_left(&node, &before, &["cni0"], &[])
}

/// VERSION of all, STATUS, ADD and CHECK at once; DEL; GC with a list of none, for a pod that was forgotten.
fn crio_pod(plugins: &Plugins) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let runtime = node.runtime([&plugins.dir]);
    let network = Network::from_value(&bridge("crio", plugins.version, "cni0", "10.85.0.0/16"))?;
    for plugin in ["bridge", "host-local"] {
        let answer = runtime.version(plugin)?;
        let supported = answer["supportedVersions"].as_array().context("no versions")?;
        assert!(supported.contains(&plugins.version.into()), "{plugin}: {answer}");
    }
    runtime.status(&network)?;
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID={CID};K8S_POD_UID={UID}"
    );
    let (pod, forgotten) = (node.pod("cni-1")?, node.pod("cni-2")?);
    let attachment = Attachment::new(CID, path(&pod), "eth0").with_args(&args);
    let lost = Attachment::new("forgotten", path(&forgotten), "eth0").with_args(&args);
    for (attachment, address) in [(&attachment, "10.85.0.2/16"), (&lost, "10.85.0.3/16")] {
        let result = runtime.add(&network, attachment)?;
        assert_eq!(result["cniVersion"], plugins.version);
        assert_eq!(result["ips"][0]["address"], address);
        runtime.check(&network, attachment)?;
    }
    pod.sh("ping -c 1 -W 5 10.85.0.3")?;
    runtime.check(&network, &attachment)?;
    runtime.status(&network)?;

    runtime.del(&network, &attachment)?;
    forgotten.delete()?;
    if plugins.version == "1.1.0" {
        // Without this the runtime itself calls DEL for what is not in its list; plugins of older versions know no GC.
        let file = runtime.runtime.cache.file("crio", &lost);
        node.sh(&format!("rm {}", file.display()))?;
    }
    runtime.gc(&network, Some(&[]))?;
    assert_nothing_left(&node, &before, &["cni0"], plugins.known)
}

/// The namespace is that of a process, and gone before every DEL; ADD follows a DEL of nothing.
fn nerdctl_restart(plugins: &Plugins) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let runtime = node.runtime([&plugins.dir]);
    let network = Network::from_value(&bridge("bridge", "1.0.0", "nerdctl0", "10.4.0.0/24"))?;
    let attachment =
        |netns: &str, args: &str| Attachment::new(format!("default-{CID}"), netns, "eth0").with_args(args);
    let add_args = "IgnoreUnknown=1;IP=10.4.0.77;MAC=92:d0:c6:0a:29:33;NERDCTL_CNI_DHCP_HOSTNAME=abc";
    let del_args = "IP=10.4.0.77;MAC=92:d0:c6:0a:29:33;NERDCTL_CNI_DHCP_HOSTNAME=abc;IgnoreUnknown=1";
    let stop_args = "IgnoreUnknown=1;IP=10.4.0.77;MAC=92:d0:c6:0a:29:33";
    for round in ["first", "second"] {
        runtime.del(&network, &attachment("", del_args))?;
        let pod = node.pod(round)?;
        let mut command = Command::new("sleep");
        command.arg("1000");
        let mut container = pod.spawn(command)?;
        let netns = format!("/proc/{}/ns/net", container.child().id());
        let result = runtime.add(&network, &attachment(&netns, add_args))?;
        assert_eq!(result["ips"][0]["address"], "10.4.0.77/24", "{round}");
        assert!(pod.sh("ip link show eth0")?.contains("92:d0:c6:0a:29:33"));
        pod.sh("ping -c 1 -W 5 10.4.0.1")?;
        drop(container);
        pod.delete()?;
        runtime.del(&network, &attachment("", stop_args))?;
        assert!(reservations(&node, "bridge")?.is_empty());
    }
    assert_nothing_left(&node, &before, &["nerdctl0"], plugins.known)
}

/// Hardware and IP address by CNI_ARGS at 0.4.0; the namespace's path is gone at DEL.
fn podman_static_addresses(plugins: &Plugins) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let pod = node.pod("cni-1")?;
    let runtime = node.runtime([&plugins.dir]);
    let network = network_of(PODMAN_BRIDGE)?;
    let args = "IgnoreUnknown=1;K8S_POD_NAME=web;MAC=92:d0:c6:0a:29:33;IP=10.88.0.77";
    let attachment = pod.attachment("eth0").with_args(args);
    assert_recorded(&network, &attachment, PODMAN_BRIDGE)?;
    let result = runtime.add(&network, &attachment)?;
    assert_eq!(result["cniVersion"], "0.4.0");
    let address = &result["ips"][0];
    assert_eq!(address["address"], "10.88.0.77/16");
    assert_eq!(address["version"], "4");
    assert_eq!(result["interfaces"][2]["mac"], "92:d0:c6:0a:29:33");
    assert!(pod.sh("ip link show eth0")?.contains("92:d0:c6:0a:29:33"));
    pod.sh("ping -c 1 -W 5 10.88.0.1")?;

    pod.delete()?;
    runtime.del(&network, &attachment)?;
    assert_nothing_left(&node, &before, &["cni-podman0"], plugins.known)
}

/// Two interfaces for one namespace are made at the same time.
fn two_networks_at_once(plugins: &Plugins) -> anyhow::Result<()> {
    let node = Node::new()?;
    let before = Snapshot::take(&node)?;
    let pod = node.pod("one")?;
    let runtime = node.runtime([&plugins.dir]);
    let first = Network::from_value(&bridge("first", "1.0.0", "cni0", "10.1.0.0/24"))?;
    let mut second = bridge("second", "1.0.0", "cni1", "10.2.0.0/24");
    // There is only one default route. The Go bridge's CHECK finds others only with an explicit gateway.
    second["plugins"][0]["ipam"]["routes"] = json!([{"dst": "10.3.0.0/24", "gw": "10.2.0.1"}]);
    let second = Network::from_value(&second)?;
    let (eth0, eth1) = (pod.attachment("eth0"), pod.attachment("eth1"));

    let add = |network: &Network, attachment: &Attachment, runtime: &NodeRuntime<'_>| {
        runtime.add(network, attachment).map(|result| result["ips"][0]["address"].clone())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| add(&second, &eth1, &runtime));
        assert_eq!(add(&first, &eth0, &runtime)?, "10.1.0.2/24");
        assert_eq!(joined(other)?, "10.2.0.2/24");
        anyhow::Ok(())
    })?;
    pod.sh("ping -c 1 -W 5 10.1.0.1 && ping -c 1 -W 5 10.2.0.1")?;
    let routes = pod.sh("ip route")?;
    assert!(routes.contains("default via 10.1.0.1 dev eth0"), "{routes}");
    assert!(routes.contains("10.3.0.0/24 via 10.2.0.1 dev eth1"), "{routes}");
    runtime.check(&first, &eth0)?;
    runtime.check(&second, &eth1)?;

    runtime.del(&first, &eth0)?;
    pod.sh("ping -c 1 -W 5 10.2.0.1")?;
    runtime.del(&second, &eth1)?;
    assert_nothing_left(&node, &before, &["cni0", "cni1"], &[])
}

/// By hand: ADD, CHECK, a GC that knows of no attachments at all, and DEL of what is no more.
fn cnitool(plugins: &Plugins) -> anyhow::Result<()> {
    let node = Node::new()?;
    let pod = node.pod("one")?;
    let config = bridge("pods", plugins.version, "cni0", "10.1.0.0/24");
    node.write_conflist("10-pods.conflist", &config)?;
    let before = Snapshot::take(&node)?;
    for verb in ["add", "check", "gc", "del", "del"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cnirun"));
        command.args([verb, "pods"]).env("NETCONFPATH", Node::NETCONF_DIR).env("CNI_PATH", &plugins.dir);
        if verb != "gc" {
            command.arg(path(&pod));
        }
        let output = node.exec(&mut command)?;
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        if verb == "check" {
            pod.sh("ping -c 1 -W 5 10.1.0.1")?;
        }
    }
    assert!(pod.sh("ip link show eth0").is_err());
    assert_nothing_left(&node, &before, &["cni0"], &[])
}
