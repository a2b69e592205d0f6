//! What `ferrule doctor` finds on a node.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use serde_json::{Value, json};

use crate::fixture::{Fixture, PROGRAM};

fn write(folder: &Path, name: &str, plugins: Value) {
    let text = json!({"name": name, "cniVersion": "1.0.0", "plugins": plugins}).to_string();
    fs::write(folder.join(format!("{name}.conflist")), text).unwrap();
}

fn bridge(name: &str, subnet: &str) -> Value {
    json!({"type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "subnet": subnet}})
}

#[test]
fn a_sound_node_has_no_findings_and_a_broken_one_has_all() {
    let f = Fixture::new();
    let conf = tempfile::tempdir().unwrap();
    let (networks, plugins) = (conf.path(), f.bin_dir(Origin::Ours));
    let words = format!("doctor --conf-dir {} --bin-dir {}", networks.display(), plugins.display());
    let shared = [json!({"type": "portmap"}), json!({"type": "bandwidth"}), json!({"type": "firewall"})];
    write(networks, "pods", [&[bridge("cni0", "10.1.0.0/24")], shared.as_slice()].concat().into());

    let before = Snapshot::take(&f.node).unwrap();
    let sound = f.says(&words);
    let seen = [
        "ok: view: the node as its first process sees it".to_owned(),
        format!("ok: networks: 1 in {}", networks.display()),
        "ok: files: 12 files and folders that only root can write".to_owned(),
        "ok: plugins: 9, all v".to_owned(),
        format!(
            "ok: network pods ({}/pods.conflist): bridge, host-local, portmap, bandwidth, firewall support CNI 1.0.0; \
            ready: bridge, portmap, bandwidth, firewall",
            networks.display()
        ),
        "ok: firewalls: no chain drops forwarded packets".to_owned(),
        "ok: subnets: 10.1.0.0/24, without overlaps".to_owned(),
        "ok: sysctls: disable_ipv6 is 0, less than 90 % of all connections are in use".to_owned(),
        "ok: claims: 0 claims of pods, each with its record".to_owned(),
        "ok: left-overs: flannel, kindnet, kube-router, calico: nothing is left of them".to_owned(),
        "0 errors, 0 warnings".to_owned(),
    ];
    assert_eq!(sound.lines().count(), seen.len(), "{sound}");
    for (line, start) in sound.lines().zip(&seen) {
        assert!(line.starts_with(start), "{start}\n{sound}");
    }
    assert_eq!(before.diff(&Snapshot::take(&f.node).unwrap()), "");

    f.node.sh("iptables --policy FORWARD DROP; iptables -A INPUT -i x -j ACCEPT").unwrap();
    f.node.sh("iptables-legacy -A INPUT -i x -j ACCEPT").unwrap();
    f.node.sh("ip link add lan0 type bridge; ip address add 10.9.0.1/16 dev lan0").unwrap();
    f.node.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1").unwrap();
    write(networks, "open", json!([bridge("cni1", "10.9.1.0/24"), {"type": "calico"}]));
    write(networks, "six", json!([bridge("cni2", "fd00:6::/64"), {"type": "firewall"}]));
    let dhcp = json!({"type": "dhcp", "daemonSocketPath": "/nowhere/dhcp.sock"});
    write(networks, "leased", json!([{"type": "macvlan", "master": "lan0", "ipam": dhcp}]));
    // The subnet has nothing to do with the cause, and dhcp runs nowhere.
    let ipam = json!({"type": "host-local", "subnet": "10.7.0.0/24"});
    write(networks, "lost", json!([{"type": "macvlan", "master": "no-such", "ipam": ipam}]));
    let dir = json!({"type": "host-local", "subnet": "10.8.0.0/24", "dataDir": networks.join("broken.conf")});
    write(networks, "stuck", json!([{"type": "macvlan", "master": "lan0", "ipam": dir}]));
    write(networks, "tagged", json!([{"type": "bridge", "bridge": "lan0", "vlan": 5}, {"type": "firewall"}]));
    fs::write(networks.join("broken.conf"), "{").unwrap();
    let open = networks.join("pods.conflist");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
    symlink(PROGRAM, plugins.join("dhcp")).unwrap();
    symlink(f.bin_dir(Origin::Reference).join("ptp"), plugins.join("ptp")).unwrap();

    let output = f.run(&words);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let network =
        |name: &str| format!("network {name} ({})", networks.join(format!("{name}.conflist")).display());
    let expected = [
        format!("error: {}: is not JSON: ", networks.join("broken.conf").display()),
        format!("error: {}: belongs to user 0 and has mode 0666", open.display()),
        format!("error: {}: calico: no such program in {}", network("open"), plugins.display()),
        format!("error: {}: its subnet 10.9.1.0/24 overlaps with 10.9.0.1/16 on lan0", network("open")),
        format!("warning: {}: ip filter FORWARD drops forwarded packets", network("open")),
        format!("error: {}: macvlan: ", network("leased")),
        format!("error: {}: macvlan: ", network("lost")),
        format!("error: net.ipv6.conf.all.disable_ipv6: is 1, and {} has IPv6", network("six")),
        "warning: iptables: both ".to_owned(),
        "warning: plugins: their versions differ (".to_owned(),
    ];
    for start in &expected {
        assert_eq!(text.matches(start).count(), 1, "{start}\n{text}");
    }
    // The remedy is that of the cause.
    for (name, remedy) in [
        ("leased", "start the daemon ferrule-dhcp, for example: systemctl enable --now cni-dhcp.socket"),
        ("lost", "make the link, or name another one in \"master\""),
        ("stuck", "make the folder writable for root, or set another one as \"dataDir\""),
        // Only the kernel knows whether filtering would help.
        ("tagged", ""),
    ] {
        let line = format!("error: {}: ", network(name));
        let (_, rest) = text.split_once(&line).unwrap_or_else(|| panic!("{name}: {text}"));
        let next = rest.lines().nth(1).unwrap_or_default();
        assert!(next.starts_with(&format!("    remedy: {remedy}")), "{name}: {text}");
    }
    assert!(text.ends_with("\n9 errors, 3 warnings\n"), "{text}");
    assert_eq!(text.matches("    remedy: ").count(), expected.len() + 2);
    assert!(text.starts_with("ok: view: "), "{text}");
    let narrow = f.on_terminal(80, &format!("{PROGRAM} {} || true", f.words(&words)));
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
}

#[test]
fn a_program_that_listens_on_a_host_port_is_named() {
    let f = Fixture::new();
    let pod = f.add(Origin::Ours, "listened", 8122);
    let conf = tempfile::tempdir().unwrap();
    let words = format!(
        "doctor --conf-dir {} --bin-dir {}",
        conf.path().display(),
        f.bin_dir(Origin::Ours).display()
    );
    let said = String::from_utf8(f.run(&words).stdout).unwrap();
    assert!(said.contains("ok: host ports: 1, and no program of the node listens on one\n"), "{said}");
    let _program = f.node.run(|| TcpListener::bind("0.0.0.0:8122")).unwrap().unwrap();
    let said = String::from_utf8(f.run(&words).stdout).unwrap();
    let who = format!(
        "(process {}) of the node listens on it, but its packets go to container listened ",
        std::process::id()
    );
    assert!(said.contains("\nwarning: host port 8122/tcp: ") && said.contains(&who), "{said}");
    // CHECK itself accepts it.
    let said = f.says(&format!("check --bin-dir {}", f.bin_dir(Origin::Ours).display()));
    assert!(said.contains("warning: host port 8122/tcp: ") && said.contains(&who), "{said}");
    assert!(said.ends_with("1 sound, 0 failed, 0 skipped\n"), "{said}");
    // A container may have any number of open files. Its process comes before that of another listener.
    let python = |script: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", script]);
        command
    };
    let many = "import os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
for n in range(10000): os.dup(0)
time.sleep(600)";
    let many = pod.pod.spawn(python(many)).unwrap();
    let _other = f.add(Origin::Ours, "listened-other", 8123);
    let listen = "import socket, time; s = socket.create_server(('0.0.0.0', 8123)); time.sleep(600)";
    let _listener = f.node.spawn(python(listen)).unwrap();
    let files = format!("/proc/{}/fd", many.id());
    assert!(eventually(TIMEOUT, || fs::read_dir(&files).unwrap().count() > 10_000));
    let mut strace = Command::new("strace");
    strace.args(["-o", "/run/links", "-e", "trace=?readlink,?readlinkat", PROGRAM]);
    strace.args(f.words(&words).split(' ')).env_remove("CNI_COMMAND");
    let is_named = || {
        let said = String::from_utf8(f.node.exec(&mut strace).unwrap().stdout).unwrap();
        said.contains("warning: host port 8123/tcp: python3 (process ")
    };
    assert!(eventually(TIMEOUT, is_named));
    let looked = f.node.sh(&format!("grep -c {files}/ /run/links")).unwrap();
    assert_eq!(looked.trim(), "1024");
}

#[test]
fn the_readme_shows_what_is_printed() {
    let f = Fixture::new();
    let conf = tempfile::tempdir().unwrap();
    let plugins = f.bin_dir(Origin::Ours);
    symlink(PROGRAM, plugins.join("dhcp")).unwrap();
    f.node.sh("iptables --policy FORWARD DROP; ip link add eth1 type bridge").unwrap();
    write(conf.path(), "pods", json!([bridge("cni0", "10.1.0.0/24"), {"type": "portmap"}]));
    write(conf.path(), "lan", json!([{"type": "macvlan", "master": "eth1", "ipam": {"type": "dhcp"}}]));
    for (from, to) in [("pods.conflist", "10-pods.conflist"), ("lan.conflist", "20-lan.conflist")] {
        fs::rename(conf.path().join(from), conf.path().join(to)).unwrap();
    }

    let output =
        f.run(&format!("doctor --conf-dir {} --bin-dir {}", conf.path().display(), plugins.display()));
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed = printed.replace(conf.path().to_str().unwrap(), "/etc/cni/net.d");
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate.md")).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&page).contains(&words(&format!("$ ferrule doctor\n{printed}"))), "{printed}");
}
