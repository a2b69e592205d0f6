//! Repair sets what CHECK refuses. DEL then restores the values from before ADD.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{link, sysctl, with_prev};
use cni_lab::{Place as _, Snapshot};
use common::{BACKUP, attached, config, eth0, has_feature, state};
use serde_json::json;

const REPAIR: &str = env!("CARGO_BIN_EXE_tuning-repair");

const DAMAGES: [&str; 8] = [
    "sysctl -qw net.core.somaxconn=5",
    "sysctl -qw net.ipv4.conf.all.forwarding=0",
    "ip link set eth0 address 02:00:00:00:00:77",
    "ip link set eth0 mtu 1300",
    "ip link set eth0 promisc off",
    "ip link set eth0 allmulticast off",
    "ip link set eth0 txqueuelen 5",
    "ethtool -K eth0 tso on",
];

#[test]
fn damage_is_mended_and_the_first_values_are_kept() {
    let (ctx, pod) = attached();
    pod.sh("sysctl -qw net.ipv4.conf.eth0.arp_ignore=1").unwrap();
    let before = Snapshot::take(&pod).unwrap();
    let conf = config(
        "1.1.0",
        &json!({"mac": "c2:00:00:00:00:0a", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
            "offload": {"tso": false}, "sysctl": {"net.core.somaxconn": "77", "net.ipv4.conf.all.forwarding": "1"}}),
    );
    let conf = with_prev(&conf, &ctx.add(&eth0(&pod), &conf));
    let (backup, tuned) = (ctx.node.read_file(BACKUP).unwrap(), state(&pod));
    for damage in DAMAGES.into_iter().map(str::to_owned).chain([DAMAGES.join("; ")]) {
        // It is not of the configuration, and neither is the MTU of the host's end.
        pod.sh("sysctl -qw net.ipv4.conf.eth0.arp_ignore=2").unwrap();
        ctx.node.sh("ip link set host0 mtu 1350").unwrap();
        ctx.mend(REPAIR, &eth0(&pod), &conf, &pod, &damage);
        assert_eq!(sysctl(&pod, "ipv4/conf/eth0/arp_ignore"), "2", "{damage}");
        assert_eq!(link(&ctx.node, "host0")["mtu"], 1350, "{damage}");
        assert_eq!(state(&pod), tuned, "{damage}");
        assert!(!has_feature(&pod, "tx-tcp-segmentation"));
        assert_eq!(ctx.node.read_file(BACKUP).unwrap(), backup, "{damage}");
    }
    ctx.del(&eth0(&pod), &conf);
    // DEL restores no sysctls, as in the reference.
    let after = Snapshot::take(&pod).unwrap();
    let ignored = ["somaxconn", "forward", "arp_ignore"];
    assert_eq!(before.ignoring(&ignored).diff(&after.ignoring(&ignored)), "");
    assert_eq!(link(&ctx.node, "host0")["mtu"], 1500);
    assert_eq!(ctx.node.list_dir("/run/cni/tuning").unwrap(), Vec::<String>::new());
}

/// The administrator has narrowed the allowlist since ADD.
#[test]
fn the_allowlist_counts() {
    let (ctx, pod) = attached();
    let conf = config("1.1.0", &json!({"sysctl": {"net.core.somaxconn": "77"}}));
    ctx.add(&eth0(&pod), &conf);
    pod.sh("sysctl -qw net.core.somaxconn=5").unwrap();
    ctx.node.sh("cp -a /etc /run/etc && mkdir -p /run/etc/cni/tuning && mount --bind /run/etc /etc").unwrap();
    ctx.node.write_file("/etc/cni/tuning/allowlist.conf", "^net.ipv4.conf.all.forwarding$\n").unwrap();
    let error = ctx.repairing(REPAIR).fail("ADD", &eth0(&pod), &conf);
    assert!(error.contains("net.core.somaxconn"), "{error}");
    assert_eq!(sysctl(&pod, "core/somaxconn"), "5");
}
