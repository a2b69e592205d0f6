//! The daemon with what `cni-dhcp.service` leaves it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;

use cni_lab::testing::{Expect as _, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use serde_json::json;

use crate::lab::{Lab, config};
use crate::{server::Server, server6};

const SERVICE: &str = include_str!("../../systemd/cni-dhcp.service");
/// Counts the datagrams to servers. Frames of packet sockets do not come here.
const COUNTER: &str = "nft 'add table ip t; add chain ip t c { type filter hook output priority 0; }; \
     add rule ip t c udp dport 67 counter'; ip link set lo up";

/// The words of a setting.
fn setting(name: &str) -> Vec<&'static str> {
    let lines: Vec<_> =
        SERVICE.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect();
    let [line] = lines[..] else { panic!("{name}: {lines:?}") };
    line.split_whitespace().collect()
}

/// As systemd starts the daemon: with these capabilities, no way to new ones, and a mount namespace of its own in which the system's
/// folders are read-only.
fn confined(capabilities: &[&str]) -> String {
    let kept: String = capabilities
        .iter()
        .map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()))
        .collect();
    let mounts = "mount --make-rshared / && for dir in /usr /etc; do mount --bind $dir $dir && \
         mount -o remount,bind,ro $dir || exit 1; done";
    format!(
        "unshare --mount --propagation slave sh -c '{mounts}; exec \"$@\"' sh \
         setpriv --no-new-privs --inh-caps=-all --bounding-set=-all{kept} --"
    )
}

/// A container's life, as far as the daemon has a part in it.
fn life(capabilities: &[&str], wrapper: &str) -> BTreeSet<&'static str> {
    let mut had = BTreeSet::new();
    let lab = Lab::new();
    // systemd shares all mounts of a machine.
    lab.ctx.node.sh("mount --make-rshared /run").unwrap();
    let server = Server::start(&lab, 3600);
    server.option(58, &1_u32.to_be_bytes());
    let flags: &[&str] = if wrapper.is_empty() { &["-resendtimeout", "2s"] } else { &[] };
    let _server6 = server6::Server::start(&lab, 3600);
    let _daemon = lab.daemon_under(&format!("{wrapper} {}", confined(capabilities)), flags);
    let conf = config(&json!({}));
    let ipv6 = config(&json!({"families": ["ipv6"]}));
    let (mounted, process) = (lab.pod("mounted"), lab.pod("process"));
    // A container's process of another user, with capabilities that the daemon does not have.
    let mut sleep = Command::new("setpriv");
    sleep.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "sleep", "inf"]);
    let mut sleep = process.spawn(sleep).unwrap();
    let mut by_process = process.attachment("eth0");
    by_process.netns = format!("/proc/{}/ns/net", sleep.child().id());
    assert!(eventually(TIMEOUT, || fs::read_to_string(format!("/proc/{}/comm", sleep.id())).unwrap()
        == "sleep\n"));
    let output = lab.ctx.call("ADD", &by_process, &conf);
    if output.success() {
        had.insert("ADD by process");
    }
    lab.ctx.del(&by_process, &conf);
    let pod = lab.pod("six");
    if lab.ctx.call("ADD", &pod.attachment("eth0"), &ipv6).success() {
        had.insert("ADD of IPv6");
    }
    lab.ctx.del(&pod.attachment("eth0"), &ipv6);
    mounted.sh(COUNTER).unwrap();
    let attachment = mounted.attachment("eth0");
    let output = lab.ctx.call("ADD", &attachment, &conf);
    if !output.success() {
        lab.ctx.del(&attachment, &conf);
        return had;
    }
    let result = output.result();
    had.insert("ADD");
    lab.configure(&mounted, &result);
    let address = result["ips"][0]["address"].as_str().unwrap().trim_end_matches("/24");
    server.wait_for(&format!("Request from {address}"), 1);
    if !mounted.sh("nft list table ip t").unwrap().contains("counter packets 0 ") {
        had.insert("renewal by datagrams");
    }
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
    lab.ctx.del(&attachment, &conf);
    if eventually(TIMEOUT, || server.leased().is_empty()) {
        had.insert("RELEASE");
    }
    // The daemon's mount namespace keeps no namespace alive.
    mounted.delete().unwrap();
    assert!(eventually(TIMEOUT, || lab.ctx.node.sh("ip link show vmounted").is_err()));
    had
}

#[test]
fn the_service_leaves_the_daemon_what_it_needs() {
    // What the daemon cannot do without each of them.
    let needed = [
        ("CAP_SYS_PTRACE", "ADD by process"),
        ("CAP_SYS_ADMIN", "ADD"),
        ("CAP_NET_ADMIN", "ADD"),
        ("CAP_NET_RAW", "ADD"),
        ("CAP_NET_BIND_SERVICE", "renewal by datagrams"),
        ("CAP_NET_BIND_SERVICE", "ADD of IPv6"),
    ];
    let all = setting("CapabilityBoundingSet");
    let mut names: Vec<_> = needed.iter().map(|(name, _)| *name).collect();
    names.dedup();
    assert_eq!(all, names);
    let log = tempfile::NamedTempFile::new().unwrap();
    let strace = format!("strace -D -f -qq -o {} -e trace=socket", log.path().display());
    let everything =
        BTreeSet::from(["ADD", "ADD by process", "ADD of IPv6", "RELEASE", "renewal by datagrams"]);
    assert_eq!(life(&all, &strace), everything);
    let log = fs::read_to_string(log.path()).unwrap();
    let families = log.lines().filter_map(|line| Some(line.split_once("socket(")?.1.split_once(',')?.0));
    assert_eq!(families.collect::<BTreeSet<_>>(), setting("RestrictAddressFamilies").into_iter().collect());
    thread::scope(|scope| {
        for (name, what) in needed {
            let rest: Vec<_> = all.iter().copied().filter(|other| *other != name).collect();
            scope.spawn(move || {
                let had = life(&rest, "");
                assert!(!had.contains(what), "without {name}: {had:?}");
            });
        }
    });
}

#[test]
fn systemd_knows_every_setting() {
    let dir = tempfile::tempdir().unwrap();
    let service = SERVICE.replace("/opt/cni/bin/ferrule-dhcp", "/bin/true");
    fs::write(dir.path().join("cni-dhcp.service"), service).unwrap();
    fs::write(dir.path().join("cni-dhcp.socket"), include_str!("../../systemd/cni-dhcp.socket")).unwrap();
    let units = ["cni-dhcp.service", "cni-dhcp.socket"].map(|name| dir.path().join(name));
    let output = Command::new("systemd-analyze").arg("verify").args(&units).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("cni-dhcp"), "{said}");
}
