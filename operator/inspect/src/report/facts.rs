//! Versions of the node's programs, its kernel, modules and settings.

use std::fmt::Write as _;
use std::fs;
use std::thread::available_parallelism;
use std::time::Duration;

use ferrule_kernel::{file, sysctl};

use super::collect::{File, Found};
use super::{known, programs};
use crate::sight::read;

/// How long a program may take to say its version.
const LIMIT: Duration = Duration::from_secs(1);
/// The most links of the node whose settings are listed.
const MOST_LINKS: usize = 32;

const PROGRAMS: [&[&str]; 8] = [
    &["containerd", "--version"],
    &["crio", "--version"],
    &["podman", "--version"],
    &["kubelet", "--version"],
    &["nft", "--version"],
    &["iptables", "--version"],
    &["firewall-cmd", "--version"],
    &["ip", "-V"],
];

/// Settings of the node.
const SYSCTLS: [&str; 32] = [
    "fs/file-max",
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "kernel/pid_max",
    "kernel/threads-max",
    "net/bridge/bridge-nf-call-arptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/bridge/bridge-nf-call-iptables",
    "net/core/devconf_inherit_init_net",
    "net/core/default_qdisc",
    "net/core/netdev_max_backlog",
    "net/ipv4/fib_multipath_hash_policy",
    "net/ipv4/icmp_ratelimit",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/ip_unprivileged_port_start",
    "net/ipv4/neigh/default/gc_thresh1",
    "net/ipv4/neigh/default/gc_thresh2",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/ipv4/tcp_mtu_probing",
    "net/ipv6/neigh/default/gc_thresh1",
    "net/ipv6/neigh/default/gc_thresh2",
    "net/ipv6/neigh/default/gc_thresh3",
    "net/ipv6/route/max_size",
    "net/netfilter/nf_conntrack_buckets",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
    "user/max_net_namespaces",
    "vm/overcommit_memory",
];

/// Settings of a link, of all links, and of new ones.
const OF_LINKS: [&str; 13] = [
    "ipv4/forwarding",
    "ipv4/rp_filter",
    "ipv4/arp_ignore",
    "ipv4/arp_announce",
    "ipv4/accept_local",
    "ipv4/proxy_arp",
    "ipv4/route_localnet",
    "ipv4/send_redirects",
    "ipv6/accept_ra",
    "ipv6/disable_ipv6",
    "ipv6/forwarding",
    "ipv6/accept_dad",
    "ipv6/proxy_ndp",
];

/// What runs here.
pub(super) fn versions() -> Found {
    let mut found = Found { names: vec![known::host()], ..Found::default() };
    let mut text = String::new();
    let release = file::read_named_text("/etc/os-release".as_ref()).unwrap_or_default();
    let keys = ["PRETTY_NAME=", "ID=", "VERSION_ID="];
    for line in release.lines().filter(|line| keys.iter().any(|key| line.starts_with(key))) {
        let _ = writeln!(text, "{line}");
    }
    for name in ["ostype", "osrelease", "version", "arch"] {
        let value = sysctl::read(&format!("kernel/{name}")).unwrap_or_default();
        let _ = writeln!(text, "{name} {value}");
    }
    let _ = writeln!(text, "built for {}", std::env::consts::ARCH);
    let _ = writeln!(text, "processors {}", available_parallelism().map_or(0, usize::from));
    for path in ["/proc/uptime", "/proc/loadavg"] {
        let _ = writeln!(text, "{path} {}", read(path).unwrap_or_else(|why| why).trim_end());
    }
    let memory = read("/proc/meminfo").unwrap_or_default();
    memory.lines().take(3).for_each(|line| text += &format!("{line}\n"));
    for words in PROGRAMS {
        match programs::output(words, LIMIT) {
            Ok(Some(said)) => text += &format!("{}: {}\n", words[0], said.lines().next().unwrap_or_default()),
            Ok(None) => text += &format!("{}: none\n", words[0]),
            Err(why) => found.failures.push(why),
        }
    }
    found.files.push(File::text("versions.txt", text));
    found
}

/// Modules and settings.
pub(super) fn kernel() -> Found {
    let mut found = Found { names: vec![known::host()], ..Found::default() };
    match read("/proc/modules") {
        // Without the addresses.
        Ok(modules) => {
            let line = |line: &str| line.split(' ').take(4).collect::<Vec<_>>().join(" ") + "\n";
            found.files.push(File::text("modules.txt", modules.lines().map(line).collect::<String>()));
        }
        Err(why) => found.failures.push(why),
    }
    let mut text = String::new();
    let mut add = |name: &str| {
        let value = match sysctl::exists(name) {
            true => sysctl::read(name).unwrap_or_else(|error| error.to_string()),
            false => "does not exist".to_owned(),
        };
        let _ = writeln!(text, "{name} {value}");
    };
    SYSCTLS.iter().for_each(|name| add(name));
    let mut links = vec!["all".to_owned(), "default".to_owned()];
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !is_end_of_pod(name)).collect();
    names.sort();
    links.extend(names.into_iter().take(MOST_LINKS));
    for link in links {
        for name in OF_LINKS {
            if let Some((family, name)) = name.split_once('/') {
                add(&format!("net/{family}/conf/{link}/{name}"));
            }
        }
    }
    found.files.push(File::text("sysctls.txt", text));
    found
}

/// Whether the link is one of many that are alike.
fn is_end_of_pod(name: &str) -> bool {
    ["veth", "cali", "lxc", "nk"].iter().any(|start| name.starts_with(start))
}
