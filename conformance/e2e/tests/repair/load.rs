//! Pods come and go while repair, gc, check and shape run in a loop, beside containers that try to hold these up.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::testing::{ips_of, serve};
use cni_lab::{Background, Place as _};
use cni_runner::Attachment;
use serde_json::json;

use super::PORT;
use super::world::{Running, World, sleep};

/// How many pods come and go.
const PODS: usize = 200;
/// How many at once.
const WORKERS: usize = 4;
/// No command may take longer. On an idle machine each takes less than a second; a command that waits for a hostile container
/// takes a minute.
const LONGEST: Duration = Duration::from_secs(30);

/// What hostile containers run, with `eth0` attached: names and shell scripts.
const HOSTILE: [(&str, &str); 7] = [
    ("load-poses", "CNI_CONTAINERID=load-poses CNI_COMMAND=DEL exec sleep infinity"),
    (
        "load-routes",
        "awk 'BEGIN { for (i = 0; i < 20000; i++) printf \"route add 172.16.%d.%d/32 dev eth0\\n\", i / 256, i % 256 }' | \
            ip -force -batch -; exec sleep infinity",
    ),
    (
        "load-addresses",
        "while :; do printf 'addr add 172.31.0.1/32 dev eth0\\naddr del 172.31.0.1/32 dev eth0\\n'; done | ip -force -batch -",
    ),
    ("load-down", "while :; do ip link set eth0 down; sleep 0.05; done"),
    ("load-forks", "while :; do (exec -a \"$(printf 'bridge\\033[2J')\" true); done"),
    (
        "load-thread",
        "exec python3 -c 'import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)'",
    ),
    // Much and odd of what needs no time of a processor.
    (
        "load-odd",
        "mount -t tmpfs odd /mnt
for i in $(seq 200); do d=$(printf '/mnt/odd-%d-\\377' $i); mkdir \"$d\"; mount -t tmpfs odd \"$d\"; done
for i in $(seq 100); do ip link property add dev eth0 altname odd$i; done
ip link set eth0 alias \"$(printf 'host-device\\033[2J')\"; ip link add veth0 type dummy; ip link add br-pods type bridge
sysctl -q -w net.ipv4.conf.eth0.rp_filter=1 net.ipv4.ip_forward=0 net.ipv6.conf.eth0.disable_ipv6=1
printf 'table inet cni_portmap {\\n chain c { type filter hook input priority 0; policy drop; }\\n }\\n' | nft -f -
for i in $(seq 2000); do echo \"add rule inet cni_portmap c ip saddr 10.0.0.1 accept comment load-$i\"; done | nft -f -
export CNI_COMMAND=ADD $(for i in $(seq 2000); do echo ODD_$i=load-$i; done)
exec python3 -c 'import threading, time
for n in range(200): threading.Thread(target=time.sleep, args=(600,)).start()' $(seq 1 20000)",
    ),
];

/// What the operator runs meanwhile.
const COMMANDS: [&str; 6] = [
    "repair --yes",
    "gc --yes",
    "check",
    "shape load-steady --ingress 10M",
    "inspect pods",
    "report --output -",
];

/// The addresses of the pods that exist, and who has them.
type Held = Mutex<BTreeMap<String, String>>;

#[test]
fn pods_come_and_go_beside_hostile_ones() {
    let world =
        World::with(&json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000}));
    let before = world.snapshot();
    serve(&world.outside, "outside", PORT);
    let mut steady = world.start("load-steady", 8100);
    let mut hostile: Vec<(Running, Background)> = (8101..)
        .zip(HOSTILE)
        .map(|(port, (name, script))| {
            let running = world.add(name, port);
            // A PID namespace of its own, so that all of its processes end with the first.
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child"]);
            // It keeps the namespaces alive that are mounted now.
            command.args((name == "load-odd").then_some("--mount"));
            command.args(["bash", "-c", script]);
            let process = running.pod.spawn(command).unwrap();
            (running, process)
        })
        .collect();
    // Any user with a FUSE mount can choose such a name.
    world.node.sh("d=$(printf '/run/odd-\\377'); mkdir \"$d\"; mount -t tmpfs odd \"$d\"").unwrap();

    let (held, next, over) = (Held::default(), AtomicUsize::new(0), AtomicBool::new(false));
    let crashed = thread::scope(|scope| {
        let commands = COMMANDS.map(|words| scope.spawn(|| repeat(&world, words, &over)));
        let workers = [(); WORKERS].map(|()| {
            scope.spawn(|| {
                let mut crashed = Vec::new();
                while let number @ ..PODS = next.fetch_add(1, Ordering::Relaxed) {
                    crashed.extend(live(&world, number, &held));
                }
                crashed
            })
        });
        let ended = workers.map(thread::ScopedJoinHandle::join);
        over.store(true, Ordering::Relaxed);
        for (words, command) in COMMANDS.iter().zip(commands) {
            let (times, longest) = command.join().unwrap();
            println!("{words}: {times} times, at most {longest:?}");
            assert!(times > 0 && longest < LONGEST, "{words} took {longest:?}");
        }
        ended.map(Result::unwrap).concat()
    });

    world.assert_traffic(&steady);
    world.check(&steady).unwrap();
    while let Some((mut running, process)) = hostile.pop() {
        drop(process);
        world.end(&mut running);
    }
    world.end(&mut steady);
    world.node.sh("umount /run/odd-*; rmdir /run/odd-*").unwrap();
    world.ferrule("gc --yes");
    for attachment in crashed {
        let left = world
            .node
            .sh(&format!("grep -rl {} /var/lib/cni/networks || true", attachment.container_id))
            .unwrap();
        assert_eq!(left, "", "gc has left an address");
        world.runtime().del(&world.network, &attachment).unwrap();
    }
    world.assert_no_leftovers(&before, "after the load");
}

/// Runs the command until the end. Its status says what a hostile container has done to itself, so it does not count.
fn repeat(world: &World, words: &str, over: &AtomicBool) -> (usize, Duration) {
    let (mut times, mut longest) = (0, Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let (_, said) = world.ferrule_in("\"$@\"", words);
        longest = longest.max(began.elapsed());
        times += 1;
        for foreign in ["\x1b", "nothing is removed", "nothing is repaired", "Usage:"] {
            assert!(!said.contains(foreign), "{words}: {said}");
        }
    }
    (times, longest)
}

/// A pod's life. Each fifth one ends without DEL, so that gc has something to remove: its attachment.
fn live(world: &World, number: usize, held: &Held) -> Option<Attachment> {
    let name = format!("load-{number}");
    let pod = world.node.pod(&name).unwrap();
    let attachment = pod.attachment("eth0");
    let ips = ips_of(&world.runtime().add(&world.network, &attachment).unwrap());
    for ip in &ips {
        let other = held.lock().unwrap().insert(ip.clone(), name.clone());
        assert_eq!(other, None, "{ip} of {name} is in use");
    }
    let process = Some(pod.spawn(sleep()).unwrap());
    let mut running = Running { pod, attachment, port: 0, process };
    assert_eq!(world.check(&running), Ok(()), "{name}");
    held.lock().unwrap().retain(|_, holder| *holder != name);
    if !number.is_multiple_of(5) {
        world.end(&mut running);
        return None;
    }
    running.process = None;
    running.pod.delete().unwrap();
    Some(running.attachment)
}
