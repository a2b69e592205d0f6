//! `ferrule-node cleanup --left-overs` on a node that other networks have left.

use std::process::Command;

use cni_lab::{Node, Place as _};

/// What each origin leaves, with a pod, and what shows that it is gone. The chains are those that the real programs make.
const LEFT: [(&str, &str, &str); 4] = [
    (
        "flannel",
        "echo '{}' >/run/net.d/10-flannel.conflist
        ip link add cni0 type bridge; ip address add 10.244.1.1/24 dev cni0; ip link set cni0 up
        ip link add flannel.1 type vxlan id 1 dstport 8472 dev lo; ip link set flannel.1 up
        ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
        ip link add pod0 type veth peer name pod1; ip link set pod0 master cni0 up
        iptables-nft -t nat -N FLANNEL-POSTRTG; iptables-nft -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -j MASQUERADE
        iptables-nft -t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG
        iptables-nft -N FLANNEL-FWD; iptables-nft -A FORWARD -j FLANNEL-FWD
        nft 'add table ip6 flannel-ipv6; add chain ip6 flannel-ipv6 x'",
        "! ip link show cni0 && ! ip link show flannel.1 && [ -z \"$(ip route show 10.244.2.0/24)\" ]",
    ),
    (
        "kindnet",
        "echo '{}' >/run/net.d/10-kindnet.conflist
        mkdir -p /run/cni-ipam-state/kindnet; echo x >/run/cni-ipam-state/kindnet/10.244.1.7
        ip link add pod0 type veth peer name pod1; ip link set pod0 up; ip link set pod1 up; ip route add 10.244.1.7 dev pod0
        iptables-nft -t nat -N KIND-MASQ-AGENT; iptables-nft -t nat -A KIND-MASQ-AGENT -j MASQUERADE
        iptables-nft -t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j KIND-MASQ-AGENT
        nft 'add table inet kindnet-network-policies; add chain inet kindnet-network-policies x'",
        "! ls -d /run/cni-ipam-state/kindnet",
    ),
    (
        "kube-router",
        "echo '{}' >/run/net.d/10-kuberouter.conflist
        ip link add kube-bridge type bridge
        ip link add pod0 type veth peer name pod1; ip link set pod0 master kube-bridge
        iptables-nft -N KUBE-ROUTER-FORWARD; iptables-nft -N KUBE-POD-FW-A; iptables-nft -A KUBE-POD-FW-A -j REJECT
        iptables-nft -A KUBE-ROUTER-FORWARD -j KUBE-POD-FW-A; iptables-nft -A FORWARD -j KUBE-ROUTER-FORWARD",
        "! ip link show kube-bridge",
    ),
    (
        "calico",
        "echo '{}' >/run/net.d/10-calico.conflist
        ip link add vxlan.calico type vxlan id 4096 dstport 4789 dev lo; ip route add blackhole 10.244.9.0/26 proto 80
        ip link add cali12345 type veth peer name pod1
        iptables-nft -N cali-FORWARD; iptables-nft -N cali-tw-cali12345; iptables-nft -A cali-FORWARD -j cali-tw-cali12345
        iptables-nft -A FORWARD -m comment --comment 'cali:x' -j cali-FORWARD
        iptables-nft -A FORWARD -m comment --comment 'cali:y' -m mark --mark 0x10000/0x10000 -j ACCEPT
        iptables-nft -t raw -N cali-OUTPUT; iptables-nft -t raw -A OUTPUT -j cali-OUTPUT",
        "! ip link show vxlan.calico && [ -z \"$(ip route show proto 80)\" ]",
    ),
];

/// What others have, and keep.
const KEPT: &str = "iptables-nft -N KUBE-FORWARD; iptables-nft -A FORWARD -j KUBE-FORWARD; iptables-nft -t nat -N CNI-HOSTPORT-DNAT
    ip link add other0 type vxlan id 9 dstport 4790 dev lo; ip link add other1 type bridge";
const ARE_KEPT: &str =
    "ip link show other0 && ip link show other1 && iptables-nft -S FORWARD | grep KUBE-FORWARD &&
    iptables-nft -t nat -S CNI-HOSTPORT-DNAT && ls /run/net.d/20-ferrule.conflist";
const RULESET: &str = "nft -s list ruleset; ip -o link | cut -d : -f 2; ip route | sed 's/ linkdown//'; find /run/net.d /run/cni-ipam-state 2>/dev/null || true";

struct Run {
    code: Option<i32>,
    said: String,
}

/// The first process of a node, whose processes are all that the command sees: the tests may run in a PID namespace of their own.
const INIT: &str = "/run/first/systemd";

fn node() -> Node {
    let node = Node::new().unwrap();
    node.sh(&format!(
        "mkdir -p /run/first && cp \"$(command -v bash)\" {INIT} && ip link set lo up && mkdir -p /run/net.d"
    ))
    .unwrap();
    node
}

fn cleanup(node: &Node, arguments: &[&str]) -> Run {
    cleanup_beside(node, "", arguments)
}

/// `process`: what the node runs meanwhile, as a line of shell.
fn cleanup_beside(node: &Node, process: &str, arguments: &[&str]) -> Run {
    let mut command = Command::new("unshare");
    let script = format!("{process} \"$@\"; exit $?");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", INIT, "-c", &script, "init"]);
    command.args([
        env!("CARGO_BIN_EXE_ferrule-node"),
        "cleanup",
        "--conflist",
        "/run/net.d/20-ferrule.conflist",
    ]);
    command.arg("--left-overs").args(arguments);
    let output = node.exec(&mut command).unwrap();
    Run {
        code: output.status.code(),
        said: String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    }
}

/// The arguments of the page's commands for an origin: the dry run, and the real one.
fn commands(name: &str) -> [Vec<String>; 2] {
    let page = include_str!("../../../../docs/moving-in.md");
    let of_origin = format!("{name} ");
    let lines =
        page.lines().filter_map(|line| line.strip_prefix("/opt/cni/bin/ferrule-node cleanup --left-overs "));
    let found: Vec<Vec<String>> = lines
        .filter(|words| format!("{words} ").starts_with(&of_origin))
        .map(|words| words.split_whitespace().map(str::to_owned).collect())
        .collect();
    // The page about policies has the same ones.
    let policies = include_str!("../../../../docs/moving-policies-in.md");
    let is_cleanup = |line: &&str| line.starts_with("/opt/cni/bin/ferrule-node cleanup --left-overs");
    for line in policies.lines().filter(is_cleanup) {
        assert!(page.lines().any(|other| other == line), "{line}");
    }
    assert!(policies.lines().any(|line| is_cleanup(&line)));
    found.try_into().unwrap()
}

#[test]
fn what_nobody_uses_goes_and_nothing_else() {
    for (name, make, is_gone) in LEFT {
        let [dry_run, real] = commands(name);
        let [dry_run, real] =
            [&dry_run, &real].map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
        let node = node();
        node.sh(&format!("set -e; {KEPT}; {make}")).unwrap();
        let all = || node.sh(&format!("{RULESET}; true")).unwrap();
        // While the pod is there, and while there is no other network, nothing goes.
        let before = all();
        for (why, next) in [
            ("pods still use", "ip link delete pod1"),
            ("the only network", "echo '{\"ferruleNode\": {}}' >/run/net.d/20-ferrule.conflist"),
        ] {
            let refused = cleanup(&node, &[name]);
            assert!(refused.code == Some(1) && refused.said.contains(why), "{name}: {}", refused.said);
            assert!(why != "pods still use" || all() == before, "{name}: {}", all());
            node.sh(next).unwrap();
        }
        let before = all();
        let dry = cleanup(&node, &dry_run);
        assert!(dry.code == Some(0) && dry.said.starts_with("would remove conflist"), "{name}: {}", dry.said);
        assert_eq!(all(), before);
        let done = cleanup(&node, &real);
        assert_eq!((done.code, done.said.replace("removed", "would remove")), (Some(0), dry.said), "{name}");
        node.sh(is_gone).unwrap();
        node.sh(ARE_KEPT).unwrap();
        let left = node.sh("nft list ruleset; ls /run/net.d").unwrap();
        assert!(
            !["FLANNEL", "flannel", "KIND-", "kindnet", "ROUTER", "KUBE-POD", "cali"]
                .iter()
                .any(|text| left.contains(text)),
            "{name}: {left}"
        );
        assert_eq!(cleanup(&node, &[name]).said, format!("{name} has left nothing\n"));
    }
}

/// The daemon of the other network would make it again. A bridge `cni0` alone is that of any network of `bridge`.
#[test]
fn a_network_that_runs_and_one_of_others_stay() {
    let node = node();
    node.sh("set -e; echo '{}' >/run/net.d/20-ferrule.conflist
        ip link add cni0 type bridge; cp \"$(command -v sleep)\" /run/flanneld")
        .unwrap();
    assert_eq!(cleanup(&node, &["flannel"]).said, "flannel has left nothing\n");
    node.sh("ip link add flannel.1 type vxlan id 1 dstport 8472 dev lo").unwrap();
    // The name is that of the program from its start on.
    let flanneld = "/run/flanneld 60 & until [ \"$(cat /proc/$!/comm)\" = flanneld ]; do :; done;";
    let refused = cleanup_beside(&node, flanneld, &["flannel"]);
    assert!(refused.code == Some(1) && refused.said.contains("process flanneld ("), "{}", refused.said);
    assert!(cleanup(&node, &["flannel"]).said.contains("removed link flannel.1"));
    // One program is all of Calico: a shell of this name whose scripts are its commands.
    node.sh("cd /run && cp \"$(command -v bash)\" calico && echo 'read -r' >component && cp component ctl")
        .unwrap();
    for (arguments, keeps) in [
        ("component felix", true),
        ("component node node-services", true),
        ("component cni install", true),
        ("component typha", false),
        ("ctl node run", false),
    ] {
        node.sh("ip link add vxlan.calico type vxlan id 4096 dstport 4789 dev lo").unwrap();
        let runs = format!(
            "cd /run; sleep 60 | ./calico {arguments} & until [ \"$(cat /proc/$!/comm)\" = calico ]; do :; done;"
        );
        let outcome = cleanup_beside(&node, &runs, &["calico"]);
        let said = if keeps { "process calico component " } else { "removed link vxlan.calico" };
        assert!(outcome.said.contains(said), "{arguments}: {}", outcome.said);
        node.sh("ip link delete vxlan.calico || true").unwrap();
    }
}
