//! Neither many leaks nor a busy container keep gc from its work, or ADD from the address store.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::plugin::Attachment;
use cni_lab::testing::{Origin, ips_of};
use cni_lab::{Place as _, TIMEOUT, bin_dir, eventually};
use cni_runner::Network;
use serde_json::{Value, json};
use sha2::Digest as _;

use crate::fixture::{Container, Fixture, PROGRAM, network};

const STORE: &str = "/var/lib/cni/networks/ours";

/// Reserves addresses for containers that do not exist.
fn plant(f: &Fixture, leaks: Range<u32>) {
    let write = || {
        for number in leaks {
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 0)) + number);
            std::fs::write(format!("{STORE}/{address}"), format!("budget-leak-{number}\r\neth0")).unwrap();
        }
    };
    f.node.run(write).unwrap();
}

/// Runs gc on so many leaks, with ADDs beside it. Returns how long gc takes, its processor time, and the ADDs alone and beside gc, the longest last.
fn gc_beside_adds(program: &Path, leaks: u32, alone: usize) -> ([Duration; 2], [Vec<Duration>; 2]) {
    let f = Fixture::new();
    let _living = f.add(Origin::Ours, "inspect-budget-live", 18701);
    plant(&f, 0..leaks);
    let ipam = json!({"type": "host-local", "subnet": "10.212.0.0/16"});
    let network =
        json!({"name": "ours", "cniVersion": "1.0.0", "plugins": [{"type": "host-local", "ipam": ipam}]});
    let network = Network::from_value(&network).unwrap();
    let pod = f.node.pod("inspect-budget-adds").unwrap();
    let runtime = f.runtime(Origin::Ours);
    let mut held: Vec<IpAddr> = Vec::new();
    let mut add = || {
        let mut attachment = pod.attachment("eth0");
        attachment.container_id = format!("inspect-budget-{}", held.len());
        let start = Instant::now();
        let result = runtime.add(&network, &attachment).unwrap();
        let took = start.elapsed();
        held.extend(ips_of(&result).iter().map(|ip| ip.parse::<IpAddr>().unwrap()));
        took
    };
    // The first one reads the files that no index lists.
    add();
    let mut alone: Vec<Duration> = (0..alone).map(|_| add()).collect();
    let mut command = Command::new("sh");
    command.args(["-c", "\"$@\" && times >&2", "sh"]).arg(program);
    command.args(f.words("gc --yes").split(' ')).env_remove("CNI_COMMAND");
    let (took, mut beside) = thread::scope(|scope| {
        let gc = scope.spawn(|| {
            let start = Instant::now();
            let output = f.node.exec(&mut command).unwrap();
            (start.elapsed(), output)
        });
        let mut beside = Vec::new();
        while !gc.is_finished() {
            beside.push(add());
        }
        let (wall, output) = gc.join().unwrap();
        let took = [wall, of_children(&String::from_utf8_lossy(&output.stderr))];
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = said.lines().last().unwrap_or_default().to_owned();
        // An ADD that runs when gc lists the addresses is no leak any more when gc looks again.
        assert!(output.status.success() && last.starts_with(&format!("{leaks} of ")), "{last}");
        (took, beside)
    });
    let files = f.node.sh(&format!("ls {STORE}")).unwrap();
    for ip in &held {
        assert!(files.lines().any(|file| file == ip.to_string()), "{ip} is free");
    }
    assert!(!files.contains("172."), "{files}");
    alone.sort();
    beside.sort();
    (took, [alone, beside])
}

/// A look at the node for each leak would take minutes.
#[test]
fn many_leaks_share_a_look_at_the_node() {
    let (took, [_, beside]) = gc_beside_adds(Path::new(PROGRAM), 3000, 0);
    let longest = beside.last().unwrap();
    // Of an ADD, most is waiting for a processor on a machine that does more.
    assert!(took[1].as_secs() < 15 && longest.as_secs() < 10, "{took:?}, an ADD {longest:?}");
}

/// The processor time in the last line of the shell's `times`, such as `0m0.25s 0m1.00s`.
fn of_children(said: &str) -> Duration {
    let seconds = |word: &str| {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        Some(60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?)
    };
    let found: Option<f64> = said.lines().last().and_then(|line| line.split(' ').map(seconds).sum());
    Duration::from_secs_f64(found.unwrap_or_else(|| panic!("no times: {said}")))
}

/// Prints the figures that operator/inspect/README.md has. Measures the static program.
#[test]
#[ignore = "benchmark: cargo test -p ferrule --test inspect speed_with_many_leaks -- --ignored --nocapture"]
fn speed_with_many_leaks() {
    let program = bin_dir().unwrap().join("ferrule");
    for leaks in [5000, 100_000] {
        let (took, adds) = gc_beside_adds(&program, leaks, 500);
        println!(
            "{leaks} leaks: gc {took:?}; ADDs of host-local alone and beside gc, number, median, 99 %, longest:"
        );
        for adds in adds {
            let at = |percent: usize| adds[(adds.len() - 1) * percent / 100];
            println!("    {} {:?} {:?} {:?}", adds.len(), at(50), at(99), at(100));
        }
    }
}

/// Its addresses change during each list.
#[test]
fn a_container_that_changes_its_addresses_keeps_only_its_own_objects() {
    let f = Fixture::new();
    let busy = f.add(Origin::Ours, "inspect-budget-busy", 18702);
    let script = "for i in $(seq 0 19); do for j in $(seq 1 200); do echo addr add 172.30.$i.$j/32 dev lo; done; done | ip -batch -
        while :; do printf 'addr add 172.31.0.1/32 dev lo\naddr del 172.31.0.1/32 dev lo\n'; done | ip -force -batch -";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", script]);
    let _process = busy.pod.spawn(command).unwrap();
    assert!(eventually(TIMEOUT, || busy.pod.sh("ip -4 address").unwrap().contains("172.30.19.200/")));
    let mut leaks = 0..;
    let is_left_out = eventually(TIMEOUT, || {
        let leak = leaks.next().unwrap();
        plant(&f, leak..leak + 1);
        let output = f.run("gc --yes");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 of 1 leaks removed"), "{said}");
        let left_out = said
            .lines()
            .last()
            .unwrap()
            .starts_with("left out: network namespace /run/netns/inspect-budget-busy of container");
        assert_eq!(output.status.code(), Some(i32::from(left_out)), "{said}");
        left_out
    });
    assert!(is_left_out);
}

/// The kinds of leaks beside addresses that may be many, each with how to plant one of a container that does not exist.
const KINDS: [(&str, Plant); 10] = [
    ("host port", |name, n| {
        // As the reference's nftables backend has them.
        let port = 1024 + n;
        Planted::Rules(format!(
            "add rule ip cni_hostport hostports tcp dport {port} dnat to 10.214.0.2:80 comment \"{name}\"\n"
        ))
    }),
    ("masquerade", |name, _| {
        let hash = |text: &str| {
            sha2::Sha512::digest(text)[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let hashes = format!("{}-{}", hash("gone"), hash(&format!("eth0:{name}")));
        let comment = format!("\"{hashes}, net: gone, if: eth0, id: {name}\"");
        let rule = format!("ip saddr 10.214.0.2 masquerade comment {comment}");
        Planted::Rules(format!("add rule inet cni_plugins_masquerade masq_checks {rule}\n"))
    }),
    ("firewall", |name, n| {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 215, 0, 0)) + n);
        let label =
            ferrule_kit::owner::label(&Attachment { network: "gone", container_id: name, ifname: "eth0" });
        Planted::Rules(format!("add element inet cni_firewall pods4 {{ {address} comment \"{label}\" }}\n"))
    }),
    ("mac spoof check", |name, _| {
        let chain = format!("cni-br-iface-{name}-eth0");
        let comment = format!("comment \"macspoofchk-{name}-eth0\"");
        Planted::Rules(format!(
            "add chain bridge nat {chain}\nadd chain bridge nat {chain}-mac\n\
            add rule bridge nat {chain} jump {chain}-mac {comment}\nadd rule bridge nat {chain}-mac drop {comment}\n\
            add rule bridge nat PREROUTING iifname gone jump {chain} {comment}\n"
        ))
    }),
    ("ifb", |name, n| {
        let alias = format!("bandwidth network=gone container={name} ifname=eth0 veth=9{n} hook=made");
        Planted::Links(format!("link add bwp{n:012x} type ifb\nlink set bwp{n:012x} alias \"{alias}\"\n"))
    }),
    ("tuning backup", |name, _| {
        Planted::File(format!("/run/cni/tuning/{name}_eth0.json"), json!({"mtu": 1500}))
    }),
    ("flannel state", |name, _| {
        Planted::File(format!("/var/lib/cni/flannel/{name}"), json!({"name": "gone", "type": "bridge"}))
    }),
    ("lease", |name, n| {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 216, 0, 0)) + n);
        let lease = json!({"key": {"network": "gone", "containerId": name, "ifname": "eth0"},
            "lease": {"address": address.to_string()}, "sandbox": {"path": "/run/netns/gone"}});
        Planted::File(format!("/run/cni/dhcp.leases/{name}:eth0:gone"), lease)
    }),
    ("device", |name, n| {
        let state = json!({"network": "gone", "containerId": name, "ifname": "eth0", "netns": "/run/netns/gone",
            "name": format!("dev{n}"), "kind": "dummy"});
        Planted::File(format!("/run/cni/host-device/{name}:eth0.json"), state)
    }),
    ("undecided", |name, n| {
        // As a ruleset that was restored from text has them.
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 217, 0, 0)) + n);
        Planted::Rules(format!(
            "add element inet ferrule_pods ingress4 {{ {address} comment \"{name}\" }}\n\
             add element inet ferrule_pods egress4 {{ {address} comment \"{name}\" }}\n"
        ))
    }),
];

/// How one is planted: a line of nft, lines of `ip -batch`, or a file with its content.
enum Planted {
    Rules(String),
    Links(String),
    File(String, Value),
}

/// A leak of this container, with a number.
type Plant = fn(&str, u32) -> Planted;

/// Leaves so many leaks of a kind.
fn plant_kind(f: &Fixture, kind: &str, plant: Plant, count: u32) {
    let (mut rules, mut links, mut files) = (String::new(), String::new(), Vec::new());
    for n in 0..count {
        match plant(&format!("budget-{}-{n}", kind.replace(' ', "-")), n) {
            Planted::Rules(line) => rules += &line,
            Planted::Links(lines) => links += &lines,
            Planted::File(path, content) => files.push((path, content)),
        }
    }
    f.node.write_file("/run/planted.nft", &rules).unwrap();
    f.node.write_file("/run/planted.ip", &links).unwrap();
    f.node.sh("nft -f /run/planted.nft; ip -batch /run/planted.ip").unwrap();
    let write = || files.iter().try_for_each(|(path, content)| std::fs::write(path, content.to_string()));
    f.node.run(write).unwrap().unwrap();
}

/// A node with a living container, and with the tables and folders of all kinds.
fn with_kinds() -> (Fixture, Container) {
    let f = Fixture::new();
    let living = f.add(Origin::Ours, "inspect-budget-kinds", 18703);
    f.node
        .sh("nft 'add table ip cni_hostport; add chain ip cni_hostport hostports; add table inet ferrule_pods; \
            add set inet ferrule_pods ingress4 {type ipv4_addr;}; add set inet ferrule_pods egress4 {type ipv4_addr;}'
            mkdir -p /var/lib/cni/flannel /run/cni/dhcp.leases /run/cni/host-device")
        .unwrap();
    (f, living)
}

/// How often the ruleset has changed.
fn changes(f: &Fixture) -> u32 {
    let mut socket = f.node.run(|| ferrule_kernel::netlink::Socket::netfilter().unwrap()).unwrap();
    let said = format!("{:?}", ferrule_kernel::nftables::generation(&mut socket).unwrap());
    said.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

/// Each change costs what a look at the node costs: the plugin asks before it.
#[test]
fn leaks_of_a_kind_share_a_look_and_a_change() {
    const EACH: u32 = 30;
    let (f, living) = with_kinds();
    // The kernel needs seconds to make many links.
    let kinds = || KINDS.into_iter().filter(|(kind, _)| *kind != "ifb");
    for (kind, plant) in kinds() {
        plant_kind(&f, kind, plant, EACH);
    }
    // A rule of another program leads to one of the chains: the kernel keeps this one, and no other.
    f.node.sh("nft 'add chain bridge nat other; add rule bridge nat other jump cni-br-iface-budget-mac-spoof-check-27-eth0'").unwrap();
    let leaks = f.leaks();
    for (kind, _) in kinds() {
        // Without a label an object names no container.
        let of_kind = [format!("{kind} budget-"), format!("{kind} - ")];
        let found =
            leaks.iter().filter(|leak| of_kind.iter().any(|of_kind| leak.starts_with(of_kind))).count();
        assert_eq!(found, EACH as usize, "{kind}: {leaks:#?}");
    }
    let before = changes(&f);
    // Each look at the node lists the cached results.
    let mut strace = Command::new("strace");
    strace.args(["-o", "/run/looks", "-e", "trace=?open,openat", "-P", "/var/lib/cni/results", PROGRAM]);
    let output = f.node.exec(strace.args(f.words("gc --yes").split(' ')).env_remove("CNI_COMMAND")).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let changed = changes(&f) - before;
    let looks = f.node.sh("grep -c results /run/looks").unwrap();
    assert!(
        said.contains("cannot remove mac spoof check port gone of container budget-mac-spoof-check-27"),
        "{said}"
    );
    let all = EACH * u32::try_from(kinds().count()).unwrap();
    assert!(said.contains(&format!("{} of {all} leaks removed", all - 1)), "{said}");
    // The refused chain is in the share of the last five, which are then removed one by one.
    assert!(changed < EACH, "{changed} changes: {said}");
    assert!((2..EACH).contains(&looks.trim().parse().unwrap()), "{looks} looks: {said}");
    f.node.sh("nft flush chain bridge nat other").unwrap();
    f.says("gc --yes");
    assert_eq!(f.leaks(), Vec::<String>::new());
    f.runtime(Origin::Ours).check(&network(Origin::Ours), &living.attachment).unwrap();
}

/// Prints the figures that operator/inspect/README.md has. Measures the static program.
#[test]
#[ignore = "benchmark: cargo test -p ferrule --test inspect speed_of_each_kind -- --ignored --nocapture"]
fn speed_of_each_kind() {
    let (f, _living) = with_kinds();
    for (kind, plant) in KINDS {
        plant_kind(&f, kind, plant, 5000);
        time_gc(&f, kind);
    }
}

/// Prints how long gc takes, how much processor time, and its last line.
pub(crate) fn time_gc(f: &Fixture, kind: &str) {
    let program = bin_dir().unwrap().join("ferrule");
    let gc = f.words("gc --yes");
    let script =
        format!("{} {gc} >/run/said; times >/run/times; tail -qn 1 /run/said /run/times", program.display());
    let start = Instant::now();
    let said = f.node.sh(&script).unwrap();
    println!("{kind}: {:?}; {}", start.elapsed(), said.trim().replace('\n', "; "));
}
